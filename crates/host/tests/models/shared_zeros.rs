//! Pages of zeros of a folio that is split, which the zero page replaces: against writes, pins, forks and
//! unmaps. The splitter reads their contents in one step of the model; between that and the change of the
//! entry the others run.

use crate::common::{HostSpace, NOT_MAPPED, PAGE, RW, map_at, page};
use crate::harness::on_cpu;
use crate::swap_machine::*;
use quire_arch::{Access, Order, VirtAddr};
use quire_host::Machine;
use quire_mm::space::Advice;
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::mem::ManuallyDrop;

/// The second page of the folio, which is all zeros, and another word of it.
const ZEROS: VirtAddr = VirtAddr(FOUR.0 + PAGE);
const SECOND: VirtAddr = VirtAddr(ZEROS.0 + 8);

/// Maps a folio of four pages. The first one is written to; the second holds zeros, and CPU 0 has a writable
/// translation of it, from a write of zero.
fn folio(machine: &Machine, space: &HostSpace<'_>) {
    as_one_step(|| {
        small_folios(machine);
        map_at(space, FOUR.0, 4 * PAGE, RW);
        write(machine, 0, space, FOUR, 10);
        write(machine, 0, space, ZEROS, 0);
    });
}

/// Splits the folio, as CPU `cpu`. That may fail while others use it.
fn split(machine: &Machine, cpu: usize, space: &HostSpace<'_>) {
    let _ = on_cpu(machine, cpu, space, |_| space.split_folio(FOUR, Order::ZERO));
}

/// Pages that were never written to share the zero page: only so many pages are the program's. A split that
/// failed is repeated now.
fn assert_pages(machine: &Machine, cpu: usize, space: &HostSpace<'_>, pages: u64) {
    as_one_step(|| {
        split(machine, cpu, space);
        assert_eq!(space.figures().resident, pages * PAGE, "pages of the program's own");
    });
}

/// One CPU writes by its old translation, one by a fault.
#[test]
fn shuttle_zeros_are_shared_beside_writes() {
    Swapping::on(3).slots(0).check(SOME, |machine, space| {
        folio(machine, space);
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(machine, 0, space, |program| {
                    for value in 1..4 {
                        program.write_u64(ZEROS, value).expect("mapped");
                        assert_eq!(program.read_u64(ZEROS), Ok(value), "a lost write");
                    }
                });
            });
            scope.spawn(|| split(machine, 1, space));
            scope.spawn(|| {
                write(machine, 2, space, SECOND, 6);
                assert_eq!(read(machine, 2, space, SECOND), 6, "a lost write");
            });
        });
        let seen = as_one_step(|| [FOUR, ZEROS, SECOND].map(|addr| read(machine, 0, space, addr)));
        assert_eq!(seen, [10, 3, 6], "a write is lost");
        assert_pages(machine, 0, space, 2);
    });
}

/// A device that pinned a page of zeros writes to it: the program reads that.
#[test]
fn shuttle_zeros_are_shared_beside_a_fast_pin() {
    Swapping::on(3).slots(0).check(SOME, |machine, space| {
        folio(machine, space);
        let mut pinned = None;
        thread::scope(|scope| {
            scope.spawn(|| {
                pinned = on_cpu(machine, 0, space, |_| space.pin_page_fast(ZEROS, Access::Write));
                if let Some(pinned) = &pinned {
                    device_writes(machine, pinned, 7);
                    assert_eq!(read(machine, 0, space, ZEROS), 7, "the program lost a page that is pinned");
                }
            });
            scope.spawn(|| split(machine, 1, space));
            scope.spawn(|| {
                let seen = read(machine, 2, space, ZEROS);
                assert!(seen == 0 || seen == 7, "{seen}");
            });
        });
        as_one_step(|| {
            let expected = if pinned.is_some() { 7 } else { 0 };
            assert_eq!(read(machine, 0, space, ZEROS), expected, "the program lost a page that is pinned");
            if let Some(pinned) = &pinned {
                write(machine, 0, space, ZEROS, 8);
                assert_eq!(device_reads(machine, pinned), 8, "the program got a copy of a pinned page");
            }
            drop(pinned);
        });
    });
}

/// The folio is shared with a child, before or meanwhile: both read the zeros of both, and a write of one is
/// not seen by the other.
#[test]
fn shuttle_zeros_are_shared_beside_a_fork() {
    for before in [true, false] {
        Swapping::on(3).slots(0).check(SOME, move |machine, space| {
            folio(machine, space);
            let child = before.then(|| fork(space));
            let mut made = None;
            thread::scope(|scope| {
                scope.spawn(|| {
                    write(machine, 0, space, ZEROS, 5);
                    assert_eq!(read(machine, 0, space, ZEROS), 5, "a lost write");
                });
                scope.spawn(|| {
                    let child = child.unwrap_or_else(|| {
                        ManuallyDrop::new(on_cpu(machine, 1, space, |_| space.fork()).expect("memory"))
                    });
                    let seen = read(machine, 1, &child, ZEROS);
                    assert!(seen == 0 || seen == 5 && !before, "{seen}: the other's write");
                    write(machine, 1, &child, ZEROS, 6);
                    assert_eq!(read(machine, 1, &child, ZEROS), 6, "a lost write");
                    made = Some(child);
                });
                scope.spawn(|| split(machine, 2, space));
            });
            let child = made.expect("the thread is through");
            as_one_step(|| {
                assert_eq!([FOUR, ZEROS].map(|addr| read(machine, 0, space, addr)), [10, 5]);
                assert_eq!([FOUR, ZEROS].map(|addr| read(machine, 1, &child, addr)), [10, 6]);
                drop(ManuallyDrop::into_inner(child));
            });
            assert_pages(machine, 0, space, 2);
        });
    }
}

/// The page is unmapped, alone or with its mapping, or is written to anew.
#[test]
fn shuttle_zeros_are_shared_beside_munmap() {
    for unmaps in [true, false] {
        Swapping::on(3).slots(0).check(SOME, move |machine, space| {
            folio(machine, space);
            thread::scope(|scope| {
                scope.spawn(|| {
                    on_cpu(machine, 0, space, |program| {
                        let seen = program.read_u64(ZEROS);
                        let after = if unmaps { Err(NOT_MAPPED) } else { Ok(3) };
                        assert!(seen == Ok(0) || seen == after, "{seen:?}");
                    });
                });
                scope.spawn(|| {
                    on_cpu(machine, 1, space, |program| {
                        if unmaps {
                            space.munmap(ZEROS, PAGE).expect("memory");
                        } else {
                            space.madvise(ZEROS, 2 * PAGE, Advice::DontNeed).expect("mapped");
                            program.write_u64(ZEROS, 3).expect("mapped");
                        }
                    });
                });
                scope.spawn(|| split(machine, 2, space));
            });
            let left = if unmaps { Err(NOT_MAPPED) } else { Ok(3) };
            let seen = as_one_step(|| on_cpu(machine, 0, space, |program| program.read_u64(ZEROS)));
            assert_eq!(seen, left);
            assert_eq!(as_one_step(|| read(machine, 0, space, page(FOUR, 3))), 0);
            assert_pages(machine, 0, space, if unmaps { 1 } else { 2 });
        });
    }
}
