//! Requests: those that fail, complete later, are refused, or are reported wrongly.

use crate::backings::{Asked, Disk, Liar, Method, Unsteady};
use crate::support::{ALONE, Fixture, PAGE, page, pattern};
use quire_file::{FileError, IndexRange, IoLimits, NoUsers, PageBytes, PageError, UserCopy, Wait};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

#[test]
fn a_page_that_cannot_be_read_leaves_the_cache_and_is_tried_again() {
    let fixture = Fixture::new();
    let bytes = pattern(1, 2 * PAGE as usize);
    let disk = Disk::new(&bytes);
    let file = fixture.create(disk.file(), 2 * PAGE);
    *disk.fail_reads.lock().unwrap() = Some(FileError::Stale);
    let failed = fixture.cache().page_in(file.file(), page(1), ALONE, &fixture.program);
    assert_eq!(failed.unwrap_err(), PageError::File(FileError::Stale));
    let (none, transfer) = fixture.read(file.file(), 0, 10);
    assert_eq!((none.len(), transfer.stopped), (0, Some(PageError::File(FileError::Stale))));
    // A part of a page needs the rest.
    assert_eq!(fixture.write(file.file(), 5, &[1]).stopped, Some(PageError::File(FileError::Stale)));
    assert_eq!(fixture.frames_in_use(), 0);
    fixture.check();
    *disk.fail_reads.lock().unwrap() = None;
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), bytes);
    drop(file);
    assert_eq!(fixture.files.totals().lost_errors, 0, "reads are reported at once");
}

#[test]
fn requests_that_complete_later_are_waited_for() {
    for depth in [1, 2, 20] {
        let fixture = Fixture::new();
        let bytes = pattern(2, 10 * PAGE as usize);
        let disk = Disk::new(&bytes);
        let file = fixture.create(disk.queued(depth), 10 * PAGE);
        assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), bytes);
        // Every other page: each is a request of its own, more than may be under way.
        for page in 0..30 {
            fixture.must_write(file.file(), 2 * page * PAGE, &[page as u8 + 1]);
        }
        fixture.cache().write_back(file.file(), IndexRange::ALL, Wait::No, &NoUsers).unwrap();
        let totals = fixture.files.totals();
        assert!(totals.dirty == 0 && totals.writeback > 0, "{totals:?}");
        fixture.check();
        // A page that is being written is written again, but not at the same time.
        fixture.must_write(file.file(), 0, &[77]);
        assert_eq!(fixture.cache().sync(&file, 0..u64::MAX, false, &NoUsers), Ok(()));
        let there = disk.bytes().clone();
        assert_eq!((there[0], there[58 * PAGE as usize]), (77, 30));
        assert_eq!(fixture.files.totals().writeback, 0);
        drop(file);
    }
}

#[test]
fn a_page_is_not_changed_while_it_is_written_if_the_backing_wants_that() {
    for stable_writes in [false, true] {
        let fixture = Fixture::new();
        let disk = Disk::new(&[]);
        *disk.limits.lock().unwrap() = Some(IoLimits { stable_writes, ..IoLimits::default() });
        let file = fixture.create(disk.queued(8), 0);
        fixture.must_write(file.file(), 0, &[1]);
        fixture.cache().write_back(file.file(), IndexRange::ALL, Wait::No, &NoUsers).unwrap();
        assert!(disk.bytes().is_empty());
        fixture.must_write(file.file(), 0, &[2]);
        assert_eq!(*disk.bytes(), if stable_writes { vec![1] } else { vec![] });
    }
}

#[test]
fn truncation_waits_for_what_is_being_written() {
    let fixture = Fixture::new();
    let disk = Disk::new(&[]);
    let file = fixture.create(disk.queued(8), 0);
    for page in 0..5 {
        fixture.must_write(file.file(), 2 * page * PAGE, &[1; 20]);
    }
    fixture.cache().write_back(file.file(), IndexRange::ALL, Wait::No, &NoUsers).unwrap();
    assert_eq!((fixture.files.totals().writeback, disk.take_log().len()), (5, 0));
    // The queue completes the newest first: the last page is dropped when it alone is written.
    fixture.cache().set_size(file.file(), 5 * PAGE, &NoUsers).unwrap();
    assert_eq!(fixture.frames_in_use(), 3);
    assert!(disk.take_log().len() >= 2 && fixture.files.totals().writeback <= 3);
    fixture.cache().set_size(file.file(), 10, &NoUsers).unwrap();
    assert_eq!((fixture.files.totals().writeback, fixture.frames_in_use()), (0, 1));
}

/// Files of two machines may have one queue: what ends on one is no request of the other.
#[test]
fn no_two_machines_have_one_token() {
    let seen = [1, 2].map(|seed| {
        let fixture = Fixture::new();
        let asked = Arc::new(Mutex::default());
        let file = fixture.create(Asked { asked: asked.clone(), panics: false }, 2 * PAGE);
        fixture.must_write(file.file(), 0, &pattern(seed, 2 * PAGE as usize));
        assert_eq!(fixture.cache().sync(&file, 0..u64::MAX, false, &NoUsers), Ok(()));
        drop(file);
        let tokens: Vec<_> = asked.lock().unwrap().iter().map(|&(token, _)| token).collect();
        tokens
    });
    assert!(!seen[0].is_empty() && !seen[1].iter().any(|token| seen[0].contains(token)), "{seen:?}");
}

/// A page that a backing has left halfway is in no cache, and its frame is never used again: the backing may
/// still write to it.
#[test]
fn a_read_that_panics_leaves_no_page() {
    let fixture = Fixture::new();
    let asked = Arc::new(Mutex::default());
    let file = fixture.create(Asked { asked: asked.clone(), panics: true }, PAGE);
    // More than may be under way: the backing says later that they have ended.
    for nth in 1..=2 * u64::from(IoLimits::MOST_IN_FLIGHT) {
        let read = || fixture.cache().page_in(file.file(), page(0), ALONE, &fixture.program).map(drop);
        assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
        assert_eq!((fixture.files.totals().cached, fixture.frames_in_use()), (0, nth));
    }
    for (_, head) in asked.lock().unwrap().iter() {
        fixture.memcgs().folios().release_folio(*head);
    }
}

fn panicking(disk: &Arc<Disk>, method: Method) -> (Unsteady, Arc<Mutex<Option<Method>>>) {
    // One request at a time, so that a second one waits.
    *disk.limits.lock().unwrap() = Some(IoLimits { in_flight: 1, ..IoLimits::default() });
    let panics = Arc::new(Mutex::new(Some(method)));
    (Unsteady { queued: disk.queued(1), panics: panics.clone() }, panics)
}

/// Pages that were to be written are not left as ones that are being written.
#[test]
fn a_write_that_panics_is_a_write_that_failed() {
    for method in [Method::Submit, Method::Progress, Method::Reap] {
        let fixture = Fixture::new();
        let disk = Disk::new(&[]);
        let (backing, panics) = panicking(&disk, method);
        let file = fixture.create(backing, 0);
        // Two requests.
        for page in [0, 1, 5] {
            fixture.must_write(file.file(), page * PAGE, &[7]);
        }
        let sync = || fixture.cache().sync(&file, 0..u64::MAX, false, &NoUsers);
        assert!(catch_unwind(AssertUnwindSafe(sync)).is_err(), "{method:?}");
        assert_eq!(*panics.lock().unwrap(), None);
        assert_eq!(sync(), Err(FileError::Io), "{method:?}");
        assert_eq!((fixture.files.totals().writeback, fixture.files.totals().dirty), (0, 0));
        fixture.must_write(file.file(), 0, &[8]);
        assert_eq!(sync(), Ok(()));
        assert_eq!(disk.bytes()[0], 8);
        drop(file);
        assert_eq!(fixture.frames_in_use(), 0);
    }
}

/// There is room for another read after one that panicked, and the file ends only when nothing is read into
/// its frames any more.
#[test]
fn a_read_that_panics_keeps_neither_its_room_nor_its_frame() {
    for method in [Method::Submit, Method::Progress, Method::Reap] {
        let fixture = Fixture::new();
        let old = pattern(7, PAGE as usize);
        let disk = Disk::new(&old);
        let (backing, panics) = panicking(&disk, method);
        let file = fixture.create(backing, PAGE);
        let read = || fixture.cache().page_in(file.file(), page(0), ALONE, &fixture.program).map(drop);
        assert!(catch_unwind(AssertUnwindSafe(read)).is_err(), "{method:?}");
        assert_eq!(disk.take_log().len(), 0);
        if method == Method::Reap {
            // It is under way.
            drop(file);
            assert_eq!(disk.take_log().len(), 1, "the file has ended before what its backing reads");
            // Also where the machine ends first.
            *panics.lock().unwrap() = Some(method);
        } else {
            assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), old, "{method:?}");
            drop(file);
        }
        // Nothing uses the frame of the read that panicked again.
        assert_eq!(fixture.frames_in_use(), 1);
        let mut lost = Vec::new();
        fixture.frames().audit().for_each_frame(|pfn, frame| {
            lost.extend((frame.kind() == quire_frame::Kind::File).then_some(pfn));
        });
        fixture.memcgs().folios().release_folio(lost[0]);
    }
}

/// A page that is dirty may be written to anywhere, and the backing is not asked again.
#[test]
fn space_is_asked_for_a_whole_page() {
    let fixture = Fixture::new();
    let disk = Disk::new(&[]);
    let file = fixture.create(disk.file(), PAGE + 100);
    drop(fixture.cache().page_in_to_write(file.file(), page(1), ALONE, &fixture.program).unwrap());
    fixture.must_write(file.file(), 10, &[1]);
    let mut free = |_| Ok(());
    fixture.cache().punch(file.file(), 20..30, &fixture.program, &NoUsers, &mut free).unwrap();
    assert_eq!(*disk.prepared.lock().unwrap(), [PAGE..2 * PAGE, 0..PAGE, 0..PAGE]);
}

/// All pages of a folio become dirty together.
#[test]
fn space_is_asked_for_a_whole_folio() {
    let fixture = Fixture::new();
    let disk = Disk::with_folios_of(2);
    let file = fixture.create(disk.file(), 0);
    fixture.must_write(file.file(), 0, &pattern(3, 4 * PAGE as usize));
    fixture.flush(file.file());
    disk.prepared.lock().unwrap().clear();
    fixture.must_write(file.file(), PAGE + 10, &[1]);
    assert_eq!(*disk.prepared.lock().unwrap(), [PAGE..2 * PAGE, 0..4 * PAGE]);
}

#[test]
fn a_copy_that_panics_leaves_no_page() {
    struct Panics;
    impl UserCopy for Panics {
        fn left(&self) -> u64 {
            PAGE
        }
        fn fault_in(&mut self, bytes: usize) -> usize {
            bytes
        }
        fn copy(&mut self, _: PageBytes<'_>) -> usize {
            panic!("a copy ends here")
        }
        fn advance(&mut self, _: usize) {}
    }
    let fixture = Fixture::new();
    let old = pattern(6, PAGE as usize);
    let file = fixture.create(Disk::new(&old).file(), PAGE);
    let write = || fixture.cache().write(file.file(), 0, &mut Panics, &fixture.program, &NoUsers);
    assert!(catch_unwind(AssertUnwindSafe(write)).is_err());
    assert_eq!(fixture.frames_in_use(), 0);
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), old);
}

#[test]
fn ends_that_are_no_requests_are_not_believed() {
    let fixture = Fixture::new();
    let bytes = pattern(4, 20 * PAGE as usize);
    let disk = Disk::new(&bytes);
    let liar = Liar { disk: disk.clone(), seen: Mutex::default(), refusals: AtomicU32::new(0) };
    let file = fixture.create(liar, 20 * PAGE);
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), bytes);
    let new = pattern(5, 20 * PAGE as usize);
    fixture.must_write(file.file(), 0, &new);
    assert_eq!(fixture.cache().sync(&file, 0..u64::MAX, false, &NoUsers), Ok(()));
    assert_eq!(*disk.bytes(), new);
}
