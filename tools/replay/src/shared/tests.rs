//! Which pages exist of what programs share.

use super::*;
use quire_trace::event::{FileFacts, HeldInMemory};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const BASE: u64 = 0x10_0000_0000;
const ANONYMOUS: i32 = libc::MAP_SHARED | libc::MAP_ANONYMOUS;

/// Shared memory of programs that make calls.
#[derive(Default)]
struct Programs(SharedMemory, FileIds<'static>);

impl Programs {
    fn call(&mut self, number: usize, call: i64, args: [u64; 6], result: u64, detail: CallDetail) {
        let call = Call { number: call as u32, args, result: result as i64, detail };
        self.0.call(number, &call, &mut self.1);
    }

    fn map(&mut self, number: usize, addr: u64, len: u64, flags: i32) {
        let args = [addr, len, 3, flags as u64, u64::MAX, 0];
        self.call(number, libc::SYS_mmap, args, addr, CallDetail::None);
    }

    /// A file in memory, from its second page on.
    fn map_memory(&mut self, number: usize, addr: u64, len: u64, inode: u64) {
        let facts = FileFacts { kind: FileKind::Memory, inode, size: 64 * MIB, ..FileFacts::default() };
        let args = [addr, len, 3, libc::MAP_SHARED as u64, 3, PAGE_SIZE];
        self.call(number, libc::SYS_mmap, args, addr, CallDetail::File(Arc::new(facts)));
    }

    /// A file in memory, which has so many pages now.
    fn map_held(&mut self, number: usize, addr: u64, len: u64, inode: u64, held: HeldInMemory) {
        let (kind, held) = (FileKind::Memory, Some(held));
        let facts = FileFacts { kind, inode, size: 64 * MIB, held, ..FileFacts::default() };
        let args = [addr, len, 3, libc::MAP_PRIVATE as u64, 3, 0];
        self.call(number, libc::SYS_mmap, args, addr, CallDetail::File(Arc::new(facts)));
    }

    fn unmapped_pages(&self) -> u64 {
        self.0.unmapped_bytes() / PAGE_SIZE
    }

    fn advise(&mut self, addr: u64, len: u64, advice: i32) {
        self.call(0, libc::SYS_madvise, [addr, len, advice as u64, 0, 0, 0], 0, CallDetail::None);
    }

    fn lock_all(&mut self, number: usize, flags: i32) {
        self.call(number, libc::SYS_mlockall, [flags as u64, 0, 0, 0, 0, 0], 0, CallDetail::None);
    }

    fn unmap(&mut self, number: usize, addr: u64, len: u64) {
        self.call(number, libc::SYS_munmap, [addr, len, 0, 0, 0, 0], 0, CallDetail::None);
    }

    fn touch(&mut self, number: usize, addr: u64, len: u64) {
        let pages = (addr..addr + len).step_by(PAGE_SIZE as usize);
        pages.for_each(|addr| self.0.touch(number, addr, Access::Write));
    }

    fn read(&mut self, number: usize, addr: u64) {
        self.0.touch(number, addr, Access::Read);
    }

    /// What Linux could have mapped in it.
    fn mapped_pages(&self, number: usize) -> u64 {
        self.0.mapped_bytes(number, u64::MAX).0.unwrap() / PAGE_SIZE
    }

    fn pages(&self) -> u64 {
        self.0.bytes() / PAGE_SIZE
    }
}

#[test]
fn a_page_counts_once_for_all_that_map_it() {
    let mut programs = Programs::default();
    programs.map(0, BASE, MIB, ANONYMOUS);
    programs.touch(0, BASE, 40 * PAGE_SIZE);
    programs.0.fork(0, 1);
    programs.touch(1, BASE + 20 * PAGE_SIZE, 40 * PAGE_SIZE);
    programs.touch(1, BASE + MIB, PAGE_SIZE);
    assert_eq!(programs.pages(), 60);
    // A file in memory is one, however often it is mapped.
    programs.map_memory(0, BASE + MIB, MIB, 7);
    programs.map_memory(1, BASE + 4 * MIB, MIB, 7);
    programs.touch(0, BASE + MIB, 10 * PAGE_SIZE);
    programs.touch(1, BASE + 4 * MIB, 12 * PAGE_SIZE);
    assert_eq!(programs.pages(), 72);
    // Private memory, also of the same file, is none.
    programs.map(0, BASE + MIB, MIB, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    programs.touch(0, BASE + MIB, MIB);
    assert_eq!(programs.pages(), 72);
}

#[test]
fn anonymous_memory_ends_with_its_last_mapping_and_a_file_does_not() {
    let mut programs = Programs::default();
    programs.map(0, BASE, MIB, ANONYMOUS);
    programs.map_memory(0, BASE + 2 * MIB, MIB, 7);
    programs.0.fork(0, 1);
    programs.touch(1, BASE, MIB);
    programs.touch(1, BASE + 2 * MIB, MIB);
    programs.unmap(0, BASE, MIB / 2);
    programs.0.leave(1);
    assert_eq!(programs.pages(), 512, "the other half is mapped");
    programs.unmap(0, BASE, 4 * MIB);
    assert_eq!(programs.pages(), 256);
    assert_eq!(programs.0.unmapped_bytes(), MIB, "its last descriptor may be closed");
    programs.map_memory(0, BASE, MIB, 7);
    assert_eq!(programs.0.unmapped_bytes(), 0);
    programs.touch(0, BASE, MIB);
    assert_eq!(programs.pages(), 256, "the same pages");
}

#[test]
fn only_a_hole_frees_pages_of_what_is_mapped() {
    let mut programs = Programs::default();
    programs.map(0, BASE, MIB, ANONYMOUS | libc::MAP_POPULATE);
    assert_eq!(programs.pages(), 256);
    programs.advise(BASE, MIB, libc::MADV_DONTNEED);
    assert_eq!(programs.pages(), 256);
    programs.advise(BASE + 60 * PAGE_SIZE, 70 * PAGE_SIZE, libc::MADV_REMOVE);
    assert_eq!(programs.pages(), 186);
    programs.advise(BASE, 100 * PAGE_SIZE, libc::MADV_POPULATE_WRITE);
    assert_eq!(programs.pages(), 226);
}

/// A file in memory that was filled by write(2) has a page fault for 16 pages.
#[test]
fn a_read_of_a_file_in_memory_counts_what_is_mapped_around_it() {
    let mut programs = Programs::default();
    // Its pages 1 to 128, at an address that is 3 pages beyond a border of 64 KiB.
    let start = BASE + 3 * PAGE_SIZE;
    programs.map_memory(0, start, MIB / 2, 7);
    programs.touch(0, start + 40 * PAGE_SIZE, PAGE_SIZE);
    assert_eq!(programs.pages(), 1, "a write is one page");
    programs.read(0, start);
    assert_eq!(programs.pages(), 1 + 16, "from the mapping's start on");
    programs.read(0, start + 20 * PAGE_SIZE);
    assert_eq!(programs.pages(), 1 + 16 + 13, "pages 13 to 28, of which 3 were there");
    programs.read(0, start + 127 * PAGE_SIZE);
    assert_eq!(programs.pages(), 1 + 16 + 13 + 3, "to the mapping's end");
    assert_eq!(programs.mapped_pages(0), programs.pages());
    // To the end of the file, as far as that is known.
    let map = |programs: &mut Programs, addr, inode| {
        let facts = FileFacts { kind: FileKind::Memory, inode, size: 5 * PAGE_SIZE, ..FileFacts::default() };
        let args = [addr, MIB, 1, libc::MAP_PRIVATE as u64, 3, 0];
        programs.call(1, libc::SYS_mmap, args, addr, CallDetail::File(Arc::new(facts)));
    };
    map(&mut programs, BASE, 8);
    programs.read(1, BASE + PAGE_SIZE);
    assert_eq!(programs.mapped_pages(1), 5, "a private mapping has its pages, too");
    programs.read(1, BASE + 20 * PAGE_SIZE);
    assert_eq!(programs.mapped_pages(1), 5 + 16, "it grew since");
    // A private write copies a page that the file has then.
    map(&mut programs, BASE + MIB, 9);
    programs.touch(1, BASE + MIB, 2 * PAGE_SIZE);
    assert_eq!(programs.mapped_pages(1), 5 + 16 + 2);
    // What is only shared comes in by its touches.
    programs.map(2, BASE, MIB, ANONYMOUS);
    programs.read(2, BASE);
    assert_eq!(programs.mapped_pages(2), 1);
}

/// Each mapping of a file may have all runs of its pages.
/// As of one that was filled by `write`, of which few pages are touched.
#[test]
fn all_that_a_new_file_in_memory_has_counts() {
    let mut programs = Programs::default();
    let new = |pages: u64| HeldInMemory { bytes: pages * PAGE_SIZE, changed: true };
    programs.map_held(0, BASE, 400 * PAGE_SIZE, 7, new(0));
    assert_eq!((programs.pages(), programs.unmapped_pages()), (0, 0));
    programs.touch(0, BASE, 20 * PAGE_SIZE);
    assert_eq!(programs.pages(), 20);
    // Another process writes more, and maps it again.
    programs.map_held(1, BASE, 100 * PAGE_SIZE, 7, new(300));
    programs.read(1, BASE + 50 * PAGE_SIZE);
    assert_eq!((programs.pages(), programs.unmapped_pages()), (300, 0));
    // Linux can have mapped as many as there are and fit.
    assert_eq!((programs.mapped_pages(0), programs.mapped_pages(1)), (300, 100));
    // Others count by themselves.
    programs.map_held(1, BASE + GIB, 10 * PAGE_SIZE, 8, new(10));
    assert_eq!(programs.pages(), 310);
    programs.touch(0, BASE, 320 * PAGE_SIZE);
    assert_eq!(programs.pages(), 330);
    programs.advise(BASE, 200 * PAGE_SIZE, libc::MADV_REMOVE);
    assert_eq!(programs.pages(), 130);
    programs.unmap(0, BASE, 400 * PAGE_SIZE);
    programs.unmap(1, BASE, 100 * PAGE_SIZE);
    assert_eq!((programs.pages(), programs.unmapped_pages()), (130, 120));
    programs.map_held(0, BASE, 400 * PAGE_SIZE, 7, new(500));
    assert_eq!((programs.pages(), programs.unmapped_pages()), (510, 0));
}

/// As a library in a container whose files are in memory: its pages are charged to who wrote them, and stay.
#[test]
fn a_file_in_memory_that_was_there_before_counts_by_touches() {
    let mut programs = Programs::default();
    let old = HeldInMemory { bytes: 300 * PAGE_SIZE, changed: false };
    programs.map_held(0, BASE, 400 * PAGE_SIZE, 7, old);
    programs.read(0, BASE);
    assert_eq!((programs.pages(), programs.mapped_pages(0)), (16, 300), "it may be mapped by large folios");
    programs.unmap(0, BASE, 400 * PAGE_SIZE);
    assert_eq!((programs.pages(), programs.unmapped_pages()), (16, 0));
    // Once a program has written to it it stays the program's.
    programs.map_held(0, BASE, 400 * PAGE_SIZE, 7, HeldInMemory { changed: true, ..old });
    assert_eq!(programs.pages(), 300);
    programs.map_held(1, BASE, 400 * PAGE_SIZE, 7, old);
    assert_eq!(programs.pages(), 300);
    programs.0.leave(0);
    programs.0.leave(1);
    assert_eq!((programs.pages(), programs.unmapped_pages()), (300, 300));
}

#[test]
fn a_file_of_many_runs_that_is_mapped_often_is_looked_at_in_part() {
    const RUNS: u64 = 1000;
    let len = 2 * RUNS * PAGE_SIZE;
    let mut programs = Programs::default();
    (0..RUNS).for_each(|part| programs.map_memory(0, BASE + part * len, len, 7));
    (0..RUNS).for_each(|run| programs.touch(0, BASE + 2 * run * PAGE_SIZE, PAGE_SIZE));
    let all = RUNS * (1 + RUNS);
    assert_eq!(programs.0.mapped_bytes(0, all), (Some(RUNS * RUNS * PAGE_SIZE), all));
    assert_eq!(programs.0.mapped_bytes(0, all - 1), (None, all));
    assert_eq!(programs.0.mapped_bytes(0, 5000), (None, 5001));
    assert_eq!(programs.0.mapped_bytes(0, 0), (None, 1));
    // Of what maps none there is nothing to look at.
    assert_eq!(programs.0.mapped_bytes(1, 0), (Some(0), 0));
}

/// Reservations are locked with all else, and stay empty.
#[test]
fn only_what_may_be_accessed_is_populated() {
    let mut programs = Programs::default();
    let none = [BASE, 1 << 38, 0, (ANONYMOUS | libc::MAP_POPULATE) as u64, u64::MAX, 0];
    programs.call(0, libc::SYS_mmap, none, BASE, CallDetail::None);
    assert_eq!(programs.pages(), 0);
    programs.lock_all(0, libc::MCL_CURRENT);
    programs.advise(BASE, MIB, libc::MADV_POPULATE_READ);
    assert_eq!(programs.pages(), 0);
    let opened = [BASE + MIB, 2 * MIB, 1, 0, 0, 0];
    programs.call(0, libc::SYS_mprotect, opened, 0, CallDetail::None);
    assert_eq!(programs.pages(), 0, "only a private one is copied by that");
    programs.lock_all(0, libc::MCL_CURRENT);
    assert_eq!(programs.pages(), 512);
    // Nor what lies beyond the end of a file in memory: a database maps more than it has.
    programs.unmap(0, BASE, 1 << 38);
    programs.map_memory(0, BASE, 1 << 30, 7);
    programs.lock_all(0, libc::MCL_CURRENT);
    assert_eq!(programs.pages(), 64 * 256 - 1, "from its second page on");
}

/// A file in memory grows after it was mapped, which is no recorded call.
#[test]
fn what_a_file_grew_by_is_populated_where_something_tells_of_it() {
    let map = |programs: &mut Programs, number, inode, size| {
        let facts = FileFacts { kind: FileKind::Memory, inode, size, ..FileFacts::default() };
        let args = [BASE, 4 * MIB, 3, libc::MAP_SHARED as u64, 3, 0];
        programs.call(number, libc::SYS_mmap, args, BASE, CallDetail::File(Arc::new(facts)));
    };
    let mut programs = Programs::default();
    map(&mut programs, 0, 7, 0);
    programs.advise(BASE, MIB, libc::MADV_POPULATE_WRITE);
    assert_eq!(programs.pages(), 256);
    // Another process maps it when it is longer.
    map(&mut programs, 1, 7, 2 * MIB);
    programs.lock_all(0, libc::MCL_CURRENT);
    assert_eq!(programs.pages(), 512);
    programs.touch(1, BASE + 3 * MIB - PAGE_SIZE, PAGE_SIZE);
    programs.lock_all(0, libc::MCL_CURRENT);
    assert_eq!(programs.pages(), 768);
    // Of this one nothing is known.
    map(&mut programs, 2, 8, 0);
    programs.lock_all(2, libc::MCL_CURRENT);
    assert_eq!(programs.pages(), 768 + 1024);
}

#[test]
fn what_is_mapped_after_all_was_locked_is_populated() {
    let mut programs = Programs::default();
    programs.map(0, BASE, MIB, ANONYMOUS);
    programs.lock_all(0, libc::MCL_FUTURE);
    assert_eq!(programs.pages(), 0);
    programs.map(0, BASE + 2 * MIB, MIB, ANONYMOUS);
    assert_eq!(programs.pages(), 256);
    let detail = CallDetail::Mapped { start: BASE + 4 * MIB, bytes: MIB };
    programs.call(0, libc::SYS_shmat, [5, 0, 0, 0, 0, 0], BASE + 4 * MIB, detail);
    assert_eq!(programs.pages(), 512);
    // It grows; what was not locked when it was mapped does not come in.
    let grown = [BASE + 2 * MIB, MIB, 2 * MIB, 1, 0, 0];
    programs.call(0, libc::SYS_mremap, grown, BASE + 8 * MIB, CallDetail::None);
    assert_eq!(programs.pages(), 768);
    programs.call(0, libc::SYS_mremap, [BASE, MIB, 2 * MIB, 1, 0, 0], BASE, CallDetail::None);
    assert_eq!(programs.pages(), 768);
    // A child locks nothing, nor does the program after these.
    programs.0.fork(0, 1);
    programs.map(1, BASE + 16 * MIB, MIB, ANONYMOUS);
    for (call, first) in
        [(libc::SYS_mlockall, libc::MCL_FUTURE | libc::MCL_ONFAULT), (libc::SYS_munlockall, 0)]
    {
        programs.lock_all(0, libc::MCL_FUTURE);
        programs.call(0, call, [first as u64, 0, 0, 0, 0, 0], 0, CallDetail::None);
        programs.map(0, BASE + 16 * MIB, MIB, ANONYMOUS);
    }
    programs.lock_all(0, libc::MCL_FUTURE);
    programs.0.leave(0);
    programs.map(0, BASE, MIB, ANONYMOUS);
    assert_eq!(programs.pages(), 768);
}

#[test]
fn what_is_moved_keeps_its_pages() {
    let mut programs = Programs::default();
    programs.map(0, BASE, MIB, ANONYMOUS);
    programs.touch(0, BASE, MIB / 2);
    let moved = [BASE, MIB, 2 * MIB, 1, 0, 0];
    programs.call(0, libc::SYS_mremap, moved, BASE + 8 * MIB, CallDetail::None);
    programs.touch(0, BASE, MIB);
    programs.touch(0, BASE + 8 * MIB, MIB);
    assert_eq!(programs.pages(), 256);
    let again = [BASE + 8 * MIB, 0, MIB, 1, 0, 0];
    programs.call(0, libc::SYS_mremap, again, BASE, CallDetail::None);
    programs.unmap(0, BASE + 8 * MIB, 2 * MIB);
    assert_eq!(programs.pages(), 256, "mapped a second time");
    programs.unmap(0, BASE, MIB);
    assert_eq!(programs.pages(), 0);
}

#[test]
fn a_segment_stays_when_it_is_detached() {
    let mut programs = Programs::default();
    for (number, id) in [(0, 5), (1, 5), (1, 6)] {
        let detail = CallDetail::Mapped { start: BASE + id * MIB, bytes: MIB };
        programs.call(number, libc::SYS_shmat, [id, 0, 0, 0, 0, 0], BASE + id * MIB, detail);
    }
    programs.touch(0, BASE + 5 * MIB, MIB);
    programs.touch(1, BASE + 5 * MIB, 2 * MIB);
    assert_eq!(programs.pages(), 512);
    programs.unmap(1, BASE + 5 * MIB, PAGE_SIZE);
    programs.call(1, libc::SYS_shmdt, [BASE + 5 * MIB, 0, 0, 0, 0, 0], 0, CallDetail::None);
    programs.touch(1, BASE + 5 * MIB, MIB);
    assert_eq!((programs.pages(), programs.0.spaces[1].len()), (512, 1));
}
