//! Shared memory in mappings.

use crate::common::*;
use quire_mm::file::{FileError, PageBytes, PageError, ShmemOwner, UserCopy, Wait};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SHARED: MapFlags = MapFlags::SHARED;
const PAST_END: AccessError<FaultError> = AccessError::Fault(FaultError::PastEnd);
const BUS: AccessError<FaultError> = AccessError::Fault(FaultError::Bus);

/// Maps `pages` pages of new shared memory.
pub(crate) fn shared(space: &HostSpace<'_>, pages: u64) -> VirtAddr {
    space.mmap(&MapRequest { flags: SHARED, ..MapRequest::anonymous(pages * PAGE, RW) }).unwrap()
}

pub(crate) fn resident(space: &HostSpace<'_>) -> [u64; 3] {
    let figures = space.figures();
    [figures.resident_anonymous, figures.resident_file, figures.resident_shmem].map(|bytes| bytes / PAGE)
}

pub(crate) fn in_memory(space: &HostSpace<'_>, area: VirtAddr, pages: u64) -> Vec<bool> {
    let mut found = Vec::new();
    space.mincore(area, pages * PAGE, |is| found.push(is)).unwrap();
    found
}

#[test]
fn a_child_shares_all_pages_those_that_come_later_too() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = shared(&space, 8);
    write(&cpu, &space, area, 1);
    let child = space.fork().unwrap();
    write(&cpu, &child, page(area, 1), 2);
    write(&cpu, &space, page(area, 2), 3);
    write(&cpu, &child, area, 4);
    for one in [&space, &child] {
        assert_eq!((0..4).map(|at| read(&cpu, one, page(area, at))).collect::<Vec<_>>(), [4, 2, 3, 0]);
    }
    let (mut meminfo, mut vmstat) = (String::new(), String::new());
    proc::meminfo(machine.memory(), &mut meminfo).unwrap();
    proc::vmstat(machine.memory(), &mut vmstat).unwrap();
    assert!(meminfo.contains("Shmem:                16 kB") && vmstat.contains("nr_shmem 4\n"), "{meminfo}");
    let totals = machine.memory().file_totals();
    assert_eq!((totals.shmem, totals.cached, totals.dirty), (4, 4, 0), "a hole that is read has a page");
    assert_eq!(resident(&space), [0, 0, 4]);
    space.munmap(area, 8 * PAGE).unwrap();
    assert_eq!(machine.memory().file_totals().shmem, 4, "the child has them");
    drop(child);
    assert_eq!(machine.memory().file_totals().shmem, 0);
}

#[test]
fn bytes_of_shared_memory_are_not_moved_within_it() {
    let machine = machine(16, 1);
    let file = machine.memory().create_shmem((), 4 * PAGE).unwrap();
    write_file(&file, PAGE, &[1; 8]);
    let replaced = file.replace_from(0, 2 * PAGE, || panic!("nothing is stored"));
    assert_eq!(replaced, Err(PageError::NotSupported));
    assert_eq!(file.invalidate(0..4 * PAGE).unwrap_err().pages, 1);
    assert_eq!(read_file(&file, PAGE, 8), [1; 8]);
}

#[test]
fn a_page_that_was_read_is_written_without_another_fault() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = shared(&space, 4);
    assert_eq!(read(&cpu, &space, area), 0);
    let faults = count(&machine, VmEvent::Pgfault);
    write(&cpu, &space, area, 1);
    assert_eq!(count(&machine, VmEvent::Pgfault), faults);
    assert_eq!(count(&machine, VmEvent::Pgmajfault), 0);
}

/// Nothing marks the page when it is written to, and what its entry says is gone with that.
#[test]
fn an_invalidation_keeps_what_was_written_to_a_page_that_was_read() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), 4 * PAGE).unwrap();
    let area = space.mmap_file(&file_request(0, 4, RW, SHARED), &file).unwrap();
    assert_eq!((read(&cpu, &space, area), read(&cpu, &space, page(area, 1))), (0, 0));
    write(&cpu, &space, area, 7);
    space.munmap(area, 4 * PAGE).unwrap();
    assert_eq!(file.invalidate(0..4 * PAGE).unwrap_err().pages, 1, "the other is zeros");
    assert_eq!(read_file(&file, 0, 8), 7u64.to_le_bytes());
}

#[test]
fn advice_to_drop_pages_keeps_the_data_and_a_hole_does_not() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = shared(&space, 4);
    fill(&cpu, &space, area, 0..4, 10);
    space.madvise(area, 4 * PAGE, Advice::DontNeed).unwrap();
    assert_eq!(resident(&space), [0, 0, 0]);
    assert_eq!(in_memory(&space, area, 4), [true; 4]);
    let kept: Vec<_> = (0..4).map(|at| read(&cpu, &space, page(area, at))).collect();
    assert!(kept.iter().all(|word| *word != 0), "{kept:?}");
    space.madvise(page(area, 1), 2 * PAGE, Advice::Remove).unwrap();
    assert_eq!(in_memory(&space, area, 4), [true, false, false, true]);
    let left: Vec<_> = (0..4).map(|at| read(&cpu, &space, page(area, at))).collect();
    assert_eq!(left, [kept[0], 0, 0, kept[3]]);
    assert_eq!(space.madvise(area, PAGE, Advice::Free), Err(Error::WrongMapping));
}

#[test]
fn mremap_doubles_shared_memory_and_ends_in_a_bus_error_past_its_size() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = shared(&space, 4);
    write(&cpu, &space, page(area, 3), 7);
    let alias = space.mremap(area, 0, 4 * PAGE, RemapFlags::MAYMOVE, None).unwrap();
    write(&cpu, &space, alias, 5);
    assert_eq!((read(&cpu, &space, area), read(&cpu, &space, page(alias, 3))), (5, 7));
    let grown = space.mremap(area, 4 * PAGE, 6 * PAGE, RemapFlags::MAYMOVE, None).unwrap();
    assert_eq!(read(&cpu, &space, page(grown, 3)), 7);
    for at in 4..6 {
        assert_eq!(cpu.program(&space).read_u64(page(grown, at)), Err(PAST_END));
        assert_eq!(cpu.program(&space).write_u64(page(grown, at), 1), Err(PAST_END));
    }
    space.munmap(alias, 4 * PAGE).unwrap();
    assert_eq!(read(&cpu, &space, grown), 5);
}

#[test]
fn all_of_it_is_promised_from_the_start_and_of_a_memfd_what_exists() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let promised = || machine.memory().file_totals().promised;
    let area = shared(&space, 8);
    assert_eq!(promised(), 8);
    space.munmap(area, 4 * PAGE).unwrap();
    assert_eq!(promised(), 8, "it is there as long as a part of it is mapped");
    space.munmap(page(area, 4), 4 * PAGE).unwrap();
    assert_eq!(promised(), 0);
    let request = MapRequest::anonymous(8 * PAGE, RW);
    let area = space.mmap(&MapRequest { flags: SHARED | MapFlags::NORESERVE, ..request }).unwrap();
    assert_eq!(promised(), 0);
    write(&cpu, &space, area, 1);
    assert_eq!(promised(), 1);
    let file = machine.memory().create_shmem((), 3 * PAGE).unwrap();
    write_file(&file, PAGE, &[1; 8]);
    assert_eq!(promised(), 2);
    file.set_size(PAGE).unwrap();
    assert_eq!(promised(), 1);
}

/// Where no more may be committed, as measured on Linux 6.18: what has a promise is refused when it is made,
/// of all else each page.
#[test]
fn beyond_the_limit_a_page_of_a_memfd_has_no_space() {
    let setup = Setup::mib(32).with(|memory| memory.overcommit = Overcommit::Never { limit_pages: 64 });
    let machine: Machine = setup.build();
    swap_on_ram(&machine, 256);
    let (cpu, space) = cpu_and_space(&machine);
    let promised = || machine.memory().file_totals().promised;
    let file = machine.memory().create_shmem((), 64 * PAGE).unwrap();
    let area = space.mmap_file(&file_request(0, 64, RW, SHARED), &file).unwrap();
    let shared = MapRequest { flags: SHARED, ..MapRequest::anonymous(16 * PAGE, RW) };
    for _ in 0..2 {
        let own = space.mmap(&MapRequest::anonymous(40 * PAGE, RW)).unwrap();
        let room = space.mmap(&shared).unwrap();
        assert_eq!(promised(), 16);
        // Eight are left.
        for flags in [SHARED, SHARED | MapFlags::NORESERVE] {
            assert_eq!(space.mmap(&MapRequest { flags, ..shared }), Err(Error::CommitLimit));
        }
        let done = file.write(0, &mut Buffer::new(&mut [7; 10 * PAGE as usize]));
        assert_eq!((done.bytes, done.stopped), (8 * PAGE, Some(PageError::File(FileError::NoSpace))));
        let no_space = Err(PageError::File(FileError::NoSpace));
        assert_eq!(file.allocate(0..9 * PAGE, true), no_space);
        assert_eq!(cpu.program(&space).write_u64(page(area, 9), 1), Err(BUS));
        assert_eq!(cpu.program(&space).read_u64(page(area, 9)), Err(BUS));
        assert_eq!(read_file(&file, 9 * PAGE, 8), [0; 8]);
        // What is on a device counts, and comes back.
        (0..8).for_each(|at| write(&cpu, &space, page(area, at), at));
        space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
        assert_eq!((file.figures().swapped, promised()), (8, 24));
        assert_eq!(read(&cpu, &space, page(area, 7)), 7);
        file.punch(0..2 * PAGE, |_| Ok(())).unwrap();
        assert_eq!(file.allocate(16 * PAGE..19 * PAGE, true), no_space);
        assert_eq!(promised(), 22);
        file.allocate(16 * PAGE..18 * PAGE, true).unwrap();
        space.munmap(own, PAGE).unwrap();
        write(&cpu, &space, page(area, 9), 3);
        assert_audit(&machine);
        file.set_size(0).unwrap();
        assert_eq!(promised(), 16);
        file.set_size(64 * PAGE).unwrap();
        space.munmap(own, 40 * PAGE).unwrap();
        space.munmap(room, 16 * PAGE).unwrap();
    }
    assert_eq!(promised(), 0);
    assert_audit(&machine);
}

#[test]
fn a_private_mapping_of_shared_memory_has_copies() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), 4 * PAGE).unwrap();
    write_file(&file, 2 * PAGE, &7_u64.to_le_bytes());
    let (ours, theirs) = (file_request(0, 4, RW, SHARED), file_request(0, 4, RW, MapFlags::empty()));
    let (ours, theirs) = (space.mmap_file(&ours, &file).unwrap(), space.mmap_file(&theirs, &file).unwrap());
    assert_eq!(read(&cpu, &space, page(theirs, 2)), 7);
    write(&cpu, &space, page(theirs, 2), 8);
    write(&cpu, &space, page(theirs, 3), 9);
    write(&cpu, &space, page(ours, 1), 6);
    assert_eq!((0..4).map(|at| read(&cpu, &space, page(ours, at))).collect::<Vec<_>>(), [0, 6, 7, 0]);
    assert_eq!((0..4).map(|at| read(&cpu, &space, page(theirs, at))).collect::<Vec<_>>(), [0, 6, 8, 9]);
    file.set_size(2 * PAGE).unwrap();
    assert_eq!(cpu.program(&space).read_u64(page(theirs, 2)), Err(PAST_END));
    assert_eq!(cpu.program(&space).read_u64(page(ours, 2)), Err(PAST_END));
    file.set_size(4 * PAGE).unwrap();
    assert_eq!(read(&cpu, &space, page(theirs, 2)), 0);
}

/// An owner with room for so many pages.
struct Limited(Arc<AtomicU64>);

impl ShmemOwner for Limited {
    fn take_pages(&self, pages: u64) -> Result<(), FileError> {
        let take = |left: u64| left.checked_sub(pages);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_or(Err(FileError::NoSpace), |_| Ok(()))
    }

    fn give_back_pages(&self, pages: u64) {
        self.0.fetch_add(pages, Ordering::Relaxed);
    }
}

#[test]
fn an_owner_without_room_refuses_pages_and_gets_them_back() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let left = Arc::new(AtomicU64::new(2));
    let file = machine.memory().create_shmem(Limited(left.clone()), 4 * PAGE).unwrap();
    let area = space.mmap_file(&file_request(0, 4, RW, SHARED), &file).unwrap();
    write(&cpu, &space, area, 1);
    write(&cpu, &space, page(area, 2), 3);
    assert_eq!(cpu.program(&space).write_u64(page(area, 1), 2), Err(BUS));
    let transfer = file.write(3 * PAGE, &mut Buffer::new(&mut [1; 8]));
    assert_eq!(transfer.stopped, Some(PageError::File(FileError::NoSpace)));
    file.punch(0..PAGE, |_| Ok(())).unwrap();
    assert_eq!(left.load(Ordering::Relaxed), 1);
    write(&cpu, &space, page(area, 1), 2);
    assert_eq!(read_file(&file, 0, 4 * PAGE as usize)[PAGE as usize], 2);
    drop(file);
    space.munmap(area, 4 * PAGE).unwrap();
    assert_eq!(left.load(Ordering::Relaxed), 2);
}

/// Bytes of a program that can be looked at, and not copied.
struct Unreadable(u32);

impl UserCopy for Unreadable {
    fn left(&self) -> u64 {
        16
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        self.0 += 1;
        if self.0 < 3 { bytes } else { 0 }
    }

    fn copy(&mut self, _: PageBytes<'_>) -> usize {
        0
    }

    fn advance(&mut self, _: usize) {}
}

/// As Linux 6.18: the page is made before the program's memory is looked at, and the file is larger up to
/// where it was to be written.
#[test]
fn a_write_that_copies_nothing_makes_its_page() {
    for ready in [0, 3] {
        let machine = machine(16, 1);
        let file = machine.memory().create_shmem((), 0).unwrap();
        for (at, pages) in [(0, 1), (5 * PAGE + 10, 2), (2 * PAGE, 3), (20, 3)] {
            let size = file.size().max(at);
            let done = file.write(at, &mut Unreadable(ready));
            assert_eq!((done.bytes, done.stopped, file.size()), (0, Some(PageError::BadAddress), size));
            assert_eq!(file.figures().cached, pages);
        }
        assert_eq!((file.seek_data(0), file.seek_hole(0)), (Some(0), Some(PAGE)));
        assert_eq!(file.seek_data(PAGE), Some(2 * PAGE), "it is data");
        assert_eq!(read_file(&file, 0, 16), [0; 16]);
        assert_audit(&machine);
    }
}

#[test]
fn synchronising_does_nothing() {
    let machine = swapping(32, 1, 64);
    let file = machine.memory().create_shmem((), 8 * PAGE).unwrap();
    file.allocate(0..4 * PAGE, false).unwrap();
    write_file(&file, 4 * PAGE, &[7; 8]);
    assert_eq!(file.sync(0..8 * PAGE, false), Ok(()));
    assert_eq!(file.write_back(0..8 * PAGE, Wait::Yes), Ok(()));
    assert_eq!((file.figures().cached, file.seek_data(0)), (5, Some(4 * PAGE)));
}

/// Its owner panics when pages are given back, as long as it is told to.
struct Panics(Arc<AtomicBool>);

impl ShmemOwner for Panics {
    fn take_pages(&self, _pages: u64) -> Result<(), FileError> {
        Ok(())
    }

    fn give_back_pages(&self, _pages: u64) {
        assert!(!self.0.load(Ordering::Relaxed), "it was told to");
    }
}

#[test]
fn an_owner_that_panics_leaves_all_counts_right() {
    let machine = swapping(32, 1, 256);
    let (cpu, space) = cpu_and_space(&machine);
    let panics = Arc::new(AtomicBool::new(false));
    let file = machine.memory().create_shmem(Panics(Arc::clone(&panics)), 8 * PAGE).unwrap();
    let area = space.mmap_file(&file_request(0, 8, RW, SHARED), &file).unwrap();
    for is_out in [false, true] {
        (0..8).for_each(|at| write(&cpu, &space, page(area, at), at + 1));
        if is_out {
            space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
            assert_eq!(file.figures().swapped, 8);
        }
        panics.store(true, Ordering::Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(|| file.set_size(0))).is_err());
        panics.store(false, Ordering::Relaxed);
        assert_audit(&machine);
        file.punch(0..8 * PAGE, |_| Ok(())).unwrap();
        assert_eq!((file.figures().cached, file.figures().swapped, free_slots(&machine)), (0, 0, 256));
        file.set_size(8 * PAGE).unwrap();
    }
}

#[test]
fn a_mapping_too_far_behind_is_not_installed() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = shared(&space, 4);
    let mut mappings = Vec::new();
    space.mappings().for_each(|mapping| mappings.push(mapping));
    let other = create_space(&machine);
    for offset in [1 << 52, (1 << 52) - 3, 1 << 60, u64::MAX - 8] {
        let mapping = Mapping { page_offset: offset, ..mappings[0] };
        assert_eq!(other.install(&mapping), Err(Error::OffsetOverflow), "{offset:#x}");
    }
    other.install(&mappings[0]).unwrap();
    write(&cpu, &other, area, 7);
}

/// As on Linux 6.18: what is behind a guard is unmapped, and stays in the file; DONTNEED leaves the guard.
#[test]
fn a_guard_takes_the_place_of_a_page_that_stays_in_the_file() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), 16 * PAGE).unwrap();
    let area = space.mmap_file(&file_request(0, 16, RW, MapFlags::SHARED), &file).unwrap();
    (0..16).for_each(|at| write(&cpu, &space, page(area, at), at + 1));
    space.madvise(area, 8 * PAGE, Advice::GuardInstall).unwrap();
    assert_eq!((resident(&space)[2], file.figures().cached), (8, 16));
    assert_eq!(in_memory(&space, area, 16), [true; 16]);
    assert!(cpu.program(&space).read_u64(area).is_err());
    space.madvise(area, 16 * PAGE, Advice::DontNeed).unwrap();
    assert!(cpu.program(&space).read_u64(area).is_err());
    space.madvise(area, 4 * PAGE, Advice::GuardRemove).unwrap();
    assert_eq!(read(&cpu, &space, page(area, 1)), 2);
    let other = space.mmap_file(&file_request(0, 16, RW, MapFlags::SHARED), &file).unwrap();
    assert_eq!(read(&cpu, &space, page(other, 6)), 7);
}
