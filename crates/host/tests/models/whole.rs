//! A folio of the PMD order is swapped in whole: one insertion and one store for 512 slots, against faults
//! on, and unmaps of, a part of it.

use crate::common::{HostSpace, PAGE, RW, map_at, page};
use crate::harness::{Fact, check_some, on_cpu};
use crate::swap_machine::*;
use quire_arch::VirtAddr;
use quire_host::Machine;
use quire_mm::{frame::VmEvent, space::Advice};
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::mem::ManuallyDrop;

/// Each schedule fills and pages out 2 MiB.
const FEWER: u64 = 150;
const BLOCK: VirtAddr = VirtAddr(1 << 40);
const PMD: u64 = 2 << 20;

fn machine(cpus: usize) -> Swapping {
    Swapping::on(cpus).mib(12).slots(1024)
}

/// Pages of it that are written to and looked at.
fn at(nth: u64) -> VirtAddr {
    page(BLOCK, nth)
}

/// Maps the folio, writes to some pages, and pages it out.
fn out(machine: &Machine, space: &HostSpace<'_>) {
    as_one_step(|| {
        map_at(space, BLOCK.0, PMD, RW);
        space.madvise(BLOCK, PMD, Advice::HugePage).expect("the mapping is there");
        for nth in [1, 5, 9] {
            write(machine, 0, space, at(nth), 10 + nth);
        }
        page_out(space, BLOCK, PMD);
        assert_eq!(space.figures().swapped, PMD, "the folio is not out");
    });
    assert_eq!(count(machine, VmEvent::Pswpout), 512, "it did not go whole");
}

/// A part is unmapped, or all of it, while all of it is swapped in.
#[test]
fn shuttle_a_whole_swap_in_against_the_unmapping_of_its_pages() {
    for pages in [8, 512] {
        check_some(FEWER, move || {
            machine(3).run(|machine, space| {
                out(machine, space);
                let gone = Fact::default();
                thread::scope(|scope| {
                    scope.spawn(|| {
                        let late = gone.is_told();
                        let seen = read(machine, 0, space, at(9));
                        assert!(seen == 19 && !(late && pages == 512) || seen == 0 && pages == 512, "{seen}");
                    });
                    scope.spawn(|| {
                        on_cpu(machine, 1, space, |program| {
                            space.madvise(BLOCK, pages * PAGE, Advice::DontNeed).expect("mapped");
                            gone.tell();
                            assert_eq!(program.read_u64(at(5)), Ok(0));
                        });
                    });
                    scope.spawn(|| {
                        let late = gone.is_told();
                        let seen = read(machine, 2, space, at(1));
                        assert!(seen == 11 && !late || seen == 0, "{seen}");
                    });
                });
                let kept = if pages == 512 { 0 } else { 19 };
                let seen = as_one_step(|| [1, 5, 9].map(|nth| read(machine, 0, space, at(nth))));
                assert_eq!(seen, [0, 0, kept]);
            });
        });
    }
}

/// The parent gets it whole. The child, which has not all of it any more, faults on one page.
#[test]
fn shuttle_a_whole_swap_in_against_one_page_in_a_child() {
    check_some(FEWER, || {
        machine(3).run(|machine, space| {
            out(machine, space);
            let child = fork(space);
            as_one_step(|| child.madvise(BLOCK, PAGE, Advice::DontNeed)).expect("mapped");
            thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!(read(machine, 0, space, at(5)), 15);
                    write(machine, 0, space, at(5), 25);
                    assert_eq!(read(machine, 0, space, at(5)), 25, "a lost write");
                });
                scope.spawn(|| {
                    assert_eq!(read(machine, 1, &child, at(5)), 15, "the parent's write");
                    write(machine, 1, &child, at(5), 35);
                    assert_eq!(read(machine, 1, &child, at(5)), 35, "a lost write");
                });
                scope.spawn(|| reclaim(machine, 2));
            });
            as_one_step(|| {
                assert_eq!([1, 5, 9].map(|nth| read(machine, 0, space, at(nth))), [11, 25, 19]);
                assert_eq!([0, 1, 5, 9].map(|nth| read(machine, 1, &child, at(nth))), [0, 11, 35, 19]);
                drop(ManuallyDrop::into_inner(child));
            });
        });
    });
}

/// swapoff reads page by page what a fault reads whole.
#[test]
fn shuttle_a_whole_swap_in_against_swapoff() {
    check_some(FEWER / 5, || {
        machine(2).run(|machine, space| {
            out(machine, space);
            thread::scope(|scope| {
                scope.spawn(|| {
                    write(machine, 0, space, at(5), 25);
                    assert_eq!(read(machine, 0, space, at(9)), 19);
                });
                scope.spawn(|| on_cpu(machine, 1, space, |_| swap_off(machine)).expect("memory holds it"));
            });
            as_one_step(|| {
                assert_eq!(space.figures().swapped, 0);
                assert_eq!([1, 5, 9].map(|nth| read(machine, 0, space, at(nth))), [11, 25, 19]);
            });
        });
    });
}
