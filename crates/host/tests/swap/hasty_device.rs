//! A device that completes later, but so early that another CPU reaps its completions before it has said that
//! it begins.

use crate::common::*;
use crate::watched::{Calls, DeviceOf, Report, Watched};
use quire_frame::FrameFlags;
use quire_host::swap::HostRam;
use std::sync::{Mutex, OnceLock};

static MACHINE: OnceLock<Machine> = OnceLock::new();

/// The requests that are done, on [`MACHINE`].
#[derive(Default)]
struct Hasty(Mutex<Vec<(PageIo, Result<(), DeviceError>)>>);

impl Calls for Hasty {
    fn after(&self, io: PageIo, result: Submitted) -> Submitted {
        let Submitted::Done(result) = result else { return result };
        self.0.lock().unwrap().push((io, result));
        reap(MACHINE.get().unwrap(), 1);
        Submitted::Begun
    }

    fn reap(&self, _: &HostRam, _: DeviceOf<'_>, _: usize, done: Report<'_>) {
        let all = std::mem::take(&mut *self.0.lock().unwrap());
        all.into_iter().for_each(|(io, result)| done(io, result));
    }
}

/// Hazard: a write has ended when reclaim marks its folio as one that is to be freed then. The mark stays,
/// and the end of the next write moves a folio that is in use to the end of its list.
#[test]
fn a_folio_whose_write_has_ended_gets_no_mark_for_its_end() {
    let machine = MACHINE.get_or_init(|| Setup::mib(16).build());
    swap_on(machine, Watched::<Hasty>::new(64, DeviceFlags::empty()).0);
    let (cpu, space) = (machine.vcpu(0).unwrap(), create_space(machine));
    let area = map_filled(&cpu, &space, GIB, 8, 1);
    space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
    let frames = machine.memory().frames();
    let with =
        |flag| frames.map().iter().filter(move |(_, frame)| frame.word().flags().contains(flag)).count();
    assert_eq!(with(FrameFlags::SWAP_CACHE), 8, "they were not freed at once");
    assert_eq!((with(FrameFlags::WRITEBACK), with(FrameFlags::RECLAIM)), (0, 0));
    assert_filled(&cpu, &space, area, 0..8, 1);
}
