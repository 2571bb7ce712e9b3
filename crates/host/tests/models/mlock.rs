//! Pages that are locked and unlocked while reclaim has isolated them: none is left on the unevictable list.
//! The auditor, with which each model ends, checks that the lists agree with the flags, and the flags with
//! the mappings.

use crate::common::{HostSpace, PAGE};
use crate::harness::{audit, on_cpu};
use crate::swap_machine::*;
use quire_mm::space::Advice;
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::mem::ManuallyDrop;

fn lock(space: &HostSpace<'_>) {
    space.mlock(ADDR, PAGE, true).expect("the mapping is there");
}

fn unlock(space: &HostSpace<'_>) {
    space.munlock(ADDR, PAGE).expect("the mapping is there");
}

/// Reclaim isolates the page, and puts it back while it is locked and unlocked. The window is small: a bug in
/// it showed in one of a thousand schedules.
#[test]
fn shuttle_mlock_against_reclaim() {
    Swapping::on(2).check(5000, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(machine, 0, space, |_| {
                    for _ in 0..5 {
                        lock(space);
                        unlock(space);
                    }
                });
            });
            scope.spawn(|| reclaim(machine, 1));
        });
        assert_eq!(as_one_step(|| read(machine, 0, space, ADDR)), 1);
    });
}

/// A page of two processes, locked by one of them. Reclaim isolates it all the same, since the other unlocked
/// it; the process that locked it copies it, or exits.
#[test]
fn shuttle_munlock_against_reclaim() {
    for copies in [true, false] {
        Swapping::on(3).check(SOME, move |machine, space| {
            written(machine, space, ADDR, PAGE, 1);
            let child = fork(space);
            as_one_step(|| {
                lock(space);
                lock(&child);
                unlock(space);
            });
            thread::scope(|scope| {
                scope.spawn(|| {
                    if copies {
                        write(machine, 0, &child, ADDR, 2);
                    } else {
                        on_cpu(machine, 0, &child, |_| child.munmap(ADDR, PAGE)).expect("it is mapped");
                    }
                });
                scope.spawn(|| reclaim(machine, 1));
                scope.spawn(|| reclaim(machine, 2));
            });
            audit(machine);
            as_one_step(|| {
                assert_eq!(read(machine, 0, space, ADDR), 1);
                if copies {
                    assert_eq!(read(machine, 0, &child, ADDR), 2);
                }
                drop(ManuallyDrop::into_inner(child));
            });
        });
    }
}

/// The same while the other process changes its mapping, so that reclaim cannot walk the rmap a second time.
#[test]
fn shuttle_munlock_while_mappings_change() {
    Swapping::on(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        let child = fork(space);
        as_one_step(|| {
            lock(space);
            lock(&child);
            unlock(space);
        });
        thread::scope(|scope| {
            scope.spawn(|| on_cpu(machine, 0, &child, |_| child.munmap(ADDR, PAGE)).expect("it is mapped"));
            scope.spawn(|| reclaim(machine, 1));
            scope.spawn(|| {
                on_cpu(machine, 2, space, |_| {
                    for advice in [Advice::DontFork, Advice::DoFork] {
                        space.madvise(ADDR, PAGE, advice).expect("the mapping is there");
                    }
                });
            });
        });
        audit(machine);
        as_one_step(|| {
            assert_eq!(read(machine, 2, space, ADDR), 1);
            drop(ManuallyDrop::into_inner(child));
        });
    });
}
