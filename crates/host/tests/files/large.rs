//! Files with large folios.

use crate::common::*;
use crate::mapped::numbered;
use quire_mm::proc::memcg_file;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PRIVATE: MapFlags = MapFlags::empty();
const SHARED: MapFlags = MapFlags::SHARED;
const PAST_END: AccessError<FaultError> = AccessError::Fault(FaultError::PastEnd);
/// Pages of a folio of the PMD's order.
pub(crate) const HUGE: u64 = 512;
const HUGE_BYTES: u64 = HUGE * PAGE;

/// A file of so many pages, written by one call, and what it is made of.
pub(crate) fn huge_file(machine: &Machine, pages: u64) -> (File<'_, HostPlatform>, Arc<FileStore>) {
    let (backing, store) = MemoryFile::huge(Vec::new());
    let file = machine.memory().create_file(backing, 0).unwrap();
    write_file(&file, 0, &numbered(pages));
    (file, store)
}

/// Maps pages of the file with its first page at a border of 2 MiB.
pub(crate) fn map(
    space: &HostSpace<'_>,
    file: &File<'_, HostPlatform>,
    (first, pages): (u64, u64),
    (protection, sharing): (Protection, MapFlags),
) -> VirtAddr {
    let request = file_request(first, pages, protection, sharing);
    let at = VirtAddr(GIB + first * PAGE);
    space.mmap_file(&request.at(at, MapFlags::FIXED | sharing), file).unwrap()
}

/// Resident pages of files, and folios that a PMD entry maps.
fn resident(machine: &Machine, space: &HostSpace<'_>) -> (u64, u64) {
    let events = machine.memory().frames().events();
    (space.figures().resident_file / PAGE, events.file_pmd_mapped())
}

/// As on Linux 6.18, whose results these are, with files of ext4.
#[test]
fn a_folio_of_the_pmds_order_is_mapped_by_one_entry() {
    let machine = machine(64, 1);
    let (file, _) = huge_file(&machine, 4 * HUGE);
    let (cpu, space) = cpu_and_space(&machine);
    let addr = map(&space, &file, (0, 4 * HUGE), (READ, SHARED));
    assert_eq!(read(&cpu, &space, page(addr, 1)), 2);
    assert_eq!(resident(&machine, &space), (HUGE, 1));
    assert_eq!(read(&cpu, &space, page(addr, HUGE + 1)), HUGE + 2);
    assert_eq!(resident(&machine, &space), (2 * HUGE, 2));
    // A part of it changes: all of it goes, and comes back by faults.
    space.mprotect(addr, 16 * PAGE, Protection::empty(), false).unwrap();
    assert_eq!(resident(&machine, &space), (HUGE, 1));
    assert_eq!(read(&cpu, &space, page(addr, 16)), 17);
    assert_eq!(resident(&machine, &space), (HUGE + 16, 1));
    // The last folio ends with the file: where there is a table Linux maps the window only.
    assert_eq!(read(&cpu, &space, page(addr, 3 * HUGE)), 3 * HUGE + 1);
    assert_eq!(resident(&machine, &space), (2 * HUGE + 16, 2));
    space.madvise(page(addr, 3 * HUGE), PAGE, Advice::DontNeed).unwrap();
    assert_eq!(resident(&machine, &space), (HUGE + 16, 1));
    space.munmap(addr, 4 * HUGE_BYTES).unwrap();
    let copies = map(&space, &file, (0, 4 * HUGE), (RW, PRIVATE));
    write(&cpu, &space, page(copies, 3 * HUGE + 9), 1);
    assert_eq!(read(&cpu, &space, page(copies, 3 * HUGE + 5)), 3 * HUGE + 6);
    assert_eq!(resident(&machine, &space), (15, 0));
    space.munmap(copies, 4 * HUGE_BYTES).unwrap();
    file.set_size(0).unwrap();
    assert_eq!(machine.memory().frames().events().folios(Order::PMD, FolioCounter::NrAnon), 0);
    assert_eq!(resident(&machine, &space), (0, 0));
    assert_audit(&machine);
}

#[test]
fn a_program_that_writes_gets_copies_of_pages() {
    let machine = machine(64, 1);
    let (file, _) = huge_file(&machine, 3 * HUGE);
    let (cpu, space) = cpu_and_space(&machine);
    let addr = map(&space, &file, (0, 3 * HUGE), (RW, PRIVATE));
    assert_eq!(read(&cpu, &space, page(addr, 1)), 2);
    assert_eq!(resident(&machine, &space), (HUGE, 1));
    write(&cpu, &space, page(addr, 1), 100);
    write(&cpu, &space, page(addr, HUGE + 2), 200);
    let figures = space.figures();
    assert_eq!((figures.resident_anonymous, figures.resident_file), (2 * PAGE, 0));
    assert_eq!(read(&cpu, &space, page(addr, 0)), 1);
    assert_eq!(space.figures().resident_file, (HUGE - 1) * PAGE, "all else of the folio");
    assert_eq!((read(&cpu, &space, page(addr, 1)), read(&cpu, &space, page(addr, HUGE + 2))), (100, 200));
    assert_eq!(read_file(&file, PAGE, 8), 2_u64.to_le_bytes(), "the file is as it was");
    let child = space.fork().unwrap();
    assert_eq!(read(&cpu, &child, page(addr, 1)), 100);
    assert_eq!(read(&cpu, &child, page(addr, 3)), 4);
    drop(child);
    assert_audit(&machine);
}

/// A space that has copies of pages is copied by fork, but what the cache has is not.
#[test]
fn a_child_finds_the_folios_of_a_file_in_the_cache() {
    let machine = machine(64, 1);
    let (file, _) = huge_file(&machine, 3 * HUGE);
    let (cpu, space) = cpu_and_space(&machine);
    let addr = map(&space, &file, (0, 3 * HUGE), (RW, PRIVATE));
    write(&cpu, &space, page(addr, HUGE), 100);
    assert_eq!(read(&cpu, &space, page(addr, 1)), 2);
    assert_eq!(resident(&machine, &space), (HUGE, 1));
    let child = space.fork().unwrap();
    assert_eq!((child.figures().resident_anonymous, child.figures().resident_file), (PAGE, 0));
    assert_audit(&machine);
    assert_eq!((read(&cpu, &child, page(addr, 1)), read(&cpu, &child, page(addr, HUGE))), (2, 100));
    drop(child);
    assert_audit(&machine);
}

#[test]
fn writes_by_one_entry_are_noticed() {
    let machine = machine(64, 2);
    let (file, store) = huge_file(&machine, 3 * HUGE);
    file.sync(ALL, false).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let other = create_space(&machine);
    let addr = map(&space, &file, (0, 3 * HUGE), (RW, SHARED));
    let theirs = map(&other, &file, (0, 3 * HUGE), (READ, SHARED));
    assert_eq!((read(&cpu, &space, page(addr, 5)), read(&cpu, &other, page(theirs, 5))), (6, 6));
    assert_eq!((resident(&machine, &space), file.figures().dirty), ((HUGE, 1), 0));
    for round in 0..3 {
        write(&cpu, &space, page(addr, 5), 70 + round);
        write(&cpu, &space, page(addr, HUGE + 5), 80 + round);
        assert_eq!((resident(&machine, &space), file.figures().dirty), ((2 * HUGE, 2), 2 * HUGE));
        assert_eq!(read(&cpu, &other, page(theirs, 5)), 70 + round);
        file.sync(ALL, false).unwrap();
        assert_eq!(file.figures().dirty, 0);
        let bytes = store.bytes.lock().unwrap();
        assert_eq!(&bytes[5 * PAGE as usize..][..8], (70 + round).to_le_bytes());
        assert_eq!(&bytes[(HUGE + 5) as usize * PAGE as usize..][..8], (80 + round).to_le_bytes());
    }
    drop(other);
    assert_audit(&machine);
}

/// An entry of a mapping without access is no present one. `quire diff` found that writeback took it for one.
#[test]
fn what_may_not_be_accessed_is_written_back() {
    const NONE: Protection = Protection::empty();
    let machine = machine(64, 1);
    let (file, store) = huge_file(&machine, 3 * HUGE);
    let (cpu, space) = cpu_and_space(&machine);
    let one = map(&space, &file, (0, HUGE), (RW, SHARED));
    let pages = map(&space, &file, (HUGE, 8), (RW, SHARED));
    for round in 0..3 {
        let values = [70 + round, 80 + round];
        write(&cpu, &space, page(one, 5), values[0]);
        write(&cpu, &space, page(pages, 5), values[1]);
        space.mprotect(one, HUGE_BYTES, NONE, false).unwrap();
        space.mprotect(pages, 8 * PAGE, NONE, false).unwrap();
        file.sync(ALL, false).unwrap();
        assert_eq!(file.figures().dirty, 0);
        assert_audit(&machine);
        space.mprotect(one, HUGE_BYTES, RW, false).unwrap();
        space.mprotect(pages, 8 * PAGE, RW, false).unwrap();
        assert_eq!([read(&cpu, &space, page(one, 5)), read(&cpu, &space, page(pages, 5))], values);
        let bytes = store.bytes.lock().unwrap();
        let stored = [5, HUGE + 5].map(|page| bytes[(page * PAGE) as usize..][..8].try_into().unwrap());
        assert_eq!(stored.map(u64::from_le_bytes), values);
    }
    space.mprotect(pages, 8 * PAGE, NONE, false).unwrap();
    file.sync(ALL, false).unwrap();
    file.set_size(0).unwrap();
    assert_eq!(resident(&machine, &space), (0, 0));
}

#[test]
fn smaller_folios_are_mapped_whole_where_they_fit() {
    let machine = machine(64, 1);
    let (backing, _) = MemoryFile::huge(Vec::new());
    let file = machine.memory().create_file(backing, 0).unwrap();
    // As Linux 6.18 does on ext4: 1 MiB, then 512 KiB, and so on.
    write_file(&file, 0, &numbered(HUGE - 1));
    file.set_size(4 * HUGE_BYTES).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let addr = map(&space, &file, (0, HUGE), (RW, SHARED));
    assert_eq!(read(&cpu, &space, page(addr, 200)), 201);
    assert_eq!(resident(&machine, &space), (256, 0));
    write(&cpu, &space, page(addr, 300), 1);
    assert_eq!(resident(&machine, &space), (256 + 128, 0), "a write maps its folio");
    space.munmap(addr, HUGE_BYTES).unwrap();
    // A mapping that begins within a folio has the window.
    let addr = map(&space, &file, (3, 100), (READ, PRIVATE));
    assert_eq!(read(&cpu, &space, addr), 4);
    assert_eq!(resident(&machine, &space), (16, 0));
    assert_audit(&machine);
}

#[test]
fn advice_for_large_folios_reads_one() {
    let machine = machine(64, 1);
    let (backing, store) = MemoryFile::huge(numbered(3 * HUGE));
    let file = machine.memory().create_file(backing, 3 * HUGE_BYTES).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let addr = map(&space, &file, (0, 3 * HUGE), (RW, SHARED));
    space.madvise(addr, 3 * HUGE_BYTES, Advice::HugePage).unwrap();
    assert_eq!(read(&cpu, &space, page(addr, 7)), 8);
    assert_eq!((resident(&machine, &space), store.reads.load(Ordering::Relaxed)), ((HUGE, 1), 1));
    write(&cpu, &space, page(addr, HUGE + 7), 1);
    assert_eq!((resident(&machine, &space), store.reads.load(Ordering::Relaxed)), ((2 * HUGE, 2), 2));
    space.madvise(addr, 3 * HUGE_BYTES, Advice::NoHugePage).unwrap();
    space.madvise(addr, 3 * HUGE_BYTES, Advice::DontNeed).unwrap();
    assert_eq!(read(&cpu, &space, page(addr, 7)), 8);
    assert_eq!(resident(&machine, &space), (HUGE, 0), "mapped page by page");
    assert_audit(&machine);
}

#[test]
fn a_file_that_is_cut_in_a_folio_keeps_a_part_of_it() {
    let machine = machine(64, 1);
    let (file, _) = huge_file(&machine, 4 * HUGE);
    let (cpu, space) = cpu_and_space(&machine);
    let addr = map(&space, &file, (0, 4 * HUGE), (RW, SHARED));
    assert_eq!((read(&cpu, &space, addr), read(&cpu, &space, page(addr, HUGE))), (1, HUGE + 1));
    file.set_size(HUGE_BYTES + HUGE_BYTES / 2 + 100).unwrap();
    assert_eq!(file.figures().cached, HUGE + HUGE / 2 + 1);
    assert_eq!(cpu.program(&space).read_u64(page(addr, HUGE + HUGE / 2 + 1)), Err(PAST_END));
    assert_eq!(read(&cpu, &space, page(addr, HUGE + HUGE / 2)), HUGE + HUGE / 2 + 1);
    file.set_size(4 * HUGE_BYTES).unwrap();
    let tail = page(addr, HUGE + HUGE / 2).checked_add(104).unwrap();
    assert_eq!(cpu.program(&space).read_u64(tail), Ok(0));
    assert_eq!(read(&cpu, &space, page(addr, 2 * HUGE)), 0);
    // A hole in the other one.
    let cached = file.figures().cached;
    file.punch(100 * PAGE..110 * PAGE + 8, |_| Ok(())).unwrap();
    assert_eq!(file.figures().cached, cached - 10, "that is mapped, and cut");
    assert_eq!(read(&cpu, &space, page(addr, 99)), 100);
    assert_eq!((read(&cpu, &space, page(addr, 100)), read(&cpu, &space, page(addr, 109))), (0, 0));
    assert_eq!((read(&cpu, &space, page(addr, 110)), read(&cpu, &space, page(addr, 111))), (0, 112));
    assert_audit(&machine);
}

#[test]
fn a_folio_that_is_held_stays_whole_with_zeros() {
    let machine = machine(64, 1);
    let (file, store) = huge_file(&machine, 3 * HUGE);
    let (cpu, space) = cpu_and_space(&machine);
    let addr = map(&space, &file, (0, 3 * HUGE), (RW, SHARED));
    write(&cpu, &space, page(addr, 300), 5);
    let pinned = space.pin_page(page(addr, 10), Access::Read).unwrap();
    file.punch(100 * PAGE..200 * PAGE, |_| panic!("nothing of it is freed")).unwrap();
    assert_eq!(file.figures().cached, 3 * HUGE);
    assert_eq!((read(&cpu, &space, page(addr, 99)), read(&cpu, &space, page(addr, 100))), (100, 0));
    file.set_size(301 * PAGE).unwrap();
    assert_eq!(file.figures().cached, HUGE, "the folio in which it ends is all there");
    assert_eq!(cpu.program(&space).read_u64(page(addr, 301)), Err(PAST_END));
    assert_eq!(read(&cpu, &space, page(addr, 300)), 5);
    file.sync(ALL, false).unwrap();
    assert_eq!(store.bytes.lock().unwrap().len() as u64, 301 * PAGE);
    file.set_size(3 * HUGE_BYTES).unwrap();
    assert_eq!((read(&cpu, &space, page(addr, 301)), read(&cpu, &space, page(addr, 511))), (0, 0));
    drop(pinned);
    assert_audit(&machine);
}

#[test]
fn parts_of_it_are_moved_and_unmapped() {
    let machine = machine(64, 1);
    let (file, _) = huge_file(&machine, 4 * HUGE);
    let (cpu, space) = cpu_and_space(&machine);
    let addr = map(&space, &file, (0, 3 * HUGE), (READ, SHARED));
    for block in 0..3 {
        assert_eq!(read(&cpu, &space, page(addr, block * HUGE)), block * HUGE + 1);
    }
    assert_eq!(resident(&machine, &space), (3 * HUGE, 3));
    space.munmap(page(addr, 16), 16 * PAGE).unwrap();
    assert_eq!(resident(&machine, &space), (2 * HUGE, 2));
    // The whole of one, to a border of 2 MiB, and a part of the other.
    let to = VirtAddr(3 * GIB);
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    space.mremap(page(addr, HUGE), HUGE_BYTES, HUGE_BYTES, flags, to).unwrap();
    assert_eq!(resident(&machine, &space), (2 * HUGE, 2));
    assert_eq!(read(&cpu, &space, page(to, 5)), HUGE + 6);
    let part = VirtAddr(4 * GIB + 64 * PAGE);
    space.mremap(page(addr, 2 * HUGE + 64), 32 * PAGE, 32 * PAGE, flags, part).unwrap();
    assert_eq!(resident(&machine, &space), (HUGE, 1));
    assert_eq!(read(&cpu, &space, page(part, 1)), 2 * HUGE + 66);
    let child = space.fork().unwrap();
    assert_eq!(child.figures().resident_file, 0, "a child finds it in the cache");
    assert_eq!(read(&cpu, &child, page(to, 6)), HUGE + 7);
    assert_eq!(child.figures().resident_file, HUGE_BYTES);
    drop(child);
    assert_audit(&machine);
}

#[test]
fn folios_that_cross_tables_are_mapped_by_windows() {
    let machine = machine(64, 1);
    let (file, _) = huge_file(&machine, 2 * HUGE);
    let (cpu, space) = cpu_and_space(&machine);
    let at = VirtAddr((1 << 39) - 4 * PAGE);
    let request = file_request(0, 2 * HUGE, RW, SHARED).at(at, MapFlags::FIXED | SHARED);
    space.mmap_file(&request, &file).unwrap();
    assert_eq!(read(&cpu, &space, at), 1);
    assert_eq!(resident(&machine, &space), (4, 0));
    assert_eq!(read(&cpu, &space, page(at, 4)), 5);
    assert_eq!(resident(&machine, &space), (20, 0));
    // Of the last folio Linux maps one page where there is no table yet, and a window where there is one.
    assert_eq!(read(&cpu, &space, page(at, HUGE + 4)), HUGE + 5);
    assert_eq!(resident(&machine, &space), (21, 0));
    assert_eq!(read(&cpu, &space, page(at, HUGE + 5)), HUGE + 6);
    assert_eq!(resident(&machine, &space), (36, 0));
    write(&cpu, &space, page(at, HUGE + 100), 1);
    assert_eq!(resident(&machine, &space), (37, 0));
    assert_audit(&machine);
}

/// Where there is no table, Linux maps nothing around a page if the first folio there is the last one.
#[test]
fn accesses_past_the_end_leave_no_table() {
    let machine = machine(64, 1);
    let (file, _) = huge_file(&machine, 12);
    let (cpu, space) = cpu_and_space(&machine);
    for sharing in [PRIVATE, SHARED] {
        let addr = map(&space, &file, (8, 8), (RW, sharing));
        assert_eq!(cpu.program(&space).write_u64(page(addr, 6), 1), Err(PAST_END));
        assert_eq!(cpu.program(&space).read_u64(page(addr, 5)), Err(PAST_END));
        assert_eq!(resident(&machine, &space), (0, 0));
        assert_eq!(read(&cpu, &space, page(addr, 1)), 10);
        assert_eq!(resident(&machine, &space), (4, 0));
        space.munmap(addr, 8 * PAGE).unwrap();
    }
}

/// As Linux's NR_FILE_THPS, which each memcg counts.
#[test]
fn memcgs_count_folios_of_the_pmds_order() {
    let machine = machine(64, 1);
    let above = memcg(&machine, "above", &[]);
    let below = machine.memory().create_memcg(above, "below").unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    space.set_memcg(below).unwrap();
    let (backing, _) = MemoryFile::huge(numbered(2 * HUGE));
    let file = machine.memory().create_file(backing, 2 * HUGE_BYTES).unwrap();
    let addr = map(&space, &file, (0, 2 * HUGE), (READ, SHARED));
    space.madvise(addr, 2 * HUGE_BYTES, Advice::HugePage).unwrap();
    let check = |folder: &str, pages: u64| {
        let mut text = String::new();
        memcg_file(machine.memory(), &format!("{folder}/memory.stat"), None, &mut text).unwrap();
        let lines = format!("\nfile_thp {}\nshmem_thp 0\n", pages * PAGE);
        assert!(text.contains(&lines), "{folder}: {text}");
        assert_audit(&machine);
    };
    (0..2).for_each(|nth| assert_eq!(read(&cpu, &space, page(addr, nth * HUGE)), nth * HUGE + 1));
    ["above/below", "above", ""].iter().for_each(|folder| check(folder, 2 * HUGE));
    file.set_size(HUGE_BYTES + 3 * PAGE).unwrap();
    check("above/below", HUGE);
    space.set_memcg(MemcgId::ROOT).unwrap();
    machine.memory().remove_memcg(below).unwrap();
    machine.memory().swap().reparenting().free_numbers();
    check("above", HUGE);
    file.set_size(0).unwrap();
    check("above", 0);
}
