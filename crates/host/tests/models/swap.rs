//! Swap-in against other swap-ins, unmaps, forks and swapoff.

use crate::machines::*;
use quire_frame::{FailAim, FailClass, FailPlan};
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// Hazard: two swap-ins of one entry; the second is done, its slot is used for another page, and for a newer
/// version of the first.
#[test]
fn shuttle_two_swap_ins_against_reuse_of_the_slot() {
    with_swap(3).slots(1).check(SOME, |machine, space| {
        // Nothing but this page fits on the device.
        written(machine, space, BEFORE, PAGE, 2);
        swapped(machine, space, ADDR, PAGE, 1);
        let newer = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    let late = newer.is_told();
                    let seen = read(machine, 0, space, ADDR);
                    assert!(seen == 5 || seen == 1 && !late, "{seen}: another page, or an older one");
                }
            });
            scope.spawn(|| {
                write(machine, 1, space, ADDR, 5);
                newer.tell();
                on_cpu(machine, 1, space, |_| page_out(space, BEFORE, PAGE));
                assert_eq!(read(machine, 1, space, BEFORE), 2);
                on_cpu(machine, 1, space, |_| page_out(space, ADDR, PAGE));
                assert_eq!(read(machine, 1, space, ADDR), 5);
            });
            scope.spawn(|| assert_eq!(read(machine, 2, space, BEFORE), 2));
        });
    });
}

/// The same for readahead: a thread that drops the last entry meanwhile leaves the folio to the reader.
#[test]
fn shuttle_willneed_against_reuse_of_the_slot() {
    with_swap(3).slots(1).check(SOME, |machine, space| {
        written(machine, space, BEFORE, PAGE, 2);
        swapped(machine, space, ADDR, PAGE, 1);
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |_| {
                for _ in 0..2 {
                    space.madvise(BEFORE, 2 * PAGE, Advice::WillNeed).expect("both are mapped");
                }
            });
            scope.spawn(|| {
                write(machine, 1, space, ADDR, 5);
                on_cpu(machine, 1, space, |_| page_out(space, BEFORE, PAGE));
                assert_eq!(read(machine, 1, space, BEFORE), 2);
                on_cpu(machine, 1, space, |_| page_out(space, ADDR, PAGE));
                assert_eq!(read(machine, 1, space, ADDR), 5);
            });
            scope.spawn(|| assert_eq!(read(machine, 2, space, BEFORE), 2));
        });
    });
}

/// A page is unmapped while it is read ahead: neither its frame nor its slot leaks.
#[test]
fn shuttle_willneed_against_the_unmapping_of_its_page() {
    with_swap(3).check(SOME, |machine, space| {
        swapped(machine, space, ADDR, PAGE, 1);
        let child = fork(space);
        thread::scope(|scope| {
            scope.spawn(|| {
                let done = on_cpu(machine, 0, space, |_| space.madvise(ADDR, PAGE, Advice::WillNeed));
                assert!(matches!(done, Ok(()) | Err(Error::NotMapped)), "{done:?}");
            });
            spawn_on(scope, machine, 1, space, |_| space.munmap(ADDR, PAGE).expect("memory"));
            scope.spawn(|| assert_eq!(read(machine, 2, &child, ADDR), 1));
        });
    });
}

/// Hazard: the second fault waits for the folio of the first, and reads nothing.
#[test]
fn shuttle_two_faults_of_one_swapped_page_read_it_once() {
    with_swap(3).check(SOME, |machine, space| {
        swapped(machine, space, ADDR, PAGE, 7);
        let child = fork(space);
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(read(machine, 0, space, ADDR), 7));
            scope.spawn(|| assert_eq!(read(machine, 1, space, ADDR), 7));
            scope.spawn(|| assert_eq!(read(machine, 2, &child, ADDR), 7));
        });
        assert_eq!(count(machine, VmEvent::Pswpin), 1, "reads of the device");
    });
}

/// A fork while the page is swapped in: each keeps what it wrote, and neither sees what the other wrote.
#[test]
fn shuttle_a_fork_against_a_swap_in() {
    with_swap(3).check(SOME, |machine, space| {
        swapped(machine, space, ADDR, PAGE, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(read(machine, 0, space, ADDR), 1);
                write(machine, 0, space, ADDR, 2);
                assert_eq!(read(machine, 0, space, ADDR), 2);
            });
            scope.spawn(|| {
                let child = fork_on(machine, 1, space);
                let seen = read(machine, 1, &child, ADDR);
                assert!(seen == 1 || seen == 2, "{seen}");
                assert_eq!(read(machine, 1, &child, ADDR), seen, "the child sees its parent's write");
                write(machine, 1, &child, ADDR, 5);
                assert_eq!(read(machine, 1, &child, ADDR), 5);
            });
            scope.spawn(|| reclaim(machine, 2));
        });
        assert_eq!(as_one_step(|| read(machine, 0, space, ADDR)), 2);
    });
}

/// What a program unmaps while another CPU swaps it in.
#[derive(Clone, Copy, PartialEq)]
enum Gone {
    Unmapped,
    Dropped,
}

#[test]
fn shuttle_a_swap_in_against_the_unmapping_of_its_page() {
    for way in [Gone::Unmapped, Gone::Dropped] {
        with_swap(3).check(SOME, move |machine, space| {
            // The neighbour shares the cluster of slots.
            swapped(machine, space, ADDR, PAGE, 1);
            swapped(machine, space, BEFORE, PAGE, 2);
            let gone = Fact::default();
            thread::scope(|scope| {
                for cpu in [0, 2] {
                    let gone = &gone;
                    scope.spawn(move || {
                        on_cpu(machine, cpu, space, |program| {
                            let late = gone.is_told();
                            let seen = program.read_u64(ADDR);
                            let after = if way == Gone::Unmapped { Err(NOT_MAPPED) } else { Ok(0) };
                            assert!(seen == after || seen == Ok(1) && !late, "{seen:?}");
                        });
                    });
                }
                scope.spawn(|| {
                    on_cpu(machine, 1, space, |_| match way {
                        Gone::Unmapped => space.munmap(ADDR, PAGE).expect("a whole mapping"),
                        Gone::Dropped => space.madvise(ADDR, PAGE, Advice::DontNeed).expect("mapped"),
                    });
                    gone.tell();
                });
            });
            as_one_step(|| {
                assert_eq!(read(machine, 0, space, BEFORE), 2);
                let swap = machine.memory().swap();
                assert_eq!(swap.devices().free_slots(), swap.devices().total_slots(), "a slot is lost");
            });
        });
    }
}

/// The child exits, or is the last user of the page, while its parent swaps it in.
#[test]
fn shuttle_a_swap_in_against_an_exit() {
    with_swap(3).check(SOME, |machine, space| {
        swapped(machine, space, ADDR, PAGE, 1);
        let child = fork(space);
        thread::scope(|scope| {
            scope.spawn(|| {
                write(machine, 0, space, ADDR, 2);
                assert_eq!(read(machine, 0, space, ADDR), 2);
            });
            scope.spawn(|| {
                assert_eq!(read(machine, 1, &child, ADDR), 1, "the child sees what its parent wrote");
                exit(child);
            });
            scope.spawn(|| reclaim(machine, 2));
        });
        assert_eq!(as_one_step(|| read(machine, 0, space, ADDR)), 2);
    });
}

/// What runs beside swapoff.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Fault,
    Fork,
    Exit,
    PageOut,
}

/// Hazard: swapoff while pages are swapped in, shared, unmapped, and paged out.
#[test]
fn shuttle_swapoff_against_fault_fork_exit_and_page_out() {
    for way in [Beside::Fault, Beside::Fork, Beside::Exit, Beside::PageOut] {
        with_swap(3).check(SOME, move |machine, space| {
            written(machine, space, BEFORE, PAGE, 2);
            swapped(machine, space, ADDR, PAGE, 1);
            let child = fork(space);
            thread::scope(|scope| {
                scope.spawn(|| as_cpu(machine, 0, || swap_off(machine)).expect("there is memory enough"));
                scope.spawn(|| match way {
                    Beside::Fault => {
                        write(machine, 1, space, ADDR, 3);
                        assert_eq!(read(machine, 1, space, ADDR), 3);
                    }
                    Beside::Fork => {
                        let grandchild = fork_on(machine, 1, &child);
                        assert_eq!(read(machine, 1, &grandchild, ADDR), 1);
                    }
                    Beside::Exit => {
                        let made = as_one_step(|| child.fork()).expect("memory");
                        drop(made);
                    }
                    Beside::PageOut => {
                        on_cpu(machine, 1, space, |_| page_out(space, BEFORE, 2 * PAGE));
                        reclaim(machine, 1);
                    }
                });
            });
            as_one_step(|| {
                let expected = if way == Beside::Fault { 3 } else { 1 };
                assert_eq!(space.figures().swapped + child.figures().swapped, 0);
                assert_eq!(read(machine, 0, space, ADDR), expected);
                assert_eq!(read(machine, 0, space, BEFORE), 2);
                assert_eq!(read(machine, 1, &child, ADDR), 1);
            });
        });
    }
}

/// Hazard: a large folio is swapped in whole, while one of its pages is swapped in alone, or a part of it is
/// unmapped.
#[test]
fn shuttle_a_large_swap_in_against_a_part_of_it() {
    for part in [false, true] {
        with_swap(3).check(SOME, move |machine, space| {
            as_one_step(|| {
                small_folios(machine);
                map_at(space, FOUR.0, 4 * PAGE, RW);
                for at in 0..4 {
                    write(machine, 0, space, page(FOUR, at), 10 + at);
                }
                page_out(space, FOUR, 4 * PAGE);
                assert_eq!(space.figures().swapped, 4 * PAGE, "the folio is not out");
            });
            let gone = Fact::default();
            thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!(read(machine, 0, space, page(FOUR, 1)), 11);
                    write(machine, 0, space, page(FOUR, 1), 21);
                    assert_eq!(read(machine, 0, space, page(FOUR, 1)), 21);
                });
                spawn_on(scope, machine, 1, space, |program| {
                    if part {
                        space.madvise(page(FOUR, 2), 2 * PAGE, Advice::DontNeed).expect("mapped");
                        gone.tell();
                        assert_eq!(program.read_u64(page(FOUR, 3)), Ok(0));
                    } else {
                        assert_eq!(program.read_u64(page(FOUR, 3)), Ok(13));
                    }
                });
                scope.spawn(|| {
                    let late = gone.is_told();
                    let seen = read(machine, 2, space, page(FOUR, 2));
                    assert!(seen == 0 && part || seen == 12 && !late, "{seen}");
                });
            });
            as_one_step(|| {
                let expected = if part { [10, 21, 0, 0] } else { [10, 21, 12, 13] };
                assert_eq!([0, 1, 2, 3].map(|at| read(machine, 0, space, page(FOUR, at))), expected);
            });
        });
    }
}

/// Hazard: a page that cannot be read is a SIGBUS for all faults that wait for it, and none sees what was
/// read of it; a later fault tries again.
#[test]
fn shuttle_a_read_error_is_never_wrong_bytes() {
    with_swap(3).check(SOME, |machine, space| {
        swapped(machine, space, ADDR, PAGE, 7);
        let child = fork(space);
        as_one_step(|| {
            let plan = FailPlan::nth(1).at(FailAim::Class(FailClass::DeviceRead));
            machine.memory().frames().fail_points().set(plan);
        });
        let look = |cpu, space| {
            let seen = on_cpu(machine, cpu, space, |program| program.read_u64(ADDR));
            let bus = Err(AccessError::Fault(FaultError::Bus));
            assert!(seen == Ok(7) || seen == bus, "{seen:?}");
            seen == Ok(7)
        };
        let (mut one, mut two, mut three) = (false, false, false);
        thread::scope(|scope| {
            scope.spawn(|| one = look(0, space));
            scope.spawn(|| two = look(1, space));
            scope.spawn(|| three = look(2, &child));
        });
        assert!(!(one && two && three), "no thread got the error");
        as_one_step(|| {
            assert_eq!((read(machine, 0, space, ADDR), read(machine, 1, &child, ADDR)), (7, 7));
        });
    });
}

/// A device is added while pages are written for the first time: each is on an LRU list, once, or is listed
/// by the fault.
#[test]
fn shuttle_a_new_device_lists_pages_beside_faults() {
    with_swap(3).slots(0).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        let child = fork(space);
        map(space, ELSEWHERE, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                write(machine, 0, space, ELSEWHERE, 3);
                write(machine, 0, space, ADDR, 2);
            });
            scope.spawn(|| as_cpu(machine, 1, || swap_on_ram(machine, 8)));
            scope.spawn(|| exit(child));
        });
        as_one_step(|| {
            // All can be paged out.
            page_out(space, ADDR, PAGE);
            page_out(space, ELSEWHERE, PAGE);
            assert_eq!(space.figures().swapped, 2 * PAGE, "a page is on no list");
            assert_eq!((read(machine, 0, space, ADDR), read(machine, 0, space, ELSEWHERE)), (2, 3));
        });
    });
}
