//! Tables that move, against those that find them without the mmap lock, and against splits and forks.

use crate::machines::*;
use crate::table_setup::{
    ADDR, ELSEWHERE, FEW, SOME, drop_all, private_page, roomy, roomy_with_leaves, written,
};
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// Hazard: faults in both ranges and beside them while whole tables move.
#[test]
fn shuttle_faults_against_a_move_of_their_table() {
    for bytes in [PMD, PUD] {
        roomy(3).check(SOME, move |machine, space| {
            let beside = page(ELSEWHERE, 1);
            written(machine, space, ADDR, bytes, 1);
            written(machine, space, beside, PAGE, 1);
            let (old, new) = (Fact::default(), Fact::default());
            thread::scope(|scope| {
                spawn_on(scope, machine, 0, space, |program| {
                    for (addr, value, fact) in [(ADDR, 2, &old), (ELSEWHERE, 3, &new)] {
                        match program.write_u64(addr, value) {
                            Ok(()) => fact.tell(),
                            Err(error) => assert_eq!(error, NOT_MAPPED),
                        }
                    }
                    // The MMU finds the new place at once, but a fault only when the locks of the
                    // move are released.
                    if space.fault(ELSEWHERE, Access::Write).is_ok() {
                        assert_eq!(program.read_u64(ADDR), Err(NOT_MAPPED), "the old place after the new");
                    }
                });
                spawn_on(scope, machine, 1, space, |_| move_end(space, ADDR, ELSEWHERE, bytes));
                scope.spawn(|| {
                    write(machine, 2, space, beside, 4);
                    assert_eq!(read(machine, 2, space, beside), 4);
                });
            });
            as_one_step(|| {
                let expected = if new.is_told() { 3 } else { 1 + u64::from(old.is_told()) };
                assert_eq!(read(machine, 0, space, ELSEWHERE), expected);
                assert_eq!(read(machine, 0, space, beside), 4);
                let gone = on_cpu(machine, 0, space, |program| program.read_u64(ADDR));
                assert_eq!(gone, Err(NOT_MAPPED));
            });
        });
    }
}

/// A neighbour makes the table that covers the target in part: a table that moved there would replace it.
#[test]
fn shuttle_a_neighbour_makes_a_table_where_a_move_goes() {
    roomy(2).check(SOME, |machine, space| {
        let neighbour = VirtAddr(ELSEWHERE.0 - PAGE);
        written(machine, space, ADDR, PAGE, 1);
        as_one_step(|| {
            // It has its anon_vma, by a page behind another table.
            let start = map_at(space, neighbour.0 + PAGE - PMD, PMD, RW);
            write(machine, 0, space, start, 1);
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(machine, 0, space, |_| space.fault(neighbour, Access::Write)).expect("mapped");
            });
            spawn_on(scope, machine, 1, space, |_| move_end(space, ADDR, ELSEWHERE, PAGE));
        });
        as_one_step(|| {
            assert_eq!(read(machine, 0, space, ELSEWHERE), 1);
            assert_eq!(read(machine, 0, space, neighbour), 0);
            assert_eq!(space.figures().resident, 3 * PAGE);
        });
    });
}

/// The rmap finds a page at one place at any time, though its table moves; there and back, so that either
/// place comes first.
#[test]
fn shuttle_a_walk_against_a_move_of_its_table() {
    for bytes in [PMD, PUD] {
        roomy(2).check(SOME, move |machine, space| {
            written(machine, space, ADDR, bytes, 1);
            // The rest of the mapping stays, so that what comes back is found first.
            let page = private_page(machine);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..2 {
                        let mut places = Vec::new();
                        machine.memory().spaces().rmap().for_each_map(page, |_, addr| places.push(addr));
                        assert!(places == [ADDR] || places == [ELSEWHERE], "found at {places:?}");
                    }
                });
                spawn_on(scope, machine, 1, space, |_| {
                    move_end(space, ADDR, ELSEWHERE, bytes);
                    move_end(space, ELSEWHERE, ADDR, bytes);
                });
            });
        });
    }
}

/// Folios of four pages wherever they fit, and an aligned place for one.
const FOUR: VirtAddr = VirtAddr(ADDR.0 - 3 * PAGE);

/// A split counts the entries of a folio while one process drops it with the tables, and the other moves it
/// with them.
#[test]
fn shuttle_a_split_against_tables_that_go_and_move() {
    roomy(3).check(SOME, |machine, space| {
        as_one_step(|| small_folios(machine));
        written(machine, space, ADDR, PMD, 7);
        let child = fork(space);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Busy, or done: both are right.
                machine.memory().spaces().thp().split_deferred(u64::MAX);
                let _ = space.split_folio(ADDR, Order::ZERO);
            });
            spawn_on(scope, machine, 1, &child, |_| drop_all(&child, ADDR, PMD));
            spawn_on(scope, machine, 2, space, |program| {
                space.madvise(FOUR, PAGE, Advice::DontNeed).expect("cannot fail");
                move_end(space, ADDR, ELSEWHERE, PMD);
                assert_eq!(program.read_u64(ELSEWHERE), Ok(7), "the pages are lost");
            });
        });
        as_one_step(|| {
            assert_eq!(read(machine, 1, &child, ADDR), 0);
            assert_eq!(read(machine, 0, space, ELSEWHERE), 7);
        });
    });
}

/// A leaf that moves is split by a process that shares it: before the move, while it is prepared, after it.
#[test]
fn shuttle_a_folio_split_by_a_relative_against_mremap() {
    for mremap in [RemapTechnique::Ptes, RemapTechnique::Puds] {
        roomy_with_leaves(mremap).check(FEW, move |machine, space| {
            let (block, there) = (VirtAddr(1 << 40), VirtAddr((1 << 40) + (1 << 39)));
            as_one_step(|| {
                map_huge(space, block);
                write(machine, 0, space, page(block, 5), 7);
            });
            let child = fork(space);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _ = child.split_folio(block, Order::ZERO);
                });
                spawn_on(scope, machine, 1, space, |program| {
                    space.mremap(block, PMD, PMD, MOVE, there).expect("memory");
                    assert_eq!(program.read_u64(page(there, 5)), Ok(7), "the pages are lost");
                });
            });
            as_one_step(|| {
                assert_eq!(read(machine, 0, &child, page(block, 5)), 7);
            });
        });
    }
}

/// A relative forks and exits while tables move: the counts of shared pages, and the tree of anon_vmas.
#[test]
fn shuttle_a_fork_of_a_relative_against_a_move_of_tables() {
    roomy(2).check(SOME, |machine, space| {
        written(machine, space, ADDR, PUD, 1);
        let child = fork(space);
        thread::scope(|scope| {
            scope.spawn(|| {
                let grandchild = fork_on(machine, 0, &child);
                write(machine, 0, &grandchild, ADDR, 5);
                assert_eq!(read(machine, 0, &child, ADDR), 1);
            });
            spawn_on(scope, machine, 1, space, |program| {
                move_end(space, ADDR, ELSEWHERE, PUD);
                program.write_u64(ELSEWHERE, 2).expect("mapped");
            });
        });
        as_one_step(|| {
            assert_eq!((read(machine, 0, space, ELSEWHERE), read(machine, 1, &child, ADDR)), (2, 1));
        });
    });
}

/// A page moves over another. Once the new one was written to, no CPU reads the old one.
#[test]
fn shuttle_a_page_that_is_replaced_is_flushed_before_another_comes() {
    roomy(3).check(SOME, |machine, space| {
        map(space, ADDR, 1);
        map(space, ELSEWHERE, 1);
        let written = Fact::default();
        as_one_step(|| {
            on_cpu(machine, 0, space, |program| {
                program.write_u64(ADDR, 7).expect("mapped");
                program.write_u64(ELSEWHERE, 2).expect("mapped");
            });
        });
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for _ in 0..3 {
                    let late = written.is_told();
                    match program.read_u64(ELSEWHERE) {
                        Ok(seen) => {
                            assert!(!late || seen == 9, "{seen}: the page that was replaced");
                        }
                        Err(error) => assert!(!late && error == NOT_MAPPED, "{error:?}"),
                    }
                }
            });
            spawn_on(scope, machine, 1, space, |_| {
                space.mremap(ADDR, PAGE, PAGE, MOVE, ELSEWHERE).expect("memory");
            });
            spawn_on(scope, machine, 2, space, |program| {
                // Only a write to the page that came is one that all must see.
                if program.read_u64(ELSEWHERE) == Ok(7) {
                    program.write_u64(ELSEWHERE, 9).expect("mapped for good");
                    written.tell();
                }
            });
        });
    });
}

/// Hazard: a collapse of what moves, at either place, and a fork beside the move of whole tables.
#[test]
fn shuttle_a_collapse_and_a_fork_against_a_move_of_their_table() {
    for bytes in [PMD, PUD] {
        roomy_with_leaves(RemapTechnique::Puds).check(FEW, move |machine, space| {
            written(machine, space, ADDR, bytes, 1);
            let places = [ADDR, ELSEWHERE];
            let value_in = |space: &HostSpace<'_>| {
                let mut values =
                    places.map(|addr| on_cpu(machine, 0, space, |program| program.read_u64(addr)));
                values.sort_by_key(Result::is_err);
                values
            };
            thread::scope(|scope| {
                scope.spawn(|| {
                    for addr in places {
                        let start = VirtAddr(addr.0 + PAGE - PMD);
                        // There, or not any more, or not yet.
                        let _ = on_cpu(machine, 0, space, |_| space.madvise(start, PMD, Advice::Collapse));
                    }
                    let child = fork_on(machine, 0, space);
                    as_one_step(|| {
                        assert_eq!(value_in(&child), [Ok(1), Err(NOT_MAPPED)], "the child's page");
                        drop(child);
                    });
                });
                spawn_on(scope, machine, 1, space, |_| move_end(space, ADDR, ELSEWHERE, bytes));
            });
            as_one_step(|| {
                assert_eq!(read(machine, 0, space, ELSEWHERE), 1);
                assert_eq!(value_in(space), [Ok(1), Err(NOT_MAPPED)]);
            });
        });
    }
}
