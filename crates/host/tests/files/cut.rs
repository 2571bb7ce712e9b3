//! Truncation, holes, extension.

use crate::common::*;
use crate::mapped::numbered;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAST_END: AccessError<FaultError> = AccessError::Fault(FaultError::PastEnd);

#[test]
fn truncation_takes_pages_and_copies_from_every_program() {
    let machine = machine(32, 2);
    let (backing, _) = MemoryFile::new(numbered(64));
    let file = machine.memory().create_file(backing, 64 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let other = create_space(&machine);
    let shared = space.mmap_file(&file_request(0, 64, RW, MapFlags::SHARED), &file).unwrap();
    let private = other.mmap_file(&file_request(8, 56, RW, MapFlags::empty()), &file).unwrap();
    for at in 0..64 {
        write(&cpu, &space, page(shared, at), at + 100);
    }
    for at in 0..56 {
        assert_eq!(read(&cpu, &other, page(private, at)), at + 108);
    }
    write(&cpu, &other, page(private, 40), 7);
    write(&cpu, &other, page(private, 1), 8);
    file.set_size(10 * PAGE + 16).unwrap();
    assert_eq!((file.size(), file.figures().cached, file.figures().dirty), (10 * PAGE + 16, 11, 11));
    assert_eq!((space.figures().resident_file, other.figures().resident_file), (11 * PAGE, 2 * PAGE));
    assert_eq!(other.figures().resident_anonymous, PAGE, "the copy past the end is gone, too");
    assert_eq!(cpu.program(&space).read_u64(page(shared, 11)), Err(PAST_END));
    assert_eq!(cpu.program(&other).read_u64(page(private, 40)), Err(PAST_END));
    assert_eq!(read(&cpu, &other, page(private, 1)), 8);
    let tail = |at: u64| page(shared, 10).checked_add(at).unwrap();
    assert_eq!(cpu.program(&space).read_u64(tail(16)), Ok(0), "the rest of the last page is zeros");
    // A program may write past the end of the last page. That is not what comes when the file grows.
    cpu.program(&space).write_u64(tail(24), 77).unwrap();
    file.set_size(64 * PAGE).unwrap();
    assert_eq!(cpu.program(&space).read_u64(tail(24)), Ok(0));
    assert_eq!(read(&cpu, &space, page(shared, 9)), 109);
    drop(other);
}

/// Of a mapping that is far larger than what it maps, only page tables are looked at.
#[test]
fn truncation_finds_the_pages_of_a_large_mapping() {
    let machine = machine(32, 1);
    let (backing, _) = MemoryFile::new(Vec::new());
    let file = machine.memory().create_file(backing, 1 << 45).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let pages = 1 << 33;
    let request = file_request(0, pages, RW, MapFlags::NORESERVE);
    let addr = space.mmap_file(&request, &file).unwrap();
    // Beside borders of what is unmapped, and of what is looked at, under one pin.
    let near = |border: u64| [border - 1, border, border + 1];
    let places: Vec<u64> = [1 << 16, 1 << 24, 3 << 24, 1 << 32].into_iter().flat_map(near).collect();
    for at in [0, 5].iter().chain(&places) {
        write(&cpu, &space, page(addr, *at), 7);
    }
    assert_eq!(space.figures().resident_anonymous, 14 * PAGE);
    file.set_size(PAGE).unwrap();
    assert_eq!((space.figures().resident_anonymous, file.figures().cached), (PAGE, 1));
    for at in places {
        assert_eq!(cpu.program(&space).read_u64(page(addr, at)), Err(PAST_END));
    }
}

/// As in Linux, which does the same for a size that stays as for a smaller one.
#[test]
fn what_is_written_past_the_end_is_gone_when_the_size_is_set_again() {
    let machine = machine(16, 1);
    let (backing, _) = MemoryFile::new(numbered(2));
    let file = machine.memory().create_file(backing, PAGE + 16).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 2, RW, MapFlags::SHARED), &file).unwrap();
    let tail = |at: u64| page(addr, 1).checked_add(at).unwrap();
    cpu.program(&space).write_u64(tail(8), 76).unwrap();
    cpu.program(&space).write_u64(tail(24), 77).unwrap();
    file.set_size(PAGE + 16).unwrap();
    assert_eq!(cpu.program(&space).read_u64(tail(24)), Ok(0));
    assert_eq!(cpu.program(&space).read_u64(tail(8)), Ok(76));
}

#[test]
fn a_hole_is_zeros_and_private_copies_stay() {
    let machine = machine(32, 1);
    let (backing, store) = MemoryFile::new(numbered(16));
    let file = machine.memory().create_file(backing, 16 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let shared = space.mmap_file(&file_request(0, 16, RW, MapFlags::SHARED), &file).unwrap();
    let private = space.mmap_file(&file_request(0, 16, RW, MapFlags::empty()), &file).unwrap();
    for at in 0..16 {
        write(&cpu, &space, page(shared, at), at + 100);
    }
    write(&cpu, &space, page(private, 5), 1);
    assert_eq!(read(&cpu, &space, page(private, 6)), 106);
    let hole = 4 * PAGE..8 * PAGE + 8;
    file.punch(hole, |bytes| store.free(bytes)).unwrap();
    for at in 4..9 {
        assert_eq!(read(&cpu, &space, page(shared, at)), 0, "page {at}");
    }
    assert_eq!((read(&cpu, &space, page(shared, 3)), read(&cpu, &space, page(shared, 9))), (103, 109));
    assert_eq!((read(&cpu, &space, page(private, 5)), read(&cpu, &space, page(private, 6))), (1, 0));
}

/// Reads as CPU 1 once what is stored of a hole is being freed, and tells that it has read.
fn read_when_freed(
    machine: &Machine,
    space: &HostSpace<'_>,
    addr: VirtAddr,
    (begins, ends): (&AtomicBool, &AtomicBool),
) -> Result<u64, AccessError<FaultError>> {
    let cpu = machine.vcpu(1).unwrap();
    while !begins.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let read = cpu.program(space).read_u64(addr);
    ends.store(true, Ordering::Release);
    read
}

/// A fault that comes while what is stored of a hole is being freed waits for that.
#[test]
fn a_fault_does_not_bring_back_what_a_hole_had() {
    let machine = machine(32, 2);
    let (backing, store) = MemoryFile::new(numbered(8));
    let file = machine.memory().create_file(backing, 8 * PAGE).unwrap();
    let (_cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 8, RW, MapFlags::SHARED), &file).unwrap();
    let (begins, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_when_freed(&machine, &space, page(addr, 5), (&begins, &ends)));
        let free = |bytes| {
            begins.store(true, Ordering::Release);
            for _ in 0..20_000 {
                std::thread::yield_now();
                assert!(!ends.load(Ordering::Acquire), "the fault found what was stored");
            }
            store.free(bytes)
        };
        file.punch(4 * PAGE..8 * PAGE, free).unwrap();
        assert_eq!(reader.join().unwrap(), Ok(0));
    });
    assert_eq!(file.punch(0..PAGE, |_| Err(FileError::NoSpace)), Err(PageError::File(FileError::NoSpace)));
}

/// A file that takes its time to free what is stored of a hole, and tells when it begins.
struct SlowHoles {
    bytes: MemoryFile,
    begins: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
}

impl<P: Platform> FileBacking<P> for SlowHoles {
    unsafe fn submit(
        &self,
        memory: DeviceMemory<'_, P>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        // SAFETY: the caller's promise.
        unsafe { self.bytes.submit(memory, io) }
    }

    fn limits(&self) -> IoLimits {
        FileBacking::<P>::limits(&self.bytes)
    }

    fn punch(&self, bytes: Range<u64>) -> Result<(), FileError> {
        self.begins.store(true, Ordering::Release);
        for _ in 0..20_000 {
            std::thread::yield_now();
            assert!(!self.ends.load(Ordering::Acquire), "the fault found what was stored");
        }
        FileBacking::<P>::punch(&self.bytes, bytes)
    }
}

/// The same for a hole that a program makes by its mapping.
#[test]
fn a_fault_does_not_bring_back_what_a_hole_by_a_mapping_had() {
    let machine = machine(32, 2);
    let (bytes, _) = MemoryFile::new(numbered(8));
    let (begins, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let backing = SlowHoles { bytes, begins: begins.clone(), ends: ends.clone() };
    let file = machine.memory().create_file(backing, 8 * PAGE).unwrap();
    let (_cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 8, RW, MapFlags::SHARED), &file).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_when_freed(&machine, &space, page(addr, 5), (&begins, &ends)));
        assert_eq!(space.madvise(page(addr, 4), 4 * PAGE, Advice::Remove), Ok(()));
        assert_eq!(reader.join().unwrap(), Ok(0));
    });
}

/// As Linux 6.18 does it on ext4 and tmpfs.
#[test]
fn a_mapping_makes_a_hole_of_its_pages() {
    let machine = machine(32, 1);
    let (backing, store) = MemoryFile::new(numbered(6));
    let file = machine.memory().create_file(backing, 5 * PAGE + 8).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let map = |pages, flags, protection| {
        space.mmap_file(&file_request(0, pages, protection, flags), &file).unwrap()
    };
    let shared = map(8, MapFlags::SHARED, RW);
    let private = map(8, MapFlags::empty(), RW);
    let readable = map(8, MapFlags::SHARED, READ);
    let remove = |addr, pages| space.madvise(addr, pages * PAGE, Advice::Remove);
    write(&cpu, &space, page(shared, 1), 71);
    write(&cpu, &space, page(private, 1), 72);
    assert_eq!(read(&cpu, &space, page(readable, 2)), 3);
    assert_eq!(remove(page(shared, 1), 2), Ok(()));
    for at in [1, 2] {
        assert_eq!((read(&cpu, &space, page(shared, at)), read(&cpu, &space, page(readable, at))), (0, 0));
    }
    assert_eq!((read(&cpu, &space, page(private, 1)), read(&cpu, &space, page(private, 2))), (72, 0));
    assert_eq!((file.size(), read(&cpu, &space, page(shared, 3))), (5 * PAGE + 8, 4));
    assert_eq!(store.bytes.lock().unwrap()[PAGE as usize..3 * PAGE as usize], [0; 2 * PAGE as usize]);
    // The file allows writes, though the mapping does not.
    assert_eq!((remove(page(readable, 5), 3), read(&cpu, &space, page(shared, 5))), (Ok(()), 0));
    assert_eq!(read(&cpu, &space, page(shared, 4)), 5);
    let refused = [Err(Error::AccessDenied), Err(Error::WrongMapping)];
    let anonymous = map_at(&space, 3 * GIB, PAGE, RW);
    assert_eq!([remove(private, 1), remove(anonymous, 1)], refused);
    let request = MapRequest {
        file: Some(MappedFile { writable: false, ..MappedFile::new(0, 0) }),
        ..file_request(0, 1, READ, MapFlags::SHARED)
    };
    let unwritable = space.mmap_file(&request, &file).unwrap();
    space.mlock(page(shared, 3), PAGE, false).unwrap();
    assert_eq!([remove(unwritable, 1), remove(page(shared, 3), 1)], refused);
    assert_eq!(read(&cpu, &space, page(shared, 3)), 4);
    // What is mapped is done, and the hole in the range is told.
    space.munlock(page(shared, 3), PAGE).unwrap();
    space.munmap(page(shared, 1), PAGE).unwrap();
    assert_eq!(remove(shared, 8), Err(Error::NotMapped));
    assert_eq!((read(&cpu, &space, shared), read(&cpu, &space, page(shared, 4))), (0, 0));
    let (backing, store) = MemoryFile::new(numbered(1));
    store.has_no_holes.store(true, Ordering::Relaxed);
    let without = machine.memory().create_file(backing, PAGE).unwrap();
    let place =
        file_request(0, 1, RW, MapFlags::SHARED).at(VirtAddr(4 * GIB), MapFlags::FIXED | MapFlags::SHARED);
    let place = space.mmap_file(&place, &without).unwrap();
    assert_eq!(remove(place, 1), Err(Error::NotSupportedByFile));
}

#[test]
fn one_flush_unmaps_a_file_from_a_space() {
    let machine = machine(64, 2);
    let (backing, _) = MemoryFile::new(numbered(1024));
    let file = machine.memory().create_file(backing, 1024 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let other = machine.vcpu(1).unwrap();
    let addr = space.mmap_file(&file_request(0, 1024, READ, MapFlags::SHARED), &file).unwrap();
    for at in 0..1024 {
        assert_eq!(read(&cpu, &space, page(addr, at)), at + 1);
    }
    drop(cpu);
    assert_eq!(read(&other, &space, addr), 1);
    let count = || machine.memory().event(VmEvent::TlbShootdownDiscard);
    let before = count();
    file.set_size(0).unwrap();
    assert!(count() - before <= 1, "{} shootdowns", count() - before);
    assert_eq!((space.figures().resident_file, file.figures().cached), (0, 0));
}
