//! Reclaim beside memcgs that come and go.

use crate::common::*;
use crate::watched::{Calls, DeviceOf, Watched};
use std::sync::Mutex;

/// The first word of a page that cannot be written.
const UNWRITABLE: u64 = 1;

/// A memcg that another one replaces at each write that fails.
struct Newest {
    machine: &'static Machine,
    memcg: MemcgId,
    made: u32,
}

impl Newest {
    /// The next one comes, and the last one is gone.
    fn replace(&mut self) {
        let memcgs = self.machine.memory().memcgs();
        self.made += 1;
        let next = memcgs.lifecycle().create(MemcgId::ROOT, &format!("newest-{}", self.made)).unwrap();
        memcgs.lifecycle().remove(self.memcg).unwrap();
        (0..3).for_each(|_| memcgs.lifecycle().sweep());
        self.memcg = next;
    }
}

#[derive(Default)]
struct Churning(Mutex<Option<Newest>>);

impl Calls for Churning {
    fn before(&self, memory: DeviceOf<'_>, io: PageIo) -> Option<Submitted> {
        // SAFETY: the frame is in RAM as long as the request lasts.
        let word = unsafe { memory.platform().direct_map(io.pfn).cast::<u64>().read_volatile() };
        (io.direction == Direction::Write && word == UNWRITABLE).then(|| {
            if let Some(newest) = &mut *self.0.lock().unwrap() {
                newest.replace();
            }
            Submitted::Done(Err(DeviceError::Io))
        })
    }
}

/// Hazard: the memcg that comes next is gone after the scan of the one before it, and those behind are never
/// reached.
#[test]
fn memcgs_that_come_and_go_do_not_keep_reclaim_from_the_others() {
    const PAGES: u64 = 512;
    let machine: &'static Machine = Box::leak(Box::new(Setup::mib(16).reserve().overcommit().build()));
    let (device, churning) = Watched::<Churning>::new(4 * PAGES, DeviceFlags::SYNCHRONOUS);
    swap_on(machine, device);
    let cpu = machine.vcpu(0).unwrap();
    let (first, old) = (create_space(machine), create_space(machine));
    map_filled(&cpu, &first, GIB, 1, UNWRITABLE);
    let memcg = machine.memory().create_memcg(MemcgId::ROOT, "old").unwrap();
    old.set_memcg(memcg).unwrap();
    let area = map_filled(&cpu, &old, GIB, PAGES, 100);
    let memcgs = machine.memory().memcgs();
    let one = memcgs.lifecycle().create(MemcgId::ROOT, "newest").unwrap();
    *churning.0.lock().unwrap() = Some(Newest { machine, memcg: one, made: 0 });
    let size = (PAGES / 2 * PAGE).to_string();
    assert_eq!(machine.memory().write_memcg_file(MemcgId::ROOT, "memory.reclaim", &size), Ok(None));
    assert!(churning.0.lock().unwrap().as_ref().is_some_and(|newest| newest.made > 1), "none came and went");
    assert_filled(&cpu, &old, area, 0..PAGES, 100);
    assert_audit(machine);
}
