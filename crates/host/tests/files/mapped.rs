//! Pages of files in mappings.

use crate::common::*;
use std::sync::atomic::Ordering;

const PRIVATE: MapFlags = MapFlags::empty();
const SHARED: MapFlags = MapFlags::SHARED;
const PAST_END: AccessError<FaultError> = AccessError::Fault(FaultError::PastEnd);
const BUS: AccessError<FaultError> = AccessError::Fault(FaultError::Bus);

/// Pages with their number, from 1 on, in each word.
pub(crate) fn numbered(pages: u64) -> Vec<u8> {
    (1..=pages).flat_map(|page| page.to_le_bytes().repeat(512)).collect()
}

#[test]
fn a_private_mapping_reads_the_file_and_keeps_what_it_writes() {
    let machine = machine(16, 1);
    let (backing, store) = MemoryFile::alone(numbered(8));
    let file = machine.memory().create_file(backing, 8 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(2, 4, RW, PRIVATE), &file).unwrap();
    for at in 0..4 {
        assert_eq!(read(&cpu, &space, page(addr, at)), at + 3);
    }
    assert_eq!(store.reads.load(Ordering::Relaxed), 4, "each page is read once");
    write(&cpu, &space, page(addr, 1), 100);
    // One that was not touched before.
    let other = space.mmap_file(&file_request(6, 2, RW, PRIVATE), &file).unwrap();
    write(&cpu, &space, page(other, 1), 200);
    assert_eq!((read(&cpu, &space, page(addr, 1)), read(&cpu, &space, page(other, 1))), (100, 200));
    assert_eq!(cpu.program(&space).read_u64(page(other, 1).checked_add(8).unwrap()).unwrap(), 8);
    assert_eq!(read_file(&file, 3 * PAGE, 8), 4_u64.to_le_bytes(), "the file is as it was");
    let figures = space.figures();
    assert_eq!((figures.resident_anonymous, figures.resident_file), (2 * PAGE, 3 * PAGE));
    assert_eq!(file.figures().dirty, 0);
}

#[test]
fn what_one_program_writes_to_a_shared_mapping_others_and_calls_see() {
    let machine = machine(16, 2);
    let (backing, store) = MemoryFile::new(numbered(4));
    let file = machine.memory().create_file(backing, 4 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let other = create_space(&machine);
    let ours = space.mmap_file(&file_request(0, 4, RW, SHARED), &file).unwrap();
    let theirs = other.mmap_file(&file_request(1, 2, RW, SHARED), &file).unwrap();
    let private = other.mmap_file(&file_request(1, 2, READ, PRIVATE), &file).unwrap();
    assert_eq!(read(&cpu, &other, private), 2);
    write(&cpu, &space, page(ours, 1), 70);
    assert_eq!((read(&cpu, &other, theirs), read(&cpu, &other, private)), (70, 70));
    write(&cpu, &other, page(theirs, 1), 80);
    assert_eq!(read(&cpu, &space, page(ours, 2)), 80);
    assert_eq!(read_file(&file, 2 * PAGE, 8), 80_u64.to_le_bytes());
    write_file(&file, PAGE, &90_u64.to_le_bytes());
    assert_eq!((read(&cpu, &space, page(ours, 1)), read(&cpu, &other, private)), (90, 90));
    assert_eq!(file.figures().dirty, 2);
    assert_eq!(store.writes.load(Ordering::Relaxed), 0);
    file.sync(ALL, false).unwrap();
    assert_eq!(&store.bytes.lock().unwrap()[PAGE as usize..][..8], 90_u64.to_le_bytes());
    assert_eq!((file.figures().dirty, store.writes.load(Ordering::Relaxed)), (0, 1), "two pages in a row");
    // Writes are noticed again.
    write(&cpu, &space, page(ours, 1), 91);
    assert_eq!((file.figures().dirty, read(&cpu, &other, theirs)), (1, 91));
    drop(other);
}

#[test]
fn a_fault_maps_what_is_cached_around_it() {
    let machine = machine(16, 1);
    let (backing, _) = MemoryFile::new(numbered(64));
    let file = machine.memory().create_file(backing, 64 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    assert_eq!(read_file(&file, 0, (64 * PAGE) as usize).len() as u64, 64 * PAGE);
    let at = VirtAddr(GIB + 3 * PAGE);
    let request = file_request(3, 40, READ, PRIVATE);
    let addr = space.mmap_file(&request.at(at, MapFlags::FIXED), &file).unwrap();
    let resident = |space: &HostSpace<'_>| space.figures().resident_file / PAGE;
    // The first window begins with the mapping, and has 16 pages, as in Linux.
    assert_eq!(read(&cpu, &space, page(addr, 2)), 6);
    assert_eq!(resident(&space), 16);
    // A window by the address, of which one page is mapped already: three are.
    assert_eq!(read(&cpu, &space, page(addr, 20)), 24);
    assert_eq!(resident(&space), 29);
    assert_eq!(read(&cpu, &space, page(addr, 39)), 43);
    assert_eq!(resident(&space), 40);
    for at in 0..40 {
        assert_eq!(read(&cpu, &space, page(addr, at)), at + 4);
    }
}

/// As Linux does before it looks for the page itself, and again when that was read.
#[test]
fn what_is_cached_around_a_page_that_is_not_is_mapped() {
    let machine = machine(16, 1);
    let (backing, store) = MemoryFile::alone(numbered(12));
    let file = machine.memory().create_file(backing, 12 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let map = |at: u64, protection, sharing| {
        let request = file_request(0, 16, protection, sharing).at(VirtAddr(at * GIB), MapFlags::FIXED);
        space.mmap_file(&request, &file).unwrap()
    };
    let (first, second, third) = (map(1, READ, PRIVATE), map(2, READ, PRIVATE), map(3, RW, SHARED));
    let resident = || space.figures().resident_file / PAGE;
    assert_eq!(read_file(&file, 2 * PAGE, (3 * PAGE) as usize).len() as u64, 3 * PAGE);
    assert_eq!(read(&cpu, &space, page(first, 8)), 9);
    assert_eq!(resident(), 4, "the page, and three");
    assert_eq!(cpu.program(&space).read_u64(page(second, 13)), Err(PAST_END));
    assert_eq!(resident(), 8, "those, and not the page");
    store.fails_reads.store(true, Ordering::Relaxed);
    assert_eq!(cpu.program(&space).read_u64(page(third, 9)), Err(BUS));
    assert_eq!(resident(), 12, "also where reading fails");
    store.fails_reads.store(false, Ordering::Relaxed);
    space.madvise(third, 16 * PAGE, Advice::DontNeed).unwrap();
    write(&cpu, &space, page(third, 9), 1);
    assert_eq!(resident(), 9, "a write maps its page alone");
}

#[test]
fn past_the_end_and_where_reading_fails_is_sigbus() {
    let machine = machine(16, 1);
    let (backing, store) = MemoryFile::new(numbered(3));
    let file = machine.memory().create_file(backing, 2 * PAGE + 8).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let shared = space.mmap_file(&file_request(0, 8, RW, SHARED), &file).unwrap();
    let private = space.mmap_file(&file_request(0, 8, RW, PRIVATE), &file).unwrap();
    for addr in [shared, private] {
        assert_eq!(cpu.program(&space).read_u64(page(addr, 3)), Err(PAST_END));
        assert_eq!(cpu.program(&space).write_u64(page(addr, 4), 1), Err(PAST_END));
    }
    store.fails_reads.store(true, Ordering::Relaxed);
    assert_eq!(cpu.program(&space).read_u64(shared), Err(BUS));
    assert_eq!(cpu.program(&space).write_u64(private, 1), Err(BUS));
    assert_eq!(file.figures().cached, 0);
    store.fails_reads.store(false, Ordering::Relaxed);
    assert_eq!(read(&cpu, &space, shared), 1, "it is read again");
    // The bytes past the end are zeros, whatever the backing has there.
    assert_eq!(cpu.program(&space).read_u64(page(shared, 2).checked_add(8).unwrap()), Ok(0));
    assert_eq!(read(&cpu, &space, page(private, 2)), 3);
}

#[test]
fn a_child_shares_the_file_and_not_the_copies() {
    let machine = machine(16, 1);
    let (backing, store) = MemoryFile::alone(numbered(4));
    let file = machine.memory().create_file(backing, 4 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let shared = space.mmap_file(&file_request(0, 4, RW, SHARED), &file).unwrap();
    let private = space.mmap_file(&file_request(0, 4, RW, PRIVATE), &file).unwrap();
    drop(file);
    assert_eq!(store.files.load(Ordering::Relaxed), 1, "mappings keep the file");
    write(&cpu, &space, private, 10);
    assert_eq!(read(&cpu, &space, page(private, 1)), 2);
    write(&cpu, &space, shared, 20);
    let child = space.fork().unwrap();
    // As in Linux, no entry of the shared mapping is copied.
    assert_eq!((space.figures().resident_file, child.figures().resident_file), (2 * PAGE, PAGE));
    write(&cpu, &child, private, 11);
    write(&cpu, &child, page(private, 1), 12);
    write(&cpu, &child, page(shared, 2), 30);
    assert_eq!((read(&cpu, &space, private), read(&cpu, &space, page(private, 1))), (10, 2));
    assert_eq!((read(&cpu, &space, page(shared, 2)), read(&cpu, &child, shared)), (30, 20));
    drop(space);
    assert_eq!(store.files.load(Ordering::Relaxed), 1, "the child's mappings keep it");
    assert_eq!(read(&cpu, &child, page(private, 2)), 30, "not copied, so it is the file's");
    drop(child);
    assert_eq!(store.files.load(Ordering::Relaxed), 0);
    let bytes = store.bytes.lock().unwrap();
    let word = |page: usize| u64::from_le_bytes(bytes[page << 12..][..8].try_into().unwrap());
    assert_eq!((word(0), word(1), word(2)), (20, 2, 30), "what is dirty is written at the end");
}

#[test]
fn permissions_moves_and_discards_keep_the_file() {
    let machine = machine(16, 1);
    let (backing, _) = MemoryFile::alone(numbered(8));
    let file = machine.memory().create_file(backing, 8 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let shared = space.mmap_file(&file_request(0, 8, RW, SHARED), &file).unwrap();
    write(&cpu, &space, page(shared, 1), 50);
    assert_eq!(read(&cpu, &space, shared), 1);
    space.mprotect(shared, 8 * PAGE, READ, false).unwrap();
    assert_eq!(cpu.program(&space).write_u64(shared, 1), Err(DENIED));
    space.mprotect(shared, 8 * PAGE, RW, false).unwrap();
    // The page is clean: the write must be noticed although the mapping allows it.
    write(&cpu, &space, shared, 51);
    assert_eq!(file.figures().dirty, 2);
    let moved = space.mremap(shared, 8 * PAGE, 8 * PAGE, MOVE, Some(VirtAddr(3 * GIB))).unwrap();
    assert_eq!((read(&cpu, &space, moved), read(&cpu, &space, page(moved, 1))), (51, 50));
    file.sync(ALL, false).unwrap();
    write(&cpu, &space, page(moved, 1), 52);
    assert_eq!(file.figures().dirty, 1);
    space.madvise(moved, 8 * PAGE, Advice::DontNeed).unwrap();
    assert_eq!(space.figures().resident_file, 0);
    assert_eq!(read(&cpu, &space, page(moved, 1)), 52, "the cache has it");
    let private = space.mmap_file(&file_request(0, 8, RW, PRIVATE), &file).unwrap();
    write(&cpu, &space, private, 53);
    space.madvise(private, PAGE, Advice::DontNeed).unwrap();
    assert_eq!(read(&cpu, &space, private), 51, "the copy is gone");
    space.munmap(moved, 8 * PAGE).unwrap();
    space.munmap(private, 8 * PAGE).unwrap();
    assert_eq!((space.figures().resident_file, file.figures().cached), (0, 2));
}

#[test]
fn mincore_and_will_need_are_of_the_cache() {
    let machine = machine(16, 1);
    let (backing, _) = MemoryFile::alone(numbered(8));
    let file = machine.memory().create_file(backing, 6 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 8, RW, PRIVATE), &file).unwrap();
    let in_memory = |space: &HostSpace<'_>| {
        let mut pages = Vec::new();
        space.mincore(addr, 8 * PAGE, |page| pages.push(u8::from(page))).unwrap();
        pages
    };
    assert_eq!(in_memory(&space), [0; 8]);
    assert_eq!(read_file(&file, 2 * PAGE, 8), 3_u64.to_le_bytes());
    write(&cpu, &space, page(addr, 4), 9);
    assert_eq!(in_memory(&space), [0, 0, 1, 0, 1, 0, 0, 0]);
    space.madvise(addr, 8 * PAGE, Advice::WillNeed).unwrap();
    assert_eq!(in_memory(&space), [1, 1, 1, 1, 1, 1, 0, 0]);
    assert_eq!(space.figures().resident_file, 0, "nothing is mapped");
    // As Linux: what cannot be brought in is no error of the mapping, but one of the advice.
    assert_eq!(space.madvise(addr, 8 * PAGE, Advice::PopulateRead), Err(Error::BadAddress));
    assert_eq!(space.figures().resident_file, 5 * PAGE);
}

/// As on Linux the entry decides: what is paged out is not in memory, whatever its file has cached. Where
/// there is only a guard the cache does.
#[test]
fn mincore_asks_the_cache_only_where_nothing_is_mapped() {
    let machine = machine(16, 1);
    swap_on_ram(&machine, 64);
    let (backing, _) = MemoryFile::alone(numbered(8));
    let file = machine.memory().create_file(backing, 8 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 8, RW, PRIVATE), &file).unwrap();
    write(&cpu, &space, page(addr, 3), 9);
    space.madvise(page(addr, 4), PAGE, Advice::GuardInstall).unwrap();
    assert_eq!(read_file(&file, 2 * PAGE, 4 * PAGE as usize).len() as u64, 4 * PAGE);
    space.madvise(page(addr, 3), PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().resident_anonymous, 0);
    let mut pages = Vec::new();
    space.mincore(addr, 8 * PAGE, |page| pages.push(u8::from(page))).unwrap();
    assert_eq!(pages, [0, 0, 1, 0, 1, 1, 0, 0]);
}

#[test]
fn advice_reads_a_part_of_a_large_file_ahead() {
    let machine = machine(32, 1);
    let (backing, _) = MemoryFile::new(Vec::new());
    let file = machine.memory().create_file(backing, GIB).unwrap();
    let space = create_space(&machine);
    let addr = space.mmap_file(&file_request(0, GIB / PAGE, READ, PRIVATE), &file).unwrap();
    space.madvise(addr, GIB, Advice::WillNeed).unwrap();
    assert_eq!(file.figures().cached, 2048);
}

/// As on Linux only anonymous pages are copied at once: a pin of a page of the cache is no matter of who maps
/// it privately.
#[test]
fn a_child_shares_a_page_of_the_cache_that_is_pinned() {
    let machine = machine(16, 1);
    let (backing, _) = MemoryFile::new(numbered(2));
    let file = machine.memory().create_file(backing, 2 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let shared = space.mmap_file(&file_request(0, 2, RW, SHARED), &file).unwrap();
    let private = space.mmap_file(&file_request(0, 2, RW, PRIVATE), &file).unwrap();
    write(&cpu, &space, page(private, 1), 7);
    assert_eq!(read(&cpu, &space, private), 1);
    let pinned = space.pin_page(shared, Access::Read).unwrap();
    let child = space.fork().unwrap();
    assert_eq!(child.figures().resident_anonymous, PAGE, "one copy, which is shared");
    write_file(&file, 0, &70_u64.to_le_bytes());
    assert_eq!((read(&cpu, &child, private), read(&cpu, &space, private)), (70, 70));
    drop(pinned);
}

#[test]
fn files_have_no_huge_pages() {
    let machine = machine(16, 1);
    let (backing, _) = MemoryFile::new(numbered(1));
    let file = machine.memory().create_file(backing, PAGE).unwrap();
    let request =
        MapRequest { huge_pages: Some((HugePages::Mib2, 0)), ..file_request(0, 512, READ, PRIVATE) };
    assert_eq!(create_space(&machine).mmap_file(&request, &file), Err(Error::BadFlags));
}

/// As Linux's `can_do_mincore`: a program that neither owns the file nor may write to it does not see the
/// cache.
#[test]
fn mincore_hides_the_cache_of_a_file_that_is_not_the_programs() {
    let machine = machine(16, 1);
    let (backing, _) = MemoryFile::alone(numbered(4));
    let file = machine.memory().create_file(backing, 3 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let seen = space.mmap_file(&file_request(0, 4, RW, SHARED), &file).unwrap();
    let others = MappedFile { vm_flags: VmFlags::HIDES_CACHE, ..MappedFile::new(0, 0) };
    let request = MapRequest { file: Some(others), ..file_request(0, 4, RW, PRIVATE) };
    let hidden = space.mmap_file(&request, &file).unwrap();
    let in_memory = |addr| {
        let mut pages = Vec::new();
        space.mincore(addr, 4 * PAGE, |page| pages.push(u8::from(page))).unwrap();
        pages
    };
    assert_eq!((in_memory(seen), in_memory(hidden)), (vec![0; 4], vec![1; 4]));
    write(&cpu, &space, page(hidden, 1), 5);
    assert_eq!((in_memory(seen), in_memory(hidden)), (vec![0, 1, 0, 0], vec![1; 4]));
}

#[test]
fn guards_take_the_place_of_pages_of_a_shared_mapping() {
    let machine = machine(16, 1);
    let (backing, _) = MemoryFile::new(numbered(4));
    let file = machine.memory().create_file(backing, 4 * PAGE).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let addr = space.mmap_file(&file_request(0, 4, RW, SHARED), &file).unwrap();
    write(&cpu, &space, page(addr, 1), 70);
    space.madvise(page(addr, 1), PAGE, Advice::GuardInstall).unwrap();
    assert_eq!(space.figures().resident_file, 0, "the page is unmapped");
    space.madvise(addr, 4 * PAGE, Advice::DontNeed).unwrap();
    assert_eq!(cpu.program(&space).read_u64(page(addr, 1)), Err(NOT_MAPPED), "it outlives what pages do not");
    space.madvise(addr, 4 * PAGE, Advice::GuardRemove).unwrap();
    assert_eq!(read(&cpu, &space, page(addr, 1)), 70, "the cache has it");
}
