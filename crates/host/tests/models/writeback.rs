//! Files that are written back while programs write to their mappings, protect and unmap them.

use crate::common::{ALL, read_file};
use crate::files::*;
use crate::machines::*;
use quire_mm::file::*;
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::sync::atomic::{AtomicU64, Ordering};

/// All is written in the end: what a program wrote last is stored.
fn assert_stored(scene: &Scene<'_, '_>, value: u64) {
    as_one_step(|| {
        assert_eq!(scene.file.sync(ALL, false), Ok(()));
        assert_eq!(scene.file.figures().dirty, 0);
        let seen = read_file(&scene.file, PAGE, 8);
        assert_eq!((scene.stored(1), seen), (value, value.to_le_bytes().to_vec()), "a write is lost");
    });
}

/// Hazard: a page is made clean, and written to by an entry that stays writable, or that a fault makes
/// writable meanwhile. What was written before a sync began is stored when it returns.
#[test]
fn shuttle_writes_against_writeback() {
    with_file(3, |scene| {
        let Scene { machine, space, file, .. } = scene;
        let written = AtomicU64::new(0);
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 5..8 {
                    assert_eq!(program.write_u64(shared(1), value), Ok(()));
                    written.store(value, Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                let before = written.load(Ordering::Relaxed);
                assert_eq!(scene.on(1, || file.sync(ALL, false)), Ok(()));
                assert!(scene.stored(1) >= before, "{} after {before}", scene.stored(1));
            });
            scope.spawn(|| scene.on(2, || file.write_back(ALL, Wait::No)).expect("nothing is waited for"));
        });
        assert_stored(scene, 7);
    });
}

/// Hazard: pages leave their tables, and translations stay until the flush: a folio with such a mapping is
/// not made clean meanwhile. All that was written is stored, and no access gets through after the call.
fn removal_against_writeback(remove: impl Fn(&Scene<'_, '_>) + Send + Sync + Copy + 'static) {
    with_file(3, move |scene| {
        let Scene { machine, space, file, .. } = scene;
        let (gone, last) = (Fact::default(), AtomicU64::new(5));
        as_one_step(|| {
            write(machine, 0, space, shared(1), 5);
            write(machine, 1, space, shared(0), 5);
        });
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 6..10 {
                    let late = gone.is_told();
                    match program.write_u64(shared(1), value) {
                        Ok(()) => last.store(value, Ordering::Relaxed),
                        Err(error) => assert!(error == NOT_MAPPED || error == DENIED, "{error:?}"),
                    }
                    assert!(!late || last.load(Ordering::Relaxed) < value, "a write after the call");
                }
            });
            scope.spawn(|| {
                scene.on(1, || remove(scene));
                gone.tell();
            });
            scope.spawn(|| assert_eq!(scene.on(2, || file.sync(ALL, false)), Ok(())));
        });
        assert_stored(scene, last.into_inner());
    });
}

#[test]
fn shuttle_a_munmap_in_transit_against_writeback() {
    removal_against_writeback(|scene| scene.space.munmap(shared(0), 2 * PAGE).expect("a mapping can go"));
}

#[test]
fn shuttle_a_move_against_writeback() {
    removal_against_writeback(|scene| {
        let there = VirtAddr(shared(0).0 + (1 << 30));
        scene.space.mremap(shared(0), 2 * PAGE, 2 * PAGE, MOVE, there).expect("there is memory enough");
    });
}

#[test]
fn shuttle_a_protection_against_writeback() {
    removal_against_writeback(|scene| {
        scene.space.mprotect(shared(0), 2 * PAGE, READ, false).expect("it is mapped");
    });
}

/// Pages are dropped from a mapping that stays, and come again at the next write.
#[test]
fn shuttle_a_discard_in_transit_against_writeback() {
    with_file(3, |scene| {
        let Scene { machine, space, file, .. } = scene;
        as_one_step(|| write(machine, 0, space, shared(1), 5));
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 6..9 {
                    assert_eq!(program.write_u64(shared(1), value), Ok(()));
                    assert_eq!(program.read_u64(shared(1)), Ok(value), "a write is lost");
                }
            });
            spawn_on(scope, machine, 1, space, |_| {
                space.madvise(shared(0), 2 * PAGE, Advice::DontNeed).expect("it is mapped");
            });
            scope.spawn(|| assert_eq!(scene.on(2, || file.sync(ALL, false)), Ok(())));
        });
        assert_stored(scene, 8);
    });
}

/// A device gets a page after writeback has looked for pins, and writes to it when it is clean: that is
/// stored in the end, though no entry says so.
#[test]
fn shuttle_a_pin_for_writing_against_writeback() {
    with_file(2, |scene| {
        let Scene { machine, space, file, .. } = scene;
        as_one_step(|| write(machine, 0, space, shared(1), 5));
        let synced = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                let pinned = on_cpu(machine, 0, space, |_| space.pin_page(shared(1), Access::Write));
                let pinned = pinned.expect("it is mapped, and there is memory enough");
                while !synced.is_told() {
                    thread::yield_now();
                }
                device_writes(machine, &pinned, 9);
                scene.on(0, || drop(pinned));
            });
            scope.spawn(|| {
                assert_eq!(scene.on(1, || file.sync(ALL, false)), Ok(()));
                synced.tell();
            });
        });
        assert_stored(scene, 9);
    });
}
