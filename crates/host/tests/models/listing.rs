//! New folios of 2 MiB, which a fault lists for reclaim, against what may unmap them.

use crate::machines::*;
use quire_frame::{FrameFlags, Kind};
use quire_sync::atomic::as_one_step;
use shuttle::thread;

const HUGE: VirtAddr = VirtAddr(1 << 40);

/// Asserts that the anonymous memory, one folio that is mapped, is on an LRU list, or a CPU's list of what is
/// on its way there.
fn assert_listed(machine: &Machine) {
    machine.memory().frames().audit().for_each_frame(|pfn, frame| {
        let flags = frame.word().flags();
        assert!(
            frame.kind() != Kind::Anonymous || flags.contains(FrameFlags::LRU),
            "{pfn:?} is mapped, no lock is held, and it is on no list"
        );
    });
}

/// A write fault maps a folio of 2 MiB by one leaf while another thread takes the lock of the leaf's table. A
/// call that took it to unmap the folio would free it; so the folio has to be on a list by then.
fn a_huge_fault_against_its_tables_lock(of_zeros: bool) -> impl SpaceModel {
    move |machine: &Machine, space: &HostSpace<'_>| {
        as_one_step(|| {
            map_huge(space, HUGE);
            // The mapping has its anon_vma, so that the fault takes no mmap lock.
            write(machine, 1, space, HUGE, 1);
            assert_eq!(space.figures().resident, MIB2, "a large folio");
            space.madvise(HUGE, MIB2, Advice::DontNeed).expect("cannot fail");
            if of_zeros {
                assert_eq!(read(machine, 1, space, HUGE), 0);
            }
        });
        let done = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                as_cpu(machine, 0, || space.fault(HUGE, Access::Write)).expect("mapped");
                done.tell();
            });
            scope.spawn(|| {
                as_cpu(machine, 1, || {
                    let mut seen = false;
                    while !seen && !done.is_told() {
                        thread::yield_now();
                        // It is counted before it is mapped.
                        if as_one_step(|| space.figures().resident == 0) {
                            continue;
                        }
                        // Its visitor is called right after it has dropped the lock.
                        space.mappings().pagemap(
                            VirtRange::new(HUGE, VirtAddr(HUGE.0 + PAGE)),
                            |_, state| {
                                if state == PageState::Anonymous {
                                    as_one_step(|| assert_listed(machine));
                                    seen = true;
                                }
                            },
                        );
                    }
                });
            });
        });
    }
}

/// Hazard: a folio is put on an LRU list after it was unmapped and freed.
#[test]
fn shuttle_a_huge_fault_against_its_tables_lock() {
    with_swap(2).mib(8).check(FEW, a_huge_fault_against_its_tables_lock(false));
}

/// The same where the folio takes the place of the huge zero page.
#[test]
fn shuttle_a_write_to_huge_zeros_against_its_tables_lock() {
    with_swap(2).mib(8).check(FEW, a_huge_fault_against_its_tables_lock(true));
}
