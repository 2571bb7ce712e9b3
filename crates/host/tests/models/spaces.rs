//! Address spaces: faults and accesses against calls that change mappings, tables and permissions.

use crate::machines::*;
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::sync::atomic::{AtomicU64, Ordering};

/// Far from it, with other tables.
const ELSEWHERE: VirtAddr = VirtAddr(1 << 40);

#[test]
fn shuttle_a_fault_against_the_unmapping_of_its_table() {
    check_space(2, |machine, space| {
        map(space, ADDR, 1);
        let unmapped = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 1..3 {
                    let late = unmapped.is_told();
                    match program.write_u64(ADDR, value) {
                        Ok(()) => assert!(!late, "a write after munmap had returned"),
                        Err(error) => assert_eq!(error, NOT_MAPPED),
                    }
                }
            });
            spawn_on(scope, machine, 1, space, |_| {
                space.munmap(ADDR, PAGE).expect("the end of a mapping can go");
                unmapped.tell();
            });
        });
        let figures = space.figures();
        assert_eq!((figures.resident, figures.page_tables), (0, 0));
    });
}

/// A fault against the unmapping of its page with as few steps as possible, so that most pairs of places are
/// tried: the fault takes the path without the mmap lock, and its VMA is removed.
#[test]
fn shuttle_a_fault_against_the_removal_of_its_mapping() {
    check_space(2, |machine, space| {
        map(space, ADDR, 1);
        as_one_step(|| on_cpu(machine, 0, space, |program| program.write_u64(ADDR, 7)).expect("mapped"));
        as_one_step(|| space.madvise(ADDR, PAGE, Advice::DontNeed)).expect("cannot fail");
        thread::scope(|scope| {
            scope.spawn(|| {
                let result = space.fault(ADDR, Access::Write);
                assert!(result == Ok(()) || result == Err(FaultError::NotMapped), "{result:?}");
            });
            scope.spawn(|| space.munmap(ADDR, PAGE).expect("the end of a mapping can go"));
        });
        let figures = space.figures();
        assert_eq!((figures.resident, figures.page_tables), (0, 0));
    });
}

/// Pages of a file at `addr`: once read they are writable and clean, as no private page ever is.
fn shared_file(addr: VirtAddr, pages: u64) -> MapRequest {
    let file = MappedFile::new(1, 0);
    let request = MapRequest { file: Some(file), ..MapRequest::anonymous(pages * PAGE, RW) };
    request.at(addr, MapFlags::FIXED | MapFlags::SHARED)
}

/// The MMU sets the dirty bit of a page that is being unmapped: it must not bring the entry back.
#[test]
fn shuttle_the_mmu_sets_dirty_in_an_entry_being_cleared() {
    check_space(2, |machine, space| {
        // The page before keeps the table.
        let request = shared_file(BEFORE, 2);
        as_one_step(|| space.mmap(&request)).expect("there is memory enough");
        let read = |cpu| on_cpu(machine, cpu, space, |program| program.read_u64(ADDR));
        as_one_step(|| assert_eq!([0, 1].map(read), [Ok(0), Ok(0)]));
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                let result = program.write_u64(ADDR, 1);
                assert!(result == Ok(()) || result == Err(NOT_MAPPED), "{result:?}");
            });
            spawn_on(scope, machine, 1, space, |program| {
                space.munmap(ADDR, PAGE).expect("the end of a mapping can go");
                assert_eq!(program.read_u64(ADDR), Err(NOT_MAPPED));
            });
        });
        assert_eq!(space.figures().resident, 0);
    });
}

/// The MMU sets the dirty bit of a page while its permissions change: it must not be lost. Nothing is flushed
/// here, so a TLB would know more than the tables, which the audit finds.
#[test]
fn shuttle_the_mmu_sets_dirty_in_an_entry_being_protected() {
    check_space(2, |machine, space| {
        let request = shared_file(ADDR, 1);
        as_one_step(|| space.mmap(&request)).expect("there is memory enough");
        as_one_step(|| on_cpu(machine, 0, space, |program| program.read_u64(ADDR))).expect("mapped");
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| program.write_u64(ADDR, 1).expect("allowed"));
            scope.spawn(|| {
                let more = RW | Protection::EXECUTE;
                on_cpu(machine, 1, space, |_| space.mprotect(ADDR, PAGE, more, false)).expect("allowed");
            });
        });
    });
}

/// The same table is freed and made again under a neighbour's page.
#[test]
fn shuttle_a_table_that_is_refilled_is_not_freed() {
    check_space(3, |machine, space| {
        map(space, BEFORE, 2);
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(machine, 0, space, |_| space.munmap(BEFORE, PAGE)).expect("no memory needed");
            });
            spawn_on(scope, machine, 1, space, |program| {
                program.write_u64(ADDR, 1).expect("mapped all the time");
                assert_eq!(program.read_u64(ADDR), Ok(1));
            });
            spawn_on(scope, machine, 2, space, |program| {
                let result = program.write_u64(BEFORE, 2);
                assert!(result == Ok(()) || result == Err(NOT_MAPPED), "{result:?}");
            });
        });
        assert_eq!(space.figures().resident, PAGE);
        on_cpu(machine, 1, space, |program| assert_eq!(program.read_u64(ADDR), Ok(1)));
    });
}

/// Both find the stack above and drop the mmap lock to take it for writing: the second finds it grown.
#[test]
fn shuttle_two_threads_grow_one_stack() {
    check_space(2, |machine, space| {
        let request = MapRequest::anonymous(PAGE, RW).at(ADDR, MapFlags::FIXED | MapFlags::GROWSDOWN);
        as_one_step(|| space.mmap(&request)).expect("there is memory enough");
        let lowest = VirtAddr(BEFORE.0 - PAGE);
        thread::scope(|scope| {
            for (number, addr) in [BEFORE, lowest].into_iter().enumerate() {
                scope.spawn(move || {
                    on_cpu(machine, number, space, |program| program.write_u64(addr, 1))
                        .expect("a stack grows");
                });
            }
        });
        assert_eq!(space.figures().stack, 3 * PAGE);
    });
}

/// A thread that is told of the mappings touches one for the first time. Another one waits to add a mapping.
#[test]
fn shuttle_a_thread_that_is_told_of_mappings_faults_beside_a_mapping() {
    check_space(2, |machine, space| {
        map(space, ADDR, 1);
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                space.mappings().for_each_figures(|figures| {
                    program.write_u64(figures.mapping.range.start(), 1).expect("mapped");
                });
            });
            spawn_on(scope, machine, 1, space, |_| {
                map_at(space, ELSEWHERE.0, PAGE, RW);
            });
        });
        assert_eq!(space.figures().mapped, 2 * PAGE);
    });
}

/// Faults look VMAs up without a lock while others are split off, freed and made again in the same memory.
#[test]
fn shuttle_a_lookup_without_locks_against_mappings_that_come_and_go() {
    check_space(3, |machine, space| {
        map(space, ADDR, 4);
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 1..3 {
                    program.write_u64(ADDR, value).expect("mapped all the time");
                    assert_eq!(program.read_u64(ADDR), Ok(value));
                }
            });
            spawn_on(scope, machine, 1, space, |_| {
                let middle = page(ADDR, 1);
                space.munmap(middle, PAGE).expect("there is memory enough");
                map_at(space, middle.0, PAGE, READ);
                space.munmap(middle, PAGE).expect("there is memory enough");
            });
            scope.spawn(|| {
                let platform = machine.memory().platform();
                let frames = machine.memory().frames();
                on_cpu(machine, 2, space, |_| {
                    for _ in 0..2 {
                        let pin = platform.pin();
                        frames.limbo().reap_all(&pin);
                        frames.caches().reap(&pin);
                    }
                });
            });
        });
        on_cpu(machine, 0, space, |program| assert_eq!(program.read_u64(ADDR), Ok(2)));
    });
}

#[test]
fn shuttle_two_faults_of_one_page_give_one_page() {
    check_space(2, |machine, space| {
        map(space, ADDR, 1);
        let word = |cpu: u64| VirtAddr(ADDR.0 + 8 * cpu);
        thread::scope(|scope| {
            for cpu in 0..2 {
                scope.spawn(move || {
                    on_cpu(machine, cpu as usize, space, |program| {
                        // The read maps the zero page, unless the other CPU has written already.
                        assert_eq!(program.read_u64(word(cpu)), Ok(0));
                        program.write_u64(word(cpu), cpu + 1).expect("mapped");
                        assert_eq!(program.read_u64(word(cpu)), Ok(cpu + 1));
                    });
                });
            }
        });
        assert_eq!(space.figures().resident, PAGE);
        on_cpu(machine, 0, space, |program| {
            assert_eq!([0, 1].map(|cpu| program.read_u64(word(cpu))), [Ok(1), Ok(2)]);
        });
    });
}

#[test]
fn shuttle_a_page_moves_under_writes() {
    check_space(2, |machine, space| {
        // The neighbour keeps the table, whose freeing would flush as well.
        map(space, BEFORE, 2);
        as_one_step(|| on_cpu(machine, 0, space, |program| program.write_u64(ADDR, 7)).expect("mapped"));
        let moved = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for _ in 0..2 {
                    let late = moved.is_told();
                    for addr in [ADDR, ELSEWHERE] {
                        match program.read_u64(addr) {
                            Ok(seen) => {
                                assert_eq!(seen, 7, "a page that was not written");
                                assert!(!late || addr == ELSEWHERE, "the old place after the move");
                                assert!(program.write_u64(addr, 7).is_ok() || addr == ADDR);
                            }
                            Err(error) => {
                                assert_eq!(error, NOT_MAPPED);
                                assert!(!late || addr == ADDR, "the new place is not there");
                            }
                        }
                    }
                }
            });
            spawn_on(scope, machine, 1, space, |_| {
                space.mremap(ADDR, PAGE, PAGE, MOVE, ELSEWHERE).expect("there is memory enough");
                moved.tell();
            });
        });
        assert_eq!(space.figures().resident, PAGE);
        on_cpu(machine, 0, space, |program| assert_eq!(program.read_u64(ELSEWHERE), Ok(7)));
    });
}

#[test]
fn shuttle_no_write_gets_through_after_protection() {
    check_space(2, |machine, space| {
        map(space, ADDR, 1);
        let (protected, last) = (Fact::default(), AtomicU64::new(0));
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 1..4 {
                    let late = protected.is_told();
                    match program.write_u64(ADDR, value) {
                        Ok(()) => {
                            assert!(!late, "a write to what is protected");
                            last.store(value, Ordering::Relaxed);
                        }
                        Err(error) => assert_eq!(error, DENIED),
                    }
                }
            });
            spawn_on(scope, machine, 1, space, |program| {
                space.mprotect(ADDR, PAGE, READ, false).expect("there is memory enough");
                protected.tell();
                let seen = program.read_u64(ADDR);
                assert_eq!(program.read_u64(ADDR), seen, "the page changes though it is read-only");
            });
        });
        let last = last.into_inner();
        on_cpu(machine, 1, space, |program| {
            assert_eq!(program.read_u64(ADDR), Ok(last), "a write was lost");
        });
    });
}

#[test]
fn shuttle_dropped_contents_never_come_back() {
    check_space(2, |machine, space| {
        map(space, ADDR, 1);
        as_one_step(|| on_cpu(machine, 0, space, |program| program.write_u64(ADDR, 7)).expect("mapped"));
        let dropped = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for _ in 0..3 {
                    let late = dropped.is_told();
                    let seen = program.read_u64(ADDR).expect("mapped all the time");
                    assert!(seen == 0 || seen == 7 && !late, "{seen} after the contents were dropped");
                }
                program.write_u64(ADDR, 9).expect("mapped all the time");
            });
            spawn_on(scope, machine, 1, space, |_| {
                space.madvise(ADDR, PAGE, Advice::DontNeed).expect("cannot fail");
                dropped.tell();
            });
        });
    });
}

#[test]
fn shuttle_a_fork_against_writes_of_the_parent() {
    check_space(2, |machine, space| {
        map(space, ADDR, 2);
        let next = page(ADDR, 1);
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                program.write_u64(ADDR, 1).expect("mapped");
                program.write_u64(next, 2).expect("mapped");
                assert_eq!(program.read_u64(ADDR), Ok(1));
            });
            scope.spawn(|| {
                let child = fork_on(machine, 1, space);
                on_cpu(machine, 1, &child, |program| {
                    let seen = [ADDR, next].map(|addr| program.read_u64(addr).expect("mapped"));
                    assert!(seen[0] <= 1 && (seen[1] == 0 || seen[1] == 2), "{seen:?}");
                    program.write_u64(ADDR, 5).expect("mapped");
                    assert_eq!(program.read_u64(next), Ok(seen[1]), "it sees the parent's writes");
                });
            });
        });
        on_cpu(machine, 0, space, |program| {
            assert_eq!([ADDR, next].map(|addr| program.read_u64(addr)), [Ok(1), Ok(2)]);
        });
    });
}

/// Three threads on the mmap lock, for writing and for reading: a wake-up that is lost is a deadlock.
#[test]
fn shuttle_every_sleeper_on_the_mmap_lock_is_woken() {
    check_space(3, |machine, space| {
        map(space, ADDR, 1);
        thread::scope(|scope| {
            for cpu in 1..3u64 {
                scope.spawn(move || {
                    on_cpu(machine, cpu as usize, space, |_| {
                        let addr = page(ADDR, 4 * cpu);
                        map_at(space, addr.0, PAGE, RW);
                        space.munmap(addr, PAGE).expect("the end of a mapping can go");
                    });
                });
            }
            scope.spawn(|| {
                // The first private page of a mapping takes the lock for reading; so does a fault on a
                // hole.
                on_cpu(machine, 0, space, |program| {
                    program.write_u64(ADDR, 1).expect("mapped");
                    assert_eq!(program.read_u64(ELSEWHERE), Err(NOT_MAPPED));
                });
            });
        });
    });
}
