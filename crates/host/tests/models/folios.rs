//! Shared pages and PMD leaves: which process copies, which is the last owner, and what a walk may find.

use crate::machines::*;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

const ELSEWHERE: VirtAddr = VirtAddr(1 << 40);
/// Far from it, and as near to a border of tables.
const ALIKE: VirtAddr = VirtAddr((1 << 40) - PAGE);
/// For models with PMD leaves: each split is a thousand steps.
const FEW: u64 = 600;

/// Both copy, or one copies and the other is the last owner.
#[test]
fn shuttle_two_processes_write_to_one_page_at_once() {
    check_space(2, |machine, space| {
        map(space, ADDR, 1);
        as_one_step(|| write(machine, 0, space, ADDR, 1));
        let child = fork(space);
        thread::scope(|scope| {
            for (cpu, space) in [(0, space), (1, &*child)] {
                scope.spawn(move || {
                    assert_eq!(read(machine, cpu, space, ADDR), 1);
                    write(machine, cpu, space, ADDR, 10 + cpu as u64);
                    assert_eq!(read(machine, cpu, space, ADDR), 10 + cpu as u64);
                });
            }
        });
        as_one_step(|| assert_eq!((read(machine, 0, space, ADDR), read(machine, 1, &child, ADDR)), (10, 11)));
    });
}

/// The process that remains keeps the page; the exit of the other neither frees it, nor lets it see a write
/// that came before the exit.
#[test]
fn shuttle_the_last_owner_writes_while_the_other_exits() {
    check_space(2, |machine, space| {
        map(space, ADDR, 1);
        as_one_step(|| write(machine, 0, space, ADDR, 1));
        let child = fork(space);
        thread::scope(|scope| {
            scope.spawn(|| {
                write(machine, 0, space, ADDR, 2);
                assert_eq!(read(machine, 0, space, ADDR), 2);
            });
            scope.spawn(|| {
                assert_eq!(read(machine, 1, &child, ADDR), 1, "a child sees what its parent wrote later");
                exit(child);
            });
        });
        as_one_step(|| assert_eq!(read(machine, 0, space, ADDR), 2));
    });
}

/// One page is shared with a child already, one is not mapped yet; both are written to while another child is
/// made.
#[test]
fn shuttle_a_fork_against_a_copy_and_a_first_write() {
    check_space(2, |machine, space| {
        map(space, BEFORE, 2);
        as_one_step(|| write(machine, 0, space, BEFORE, 1));
        let first = fork(space);
        thread::scope(|scope| {
            scope.spawn(|| {
                write(machine, 0, space, BEFORE, 2);
                write(machine, 0, space, ADDR, 3);
                assert_eq!(read(machine, 0, space, BEFORE), 2);
            });
            scope.spawn(|| {
                let child = fork_on(machine, 1, space);
                let seen = [BEFORE, ADDR].map(|addr| read(machine, 1, &child, addr));
                assert!((seen[0] == 1 || seen[0] == 2) && (seen[1] == 0 || seen[1] == 3), "{seen:?}");
                assert!(seen != [1, 3], "the second write without the first");
                write(machine, 1, &child, BEFORE, 5);
                assert_eq!(read(machine, 1, &child, ADDR), seen[1], "the child sees its parent's writes");
            });
        });
        as_one_step(|| {
            assert_eq!([BEFORE, ADDR].map(|addr| read(machine, 0, space, addr)), [2, 3]);
            assert_eq!(read(machine, 0, &first, BEFORE), 1);
        });
    });
}

/// The last of the two frees the page: after the flush of its own space, and after that of the other's.
#[test]
fn shuttle_two_processes_unmap_a_shared_page_at_once() {
    check_space(3, |machine, space| {
        // The neighbour keeps the table, so that the page is noted in the gather.
        map(space, BEFORE, 2);
        as_one_step(|| write(machine, 0, space, ADDR, 7));
        let child = fork(space);
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for _ in 0..3 {
                    let seen = program.read_u64(ADDR);
                    assert!(seen == Ok(7) || seen == Err(NOT_MAPPED), "{seen:?}");
                }
            });
            for (cpu, space) in [(1, space), (2, &*child)] {
                scope.spawn(move || {
                    on_cpu(machine, cpu, space, |program| {
                        assert_eq!(program.read_u64(ADDR), Ok(7));
                        space.munmap(ADDR, PAGE).expect("the end of a mapping can go");
                    });
                });
            }
        });
    });
}

/// Pages that are written for the first time while their mapping moves are at the new place afterwards.
#[test]
fn shuttle_a_first_write_against_a_move() {
    check_space(2, |machine, space| {
        // Its first page is below a border of tables, the others are beyond, where there is no table yet.
        map(space, ADDR, 3);
        let second = page(ADDR, 1);
        // The mapping has its anon_vma already: the write takes no mmap lock.
        as_one_step(|| write(machine, 0, space, ADDR, 1));
        let written = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| match on_cpu(machine, 0, space, |program| program.write_u64(second, 9)) {
                Ok(()) => written.tell(),
                Err(error) => assert_eq!(error, NOT_MAPPED),
            });
            spawn_on(scope, machine, 1, space, |_| {
                space.mremap(ADDR, 3 * PAGE, 3 * PAGE, MOVE, ALIKE).expect("memory");
            });
        });
        let seen = as_one_step(|| read(machine, 0, space, page(ALIKE, 1)));
        assert!(seen == 9 || !written.is_told(), "a page that was written before the move is lost");
    });
}

/// Checks a model of a machine with memory for a few folios of 2 MiB, and a space that has one, shared with a
/// child and mapped by a leaf.
fn check_leaf(
    mremap: RemapTechnique,
    model: impl Fn(&Machine, &HostSpace<'_>, &HostSpace<'_>) + Send + Sync + Clone + 'static,
) {
    let leaves = with_swap(2).slots(0).mib(8).mremap(mremap);
    check_seeded(FEW, seed_of(&model), move || {
        leaves.run(|machine, space| {
            as_one_step(|| {
                map_huge(space, ELSEWHERE);
                // Pages of zeros would not stay when the folio is split.
                for at in 0..512 {
                    write(machine, 0, space, page(ELSEWHERE, at), 7);
                }
                assert_eq!(space.figures().resident, MIB2, "a large folio");
            });
            model(machine, space, &fork(space));
        });
    });
}

/// Hazard: a write splits the leaf while another thread drops the contents of all of it.
#[test]
fn shuttle_a_pmd_being_split_is_not_taken_for_a_hole() {
    check_leaf(RemapTechnique::default(), |machine, space, child| {
        let (near, far) = (ELSEWHERE, page(ELSEWHERE, 511));
        thread::scope(|scope| {
            scope.spawn(|| write(machine, 0, space, near, 9));
            spawn_on(scope, machine, 1, space, |program| {
                space.madvise(ELSEWHERE, MIB2, Advice::DontNeed).expect("cannot fail");
                assert_eq!(program.read_u64(page(near, 1)), Ok(0), "contents that were dropped");
                assert_eq!(program.read_u64(far), Ok(0), "contents that were dropped");
            });
        });
        as_one_step(|| {
            let seen = read(machine, 0, space, near);
            assert!(seen == 0 || seen == 9, "{seen}");
            assert_eq!(read(machine, 1, child, near), 7);
        });
    });
}

/// A part is dropped while another thread writes to another part: both split the leaf.
#[test]
fn shuttle_a_pmd_split_by_dontneed_against_a_fault() {
    check_leaf(RemapTechnique::default(), |machine, space, child| {
        let far = page(ELSEWHERE, 511);
        thread::scope(|scope| {
            scope.spawn(|| {
                write(machine, 0, space, ELSEWHERE, 9);
                assert_eq!(read(machine, 0, space, ELSEWHERE), 9);
            });
            spawn_on(scope, machine, 1, space, |program| {
                space.madvise(far, PAGE, Advice::DontNeed).expect("cannot fail");
                assert_eq!(program.read_u64(far), Ok(0), "contents that were dropped");
            });
        });
        as_one_step(|| {
            assert_eq!((read(machine, 0, space, ELSEWHERE), read(machine, 1, child, ELSEWHERE)), (9, 7));
        });
    });
}

/// A leaf that is split between the preparation of a move and the move itself moves page by page.
#[test]
fn shuttle_a_pmd_split_by_a_fault_against_mremap() {
    check_leaf(RemapTechnique::default(), |machine, space, child| {
        let there = VirtAddr(ELSEWHERE.0 + (1 << 39));
        thread::scope(|scope| {
            scope.spawn(|| {
                let written = on_cpu(machine, 0, space, |program| program.write_u64(ELSEWHERE, 7));
                assert!(written.is_ok() || written == Err(NOT_MAPPED), "{written:?}");
            });
            spawn_on(scope, machine, 1, space, |program| {
                space.mremap(ELSEWHERE, MIB2, MIB2, MOVE, there).expect("memory");
                assert_eq!(program.read_u64(there), Ok(7), "the pages are lost");
            });
        });
        as_one_step(|| assert_eq!(read(machine, 1, child, ELSEWHERE), 7));
    });
}

/// Splitting the folio for the child makes a table of the parent's leaf too, also while the parent unmaps a
/// part of it.
#[test]
fn shuttle_a_folio_split_against_a_partial_munmap() {
    check_leaf(RemapTechnique::default(), |machine, space, child| {
        let far = page(ELSEWHERE, 511);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = child.split_folio(ELSEWHERE, Order::ZERO);
            });
            spawn_on(scope, machine, 1, space, |program| {
                space.munmap(far, PAGE).expect("the end of a mapping can go");
                assert_eq!(program.read_u64(far), Err(NOT_MAPPED));
            });
        });
        as_one_step(|| {
            assert_eq!(space.figures().resident, MIB2 - PAGE);
            assert_eq!((read(machine, 0, space, ELSEWHERE), read(machine, 1, child, far)), (7, 7));
        });
    });
}

/// The same while the parent's leaf moves, to where no table was prepared. Tables do not move here.
#[test]
fn shuttle_a_folio_split_against_mremap() {
    check_leaf(RemapTechnique::Ptes, |machine, space, child| {
        let there = VirtAddr(ELSEWHERE.0 + 4 * MIB2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = child.split_folio(ELSEWHERE, Order::ZERO);
            });
            spawn_on(scope, machine, 1, space, |program| {
                space.mremap(ELSEWHERE, MIB2, MIB2, MOVE, there).expect("memory");
                assert_eq!(program.read_u64(there), Ok(7), "the pages are lost");
            });
        });
        as_one_step(|| {
            assert_eq!(space.figures().resident, MIB2);
            assert_eq!(read(machine, 0, space, page(there, 511)), 7);
        });
    });
}

/// The splitter counts entries while others clear some and set new ones.
#[test]
fn shuttle_a_split_against_an_unmapping_and_a_fork() {
    check_space(3, |machine, space| {
        as_one_step(|| {
            small_folios(machine);
            map(space, FOUR, 4);
            write(machine, 0, space, FOUR, 7);
        });
        let child = fork(space);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Busy, or done: both are right.
                let _ = space.split_folio(page(FOUR, 3), Order::ZERO);
            });
            spawn_on(scope, machine, 1, &child, |program| {
                child.munmap(page(FOUR, 1), PAGE).expect("the middle of a mapping can go");
                assert_eq!(program.read_u64(FOUR), Ok(7));
                program.write_u64(page(FOUR, 2), 9).expect("mapped");
            });
            scope.spawn(|| {
                let other = fork_on(machine, 2, space);
                write(machine, 2, &other, FOUR, 8);
                assert_eq!(read(machine, 2, &other, FOUR), 8);
            });
        });
        as_one_step(|| {
            assert_eq!(read(machine, 0, space, FOUR), 7);
            assert_eq!(read(machine, 0, space, page(FOUR, 2)), 0);
            assert_eq!(read(machine, 1, &child, page(FOUR, 2)), 9);
        });
    });
}

/// A folio on the deferred split queue is freed while another thread splits the queue.
#[test]
fn shuttle_a_deferred_split_against_the_freeing_of_its_folio() {
    check_space(2, |machine, space| {
        as_one_step(|| {
            small_folios(machine);
            map(space, FOUR, 4);
            write(machine, 0, space, FOUR, 7);
        });
        let child = fork(space);
        as_one_step(|| {
            child.munmap(page(FOUR, 1), PAGE).expect("the middle of a mapping can go");
            space.munmap(page(FOUR, 1), PAGE).expect("the middle of a mapping can go");
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                machine.memory().spaces().thp().split_deferred(u64::MAX);
            });
            scope.spawn(|| {
                on_cpu(machine, 1, space, |_| space.munmap(FOUR, 4 * PAGE)).expect("all of it can go");
                exit(child);
            });
        });
        assert_eq!(machine.memory().spaces().memory().memcgs().splits().waiting(), 0);
    });
}

/// Checks a model with a space that may have PMD leaves and has none yet.
fn check_untouched(model: impl SpaceModel) {
    check_seeded(FEW, seed_of(&model), move || {
        with_swap(2).slots(0).mib(8).run(|machine, space| {
            as_one_step(|| map_huge(space, ELSEWHERE));
            model(machine, space);
        });
    });
}

/// One CPU reads where another writes for the first time: a leaf with zeros may come before the folio, never
/// after it.
#[test]
fn shuttle_no_cpu_reads_huge_zeros_after_another_cpu_wrote() {
    check_untouched(|machine, space| {
        let written = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for _ in 0..4 {
                    let late = written.is_told();
                    let seen = program.read_u64(ELSEWHERE).expect("mapped");
                    assert!(seen == 9 || !late, "zeros after another CPU wrote");
                }
            });
            scope.spawn(|| {
                write(machine, 1, space, ELSEWHERE, 9);
                written.tell();
            });
        });
    });
}

/// The huge zero page is freed while an entry that maps it is cleared, and while another one is set.
#[test]
fn shuttle_the_huge_zero_page_is_freed_beside_faults() {
    check_untouched(|machine, space| {
        as_one_step(|| assert_eq!(read(machine, 0, space, ELSEWHERE), 0));
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                space.madvise(ELSEWHERE, MIB2, Advice::DontNeed).expect("cannot fail");
                assert_eq!(program.read_u64(page(ELSEWHERE, 3)), Ok(0));
            });
            scope.spawn(|| {
                for _ in 0..3 {
                    machine.memory().spaces().thp().shrink_huge_zero();
                }
            });
        });
        as_one_step(|| assert_eq!(read(machine, 1, space, ELSEWHERE), 0));
    });
}
