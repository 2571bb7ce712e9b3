//! What is read around a page that is missing.

use crate::common::*;
use crate::mapped::numbered;
use std::sync::atomic::Ordering;

const PRIVATE: MapFlags = MapFlags::empty();

/// A file of so many numbered pages, and what it is made of.
fn numbered_file(machine: &Machine, pages: u64) -> (File<'_, HostPlatform>, std::sync::Arc<FileStore>) {
    let (backing, store) = MemoryFile::new(numbered(pages));
    (machine.memory().create_file(backing, pages * PAGE).unwrap(), store)
}

#[test]
fn a_fault_reads_what_is_around_its_page_and_maps_it() {
    let machine = machine(16, 1);
    let (file, store) = numbered_file(&machine, 40);
    let (cpu, space) = cpu_and_space(&machine);
    let faults = || machine.memory().frames().events().sum(VmEvent::Pgmajfault);
    // Pages 18 to 29: of the block of 16 pages the mapping has the last 12.
    let addr = space.mmap_file(&file_request(18, 12, RW, PRIVATE), &file).unwrap();
    let before = faults();
    assert_eq!(read(&cpu, &space, page(addr, 2)), 21);
    assert_eq!((file.figures().cached, store.reads.load(Ordering::Relaxed)), (16, 1));
    assert_eq!(faults() - before, 1);
    for at in 0..12 {
        assert_eq!(read(&cpu, &space, page(addr, at)), at + 19);
    }
    // A write to private memory, and one that is noticed, read as much.
    let other = space.mmap_file(&file_request(0, 40, RW, PRIVATE), &file).unwrap();
    write(&cpu, &space, page(other, 5), 7);
    let shared = space.mmap_file(&file_request(0, 40, RW, MapFlags::SHARED), &file).unwrap();
    write(&cpu, &space, page(shared, 39), 8);
    assert_eq!((file.figures().cached, store.reads.load(Ordering::Relaxed)), (40, 3));
    assert_eq!((file.figures().dirty, faults() - before), (1, 3));
}

#[test]
fn a_program_that_goes_from_place_to_place_reads_its_pages_alone() {
    let machine = machine(16, 1);
    let (file, store) = numbered_file(&machine, 40);
    let (cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 40, RW, MapFlags::SHARED), &file).unwrap();
    space.madvise(addr, 40 * PAGE, Advice::Random).unwrap();
    assert_eq!(read(&cpu, &space, page(addr, 20)), 21);
    write(&cpu, &space, page(addr, 3), 9);
    assert_eq!((file.figures().cached, store.reads.load(Ordering::Relaxed)), (2, 2));
    // Advice that names pages reads these.
    space.madvise(page(addr, 18), 9 * PAGE, Advice::WillNeed).unwrap();
    assert_eq!((file.figures().cached, store.reads.load(Ordering::Relaxed)), (10, 4));
    space.madvise(addr, 40 * PAGE, Advice::Normal).unwrap();
    assert_eq!(read(&cpu, &space, page(addr, 39)), 40);
    assert_eq!(file.figures().cached, 18);
}

#[test]
fn what_is_around_ends_with_the_file() {
    let machine = machine(16, 1);
    let (file, store) = numbered_file(&machine, 16);
    file.set_size(5 * PAGE + 9).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    // At the start of what a fault maps around its page.
    let request = file_request(0, 16, READ, PRIVATE).at(VirtAddr(GIB), MapFlags::FIXED);
    let addr = space.mmap_file(&request, &file).unwrap();
    assert_eq!(read(&cpu, &space, page(addr, 2)), 3);
    assert_eq!((file.figures().cached, space.figures().resident_file), (6, 6 * PAGE));
    let past = AccessError::Fault(FaultError::PastEnd);
    assert_eq!(cpu.program(&space).read_u64(page(addr, 6)), Err(past));
    file.set_size(16 * PAGE).unwrap();
    assert_eq!(cpu.program(&space).read_u64(page(addr, 5).checked_add(16).unwrap()), Ok(0));
    assert_eq!(store.reads.load(Ordering::Relaxed), 1);
    assert_eq!(read(&cpu, &space, page(addr, 7)), 8);
    assert_eq!(store.reads.load(Ordering::Relaxed), 2);
}

/// The page that is wanted decides; and pages that come with it are charged, but none is reclaimed for them.
#[test]
fn a_limit_leaves_room_for_the_page_alone() {
    let machine = machine(16, 1);
    let (file, _) = numbered_file(&machine, 64);
    let (cpu, space) = cpu_and_space(&machine);
    let memcgs = machine.memory().memcgs();
    let memcg = memcgs.lifecycle().create(MemcgId::ROOT, "small").unwrap();
    let _ = memcgs.files().set(memcg, Limit::Max, Some(20 * PAGE)).unwrap();
    space.set_memcg(memcg).unwrap();
    let addr = space.mmap_file(&file_request(0, 64, RW, PRIVATE), &file).unwrap();
    assert_eq!(read(&cpu, &space, addr), 1);
    assert_eq!(read(&cpu, &space, page(addr, 20)), 21);
    assert_eq!(file.figures().cached, 20);
}
