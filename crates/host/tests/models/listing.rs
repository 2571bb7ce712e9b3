//! New folios, which a fault lists for reclaim, against what frees them.

use crate::machines::*;
use quire_frame::Kind;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

const HUGE: VirtAddr = VirtAddr(1 << 40);

/// A write fault maps a folio of 2 MiB by one leaf while another thread drops the contents, and the kernel
/// gets the frames. Only a program's memory may be on an LRU list.
fn a_huge_fault_against_dontneed(of_zeros: bool) -> impl SpaceModel {
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
        let order = Order::new(9).expect("an order");
        let kernel = machine.memory().kernel_frames();
        let mut blocks = Vec::new();
        let done = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                as_cpu(machine, 0, || space.fault(HUGE, Access::Write)).expect("mapped");
                done.tell();
            });
            scope.spawn(|| {
                as_cpu(machine, 1, || {
                    while space.figures().resident == 0 && !done.is_told() {
                        thread::yield_now();
                    }
                    space.madvise(HUGE, MIB2, Advice::DontNeed).expect("cannot fail");
                    as_one_step(|| blocks.extend(std::iter::from_fn(|| kernel.allocate(order).ok())));
                });
            });
        });
        as_one_step(|| {
            machine.memory().frames().for_each_frame(|pfn, frame| {
                let flags = frame.word().flags();
                assert!(
                    frame.kind() != Kind::Kernel || flags.is_empty(),
                    "the kernel's {pfn:?} has {flags:?}"
                );
            });
            for block in blocks.drain(..) {
                // SAFETY: allocated above.
                unsafe { kernel.free(block, order) }.expect("it is a block of the kernel");
            }
        });
    }
}

/// Hazard: a folio is put on an LRU list after it was unmapped and freed.
#[test]
fn shuttle_a_huge_fault_against_dontneed() {
    with_swap(2).mib(8).check(SOME, a_huge_fault_against_dontneed(false));
}

/// The same where the folio takes the place of the huge zero page.
#[test]
fn shuttle_a_write_to_huge_zeros_against_dontneed() {
    with_swap(2).mib(8).check(SOME, a_huge_fault_against_dontneed(true));
}
