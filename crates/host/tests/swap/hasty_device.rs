//! A device that completes later, but so early that another CPU reaps its completions before it has said that
//! it begins.

use crate::common::*;
use quire_frame::FrameFlags;
use quire_swap::{DeviceError, DeviceFlags, DeviceMemory, PageIo, RamDisk, Submitted, SwapDevice};
use std::sync::{Mutex, OnceLock};

/// Such a device. The machine is the one that it is used on.
struct Hasty {
    disk: RamDisk<HostPlatform>,
    machine: &'static OnceLock<Machine>,
    done: Mutex<Vec<(PageIo, Result<(), DeviceError>)>>,
}

impl SwapDevice<HostPlatform> for Hasty {
    fn kind(&self) -> &'static str {
        "hasty"
    }

    fn slots(&self) -> u64 {
        self.disk.slots()
    }

    fn flags(&self) -> DeviceFlags {
        self.disk.flags() - DeviceFlags::SYNCHRONOUS
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, HostPlatform>, io: PageIo) -> Submitted {
        // SAFETY: the caller's promise.
        let Submitted::Done(result) = (unsafe { self.disk.submit(memory, io) }) else {
            return Submitted::Done(Err(DeviceError::Io));
        };
        self.done.lock().unwrap().push((io, result));
        self.machine.get().unwrap().memory().swap().io().reap();
        Submitted::Begun
    }

    fn reap(&self, _: DeviceMemory<'_, HostPlatform>, done: &mut dyn FnMut(PageIo, Result<(), DeviceError>)) {
        let all = std::mem::take(&mut *self.done.lock().unwrap());
        all.into_iter().for_each(|(io, result)| done(io, result));
    }

    fn freed(&self, memory: DeviceMemory<'_, HostPlatform>, slot: u64, count: u64) {
        self.disk.freed(memory, slot, count);
    }

    fn close(&self, memory: DeviceMemory<'_, HostPlatform>) {
        self.disk.close(memory);
    }
}

/// Hazard: a write has ended when reclaim marks its folio as one that is to be freed then. The mark stays,
/// and the end of the next write moves a folio that is in use to the end of its list.
#[test]
fn a_folio_whose_write_has_ended_gets_no_mark_for_its_end() {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    let machine = MACHINE.get_or_init(|| Setup::mib(16).build());
    let disk = RamDisk::new(machine.memory().frames(), 64).unwrap();
    let device = Hasty { disk, machine: &MACHINE, done: Mutex::default() };
    machine.memory().swapon(device, SwapOnOptions::default()).unwrap();
    let (cpu, space) = (machine.vcpu(0).unwrap(), create_space(machine));
    let area = map_at(&space, GIB, 8 * PAGE, RW);
    (0..8).for_each(|at| cpu.program(&space).write_u64(page(area, at), at + 1).unwrap());
    space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
    let frames = machine.memory().frames();
    let with =
        |flag| frames.map().iter().filter(move |(_, frame)| frame.word().flags().contains(flag)).count();
    assert_eq!(with(FrameFlags::SWAP_CACHE), 8, "they were not freed at once");
    assert_eq!((with(FrameFlags::WRITEBACK), with(FrameFlags::RECLAIM)), (0, 0));
    (0..8).for_each(|at| assert_eq!(cpu.program(&space).read_u64(page(area, at)), Ok(at + 1)));
}
