//! Writing back, and what the openings learn of errors.

use crate::backings::Disk;
use crate::support::{ALONE, Fixture, Mapped, PAGE, page, pattern};
use quire_arch::Access;
use quire_file::{FileError, IndexRange, IoLimits, NoUsers, Wait};
use std::sync::atomic::Ordering;

#[test]
fn consecutive_pages_are_written_by_one_request() {
    let fixture = Fixture::new();
    let disk = Disk::new(&[]);
    let file = fixture.create(disk.file(), 0);
    let bytes = pattern(1, 40 * PAGE as usize - 7);
    fixture.must_write(file.file(), 0, &bytes);
    fixture.must_write(file.file(), 50 * PAGE, &bytes[..10]);
    fixture.flush(file.file());
    let log: Vec<_> = disk.take_log().iter().map(|io| (io.offset / PAGE, io.bytes)).collect();
    let most = u64::from(IoLimits::default().pages);
    assert_eq!(log, [(0, most * PAGE), (most, 8 * PAGE), (50, 10)]);
    assert_eq!(disk.bytes()[..bytes.len()], bytes);
    let totals = fixture.files.totals();
    assert_eq!((totals.cached, totals.dirty, totals.writeback), (41, 0, 0));
    fixture.flush(file.file());
    assert!(disk.take_log().is_empty(), "all of it is clean");
}

#[test]
fn requests_are_as_small_as_the_backing_wants() {
    let fixture = Fixture::new();
    let disk = Disk::new(&[]);
    *disk.limits.lock().unwrap() = Some(IoLimits { pages: 3, segments: 1, ..IoLimits::default() });
    let file = fixture.create(disk.file(), 0);
    let bytes = pattern(2, 10 * PAGE as usize);
    fixture.must_write(file.file(), 0, &bytes);
    fixture.flush(file.file());
    let log = disk.take_log();
    assert!(log.len() >= 4 && log.iter().all(|io| io.bytes <= 3 * PAGE && io.segments == 1), "{log:?}");
    assert_eq!(*disk.bytes(), bytes);
}

/// Hazards of docs/hazards.md: a page whose mapping is in transit stays dirty.
#[test]
fn a_page_with_a_mapping_in_transit_stays_dirty() {
    let fixture = Fixture::new();
    let disk = Disk::new(&[]);
    let file = fixture.create(disk.file(), 0);
    fixture.must_write(file.file(), 0, &pattern(3, 2 * PAGE as usize));
    fixture.map(file.file(), 0, 1);
    let users = Mapped { fixture: Some(&fixture), ..Mapped::default() };
    users.in_transit.set(1);
    let written = || disk.take_log().iter().map(|io| io.offset).collect::<Vec<_>>();
    fixture.cache().write_back(file.file(), IndexRange::ALL, Wait::No, &users).unwrap();
    let first = (written(), fixture.files.totals().dirty);
    // One that is waited for is made clean once it is through.
    users.in_transit.set(3);
    users.cleaned.set(0);
    let synced = fixture.cache().sync(&file, 0..PAGE, false, &users);
    let second = (synced, users.cleaned.get(), fixture.files.totals().dirty, written());
    // Before anything fails: the last close waits for mappings.
    quire_file::FileUsers::unmap(&users, file.file(), IndexRange::ALL, true);
    assert_eq!(first, (vec![PAGE], 1));
    assert_eq!(second, (Ok(()), 4, 0, vec![0]));
}

#[test]
fn a_pinned_page_is_written_by_a_sync_and_stays_dirty() {
    let fixture = Fixture::new();
    let disk = Disk::new(&[]);
    let file = fixture.create(disk.file(), 0);
    fixture.must_write(file.file(), 0, &[1; 10]);
    let page = fixture.cache().page_in(file.file(), page(0), ALONE, &fixture.program).unwrap();
    let head = page.folio.head();
    drop(page);
    assert!(fixture.frames().folios().pin_folio(head));
    fixture.cache().write_back(file.file(), IndexRange::ALL, Wait::No, &NoUsers).unwrap();
    assert!(disk.take_log().is_empty());
    assert_eq!(fixture.cache().sync(&file, 0..10, false, &NoUsers), Ok(()));
    assert_eq!((disk.take_log().len(), fixture.files.totals().dirty), (1, 1));
    fixture.check();
    let (head, _) = fixture.frames().folios().unpin_folio(head);
    fixture.memcgs().folios().release_folio(head);
}

#[test]
fn a_page_that_cannot_be_written_is_clean_and_each_opening_learns_of_it_once() {
    let fixture = Fixture::new();
    let disk = Disk::new(&[]);
    let first = fixture.create(disk.file(), 0);
    let cache = fixture.cache();
    let second = cache.open_again(&first, Access::Write, &NoUsers).unwrap();
    fixture.must_write(first.file(), 0, &[1; 10]);
    *disk.fail_writes.lock().unwrap() = Some(FileError::NoSpace);
    let written = cache.write_back(first.file(), IndexRange::ALL, Wait::Yes, &NoUsers);
    assert_eq!(written, Err(FileError::NoSpace));
    assert_eq!(first.file().figures(fixture.frames()).failed_writes, 1);
    *disk.fail_writes.lock().unwrap() = None;
    assert_eq!(fixture.files.totals().dirty, 0);
    let late = cache.open_again(&first, Access::Write, &NoUsers).unwrap();
    let sync = |open| cache.sync(open, 0..10, false, &NoUsers);
    for open in [&first, &second, &late] {
        assert_eq!((sync(open), sync(open)), (Err(FileError::NoSpace), Ok(())));
    }
    let later = cache.open_again(&first, Access::Write, &NoUsers).unwrap();
    assert_eq!(sync(&later), Ok(()));
}

#[test]
fn a_sync_that_fails_and_a_short_write_are_errors() {
    let fixture = Fixture::new();
    let disk = Disk::new(&[]);
    let file = fixture.create(disk.file(), 0);
    fixture.must_write(file.file(), 0, &[1; 10]);
    disk.short_writes.store(true, Ordering::Relaxed);
    assert_eq!(fixture.cache().sync(&file, 0..10, true, &NoUsers), Err(FileError::Io));
    disk.short_writes.store(false, Ordering::Relaxed);
    *disk.fail_syncs.lock().unwrap() = Some(FileError::Quota);
    assert_eq!(fixture.cache().sync(&file, 0..10, true, &NoUsers), Err(FileError::Quota));
    *disk.fail_syncs.lock().unwrap() = None;
    assert_eq!(fixture.cache().sync(&file, 0..10, true, &NoUsers), Ok(()));
}

#[test]
fn a_sync_writes_its_range_only() {
    let fixture = Fixture::new();
    let disk = Disk::new(&[]);
    let file = fixture.create(disk.file(), 0);
    fixture.must_write(file.file(), 0, &pattern(4, 100 * PAGE as usize));
    fixture.cache().sync(&file, 10 * PAGE + 5..20 * PAGE + 1, false, &NoUsers).unwrap();
    let pages: u64 = disk.take_log().iter().map(|io| io.bytes / PAGE).sum();
    assert_eq!((pages, fixture.files.totals().dirty), (11, 89));
}
