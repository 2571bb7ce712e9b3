//! Pages that are locked and unlocked while reclaim has isolated them: none is left on the unevictable list.
//! The auditor, with which each model ends, checks that the lists agree with the flags, and the flags with
//! the mappings.

use crate::machines::*;
use quire_mm::shm::{ShmCaller, ShmChange};
use quire_sync::atomic::as_one_step;
use shuttle::thread;

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
    with_swap(2).check(5000, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |_| {
                for _ in 0..5 {
                    lock(space);
                    unlock(space);
                }
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
        with_swap(3).check(SOME, move |machine, space| {
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
            });
        });
    }
}

/// The same while the other process changes its mapping, so that reclaim cannot walk the rmap a second time.
#[test]
fn shuttle_munlock_while_mappings_change() {
    with_swap(3).check(SOME, |machine, space| {
        written(machine, space, ADDR, PAGE, 1);
        let child = fork(space);
        as_one_step(|| {
            lock(space);
            lock(&child);
            unlock(space);
        });
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, &child, |_| child.munmap(ADDR, PAGE).expect("it is mapped"));
            scope.spawn(|| reclaim(machine, 1));
            spawn_on(scope, machine, 2, space, |_| {
                for advice in [Advice::DontFork, Advice::DoFork] {
                    space.madvise(ADDR, PAGE, advice).expect("the mapping is there");
                }
            });
        });
        audit(machine);
        as_one_step(|| {
            assert_eq!(read(machine, 2, space, ADDR), 1);
        });
    });
}

/// A user who may lock segments.
fn user() -> ShmCaller<'static> {
    ShmCaller {
        uid: 0,
        gid: 0,
        is_in_group: &|_| false,
        pid: 1,
        now: 0,
        passes_modes: false,
        is_admin: false,
        may_lock: true,
        lock_limit: 0,
    }
}

/// A segment that is locked and unlocked while its pages come, and while reclaim finds them. The window is
/// small: a bug in it showed in one of a thousand schedules.
#[test]
fn shuttle_a_segment_is_unlocked_while_its_pages_are_listed() {
    for mlocks in [false, true] {
        with_swap(3).check(5000, move |machine, space| {
            let shm = as_one_step(|| machine.memory().create_shm().expect("there is memory enough"));
            let id = as_one_step(|| {
                let id = shm.get(0, 2 * PAGE, 0o600, &user()).expect("there is memory enough");
                shm.attach(space, id, ADDR, 0, &user()).expect("nothing is there");
                write(machine, 0, space, ADDR, 1);
                shm.change(id, ShmChange::Lock, &user()).expect("it may be locked");
                id
            });
            thread::scope(|scope| {
                scope.spawn(|| reclaim(machine, 2));
                spawn_on(scope, machine, 0, space, |program| {
                    if mlocks {
                        lock(space);
                        unlock(space);
                    } else {
                        page_out(space, ADDR, PAGE);
                    }
                    program.write_u64(VirtAddr(ADDR.0 + PAGE), 2).expect("there is memory enough");
                });
                scope.spawn(|| {
                    as_cpu(machine, 1, || {
                        for what in [ShmChange::Unlock, ShmChange::Lock, ShmChange::Unlock] {
                            shm.change(id, what, &user()).expect("it may be locked");
                        }
                    });
                });
            });
            as_one_step(|| {
                audit(machine);
                assert_eq!([0, PAGE].map(|at| read(machine, 0, space, VirtAddr(ADDR.0 + at))), [1, 2]);
                shm.detach(space, ADDR, &user()).expect("it is attached");
                shm.change(id, ShmChange::Remove, &user()).expect("it is there");
                drop(shm);
            });
        });
    }
}
