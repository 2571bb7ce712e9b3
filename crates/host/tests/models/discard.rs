//! Discarding lazily freed pages (MADV_FREE) against writes, forks and unmaps of them.

use crate::machines::*;
use quire_pageout::referenced;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// A program frees the page lazily and writes to it nevertheless: what it wrote is not discarded.
#[test]
fn shuttle_a_discard_against_a_write() {
    with_swap(2).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 7);
        as_one_step(|| space.madvise(ADDR, PAGE, Advice::Free).expect("mapped"));
        thread::scope(|scope| {
            scope.spawn(|| {
                let seen = read(machine, 0, space, ADDR);
                assert!(seen == 0 || seen == 7, "{seen}");
                write(machine, 0, space, ADDR, 9);
                assert_eq!(read(machine, 0, space, ADDR), 9, "a lost write");
            });
            scope.spawn(|| reclaim(machine, 1));
        });
        as_one_step(|| {
            assert_eq!(read(machine, 0, space, ADDR), 9);
            machine.memory().reclaim(MemcgId::ROOT, 1);
            assert_eq!(read(machine, 0, space, ADDR), 9);
        });
    });
}

/// The same beside a fork: what was written before it is in both, and what the parent writes after it is not
/// lost.
#[test]
fn shuttle_a_discard_against_a_fork() {
    with_swap(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 7);
        as_one_step(|| space.madvise(ADDR, PAGE, Advice::Free).expect("mapped"));
        let first = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                write(machine, 0, space, ADDR, 8);
                first.tell();
                write(machine, 0, space, ADDR, 9);
                assert_eq!(read(machine, 0, space, ADDR), 9, "a lost write");
            });
            scope.spawn(|| {
                let late = first.is_told();
                let child = fork_on(machine, 1, space);
                let seen = read(machine, 1, &child, ADDR);
                assert!(seen == 8 || seen == 9 || (seen == 7 || seen == 0) && !late, "{seen}");
            });
            scope.spawn(|| reclaim(machine, 2));
        });
        as_one_step(|| {
            assert_eq!(read(machine, 0, space, ADDR), 9);
            let child = space.fork().expect("memory");
            machine.memory().reclaim(MemcgId::ROOT, 2);
            assert_eq!((read(machine, 0, space, ADDR), read(machine, 1, &child, ADDR)), (9, 9));
        });
    });
}

/// A page is freed lazily while reclaim has it off its list, since it was used: reclaim puts it where it
/// needs no swap. It frees the other page of the batch, and looks no further. The auditor, with which the
/// model ends, looks at the lists.
#[test]
fn shuttle_a_page_that_reclaim_has_is_freed_lazily() {
    with_swap(2).check(SOME, |machine, space| {
        written(machine, space, ADDR, 2 * PAGE, 7);
        as_one_step(|| write(machine, 1, space, BEFORE, 8));
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |_| {
                space.madvise(BEFORE, PAGE, Advice::Free).expect("mapped");
            });
            scope.spawn(|| reclaim(machine, 1));
        });
    });
}

/// Maps `pages` pages that end behind `ADDR`, of which the last holds 7 and is lazily freed. CPU 0 has its
/// translation; the accessed bit is clear, so that reclaim discards the page at its first look. The others
/// are in use: they keep the table, which is then not flushed for itself.
fn freed_lazily(machine: &Machine, space: &HostSpace<'_>, pages: u64) {
    written(machine, space, ADDR, pages * PAGE, 7);
    as_one_step(|| {
        if pages > 1 {
            write(machine, 1, space, BEFORE, 1);
        }
        space.madvise(ADDR, PAGE, Advice::Free).expect("mapped");
        assert_eq!(read(machine, 0, space, ADDR), 7, "still there");
        let pinned = space.pin_page_fast(ADDR, Access::Read).expect("it is there");
        referenced(machine.memory().spaces().rmap(), pinned.pfn(), None).expect("no other thread runs");
    });
}

/// What a call makes of the page that is being discarded.
#[derive(Clone, Copy, PartialEq)]
enum Call {
    Unmap,
    Forbid,
    Drop,
}

/// A call that ends what a page was, on CPU 1, while it is discarded: once the call has returned CPU 0, which
/// has its translation, cannot read what was there.
fn discard_against_a_call(call: Call, pages: u64) {
    with_swap(3).check(FEW, move |machine, space| {
        freed_lazily(machine, space, pages);
        let done = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for _ in 0..3 {
                    let late = done.is_told();
                    let seen = program.read_u64(ADDR);
                    let before = matches!(seen, Ok(0 | 7)) && !late;
                    let after = match call {
                        Call::Unmap => Err(NOT_MAPPED),
                        Call::Forbid => Err(DENIED),
                        Call::Drop => Ok(0),
                    };
                    assert!(seen == after || before, "{seen:?}");
                }
            });
            scope.spawn(|| {
                on_cpu(machine, 1, space, |_| match call {
                    Call::Unmap => space.munmap(ADDR, PAGE).expect("the end of a mapping can go"),
                    Call::Forbid => space.mprotect(ADDR, PAGE, NONE, false).expect("mapped"),
                    Call::Drop => space.madvise(ADDR, PAGE, Advice::DontNeed).expect("mapped"),
                });
                done.tell();
            });
            scope.spawn(|| reclaim(machine, 2));
        });
    });
}

#[test]
fn shuttle_a_discard_against_the_unmapping_of_its_page() {
    discard_against_a_call(Call::Unmap, 1);
    discard_against_a_call(Call::Unmap, 2);
}

#[test]
fn shuttle_a_discard_against_a_change_of_permissions() {
    discard_against_a_call(Call::Forbid, 2);
}

#[test]
fn shuttle_a_discard_against_dontneed() {
    discard_against_a_call(Call::Drop, 1);
    discard_against_a_call(Call::Drop, 2);
}

/// A page that was discarded is used anew by CPU 1. What it has read or written there, CPU 0 reads too,
/// though it has the old translation.
#[test]
fn shuttle_a_discard_against_a_fault_of_another_cpu() {
    for writes in [true, false] {
        with_swap(3).check(SOME, move |machine, space| {
            freed_lazily(machine, space, 2);
            let used = Fact::default();
            thread::scope(|scope| {
                spawn_on(scope, machine, 0, space, |program| {
                    for _ in 0..3 {
                        let late = used.is_told();
                        let seen = program.read_u64(ADDR).expect("mapped");
                        let now = if writes { 9 } else { 0 };
                        assert!(seen == now || !late && (seen == 0 || seen == 7), "{seen} (late: {late})");
                    }
                });
                spawn_on(scope, machine, 1, space, |program| {
                    if writes {
                        program.write_u64(ADDR, 9).expect("mapped");
                        used.tell();
                    } else if program.read_u64(ADDR).expect("mapped") == 0 {
                        used.tell();
                    }
                });
                scope.spawn(|| reclaim(machine, 2));
            });
        });
    }
}
