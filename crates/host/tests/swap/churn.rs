//! Reclaim beside memcgs that come and go.

use crate::common::*;
use crate::disk::Disk;
use quire_mm::swap::{DeviceError, DeviceFlags, DeviceMemory, Direction, PageIo, Submitted, SwapDevice};
use std::sync::{Arc, Mutex};

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

struct Churning {
    disk: Disk,
    newest: Arc<Mutex<Option<Newest>>>,
}

impl<P: Platform> SwapDevice<P> for Churning {
    fn kind(&self) -> &'static str {
        "churning"
    }

    fn slots(&self) -> u64 {
        SwapDevice::<P>::slots(&self.disk)
    }

    fn flags(&self) -> DeviceFlags {
        SwapDevice::<P>::flags(&self.disk)
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted {
        // SAFETY: the frame is in RAM as long as the request lasts.
        let word = unsafe { memory.platform().direct_map(io.pfn).cast::<u64>().read_volatile() };
        if io.direction == Direction::Write && word == UNWRITABLE {
            if let Some(newest) = &mut *self.newest.lock().unwrap() {
                newest.replace();
            }
            return Submitted::Done(Err(DeviceError::Io));
        }
        // SAFETY: the caller's promise.
        unsafe { self.disk.submit(memory, io) }
    }

    fn freed(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        self.disk.freed(memory, slot, count);
    }
}

/// Hazard: the memcg that comes next is gone after the scan of the one before it, and those behind are never
/// reached.
#[test]
fn memcgs_that_come_and_go_do_not_keep_reclaim_from_the_others() {
    const PAGES: u64 = 512;
    let machine: &'static Machine = Box::leak(Box::new(Setup::mib(16).reserve().overcommit().build()));
    let newest = Arc::default();
    let device = Churning { disk: Disk::new(4 * PAGES).0, newest: Arc::clone(&newest) };
    machine.memory().swapon(device, SwapOnOptions::default()).unwrap();
    let cpu = machine.vcpu(0).unwrap();
    let (first, old) = (create_space(machine), create_space(machine));
    let page = map_at(&first, GIB, PAGE, RW);
    fill(&cpu, &first, page, 0..1, UNWRITABLE);
    let memcg = machine.memory().create_memcg(MemcgId::ROOT, "old").unwrap();
    old.set_memcg(memcg).unwrap();
    let area = map_at(&old, GIB, PAGES * PAGE, RW);
    fill(&cpu, &old, area, 0..PAGES, 100);
    let memcgs = machine.memory().memcgs();
    let one = memcgs.lifecycle().create(MemcgId::ROOT, "newest").unwrap();
    *newest.lock().unwrap() = Some(Newest { machine, memcg: one, made: 0 });
    let size = (PAGES / 2 * PAGE).to_string();
    assert_eq!(machine.memory().write_memcg_file(MemcgId::ROOT, "memory.reclaim", &size), Ok(()));
    assert!(newest.lock().unwrap().as_ref().is_some_and(|newest| newest.made > 1), "none came and went");
    assert_filled(&cpu, &old, area, 0..PAGES, 100);
    assert_audit(machine);
}
