//! Tables that are freed when they are empty and tables that move, against those that find them without the
//! mmap lock: faults, rmap walks, fast pins.

use crate::machines::*;
use quire_frame::Kind;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// The last page below a border of every level of tables. What a table of the top level covers begins above
/// the addresses that only privileged callers may map.
const ADDR: VirtAddr = VirtAddr((2 << 39) - PAGE);
/// The page before.
const BEFORE: VirtAddr = VirtAddr(ADDR.0 - PAGE);
/// As near to borders as `ADDR`, behind other tables of every level.
const ELSEWHERE: VirtAddr = VirtAddr((3 << 39) - PAGE);
/// Schedules of models with PMD leaves: each split is a thousand steps.
const FEW: u64 = 600;
/// Of the others: there are many.
const SOME: u64 = 2000;

/// A small machine without swap, and a space in it: tables cover much, so memory is overcommitted.
fn roomy(cpus: usize) -> Model {
    with_swap(cpus).slots(0).mib(1)
}

/// The same with memory for a few folios of 2 MiB.
fn roomy_with_leaves(mremap: RemapTechnique) -> Model {
    roomy(2).mib(8).mremap(mremap)
}

/// Drops the contents of the PTE table of `addr`, of its PMD table, or of its PUD table: the call covers all
/// of it.
fn drop_all(space: &HostSpace<'_>, addr: VirtAddr, bytes: u64) {
    space.madvise(VirtAddr(addr.0 & !(bytes - 1)), bytes, Advice::DontNeed).expect("cannot fail");
}

/// Maps `bytes` that end behind `addr`, and writes `value` there: the mapping has its anon_vma, so a fault
/// takes no mmap lock.
fn written(machine: &Machine, space: &HostSpace<'_>, addr: VirtAddr, bytes: u64, value: u64) {
    as_one_step(|| {
        map_at(space, addr.0 + PAGE - bytes, bytes, RW);
        write(machine, 0, space, addr, value);
    });
}

/// Frees what waits for an epoch that has passed.
fn reap(machine: &Machine) {
    let pin = machine.memory().platform().pin();
    machine.memory().frames().reap_all(&pin);
}

/// The only private page of the machine.
fn private_page(machine: &Machine) -> Pfn {
    let mut found = None;
    as_one_step(|| {
        machine.memory().frames().for_each_frame(|pfn, frame| {
            if frame.kind() == Kind::Anonymous {
                found = Some(pfn);
            }
        });
    });
    found.expect("a page was written to")
}

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

/// Pins the page at `ADDR` without a lock while `others` runs on CPU 1, which maps `ELSEWHERE` and writes 9
/// there. What the device writes to its page in the end must not be another owner's memory.
fn pin_against(machine: &Machine, space: &HostSpace<'_>, others: impl FnOnce() + Send) {
    let mut pinned = None;
    thread::scope(|scope| {
        scope.spawn(|| pinned = on_cpu(machine, 0, space, |_| space.pin_page_fast(ADDR, Access::Write)));
        scope.spawn(others);
    });
    as_one_step(|| {
        if let Some(pinned) = &pinned {
            device_writes(machine, pinned, 5);
        }
        assert_eq!(read(machine, 1, space, ELSEWHERE), 9, "a device wrote to another page");
        drop(pinned);
    });
}

/// Hazard: a fast pin reads tables that are being freed, and pins what its frame has become.
#[test]
fn shuttle_a_fast_pin_against_the_freeing_of_its_tables() {
    roomy(2).check(SOME, |machine, space| {
        written(machine, space, ADDR, PMD, 1);
        // It has its anon_vma, by another page.
        written(machine, space, ELSEWHERE, 2 * PAGE, 1);
        as_one_step(|| space.madvise(ELSEWHERE, PAGE, Advice::DontNeed)).expect("cannot fail");
        pin_against(machine, space, || {
            on_cpu(machine, 1, space, |_| {
                drop_all(space, ADDR, PMD);
                as_one_step(|| reap(machine));
                space.fault(ELSEWHERE, Access::Write).expect("mapped");
            });
            as_one_step(|| write(machine, 1, space, ELSEWHERE, 9));
        });
    });
}

/// The frame is unmapped and reused: as a page, or by a fault that frees it unused, since another was faster.
#[test]
fn shuttle_a_fast_pin_against_the_reuse_of_its_frame() {
    roomy(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        written(machine, space, ELSEWHERE, 2 * PAGE, 1);
        as_one_step(|| space.madvise(ELSEWHERE, PAGE, Advice::DontNeed)).expect("cannot fail");
        pin_against(machine, space, || {
            on_cpu(machine, 1, space, |_| space.munmap(ADDR, PAGE)).expect("the end of a mapping can go");
            thread::scope(|scope| {
                for cpu in [1, 2] {
                    scope.spawn(move || {
                        on_cpu(machine, cpu, space, |_| space.fault(ELSEWHERE, Access::Write))
                            .expect("mapped");
                    });
                }
            });
            as_one_step(|| write(machine, 1, space, ELSEWHERE, 9));
        });
    });
}

/// Hazard: a pinned page is never shared, and stays the parent's.
#[test]
fn shuttle_a_fast_pin_against_a_fork() {
    roomy(2).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        let (mut pinned, mut child) = (None, None);
        thread::scope(|scope| {
            scope.spawn(|| {
                pinned = on_cpu(machine, 0, space, |_| space.pin_page_fast(ADDR, Access::Write));
                if let Some(pinned) = &pinned {
                    device_writes(machine, pinned, 5);
                }
            });
            scope.spawn(|| {
                child = Some(fork_on(machine, 1, space));
            });
        });
        as_one_step(|| {
            let child = child.expect("it was made");
            let seen = read(machine, 1, &child, ADDR);
            assert!(seen == 1 || seen == 5, "{seen}");
            if let Some(pinned) = &pinned {
                device_writes(machine, pinned, 6);
                assert_eq!(read(machine, 0, space, ADDR), 6, "the program lost the page that is pinned");
                write(machine, 0, space, ADDR, 7);
                assert_eq!(device_reads(machine, pinned), 7, "the program got a copy of a pinned page");
            }
            assert_eq!(read(machine, 1, &child, ADDR), seen, "the child sees what the device wrote later");
            drop((pinned, child));
        });
    });
}

/// The page moves with its table, and another comes to be where it was. What is pinned is one of the two.
#[test]
fn shuttle_a_fast_pin_against_a_move_of_its_table() {
    for bytes in [PMD, PUD] {
        roomy(2).check(SOME, move |machine, space| {
            written(machine, space, ADDR, bytes, 1);
            let mut pinned = None;
            thread::scope(|scope| {
                scope.spawn(|| {
                    pinned = on_cpu(machine, 0, space, |_| space.pin_page_fast(ADDR, Access::Write));
                });
                spawn_on(scope, machine, 1, space, |program| {
                    move_end(space, ADDR, ELSEWHERE, bytes);
                    map(space, ADDR, 1);
                    program.write_u64(ADDR, 2).expect("mapped");
                });
            });
            as_one_step(|| {
                if let Some(pinned) = &pinned {
                    device_writes(machine, pinned, 7);
                    let seen = [ADDR, ELSEWHERE].map(|addr| read(machine, 0, space, addr));
                    assert!(seen == [7, 1] || seen == [2, 7], "{seen:?}");
                }
            });
        });
    }
}

/// A collapse looks for pins, and a pin may come after that look: one of the two must give up.
#[test]
fn shuttle_a_fast_pin_against_a_collapse() {
    roomy_with_leaves(RemapTechnique::Puds).check(FEW, |machine, space| {
        written(machine, space, ADDR, PMD, 1);
        let mut pinned = None;
        thread::scope(|scope| {
            scope.spawn(|| {
                pinned = on_cpu(machine, 0, space, |_| space.pin_page_fast(ADDR, Access::Write));
            });
            scope.spawn(|| {
                // Done, or busy.
                let start = VirtAddr(ADDR.0 + PAGE - PMD);
                let _ = on_cpu(machine, 1, space, |_| space.madvise(start, PMD, Advice::Collapse));
            });
        });
        as_one_step(|| {
            if let Some(pinned) = &pinned {
                device_writes(machine, pinned, 7);
                assert_eq!(read(machine, 0, space, ADDR), 7, "the program lost the page that is pinned");
            } else {
                assert_eq!(read(machine, 0, space, ADDR), 1);
            }
        });
    });
}

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
