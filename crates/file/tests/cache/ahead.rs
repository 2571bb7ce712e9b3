//! What is read with a page that is missing.

use crate::backings::{Asked, Disk, Gate};
use crate::machine::{Machine, run_on};
use crate::support::{ALONE, Core, Fixture, PAGE, at, page, pattern};
use quire_file::{FileAudit, FileError, IndexRange, IoLimits, NoUsers, PageError};
use quire_frame::{FailAim, FailPlan, FailSite, FrameFlags, Kind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// The pages that are cached.
fn cached(fixture: &Fixture, file: &Core) -> Vec<u64> {
    let mut pages = Vec::new();
    FileAudit::new(&fixture.files, fixture.frames()).for_each_folio(|of, stored| {
        if of.number() == file.number() {
            pages.extend(stored.range().start()..stored.range().end());
        }
    });
    pages
}

/// The requests since the last call, as first pages and bytes.
fn requests(disk: &Disk) -> Vec<(u64, u64)> {
    disk.take_log().iter().map(|io| (io.offset / PAGE, io.bytes)).collect()
}

/// A disk of so many bytes, and what it has.
fn disk_of(bytes: u64) -> (Arc<Disk>, Vec<u8>) {
    let bytes = pattern(bytes, bytes as usize);
    (Disk::new(&bytes), bytes)
}

#[test]
fn a_miss_brings_sixteen_pages_by_one_request() {
    let fixture = Fixture::new();
    let (disk, bytes) = disk_of(40 * PAGE);
    let file = fixture.create(disk.file(), 40 * PAGE);
    let came = fixture.cache().page_in(file.file(), page(21), IndexRange::ALL, &fixture.program).unwrap();
    assert!(came.was_read && came.folio.start() == at(21));
    drop(came);
    assert_eq!(requests(&disk), [(16, 16 * PAGE)]);
    assert_eq!(cached(&fixture, file.file()), (16..32).collect::<Vec<_>>());
    // A call reads what it misses in the same way.
    assert_eq!(fixture.must_read(file.file(), PAGE + 5, 1), [bytes[PAGE as usize + 5]]);
    assert_eq!(requests(&disk), [(0, 16 * PAGE)]);
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), bytes);
    assert_eq!(requests(&disk), [(32, 8 * PAGE)]);
}

#[test]
fn what_comes_with_a_page_ends_with_the_file() {
    let fixture = Fixture::new();
    let size = 19 * PAGE + 10;
    // More is stored: the file was longer.
    let (disk, bytes) = disk_of(40 * PAGE);
    let file = fixture.create(disk.file(), size);
    assert_eq!(fixture.must_read(file.file(), 17 * PAGE, 1), [bytes[17 * PAGE as usize]]);
    assert_eq!(requests(&disk), [(16, 3 * PAGE + 10)]);
    assert_eq!(cached(&fixture, file.file()), [16, 17, 18, 19]);
    let past = fixture.cache().page_in(file.file(), page(20), IndexRange::ALL, &fixture.program);
    assert_eq!(past.unwrap_err(), PageError::PastEnd);
    // What is behind the end is zeros.
    fixture.cache().set_size(file.file(), 40 * PAGE, &NoUsers).unwrap();
    let last = fixture.must_read(file.file(), 19 * PAGE, PAGE as usize);
    assert!(last[..10] == bytes[19 * PAGE as usize..][..10] && last[10..].iter().all(|&byte| byte == 0));
}

#[test]
fn only_what_is_missing_and_allowed_comes() {
    let fixture = Fixture::new();
    let (disk, bytes) = disk_of(16 * PAGE);
    let file = fixture.create(disk.file(), 16 * PAGE);
    let read = |index, around| {
        drop(fixture.cache().page_in(file.file(), page(index), around, &fixture.program).unwrap());
        requests(&disk)
    };
    assert_eq!(read(3, ALONE), [(3, PAGE)]);
    assert_eq!(read(8, IndexRange::new(2, 10)), [(2, PAGE), (4, 6 * PAGE)]);
    assert_eq!(read(8, IndexRange::ALL), []);
    assert_eq!(read(15, IndexRange::new(15, 20)), [(15, PAGE)]);
    assert_eq!(read(0, IndexRange::ALL), [(0, 2 * PAGE), (10, 5 * PAGE)]);
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), bytes);
    assert_eq!(requests(&disk), []);
}

#[test]
fn a_backing_says_how_much_comes_and_by_how_large_requests() {
    let of = |limits: IoLimits| {
        let fixture = Fixture::new();
        let (disk, bytes) = disk_of(40 * PAGE);
        *disk.limits.lock().unwrap() = Some(limits);
        let file = fixture.create(disk.file(), 40 * PAGE);
        assert_eq!(fixture.must_read(file.file(), 21 * PAGE, 9), bytes[21 * PAGE as usize..][..9]);
        let log = disk.take_log();
        assert!(log.iter().all(|io| io.segments <= limits.segments as usize));
        (log.len(), cached(&fixture, file.file()))
    };
    let usual = IoLimits::default();
    for readahead in [0, 1] {
        assert_eq!(of(IoLimits { readahead, ..usual }), (1, vec![21]));
    }
    assert_eq!(of(IoLimits { readahead: 7, ..usual }), (1, vec![20, 21, 22, 23]));
    let all: Vec<_> = (16..32).collect();
    assert_eq!(of(IoLimits { readahead: u32::MAX, ..usual }), (1, all.clone()));
    assert_eq!(of(IoLimits { pages: 3, ..usual }), (6, all.clone()));
    assert_eq!(of(IoLimits { segments: 1, ..usual }).1, all);
}

/// The page that is wanted decides: what came with it in vain is gone, and no one is told.
#[test]
fn a_page_that_cannot_be_read_fails_alone() {
    let fixture = Fixture::new();
    let (disk, bytes) = disk_of(20 * PAGE);
    let file = fixture.create(disk.file(), 20 * PAGE);
    *disk.bad_byte.lock().unwrap() = Some(5 * PAGE + 1);
    assert_eq!(fixture.must_read(file.file(), 7 * PAGE, 9), bytes[7 * PAGE as usize..][..9]);
    assert_eq!(requests(&disk), [(0, 16 * PAGE), (7, PAGE)]);
    assert_eq!(cached(&fixture, file.file()), [7]);
    let (none, transfer) = fixture.read(file.file(), 5 * PAGE, 9);
    assert_eq!((none.len(), transfer.stopped), (0, Some(PageError::File(FileError::Io))));
    // Of two requests one succeeds.
    assert_eq!(cached(&fixture, file.file()), [7, 8, 9, 10, 11, 12, 13, 14, 15]);
    fixture.check();
    // Alone at once, where all around it is there: one request.
    for index in [0, 1, 2, 3, 4, 6] {
        drop(fixture.cache().page_in(file.file(), page(index), ALONE, &fixture.program).unwrap());
    }
    disk.take_log();
    assert_eq!(fixture.read(file.file(), 5 * PAGE, 9).1.bytes, 0);
    assert_eq!(requests(&disk), [(5, PAGE)]);
    *disk.bad_byte.lock().unwrap() = None;
    assert_eq!(fixture.must_read(file.file(), 0, 1 << 20), bytes);
    drop(file);
    assert_eq!(fixture.files.totals().lost_errors, 0, "no one is told of what was not needed");
}

#[test]
fn less_comes_where_memory_is_short() {
    let (disk, bytes) = disk_of(20 * PAGE);
    for nth in 1..=16 {
        let fixture = Fixture::new();
        let file = fixture.create(disk.file(), 20 * PAGE);
        let points = fixture.frames().fail_points();
        points.set(FailPlan::nth(nth).at(FailAim::Site(FailSite::new("file_ahead"))));
        assert_eq!(fixture.must_read(file.file(), 9 * PAGE, 9), bytes[9 * PAGE as usize..][..9]);
        assert_eq!(points.failed(), u64::from(nth < 16));
        points.set(FailPlan::OFF);
        let there = cached(&fixture, file.file());
        assert!(there.len() as u64 == nth && there.contains(&9), "{nth}: {there:?}");
    }
    // No page of the memcg is reclaimed for them.
    let fixture = Fixture::new();
    fixture.limit(6);
    let file = fixture.create(disk.file(), 20 * PAGE);
    assert_eq!(fixture.must_read(file.file(), 0, 9), bytes[..9]);
    assert_eq!(cached(&fixture, file.file()), [0, 1, 2, 3, 4, 5]);
    let (_, transfer) = fixture.read(file.file(), 17 * PAGE, 9);
    assert!(matches!(transfer.stopped, Some(PageError::OverLimit(_))), "{transfer:?}");
    drop(file);
    // Nodes: the first page needs none.
    let fixture = Fixture::new();
    let file = fixture.create(disk.file(), 20 * PAGE);
    let nodes = FailAim::Site(FailSite::new("folio_store_node"));
    fixture.frames().fail_points().set(FailPlan::every(1).at(nodes));
    assert_eq!(fixture.must_read(file.file(), 0, 9), bytes[..9]);
    fixture.frames().fail_points().set(FailPlan::OFF);
    assert_eq!(cached(&fixture, file.file()), [0]);
}

/// A hazard of docs/hazards.md: a thread waits for a page that another one reads with its own, in vain.
#[test]
fn who_waits_for_a_page_that_comes_with_others_reads_it_if_they_fail() {
    let fixture = Fixture::with(Machine::new(&[(0, 4096)], 2));
    let gate = Arc::new(Gate::default());
    gate.reads_alone.store(true, Ordering::Relaxed);
    let file = fixture.create(Arc::clone(&gate), 16 * PAGE);
    let read = |cpu, index| {
        run_on(cpu);
        let came = fixture.cache().page_in(file.file(), page(index), IndexRange::ALL, &fixture.program);
        came.map(|page| page.was_read)
    };
    let results = std::thread::scope(|scope| {
        let first = scope.spawn(|| read(0, 7));
        let head = loop {
            match *gate.asked_for.lock().unwrap() {
                Some(head) => break head,
                None => std::thread::yield_now(),
            }
        };
        // The first page of the request.
        let second = scope.spawn(|| read(1, 0));
        while !fixture.frames().known(head).word().flags().contains(FrameFlags::WAITERS) {
            std::thread::yield_now();
        }
        gate.is_open.store(true, Ordering::Relaxed);
        [first.join().unwrap(), second.join().unwrap()]
    });
    assert_eq!(results, [Ok(true), Ok(true)]);
    let there = cached(&fixture, file.file());
    assert!(there.contains(&0) && there.contains(&7), "{there:?}");
}

#[test]
fn a_read_of_several_pages_that_panics_leaves_none() {
    let fixture = Fixture::new();
    let asked = Arc::new(Mutex::default());
    let file = fixture.create(Asked { asked, panics: true }, 16 * PAGE);
    let read = || fixture.read(file.file(), 3 * PAGE, 9);
    assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
    // Their frames are never used again.
    assert_eq!((fixture.files.totals().cached, fixture.frames_in_use()), (0, 16));
    let mut lost = Vec::new();
    fixture.frames().audit().for_each_frame(|pfn, frame| {
        if frame.kind() == Kind::File {
            lost.push(pfn);
        }
    });
    lost.into_iter().for_each(|head| fixture.memcgs().folios().release_folio(head));
}
