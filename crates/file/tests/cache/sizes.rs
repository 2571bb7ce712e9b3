//! Sizes, holes, invalidation, the end of files.

use crate::backings::Disk;
use crate::support::{ALONE, Fixture, Mapped, PAGE, at, page, pattern};
use quire_file::{Busy, FileError, IndexRange, IoLimits, Lookup, NoUsers, PageError, Wait};
use quire_frame::FrameFlags;
use std::sync::atomic::Ordering;

#[test]
fn a_smaller_file_loses_what_is_past_its_end() {
    let fixture = Fixture::new();
    let old = pattern(1, 4 * PAGE as usize);
    let disk = Disk::new(&old);
    let file = fixture.create(disk.file(), 4 * PAGE);
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), old);
    fixture.must_write(file.file(), 3 * PAGE, &[1]);
    fixture.cache().set_size(file.file(), PAGE + 10, &NoUsers).unwrap();
    disk.bytes().truncate(PAGE as usize + 10);
    fixture.check();
    assert_eq!((fixture.files.totals().cached, fixture.files.totals().dirty), (2, 0));
    fixture.cache().set_size(file.file(), 3 * PAGE, &NoUsers).unwrap();
    let mut wanted = old[..PAGE as usize + 10].to_vec();
    wanted.resize(3 * PAGE as usize, 0);
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), wanted);
}

#[test]
fn a_program_sees_zeros_past_the_new_end_at_once() {
    let fixture = Fixture::new();
    let file = fixture.create(Disk::new(&pattern(10, PAGE as usize)).file(), PAGE);
    let page = fixture.page(file.file(), 0);
    fixture.cache().set_size(file.file(), 100, &NoUsers).unwrap();
    // SAFETY: the page is cached, and no other thread is there.
    let bytes = unsafe { std::slice::from_raw_parts(page, PAGE as usize) };
    assert!(bytes[..100].iter().all(|byte| *byte != 0) && bytes[100..].iter().all(|byte| *byte == 0));
}

/// As in Linux's tmpfs, if the backing says so.
#[test]
fn what_is_written_past_the_end_stays_where_the_backing_wants_that() {
    for tail_stays in [false, true] {
        let fixture = Fixture::new();
        let disk = Disk::new(&[]);
        *disk.limits.lock().unwrap() = Some(IoLimits { tail_stays, ..IoLimits::default() });
        let file = fixture.create(disk.file(), PAGE + 100);
        let read = |at| fixture.must_read(file.file(), PAGE + at, 1)[0];
        let write_past_end = || {
            let page = fixture.page(file.file(), 1);
            // SAFETY: the page is cached, and the bytes are in it.
            unsafe { page.add(100).write_bytes(7, 300) };
        };
        let value = if tail_stays { 7 } else { 0 };
        write_past_end();
        // A call that writes behind that, and one that sets the size.
        fixture.must_write(file.file(), PAGE + 200, &[1]);
        assert_eq!([read(100), read(200)], [value, 1]);
        fixture.cache().set_size(file.file(), PAGE + 300, &NoUsers).unwrap();
        assert_eq!(read(299), value);
        fixture.cache().set_size(file.file(), PAGE + 100, &NoUsers).unwrap();
        write_past_end();
        // A hole has what is past the end, too.
        let mut free = |_| Ok(());
        let hole = PAGE + 50..PAGE + 150;
        fixture.cache().punch(file.file(), hole, &fixture.program, &NoUsers, &mut free).unwrap();
        fixture.cache().set_size(file.file(), PAGE + 400, &NoUsers).unwrap();
        assert_eq!([read(149), read(150)], [0, value]);
    }
}

/// As in Linux, where each writeback of the last folio makes that zeros, except in tmpfs, which has none.
#[test]
fn what_is_past_the_end_is_zeros_once_it_was_written_back() {
    for tail_stays in [false, true] {
        let fixture = Fixture::new();
        let disk = Disk::new(&[]);
        *disk.limits.lock().unwrap() = Some(IoLimits { tail_stays, ..IoLimits::default() });
        let file = fixture.create(disk.file(), PAGE + 100);
        fixture.must_write(file.file(), PAGE + 99, &[7]);
        let page = fixture.page(file.file(), 1);
        // SAFETY: the page is cached, and the bytes are in it.
        unsafe { page.add(100).write_bytes(7, 300) };
        fixture.cache().write_back(file.file(), IndexRange::ALL, Wait::Yes, &NoUsers).unwrap();
        // SAFETY: as before.
        let there = [99, 100, 399].map(|at| unsafe { page.add(at).read() });
        let past_end = if tail_stays { 7 } else { 0 };
        assert_eq!(there, [7, past_end, past_end]);
    }
}

/// As in Linux, whose ext4 lets a hole of PUNCH_HOLE that reaches the end go on to the end of the page, and a
/// range of ZERO_RANGE not.
#[test]
fn a_hole_is_as_long_as_is_said_past_the_end_too() {
    let fixture = Fixture::new();
    let file = fixture.create(Disk::new(&[]).file(), PAGE + 100);
    let page = fixture.page(file.file(), 1);
    let past_end = |wanted: [u8; 4]| {
        // SAFETY: the page is cached, and the bytes are in it.
        let there = [140, 150, 200, 300].map(|at| unsafe { page.add(at).read() });
        assert_eq!(there, wanted);
    };
    // SAFETY: the page is cached, and the bytes are in it.
    unsafe { page.add(100).write_bytes(7, 300) };
    let punch = |from: u64, to: u64| {
        let hole = PAGE + from..PAGE + to;
        let free = &mut |_| panic!("no whole page is in it");
        fixture.cache().punch(file.file(), hole, &fixture.program, &NoUsers, free).unwrap();
    };
    punch(0, 150);
    past_end([0, 7, 7, 7]);
    punch(200, 300);
    past_end([0, 7, 0, 7]);
}

#[test]
fn a_folio_is_removed_when_no_entry_maps_it() {
    let fixture = Fixture::new();
    let file = fixture.create(Disk::new(&pattern(2, 3 * PAGE as usize)).file(), 3 * PAGE);
    fixture.map(file.file(), 1, 3);
    let users = Mapped { fixture: Some(&fixture), ..Mapped::default() };
    fixture.cache().set_size(file.file(), 1, &users).unwrap();
    // Before, for each mapping that is left, and after.
    assert_eq!(users.unmaps.get(), 4);
    assert_eq!(fixture.frames_in_use(), 0);
    assert!(matches!(file.file().find(fixture.memcgs(), at(1)), Lookup::PastEnd));
}

#[test]
fn a_folio_that_is_held_outlives_its_place() {
    let fixture = Fixture::new();
    let file = fixture.create(Disk::new(&pattern(3, PAGE as usize)).file(), PAGE);
    let first = fixture.cache().page_in(file.file(), page(0), ALONE, &fixture.program).unwrap();
    let head = first.folio.unlock_and_keep();
    fixture.cache().set_size(file.file(), 0, &NoUsers).unwrap();
    let frame = fixture.frames().known(head);
    assert_eq!((frame.refs(), frame.as_folio().file()), (1, None));
    fixture.cache().set_size(file.file(), PAGE, &NoUsers).unwrap();
    let other = fixture.cache().page_in(file.file(), page(0), ALONE, &fixture.program).unwrap();
    assert_ne!(other.folio.head(), head);
    drop(other);
    fixture.memcgs().folios().release_folio(head);
}

#[test]
fn a_hole_is_zeros_and_its_edges_are_written() {
    let old = pattern(4, 4 * PAGE as usize + 100);
    let size = old.len() as u64;
    let holes = [
        (10, 20),
        (0, PAGE),
        (PAGE - 1, PAGE + 1),
        (5, 3 * PAGE + 5),
        (PAGE, 2 * PAGE),
        (PAGE + 1, 2 * PAGE),
        (PAGE, 2 * PAGE + 1),
        (4 * PAGE + 5, u64::MAX),
        (4 * PAGE, size),
        (0, u64::MAX),
        (size, u64::MAX),
        (7, 7),
    ];
    for (cached, (start, end)) in holes.into_iter().flat_map(|hole| [(false, hole), (true, hole)]) {
        let fixture = Fixture::new();
        let disk = Disk::new(&old);
        let file = fixture.create(disk.file(), size);
        if cached {
            fixture.must_read(file.file(), 0, 1 << 20);
            fixture.must_write(file.file(), 0, &old[..1]);
        }
        let first = start.next_multiple_of(PAGE);
        let last = end.min(size.next_multiple_of(PAGE)) / PAGE * PAGE;
        let mut freed = Vec::new();
        let mut free = |bytes: std::ops::Range<u64>| {
            disk.free(&bytes);
            freed.push(bytes);
            Ok(())
        };
        fixture.cache().punch(file.file(), start..end, &fixture.program, &NoUsers, &mut free).unwrap();
        fixture.check();
        let whole = first..last;
        assert_eq!(freed, if first < last && start < end { vec![whole] } else { vec![] }, "{start}..{end}");
        let mut wanted = old.clone();
        wanted[start.min(size) as usize..end.min(size) as usize].fill(0);
        assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), wanted, "{start}..{end}, cached {cached}");
        drop(file);
        assert_eq!(*disk.bytes(), wanted, "{start}..{end}, cached {cached}");
    }
}

#[test]
fn a_hole_whose_edge_cannot_be_read_is_not_made() {
    let fixture = Fixture::new();
    let old = pattern(5, 3 * PAGE as usize);
    let disk = Disk::new(&old);
    let file = fixture.create(disk.file(), 3 * PAGE);
    fixture.must_write(file.file(), PAGE, &old[PAGE as usize..2 * PAGE as usize]);
    *disk.fail_reads.lock().unwrap() = Some(FileError::Corrupt);
    let punch = || {
        let free = &mut |_| panic!("nothing is freed");
        fixture.cache().punch(file.file(), 0..2 * PAGE + 5, &fixture.program, &NoUsers, free)
    };
    assert_eq!(punch(), Err(PageError::File(FileError::Corrupt)));
    *disk.fail_reads.lock().unwrap() = None;
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), old);
    // The page at its edge is written, so there must be space for it.
    disk.full.store(true, Ordering::Relaxed);
    assert_eq!(punch(), Err(PageError::File(FileError::NoSpace)));
    disk.full.store(false, Ordering::Relaxed);
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), old);
}

#[test]
fn a_hole_that_cannot_be_freed_has_what_is_stored() {
    let fixture = Fixture::new();
    let old = pattern(11, 3 * PAGE as usize);
    let file = fixture.create(Disk::new(&old).file(), 3 * PAGE);
    fixture.must_write(file.file(), PAGE, &[1; 10]);
    let free = &mut |_| Err(FileError::Stale);
    let punched = fixture.cache().punch(file.file(), PAGE..2 * PAGE, &fixture.program, &NoUsers, free);
    assert_eq!(punched, Err(PageError::File(FileError::Stale)));
    assert_eq!(fixture.files.totals().dirty, 0);
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), old);
}

/// A hazard of docs/hazards.md: a machine ends while a leaked file is being written.
#[test]
fn files_that_are_left_end_with_their_machine() {
    let fixture = Fixture::new();
    let disk = Disk::new(&[]);
    let queued = fixture.create(disk.queued(8), 0);
    fixture.must_write(queued.file(), 0, &[1; 10]);
    fixture.cache().write_back(queued.file(), IndexRange::ALL, Wait::No, &NoUsers).unwrap();
    let left = Disk::new(&[]);
    let mapped = fixture.create(left.file(), PAGE);
    fixture.map(mapped.file(), 0, 1);
    std::mem::forget((queued, mapped));
    // SAFETY: nothing uses the files after this.
    unsafe { fixture.cache().end_all() };
    assert_eq!(*disk.bytes(), [1; 10], "what was under way has ended");
    assert!(left.dropped.load(Ordering::Relaxed));
    assert_eq!(fixture.files.count(fixture.frames()), 0);
    // Its frames go with it.
    std::mem::forget(fixture);
}

/// Pages are cut out of the middle of a file, and others put in: dirty ones move as all do.
#[test]
fn what_is_stored_of_the_end_of_a_file_moves() {
    for cuts in [true, false] {
        let fixture = Fixture::new();
        let mut wanted = pattern(11, 6 * PAGE as usize + 10);
        let disk = Disk::new(&wanted);
        let file = fixture.create(disk.queued(4), 6 * PAGE + 10);
        let core = file.file();
        fixture.must_read(core, 0, 1 << 20);
        for (at, byte) in [(7, 1), (PAGE + 7, 2), (4 * PAGE + 7, 3), (6 * PAGE + 7, 4)] {
            fixture.must_write(core, at, &[byte]);
            wanted[at as usize] = byte;
        }
        fixture.map(core, 3, 1);
        let users = Mapped { fixture: Some(&fixture), ..Mapped::default() };
        let (first, last) = (PAGE as usize, 3 * PAGE as usize);
        let size = if cuts { 4 * PAGE + 10 } else { 8 * PAGE + 10 };
        let change = |bytes: &mut Vec<u8>| {
            if cuts {
                bytes.drain(first..last);
            } else {
                bytes.splice(first..first, vec![0; 2 * PAGE as usize]);
            }
        };
        let replaced = fixture.cache().replace_from(core, (PAGE, size), &users, &mut || {
            assert_eq!((fixture.files.totals().cached, fixture.files.totals().dirty), (1, 1));
            change(&mut disk.bytes());
            Ok(())
        });
        assert_eq!((replaced, core.size()), (Ok(()), size));
        change(&mut wanted);
        assert_eq!(fixture.must_read(core, 0, 1 << 20), wanted);
        drop(file);
        assert_eq!(*disk.bytes(), wanted);
    }
}

#[test]
fn a_file_of_which_a_page_cannot_be_written_keeps_its_size() {
    let fixture = Fixture::new();
    let disk = Disk::new(&pattern(12, 3 * PAGE as usize));
    let file = fixture.create(disk.file(), 3 * PAGE);
    let replace = |change: &mut dyn FnMut() -> Result<(), FileError>| {
        fixture.cache().replace_from(file.file(), (PAGE, PAGE), &NoUsers, change)
    };
    fixture.must_write(file.file(), 2 * PAGE, &[1]);
    *disk.fail_writes.lock().unwrap() = Some(FileError::NoSpace);
    let failed = replace(&mut || unreachable!("it is not written"));
    assert_eq!(failed, Err(PageError::File(FileError::NoSpace)));
    assert_eq!(replace(&mut || Err(FileError::Quota)), Err(PageError::File(FileError::Quota)));
    assert_eq!(file.file().size(), 3 * PAGE);
    let too_large = fixture.cache().replace_from(file.file(), (0, u64::MAX), &NoUsers, &mut || Ok(()));
    assert_eq!(too_large, Err(PageError::TooLarge));
    assert_eq!((replace(&mut || Ok(())), file.file().size()), (Ok(()), PAGE));
}

/// A page that a device may write to is never clean. It is written once and leaves the cache, so that the
/// call ends.
#[test]
fn a_pinned_page_leaves_a_file_whose_end_moves() {
    let fixture = Fixture::new();
    let disk = Disk::new(&[]);
    let file = fixture.create(disk.file(), 0);
    fixture.must_write(file.file(), 0, &[1; 10]);
    let page = fixture.cache().page_in(file.file(), page(0), ALONE, &fixture.program).unwrap();
    let head = page.folio.head();
    drop(page);
    assert!(fixture.frames().folios().pin_folio(head));
    let replaced = fixture.cache().replace_from(file.file(), (0, 10), &NoUsers, &mut || Ok(()));
    assert_eq!((replaced, disk.take_log().len()), (Ok(()), 1));
    assert_eq!((fixture.files.totals().cached, fixture.files.totals().dirty), (0, 0));
    let (head, _) = fixture.frames().folios().unpin_folio(head);
    fixture.memcgs().folios().release_folio(head);
}

#[test]
fn invalidation_leaves_what_is_in_use() {
    let fixture = Fixture::new();
    let cache = fixture.cache();
    let file = fixture.create(Disk::new(&pattern(6, 100 * PAGE as usize)).file(), 100 * PAGE);
    fixture.must_read(file.file(), 0, 1 << 20);
    fixture.must_write(file.file(), 3 * PAGE, &[1]);
    fixture.map(file.file(), 50, 1);
    let held = cache.page_in(file.file(), page(70), ALONE, &fixture.program).unwrap();
    let locked = cache.invalidate(file.file(), IndexRange::ALL);
    let held = held.folio.unlock_and_keep();
    let unlocked = cache.invalidate(file.file(), IndexRange::ALL);
    let cached = fixture.files.totals().cached;
    fixture.memcgs().folios().release_folio(held);
    // Before anything fails: the last close waits for mappings.
    let users = Mapped { fixture: Some(&fixture), ..Mapped::default() };
    quire_file::FileUsers::unmap(&users, file.file(), IndexRange::ALL, true);
    assert_eq!((locked, unlocked, cached), (Err(Busy { pages: 3 }), Err(Busy { pages: 3 }), 3));
    assert_eq!(cache.invalidate(file.file(), IndexRange::ALL), Err(Busy { pages: 1 }));
    fixture.flush(file.file());
    assert_eq!(cache.invalidate(file.file(), IndexRange::ALL), Ok(()));
    assert_eq!(fixture.frames_in_use(), 0);
}

#[test]
fn the_last_close_writes_and_frees_all() {
    let fixture = Fixture::new();
    let memcg = fixture.limit(1000);
    let disk = Disk::new(&[]);
    let file = fixture.create(disk.file(), 0);
    let bytes = pattern(7, 100_000);
    fixture.must_write(file.file(), 0, &bytes);
    let again = fixture.cache().open_again(&file, quire_arch::Access::Write, &NoUsers).unwrap();
    drop(file);
    assert!(!disk.dropped.load(Ordering::Relaxed) && fixture.files.totals().dirty > 0);
    // As a VMA does.
    let opening = again.opening();
    // SAFETY: the handle holds it.
    unsafe { opening.as_ref() }.hold();
    drop(again);
    assert!(!disk.dropped.load(Ordering::Relaxed));
    // SAFETY: held just above, and given up here.
    assert!(unsafe { opening.as_ref().let_go() });
    // SAFETY: that was the last holder.
    unsafe { fixture.cache().close(opening) };
    assert!(disk.dropped.load(Ordering::Relaxed));
    assert_eq!(*disk.bytes(), bytes);
    assert_eq!((fixture.files.count(fixture.frames()), fixture.frames_in_use()), (0, 0));
    assert_eq!(fixture.files.totals(), quire_file::FileTotals::default());
    assert_eq!(fixture.memcgs().charges().charged(memcg), 0);
}

#[test]
fn an_error_that_no_opening_saw_is_counted_at_the_end() {
    let fixture = Fixture::new();
    for seen in [false, true] {
        let disk = Disk::new(&[]);
        let file = fixture.create(disk.file(), 0);
        fixture.must_write(file.file(), 0, &[1]);
        *disk.fail_writes.lock().unwrap() = Some(FileError::Io);
        if seen {
            assert_eq!(fixture.cache().sync(&file, 0..1, false, &NoUsers), Err(FileError::Io));
        }
        drop(file);
        assert_eq!(fixture.files.totals().lost_errors, 1);
    }
    assert_eq!(fixture.frames_in_use(), 0);
}

#[test]
fn a_memcg_pays_for_its_pages_and_is_told_when_it_cannot() {
    let fixture = Fixture::new();
    let memcg = fixture.limit(10);
    let file = fixture.create(Disk::new(&[]).file(), 0);
    let transfer = fixture.write(file.file(), 0, &pattern(8, 20 * PAGE as usize));
    assert_eq!(transfer.bytes, 10 * PAGE);
    let Some(PageError::OverLimit(over)) = transfer.stopped else { panic!("{transfer:?}") };
    assert_eq!(over.memcg, memcg);
    assert!(transfer.stopped.unwrap().is_shortage());
    fixture.check();
    assert_eq!(fixture.memcgs().charges().charged(memcg), 10);
    fixture.cache().set_size(file.file(), 3 * PAGE, &NoUsers).unwrap();
    assert_eq!(fixture.memcgs().charges().charged(memcg), 3);
}

#[test]
fn the_parts_of_a_folio_are_charged_to_its_memcg() {
    let fixture = Fixture::new();
    let memcg = fixture.limit(100);
    let file = fixture.create(Disk::with_folios_of(4).file(), 0);
    fixture.must_write(file.file(), 0, &pattern(8, 16 * PAGE as usize));
    let charged = || fixture.memcgs().charges().charged(memcg);
    assert_eq!(charged(), 16);
    fixture.cache().set_size(file.file(), 5 * PAGE + 100, &NoUsers).unwrap();
    fixture.check();
    assert_eq!(charged(), 6, "a half, and a half of the rest");
    fixture.cache().set_size(file.file(), 0, &NoUsers).unwrap();
    assert_eq!(charged(), 0);
}

/// It stays whole, so the zeros of the hole are written to it.
#[test]
fn a_hole_in_a_folio_that_is_held_needs_space() {
    let fixture = Fixture::new();
    let disk = Disk::with_folios_of(4);
    let file = fixture.create(disk.file(), 0);
    fixture.must_write(file.file(), 0, &pattern(8, 16 * PAGE as usize));
    fixture.flush(file.file());
    let Lookup::Folio(folio) = file.file().find(fixture.memcgs(), at(0)) else { panic!("it is cached") };
    let held = folio.unlock_and_keep();
    let punch = || {
        let mut free = |_| Ok(());
        let hole = 4 * PAGE..8 * PAGE;
        fixture.cache().punch(file.file(), hole, &fixture.program, &NoUsers, &mut free)
    };
    disk.full.store(true, Ordering::Relaxed);
    assert_eq!(punch(), Err(FileError::NoSpace.into()));
    assert!(fixture.must_read(file.file(), 4 * PAGE, 8).iter().any(|byte| *byte != 0), "nothing has changed");
    disk.full.store(false, Ordering::Relaxed);
    disk.prepared.lock().unwrap().clear();
    assert_eq!(punch(), Ok(()));
    assert_eq!(*disk.prepared.lock().unwrap(), [0..16 * PAGE, 0..16 * PAGE], "at both ends of the hole");
    assert_eq!(fixture.must_read(file.file(), 4 * PAGE, 4 * PAGE as usize), [0; 4 * PAGE as usize]);
    fixture.memcgs().folios().release_folio(held);
}

#[test]
fn what_a_folio_is_of_is_found_while_it_is_locked() {
    let fixture = Fixture::new();
    let file = fixture.create(Disk::new(&pattern(9, PAGE as usize)).file(), PAGE);
    let page = fixture.cache().page_in(file.file(), page(0), ALONE, &fixture.program).unwrap();
    let head = page.folio.head();
    // SAFETY: it is locked.
    let found = unsafe { quire_file::CachedFile::of_folio(fixture.frames(), head) }.unwrap();
    assert_eq!(found.number(), file.file().number());
    // SAFETY: the file is one of these, and lives.
    let core = unsafe { crate::support::Core::of_cached(found) };
    assert!(core.mappings().is_empty());
    assert!(core.mark_dirty(fixture.frames(), head));
    assert!(!core.mark_dirty(fixture.frames(), head), "it is dirty already");
    assert!(page.folio.frame().word().flags().contains(FrameFlags::DIRTY));
    drop(page);
    assert_eq!(core.figures(fixture.frames()).dirty, 1);
}
