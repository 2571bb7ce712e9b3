//! Reading and writing.

use crate::backings::{Disk, Plain};
use crate::machine::Random;
use crate::support::{ALONE, Fixture, From, PAGE, at, page, pattern, up_to};
use quire_file::{FileError, Lookup, NoUsers, PageBytes, PageError, Transfer, UserCopy};
use quire_swap::Direction;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

#[test]
fn what_is_stored_is_read_and_cached_and_the_rest_is_zeros() {
    let fixture = Fixture::new();
    let stored = pattern(1, 5000);
    let disk = Disk::new(&stored);
    let file = fixture.create(disk.file(), 3 * PAGE + 10);
    let mut wanted = stored.clone();
    wanted.resize(3 * PAGE as usize + 10, 0);
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), wanted);
    let log = disk.take_log();
    assert_eq!(log.iter().map(|io| io.bytes).collect::<Vec<_>>(), [3 * PAGE + 10]);
    assert_eq!(fixture.must_read(file.file(), 4990, 100), wanted[4990..5090]);
    assert_eq!(fixture.must_read(file.file(), 3 * PAGE + 10, 100), []);
    assert_eq!(fixture.must_read(file.file(), u64::MAX, 100), []);
    assert!(disk.take_log().is_empty(), "it is cached");
    assert_eq!(fixture.files.totals().cached, 4);
}

#[test]
fn a_backing_takes_fifteen_lines() {
    let fixture = Fixture::new();
    let file = fixture.create(Plain(Mutex::default()), 0);
    let bytes = pattern(2, 70_000);
    fixture.must_write(file.file(), 3, &bytes);
    fixture.flush(file.file());
    fixture.cache().invalidate(file.file(), quire_file::IndexRange::ALL).unwrap();
    assert_eq!(fixture.files.totals().cached, 0);
    assert_eq!(fixture.must_read(file.file(), 3, 70_000), bytes);
}

/// What the medium does not give of a large folio is zeros, whatever its frames had before.
#[test]
fn what_a_read_of_a_large_folio_does_not_bring_is_zeros() {
    let fixture = Fixture::new();
    let stored = pattern(5, 2 * PAGE as usize + 5);
    for _ in 0..3 {
        // Frames with other contents become free.
        drop({
            let used = fixture.create(Disk::with_folios_of(3).file(), 0);
            fixture.must_write(used.file(), 0, &pattern(6, 2048 * PAGE as usize));
            used
        });
        let disk = Disk::with_folios_of(3);
        *disk.bytes() = stored.clone();
        let file = fixture.create(disk.file(), 8 * PAGE);
        let wanted = up_to(quire_file::PageIndex::ZERO, quire_arch::Order::new(3).unwrap());
        let folio = fixture.cache().page_in(file.file(), wanted, ALONE, &fixture.program).unwrap().folio;
        assert_eq!(folio.range().pages(), 8);
        drop(folio);
        let mut all = stored.clone();
        all.resize(8 * PAGE as usize, 0);
        assert!(fixture.must_read(file.file(), 0, 8 * PAGE as usize) == all);
    }
}

#[test]
fn a_page_that_is_written_as_a_whole_is_not_read() {
    let fixture = Fixture::new();
    let disk = Disk::new(&pattern(3, 4 * PAGE as usize));
    let file = fixture.create(disk.file(), 3 * PAGE + 5);
    let new = pattern(4, PAGE as usize);
    fixture.must_write(file.file(), PAGE, &new);
    // All that the file has there.
    fixture.must_write(file.file(), 3 * PAGE, &new[..5]);
    // Behind its end.
    fixture.must_write(file.file(), 5 * PAGE + 1, &new[..7]);
    assert!(disk.take_log().is_empty());
    fixture.must_write(file.file(), 2 * PAGE + 1, &new[..PAGE as usize - 1]);
    assert_eq!(
        disk.take_log().iter().map(|io| (io.direction, io.offset)).collect::<Vec<_>>(),
        [(Direction::Read, 2 * PAGE)]
    );
    let mut wanted = disk.bytes().clone();
    wanted[PAGE as usize..2 * PAGE as usize].copy_from_slice(&new);
    wanted[2 * PAGE as usize + 1..3 * PAGE as usize].copy_from_slice(&new[..PAGE as usize - 1]);
    wanted[3 * PAGE as usize..3 * PAGE as usize + 5].copy_from_slice(&new[..5]);
    wanted.truncate(3 * PAGE as usize + 5);
    wanted.resize(5 * PAGE as usize + 1, 0);
    wanted.extend(&new[..7]);
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), wanted);
    assert_eq!(file.file().size(), 5 * PAGE + 8);
    fixture.flush(file.file());
    drop(file);
    let mut there = disk.bytes().clone();
    there.resize(wanted.len(), 0);
    // Page 4 was never written: what is there past the old end is the embedder's.
    assert_eq!(there[..4 * PAGE as usize - 10], wanted[..4 * PAGE as usize - 10]);
}

/// Copies stop short at any byte, of pages that were read and of those that were not.
#[test]
fn what_is_missing_of_a_copy_is_tried_again() {
    for seed in 0..30 {
        let fixture = Fixture::new();
        let old = pattern(seed, 5 * PAGE as usize);
        let disk = Disk::new(&old);
        let file = fixture.create(disk.file(), 5 * PAGE);
        let start = Random(seed).below(PAGE);
        let bytes = pattern(seed + 100, 6 * PAGE as usize);
        let mut from = From { shorts: Some(Random(seed)), ..From::new(&bytes) };
        let all = Transfer { bytes: 6 * PAGE, stopped: None };
        assert_eq!(fixture.cache().write(file.file(), start, &mut from, &fixture.program, &NoUsers), all);
        let mut wanted = old[..start as usize].to_vec();
        wanted.extend(&bytes);
        assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), wanted, "seed {seed}");
    }
}

/// A page of memory that is unmapped while it is copied, after so many bytes.
struct Vanishing(Option<usize>);

impl UserCopy for Vanishing {
    fn left(&self) -> u64 {
        PAGE
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        self.0.map_or(0, |_| bytes)
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        let bytes = self.0.take().unwrap();
        page.set(0, &vec![9; bytes])
    }

    fn advance(&mut self, _bytes: usize) {}
}

#[test]
fn a_copy_that_stops_short_for_good_leaves_the_rest_of_the_page() {
    for (copied, is_cached) in [(0, false), (0, true), (100, false), (100, true)] {
        let fixture = Fixture::new();
        let old = pattern(8, PAGE as usize);
        let file = fixture.create(Disk::new(&old).file(), PAGE);
        if is_cached {
            fixture.must_read(file.file(), 0, 1);
        }
        let mut from = Vanishing(Some(copied));
        let transfer = fixture.cache().write(file.file(), 0, &mut from, &fixture.program, &NoUsers);
        // A page that had to be read first has none of it.
        let bytes = if is_cached { copied } else { 0 };
        assert_eq!(transfer, Transfer { bytes: bytes as u64, stopped: Some(PageError::BadAddress) });
        let mut wanted = old;
        wanted[..bytes].fill(9);
        assert_eq!(fixture.must_read(file.file(), 0, PAGE as usize), wanted);
    }
}

#[test]
fn a_new_page_shows_nothing_that_was_in_memory_before() {
    let fixture = Fixture::new();
    let other = fixture.create(Disk::new(&[]).file(), 0);
    fixture.must_write(other.file(), 0, &pattern(9, 200 * PAGE as usize));
    fixture.cache().set_size(other.file(), 0, &NoUsers).unwrap();
    let file = fixture.create(Disk::new(&[]).file(), 0);
    for page in 0..100 {
        fixture.must_write(file.file(), page * PAGE + 50, &[7; 10]);
        // SAFETY: the page is cached, and no other thread is there.
        let bytes = unsafe { std::slice::from_raw_parts(fixture.page(file.file(), page), PAGE as usize) };
        let strays =
            bytes.iter().enumerate().filter(|(at, byte)| **byte != if (50..60).contains(at) { 7 } else { 0 });
        assert_eq!(strays.count(), 0, "page {page}");
    }
    let short = fixture.create(Disk::new(&[1; 10]).file(), 90 * PAGE);
    let read = fixture.must_read(short.file(), 0, 90 * PAGE as usize);
    assert!(
        read.len() as u64 == 90 * PAGE && read[..10] == [1; 10] && read[10..].iter().all(|byte| *byte == 0)
    );
}

#[test]
fn memory_that_cannot_be_accessed_ends_a_call_there() {
    let fixture = Fixture::new();
    let file = fixture.create(Disk::new(&[]).file(), 0);
    let bytes = pattern(5, 3 * PAGE as usize);
    let mut from = From { bad_from: 5000, ..From::new(&bytes) };
    let transfer = fixture.cache().write(file.file(), 0, &mut from, &fixture.program, &NoUsers);
    assert_eq!(transfer, Transfer { bytes: 5000, stopped: Some(PageError::BadAddress) });
    assert_eq!(file.file().size(), 5000, "what was not written does not count");
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), bytes[..5000]);
}

#[test]
fn a_write_without_space_changes_nothing() {
    let fixture = Fixture::new();
    let disk = Disk::new(&[]);
    let file = fixture.create(disk.file(), 0);
    disk.full.store(true, Ordering::Relaxed);
    let stopped = Some(PageError::File(FileError::NoSpace));
    assert_eq!(fixture.write(file.file(), 0, &[1; 10]), Transfer { bytes: 0, stopped });
    assert_eq!((file.file().size(), fixture.files.totals().cached), (0, 0));
}

#[test]
fn a_file_has_a_largest_size() {
    let fixture = Fixture::new();
    let file = fixture.create(Disk::new(&[]).file(), 0);
    let last = quire_file::MAX_FILE_BYTES - 1;
    let transfer = fixture.write(file.file(), last, &[1, 2]);
    assert_eq!(transfer, Transfer { bytes: 1, stopped: Some(PageError::TooLarge) });
    assert_eq!(fixture.write(file.file(), u64::MAX, &[1]).stopped, Some(PageError::TooLarge));
    let too_large = fixture.cache().set_size(file.file(), u64::MAX, &NoUsers);
    assert_eq!(too_large, Err(PageError::TooLarge));
    assert_eq!(fixture.must_read(file.file(), last, 10), [1]);
    // The backing has no room for that.
    fixture.cache().set_size(file.file(), 0, &NoUsers).unwrap();
}

/// A hazard of docs/hazards.md: what a program writes past the end by a mapping is not seen when the file
/// grows.
#[test]
fn what_is_past_the_end_is_zeros_when_the_file_grows() {
    for grow in 0..4 {
        let fixture = Fixture::new();
        let disk = Disk::new(&pattern(6, 100));
        let file = fixture.create(disk.file(), 100);
        let page = fixture.page(file.file(), 0);
        // SAFETY: the page stays in the cache.
        unsafe { page.add(100).write_bytes(9, PAGE as usize - 100) };
        let size = match grow {
            0 => {
                fixture.must_write(file.file(), 200, &[7]);
                201
            }
            1 => {
                fixture.must_write(file.file(), 2 * PAGE, &[7]);
                2 * PAGE + 1
            }
            2 => {
                fixture.must_write(file.file(), 100, &[0]);
                fixture.must_write(file.file(), 200, &[7]);
                201
            }
            _ => {
                fixture.cache().set_size(file.file(), 2 * PAGE, &NoUsers).unwrap();
                2 * PAGE
            }
        };
        let mut wanted = disk.bytes().clone();
        wanted.resize(size as usize, 0);
        if grow < 3 {
            *wanted.last_mut().unwrap() = 7;
        }
        assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), wanted, "way {grow}");
    }
}

#[test]
fn a_look_up_does_not_wait() {
    let fixture = Fixture::new();
    let cache = fixture.cache();
    let file = fixture.create(Disk::new(&pattern(7, PAGE as usize)).file(), PAGE);
    assert!(matches!(file.file().find(fixture.memcgs(), at(0)), Lookup::Nothing));
    assert!(matches!(file.file().find(fixture.memcgs(), at(1)), Lookup::PastEnd));
    let read = cache.page_in(file.file(), page(0), ALONE, &fixture.program).unwrap();
    assert!(read.was_read);
    assert!(matches!(file.file().find(fixture.memcgs(), at(0)), Lookup::Busy));
    let head = read.folio.head();
    drop(read);
    let Lookup::Folio(found) = file.file().find(fixture.memcgs(), at(0)) else { panic!("it is cached") };
    assert_eq!((found.head(), found.frame().refs()), (head, 2));
    drop(found);
    assert!(!cache.page_in(file.file(), page(0), ALONE, &fixture.program).unwrap().was_read);
    let past = cache.page_in(file.file(), page(1), ALONE, &fixture.program);
    assert_eq!(past.unwrap_err(), PageError::PastEnd);
    assert_eq!(fixture.frames().known(head).refs(), 1, "the cache's");
}
