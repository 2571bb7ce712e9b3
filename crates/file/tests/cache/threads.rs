//! Threads that use one file at once.

use crate::backings::{Disk, Gate, Space};
use crate::machine::{Machine, Random, run_on};
use crate::support::{ALONE, Core, Fixture, PAGE, page};
use quire_file::{FileBacking, FileError, IndexRange, NoUsers, PageError, Wait};
use quire_frame::FrameFlags;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

const THREADS: usize = 4;
const PAGES: u64 = 24;

/// A page has one byte value throughout, at any time.
fn look(fixture: &Fixture, file: &Core, index: u64) {
    match fixture.cache().page_in(file, page(index), ALONE, &fixture.program) {
        Ok(page) => {
            let start = quire_arch::Platform::direct_map(fixture.frames().platform(), page.folio.head());
            // SAFETY: the page is in RAM, and locked; those that write it lock it.
            let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), PAGE as usize) };
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "page {index} is torn");
        }
        Err(PageError::PastEnd) => {}
        Err(error) => panic!("{error}"),
    }
}

/// A page is zeros, or past the end.
fn look_for_zeros(fixture: &Fixture, file: &Core, index: u64) {
    let page = fixture.must_read(file, index * PAGE, PAGE as usize);
    assert!(page.iter().all(|byte| *byte == 0), "page {index} is no hole");
}

fn use_at_once(disk: &Disk, backing: impl FileBacking<Machine>) {
    let fixture = Fixture::with(Machine::new(&[(0, 4096)], THREADS));
    let file = fixture.create(backing, PAGES * PAGE);
    // As a file system has.
    let inode = Mutex::new(());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fixture, file, inode) = (&fixture, &file, &inode);
            scope.spawn(move || {
                run_on(thread);
                let (mut random, core) = (Random(thread as u64), file.file());
                for _ in 0..400 {
                    let index = random.below(PAGES);
                    match random.below(10) {
                        0..=2 => look(fixture, core, index),
                        3..=5 => {
                            let _inode = inode.lock().unwrap();
                            let value = random.below(256) as u8;
                            fixture.must_write(core, index * PAGE, &vec![value; 2 * PAGE as usize]);
                        }
                        6 => {
                            let _inode = inode.lock().unwrap();
                            fixture.cache().set_size(core, index * PAGE, &NoUsers).unwrap();
                        }
                        7 => {
                            let _inode = inode.lock().unwrap();
                            let hole = index * PAGE..(index + 3) * PAGE;
                            let free = &mut |bytes| {
                                disk.free(&bytes);
                                Ok(())
                            };
                            fixture.cache().punch(core, hole, &fixture.program, &NoUsers, free).unwrap();
                            // No thread writes, so what comes to be in the cache is zeros.
                            look_for_zeros(fixture, core, index);
                        }
                        8 => {
                            let _ = fixture.cache().invalidate(core, IndexRange::new(index, index + 5));
                            let wait = if index % 2 == 0 { Wait::No } else { Wait::Yes };
                            fixture.cache().write_back(core, IndexRange::ALL, wait, &NoUsers).unwrap();
                        }
                        _ => fixture.cache().sync(file, 0..u64::MAX, false, &NoUsers).unwrap(),
                    }
                }
            });
        }
    });
    fixture.check();
    drop(file);
    assert_eq!(fixture.frames_in_use(), 0);
}

#[test]
fn a_file_that_completes_at_once() {
    let disk = Disk::new(&[]);
    use_at_once(&disk, disk.file());
}

#[test]
fn a_file_that_completes_later() {
    let disk = Disk::new(&[]);
    use_at_once(&disk, disk.queued(2));
}

/// A hazard of docs/hazards.md: all that wait for a page that cannot be read get an error, and the page is
/// gone.
#[test]
fn a_page_that_cannot_be_read_fails_for_all_that_wait() {
    let fixture = Fixture::with(Machine::new(&[(0, 4096)], THREADS));
    let gate = Arc::new(Gate::default());
    let file = fixture.create(Arc::clone(&gate), PAGE);
    let read = |cpu| {
        run_on(cpu);
        fixture.cache().page_in(file.file(), page(0), ALONE, &fixture.program).map(drop)
    };
    let results = std::thread::scope(|scope| {
        let first = scope.spawn(|| read(0));
        let head = loop {
            match *gate.asked_for.lock().unwrap() {
                Some(head) => break head,
                None => std::thread::yield_now(),
            }
        };
        let second = scope.spawn(|| read(1));
        // The second one sleeps for the folio lock.
        while !fixture.frames().known(head).word().flags().contains(FrameFlags::WAITERS) {
            std::thread::yield_now();
        }
        gate.is_open.store(true, Ordering::Relaxed);
        [first.join().unwrap(), second.join().unwrap()]
    });
    assert_eq!(results, [Err(PageError::File(FileError::Corrupt)), Err(PageError::File(FileError::Io))]);
    assert_eq!(fixture.frames_in_use(), 0);
}

#[test]
fn a_page_that_is_written_whole_does_not_depend_on_a_read_that_fails() {
    let fixture = Fixture::with(Machine::new(&[(0, 4096)], THREADS));
    let gate = Arc::new(Gate::default());
    let file = fixture.create(Arc::clone(&gate), PAGE);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            run_on(0);
            let read = fixture.cache().page_in(file.file(), page(0), ALONE, &fixture.program).map(drop);
            assert_eq!(read, Err(PageError::File(FileError::Corrupt)));
        });
        let head = loop {
            match *gate.asked_for.lock().unwrap() {
                Some(head) => break head,
                None => std::thread::yield_now(),
            }
        };
        scope.spawn(|| {
            run_on(1);
            fixture.must_write(file.file(), 0, &[7; PAGE as usize]);
        });
        while !fixture.frames().known(head).word().flags().contains(FrameFlags::WAITERS) {
            std::thread::yield_now();
        }
        gate.is_open.store(true, Ordering::Relaxed);
    });
    assert_eq!(fixture.must_read(file.file(), 0, 9), [7; 9]);
    // The gate writes nothing.
    fixture.cache().set_size(file.file(), 0, &NoUsers).unwrap();
}

/// A hole that is made when space was asked for, and the page is not dirty yet, takes that space: it is asked
/// for again.
#[test]
fn a_page_that_is_dirty_has_space_whatever_holes_come() {
    for (by_call, cached) in [(false, false), (false, true), (true, false), (true, true)] {
        let fixture = Fixture::with(Machine::new(&[(0, 4096)], 2));
        let space = Arc::new(Space::default());
        let file = fixture.create(space.clone(), 4 * PAGE);
        if cached {
            drop(fixture.cache().page_in(file.file(), page(1), ALONE, &fixture.program).unwrap());
        }
        space.is_armed.store(true, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                run_on(1);
                if by_call {
                    fixture.must_write(file.file(), PAGE, &[1; PAGE as usize]);
                } else {
                    drop(
                        fixture
                            .cache()
                            .page_in_to_write(file.file(), page(1), ALONE, &fixture.program)
                            .unwrap(),
                    );
                }
            });
            while !space.waits.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let mut free = |bytes| {
                space.free(&bytes);
                Ok(())
            };
            let hole = PAGE..2 * PAGE;
            fixture.cache().punch(file.file(), hole, &fixture.program, &NoUsers, &mut free).unwrap();
            space.waits.store(false, Ordering::Release);
        });
        assert_eq!(fixture.files.totals().dirty, 1);
        assert!(space.pages.lock().unwrap().contains(&1), "by call {by_call}, cached {cached}");
    }
}
