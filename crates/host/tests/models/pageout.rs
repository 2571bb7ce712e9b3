//! Page-out against accesses, forks, moves, pins and unmaps of the page.

use crate::machines::*;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// A program writes to a page while two CPUs page it out: each read returns what it wrote.
#[test]
fn shuttle_a_page_out_against_writes() {
    with_swap(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 2..6 {
                    program.write_u64(ADDR, value).expect("mapped");
                    assert_eq!(program.read_u64(ADDR), Ok(value), "a lost write");
                }
            });
            spawn_on(scope, machine, 1, space, |_| page_out(space, ADDR, PAGE));
            scope.spawn(|| reclaim(machine, 2));
        });
        assert_eq!(as_one_step(|| read(machine, 0, space, ADDR)), 5);
    });
}

/// A shared page is paged out while both write to it: each has its own afterwards.
#[test]
fn shuttle_a_page_out_against_two_processes() {
    with_swap(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        let child = fork(space);
        thread::scope(|scope| {
            for (cpu, space) in [(0, space), (1, &*child)] {
                scope.spawn(move || {
                    assert_eq!(read(machine, cpu, space, ADDR), 1, "another process's write");
                    write(machine, cpu, space, ADDR, 10 + cpu as u64);
                    assert_eq!(read(machine, cpu, space, ADDR), 10 + cpu as u64);
                });
            }
            scope.spawn(|| reclaim(machine, 2));
        });
        as_one_step(|| {
            assert_eq!((read(machine, 0, space, ADDR), read(machine, 1, &child, ADDR)), (10, 11));
        });
    });
}

/// A fork shares a page that is being paged out: parent and child see what it was, and nothing that the other
/// wrote since.
#[test]
fn shuttle_a_fork_against_a_page_out() {
    with_swap(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                let child = fork_on(machine, 0, space);
                let seen = read(machine, 0, &child, ADDR);
                assert!(seen == 1 || seen == 2, "{seen}");
                write(machine, 0, &child, ADDR, 5);
                assert_eq!(read(machine, 0, &child, ADDR), 5);
            });
            scope.spawn(|| {
                write(machine, 1, space, ADDR, 2);
                assert_eq!(read(machine, 1, space, ADDR), 2, "the child's write");
            });
            scope.spawn(|| reclaim(machine, 2));
        });
        assert_eq!(as_one_step(|| read(machine, 0, space, ADDR)), 2);
    });
}

/// Translations of what is being paged out are in TLBs until the batch is flushed. Once a call that unmaps
/// the page has returned no access reaches it. Another page keeps the table in use, which is then not flushed
/// for itself.
#[test]
fn shuttle_a_page_out_against_the_unmapping_of_its_page() {
    for unmaps in [true, false] {
        with_swap(3).check(SOME, move |machine, space| {
            written(machine, space, ADDR, 2 * PAGE, 1);
            as_one_step(|| write(machine, 1, space, BEFORE, 1));
            let gone = Fact::default();
            thread::scope(|scope| {
                spawn_on(scope, machine, 0, space, |program| {
                    for _ in 0..3 {
                        let late = gone.is_told();
                        let seen = program.read_u64(ADDR);
                        let between = unmaps && !late && seen == Err(NOT_MAPPED);
                        assert!(seen == Ok(0) || seen == Ok(1) && !late || between, "{seen:?}");
                    }
                });
                spawn_on(scope, machine, 1, space, |program| {
                    if unmaps {
                        space.munmap(ADDR, PAGE).expect("the end of a mapping can go");
                        map_at(space, ADDR.0, PAGE, RW);
                    } else {
                        space.madvise(ADDR, PAGE, Advice::DontNeed).expect("mapped");
                    }
                    gone.tell();
                    assert_eq!(program.read_u64(ADDR), Ok(0));
                });
                scope.spawn(|| reclaim(machine, 2));
            });
        });
    }
}

/// The child exits while its pages, its own and those shared with its parent, are paged out.
#[test]
fn shuttle_a_page_out_against_an_exit() {
    with_swap(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        let child = fork(space);
        as_one_step(|| {
            map_at(&child, BEFORE.0, PAGE, RW);
            write(machine, 1, &child, BEFORE, 2);
        });
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(read(machine, 0, space, ADDR), 1));
            scope.spawn(|| as_cpu(machine, 1, || exit(child)));
            scope.spawn(|| {
                reclaim(machine, 2);
                reclaim(machine, 2);
            });
        });
        as_one_step(|| assert_eq!(read(machine, 0, space, ADDR), 1));
    });
}

/// After `mprotect` has returned no write succeeds, though the page was being paged out.
#[test]
fn shuttle_a_page_out_against_a_change_of_permissions() {
    with_swap(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        let protected = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 2..5 {
                    let late = protected.is_told();
                    let written = program.write_u64(ADDR, value);
                    assert!(written == Err(DENIED) || written == Ok(()) && !late, "{written:?}");
                }
            });
            spawn_on(scope, machine, 1, space, |program| {
                space.mprotect(ADDR, PAGE, READ, false).expect("mapped");
                protected.tell();
                let seen = program.read_u64(ADDR);
                assert_eq!(program.read_u64(ADDR), seen, "a write after the protection");
            });
            scope.spawn(|| reclaim(machine, 2));
        });
    });
}

/// A page moves, alone or with its tables, while it is paged out and swapped in.
fn move_against_paging(schedules: u64, bytes: u64, mremap: RemapTechnique, out: bool) {
    with_swap(3).mremap(mremap).check(schedules, move |machine, space| {
        if out {
            swapped(machine, space, ADDR, bytes, 1);
        } else {
            written(machine, space, ADDR, bytes, 1);
        }
        let (moved, late_write) = (Fact::default(), Fact::default());
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                let late = moved.is_told();
                match program.write_u64(ADDR, 2) {
                    Ok(()) => {
                        assert!(!late, "a write at the old place");
                        late_write.tell();
                    }
                    Err(error) => assert_eq!(error, NOT_MAPPED),
                }
                let late = moved.is_told();
                let seen = program.read_u64(ELSEWHERE);
                let value = if late_write.is_told() { 2 } else { 1 };
                assert!(seen == Ok(value) || seen == Err(NOT_MAPPED) && !late, "{seen:?}");
            });
            scope.spawn(|| {
                on_cpu(machine, 1, space, |_| move_end(space, ADDR, ELSEWHERE, bytes));
                moved.tell();
            });
            scope.spawn(|| reclaim(machine, 2));
        });
        as_one_step(|| {
            let value = if late_write.is_told() { 2 } else { 1 };
            assert_eq!(read(machine, 0, space, ELSEWHERE), value);
            let old = on_cpu(machine, 0, space, |program| program.read_u64(ADDR));
            assert_eq!(old, Err(NOT_MAPPED));
        });
    });
}

/// Hazard: between the two ends of a move reclaim does not page out what moves; a swap entry moves like a
/// present one.
#[test]
fn shuttle_a_page_out_against_a_move() {
    move_against_paging(SOME, PAGE, RemapTechnique::Ptes, false);
    move_against_paging(SOME, PMD, RemapTechnique::Puds, false);
    move_against_paging(SOME, PUD, RemapTechnique::Puds, false);
}

#[test]
fn shuttle_a_swap_in_against_a_move() {
    move_against_paging(SOME, PAGE, RemapTechnique::Ptes, true);
    move_against_paging(SOME, PMD, RemapTechnique::Puds, true);
    move_against_paging(SOME, PUD, RemapTechnique::Puds, true);
}

/// A leaf moves while its folio is paged out: it is split on the way.
#[test]
fn shuttle_a_page_out_against_a_move_of_its_leaf() {
    with_swap(2).mib(8).slots(1024).mremap(RemapTechnique::Puds).check(FEW, |machine, space| {
        let (block, there) = (VirtAddr(1 << 40), VirtAddr((1 << 40) + (1 << 39)));
        as_one_step(|| {
            map_huge(space, block);
            write(machine, 0, space, page(block, 5), 7);
        });
        thread::scope(|scope| {
            scope.spawn(|| reclaim(machine, 0));
            spawn_on(scope, machine, 1, space, |program| {
                space.mremap(block, PMD, PMD, MOVE, there).expect("memory");
                assert_eq!(program.read_u64(page(there, 5)), Ok(7), "the pages are lost");
            });
        });
        as_one_step(|| {
            assert_eq!(read(machine, 0, space, page(there, 5)), 7);
            assert_eq!(space.figures().resident + space.figures().swapped, PMD);
        });
    });
}

/// Hazard: the table is freed, and those above it, while its page is paged out, or swapped in.
#[test]
fn shuttle_tables_go_beside_a_page_out_and_a_swap_in() {
    for (bytes, out) in [(PMD, false), (PUD, false), (PMD, true), (PUD, true)] {
        with_swap(3).check(SOME, move |machine, space| {
            if out {
                swapped(machine, space, ADDR, bytes, 1);
            } else {
                written(machine, space, ADDR, bytes, 1);
            }
            let dropped = Fact::default();
            thread::scope(|scope| {
                spawn_on(scope, machine, 0, space, |program| {
                    let late = dropped.is_told();
                    let seen = program.read_u64(ADDR);
                    assert!(seen == Ok(0) || seen == Ok(1) && !late, "{seen:?}");
                    program.write_u64(BEFORE, 3).expect("mapped");
                });
                scope.spawn(|| {
                    on_cpu(machine, 1, space, |_| {
                        let start = VirtAddr(ADDR.0 & !(bytes - 1));
                        space.madvise(start, bytes, Advice::DontNeed).expect("cannot fail");
                    });
                    dropped.tell();
                });
                scope.spawn(|| {
                    reclaim(machine, 2);
                    let pin = machine.memory().platform().pin();
                    machine.memory().frames().limbo().reap_all(&pin);
                });
            });
            as_one_step(|| assert_eq!(read(machine, 0, space, ADDR), 0));
        });
    }
}

/// A page that a device has pinned stays the program's, whatever page-out did meanwhile: each sees what the
/// other writes, after a fork, too.
#[test]
fn shuttle_a_fast_pin_against_a_page_out() {
    with_swap(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        let mut pinned = None;
        thread::scope(|scope| {
            scope.spawn(|| {
                pinned = on_cpu(machine, 0, space, |_| space.pin_page_fast(ADDR, Access::Write));
                if let Some(pinned) = &pinned {
                    device_writes(machine, pinned, 5);
                    write(machine, 0, space, ADDR, 6);
                    assert_eq!(device_reads(machine, pinned), 6, "the program got a copy of a pinned page");
                    device_writes(machine, pinned, 7);
                }
            });
            scope.spawn(|| as_cpu(machine, 1, || page_out(space, ADDR, PAGE)));
            scope.spawn(|| reclaim(machine, 2));
        });
        as_one_step(|| {
            // If the page was paged out in spite of the pin, the child names its slot, too.
            let child = pinned.is_some().then(|| fork(space));
            let expected = if pinned.is_some() { 7 } else { 1 };
            assert_eq!(read(machine, 0, space, ADDR), expected, "the program lost the page that is pinned");
            if let Some(pinned) = &pinned {
                write(machine, 0, space, ADDR, 8);
                assert_eq!(device_reads(machine, pinned), 8, "the program got a copy of a pinned page");
            }
            if let Some(child) = &child {
                assert_eq!(read(machine, 1, child, ADDR), 7, "the child shares a page that is pinned");
            }
            drop(pinned);
        });
    });
}

/// A pin stops a page-out that has unmapped the page. No write is lost: neither of a thread whose CPU may
/// still have the old translation, nor of another after a fault.
#[test]
fn shuttle_a_page_out_that_a_pin_stops_against_writes() {
    with_swap(3).check(SOME, |machine, space| {
        let other = VirtAddr(ADDR.0 + 8);
        written(machine, space, ADDR, PAGE, 1);
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 2..6 {
                    program.write_u64(ADDR, value).expect("mapped");
                    assert_eq!(program.read_u64(ADDR), Ok(value), "a lost write");
                }
            });
            scope.spawn(|| {
                drop(on_cpu(machine, 1, space, |_| space.pin_page_fast(ADDR, Access::Write)));
                write(machine, 1, space, other, 9);
            });
            scope.spawn(|| reclaim(machine, 2));
        });
        as_one_step(|| {
            assert_eq!((read(machine, 0, space, ADDR), read(machine, 0, space, other)), (5, 9));
        });
    });
}

/// The page is shared, and page-out has unmapped it from one of the two already: that does not make it the
/// other's own.
#[test]
fn shuttle_a_fast_pin_against_a_page_out_of_a_shared_page() {
    with_swap(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        let child = fork(space);
        let mut pinned = [None, None];
        let [one, two] = &mut pinned;
        thread::scope(|scope| {
            for (cpu, space, pinned) in [(0, space, one), (1, &*child, two)] {
                scope.spawn(move || {
                    *pinned = on_cpu(machine, cpu, space, |_| space.pin_page_fast(ADDR, Access::Read));
                    write(machine, cpu, space, ADDR, 10 + cpu as u64);
                    if let Some(pinned) = pinned {
                        let seen = device_reads(machine, pinned);
                        assert_eq!(seen, 10 + cpu as u64, "the program got a copy of a pinned page");
                    }
                    assert_eq!(read(machine, cpu, space, ADDR), 10 + cpu as u64, "the other's write");
                });
            }
            scope.spawn(|| reclaim(machine, 2));
        });
        as_one_step(|| {
            drop(pinned);
            assert_eq!((read(machine, 0, space, ADDR), read(machine, 1, &child, ADDR)), (10, 11));
        });
    });
}

/// While a write fault copies a shared page, the page becomes the program's own and another thread writes to
/// it where it is, since a device has it; a page-out that finds the pin leaves it read-only again, and the
/// pin ends. The entry looks as before, and the copy is out of date.
#[test]
fn shuttle_a_copy_on_write_against_a_write_in_place_and_a_page_out_that_a_pin_stops() {
    with_swap(2).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        let child = fork(space);
        thread::scope(|scope| {
            scope.spawn(|| as_cpu(machine, 0, || space.fault(ADDR, Access::Write)).expect("mapped"));
            scope.spawn(|| {
                as_one_step(|| drop(child));
                let pinned = as_cpu(machine, 1, || space.pin_page_fast(ADDR, Access::Read));
                write(machine, 1, space, ADDR, 2);
                on_cpu(machine, 1, space, |_| page_out(space, ADDR, PAGE));
                as_cpu(machine, 1, || drop(pinned));
            });
        });
        as_one_step(|| assert_eq!(read(machine, 0, space, ADDR), 2, "a write is lost"));
    });
}

/// While a fork copies a page because it is pinned, the pin ends, the page is paged out, and its frame gets
/// another use: the child gets what was in the page.
#[test]
fn shuttle_a_fork_that_copies_a_pinned_page_against_its_page_out() {
    with_swap(2).check(SOME, |machine, space| {
        written(machine, space, ELSEWHERE, 2 * PAGE, 2);
        written(machine, space, ADDR, PAGE, 1);
        let pinned = as_one_step(|| space.pin_page_fast(ADDR, Access::Read));
        thread::scope(|scope| {
            scope.spawn(|| {
                let child = fork_on(machine, 0, space);
                assert_eq!(read(machine, 0, &child, ADDR), 1, "another owner's memory");
                exit(child);
            });
            scope.spawn(|| {
                as_cpu(machine, 1, || drop(pinned));
                reclaim(machine, 1);
                write(machine, 1, space, VirtAddr(ELSEWHERE.0 - PAGE), 9);
            });
        });
        as_one_step(|| assert_eq!(read(machine, 0, space, ADDR), 1));
    });
}

/// Isolated folios are freed by the last user, and return to one list only.
#[test]
fn shuttle_lru_lists_against_faults_and_reclaim() {
    with_swap(3).check(SOME, |machine, space| {
        map(space, BEFORE, 2);
        as_one_step(|| write(machine, 0, space, BEFORE, 1));
        let child = fork(space);
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(machine, 0, space, |_| {
                    space.madvise(BEFORE, 2 * PAGE, Advice::Cold).expect("mapped");
                    page_out(space, BEFORE, 2 * PAGE);
                });
                write(machine, 0, space, ADDR, 2);
            });
            scope.spawn(|| {
                write(machine, 1, &child, BEFORE, 3);
                exit(child);
            });
            scope.spawn(|| {
                machine.memory().memcgs().folios().list_unlisted();
                reclaim(machine, 2);
            });
        });
        as_one_step(|| {
            assert_eq!((read(machine, 0, space, BEFORE), read(machine, 0, space, ADDR)), (1, 2));
        });
    });
}
