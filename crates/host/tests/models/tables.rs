//! Tables that are freed when they are empty, against those that find them without the mmap lock: faults and
//! rmap walks.

use crate::machines::*;
use crate::table_setup::{
    ADDR, BEFORE, ELSEWHERE, FEW, SOME, drop_all, private_page, reap, roomy, roomy_with_leaves, written,
};
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// Hazard: a fault finds a table that is being freed, and the tables above it too. Its write is there
/// afterwards, or was dropped; no table leaks, and none is freed with the page.
#[test]
fn shuttle_a_fault_against_the_freeing_of_its_tables() {
    for bytes in [PMD, PUD, PUD << 9] {
        roomy(3).check(SOME, move |machine, space| {
            written(machine, space, ADDR, bytes, 1);
            let dropped = Fact::default();
            thread::scope(|scope| {
                spawn_on(scope, machine, 0, space, |program| {
                    program.write_u64(ADDR, 2).expect("mapped");
                    let late = dropped.is_told();
                    program.write_u64(BEFORE, 3).expect("mapped");
                    if late {
                        assert_eq!(program.read_u64(BEFORE), Ok(3), "a write into a table that is gone");
                    }
                });
                scope.spawn(|| {
                    on_cpu(machine, 1, space, |_| drop_all(space, ADDR, bytes));
                    dropped.tell();
                });
                spawn_on(scope, machine, 2, space, |_| reap(machine));
            });
            as_one_step(|| {
                let seen = read(machine, 0, space, ADDR);
                assert!(seen == 0 || seen == 2, "{seen}");
                drop_all(space, ADDR, bytes);
                assert_eq!(space.figures().resident, 0);
                // What is left are those above.
                let above = [PMD, PUD].into_iter().filter(|&table| table >= bytes).count() as u64;
                assert_eq!(space.figures().page_tables, above * PAGE);
            });
        });
    }
}

/// A table is freed, its epoch has passed, and its frame is a table for other addresses, while a fault is
/// about to set an entry in it: only the fault's own section of the epoch prevents that.
#[test]
fn shuttle_a_table_is_not_reused_under_a_fault() {
    roomy(2).check(SOME, |machine, space| {
        written(machine, space, ADDR, PMD, 1);
        written(machine, space, ELSEWHERE, PMD, 1);
        as_one_step(|| {
            drop_all(space, ELSEWHERE, PMD);
            reap(machine);
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(machine, 0, space, |_| space.fault(BEFORE, Access::Write)).expect("mapped");
            });
            spawn_on(scope, machine, 1, space, |_| {
                drop_all(space, ADDR, PMD);
                as_one_step(|| (0..3).for_each(|_| reap(machine)));
                space.fault(ELSEWHERE, Access::Write).expect("mapped");
            });
        });
    });
}

/// The first tables of a space are freed while a fault makes them: no table is subtracted from VmPTE before
/// it was added. Otherwise a space without tables shows a huge count, to readers and to the OOM choice.
#[test]
fn shuttle_tables_are_counted_before_they_go() {
    roomy(3).check(SOME, |machine, space| {
        as_one_step(|| map_at(space, ADDR.0 + PAGE - (PUD << 9), PUD << 9, RW));
        let plausible = |when: &str| {
            let figures = space.figures();
            let (now, peak) = (figures.page_tables, figures.peak_page_tables);
            // Three, and as many that are unlinked and not subtracted yet.
            assert!(now <= 6 * PAGE && peak <= 6 * PAGE, "{now} bytes of tables, {peak} at most, {when}");
        };
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(read(machine, 0, space, ADDR), 0));
            spawn_on(scope, machine, 1, space, |_| drop_all(space, ADDR, PUD << 9));
            scope.spawn(|| (0..3).for_each(|_| plausible("meanwhile")));
        });
        as_one_step(|| plausible("in the end"));
    });
}

/// Two tables of one PMD table die, and it too, while faults make new ones: one that finds the PMD table dead
/// starts again.
#[test]
fn shuttle_a_fault_makes_tables_below_a_dying_one() {
    roomy(3).check(SOME, |machine, space| {
        let other = VirtAddr(ADDR.0 - PMD);
        written(machine, space, ADDR, PUD, 1);
        as_one_step(|| write(machine, 0, space, other, 1));
        thread::scope(|scope| {
            for (cpu, addr) in [ADDR, other].into_iter().enumerate() {
                scope.spawn(move || write(machine, cpu, space, addr, 2));
            }
            spawn_on(scope, machine, 2, space, |_| drop_all(space, ADDR, PUD));
        });
        as_one_step(|| {
            for addr in [ADDR, other] {
                let seen = read(machine, 0, space, addr);
                assert!(seen == 0 || seen == 2, "{seen}");
            }
        });
    });
}

/// A table dies while `fault`, on CPU 0, sets a PMD leaf in it for `ADDR`.
fn pmd_leaf_in_a_dying_table(fault: fn(&Machine, &HostSpace<'_>)) {
    roomy_with_leaves(RemapTechnique::Puds).check(2 * FEW, move |machine, space| {
        let other = VirtAddr(ADDR.0 - PMD);
        as_one_step(|| {
            let start = map_at(space, ADDR.0 + PAGE - PUD, PUD, RW);
            write(machine, 0, space, other, 1);
            // One mapping, so that the call covers all of the PMD table.
            space.madvise(start, PUD, Advice::HugePage).expect("the mapping is there");
        });
        thread::scope(|scope| {
            scope.spawn(|| fault(machine, space));
            spawn_on(scope, machine, 1, space, |_| drop_all(space, other, PUD));
        });
        as_one_step(|| {
            let seen = read(machine, 0, space, ADDR);
            assert!(seen == 0 || seen == 2, "{seen}");
        });
    });
}

/// A write maps a folio by a leaf, which goes into a PMD table by itself.
#[test]
fn shuttle_a_fault_sets_a_pmd_leaf_in_a_dying_table() {
    pmd_leaf_in_a_dying_table(|machine, space| write(machine, 0, space, ADDR, 2));
}

/// A read maps the huge zero page.
#[test]
fn shuttle_a_read_maps_the_huge_zero_page_in_a_dying_table() {
    pmd_leaf_in_a_dying_table(|machine, space| assert_eq!(read(machine, 0, space, ADDR), 0));
}

/// A kept empty table is freed when another is emptied; faults in it come before, after, or find it dead.
#[test]
fn shuttle_a_fault_in_an_empty_table_that_was_kept() {
    roomy(2).check(SOME, |machine, space| {
        let other = VirtAddr(ADDR.0 - PMD);
        written(machine, space, ADDR, 2 * PMD, 1);
        as_one_step(|| {
            write(machine, 0, space, other, 1);
            space.madvise(ADDR, PAGE, Advice::DontNeed).expect("cannot fail");
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                write(machine, 0, space, ADDR, 2);
                assert_eq!(read(machine, 0, space, ADDR), 2, "a page in a table that is gone");
            });
            spawn_on(scope, machine, 1, space, |_| {
                space.madvise(other, PAGE, Advice::DontNeed).expect("cannot fail");
            });
        });
        as_one_step(|| assert_eq!(read(machine, 1, space, ADDR), 2));
    });
}

/// Hazard: rmap walks read tables that are being freed; a third CPU frees and reuses them.
#[test]
fn shuttle_a_walk_against_the_freeing_of_its_tables() {
    roomy(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PUD, 1);
        let page = private_page(machine);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    machine.memory().spaces().rmap().for_each_map(page, |_, addr| assert_eq!(addr, ADDR));
                }
            });
            spawn_on(scope, machine, 1, space, |_| drop_all(space, ADDR, PUD));
            spawn_on(scope, machine, 2, space, |program| {
                reap(machine);
                program.write_u64(BEFORE, 3).expect("mapped");
            });
        });
    });
}
