//! MADV_PAGEOUT and MADV_COLD of shared memory, as measured on Linux 6.18.

use crate::common::*;
use crate::large::AREA;
use crate::mapped::{in_memory, resident};
use crate::taken::Taken;
use quire_frame::FolioCounter;
use quire_mm::proc::HugeFile;

const SHARED: MapFlags = MapFlags::SHARED;
const NUMBERS: u64 = 512;

/// A file of shared memory in folios of this size, with the numbers of its pages, mapped.
fn numbered<'m>(
    machine: &'m Machine,
    (cpu, space): (&Vcpu, &HostSpace<'_>),
    file: &str,
) -> (File<'m, HostPlatform>, VirtAddr) {
    HugeFile::find(file).unwrap().write(machine.memory(), "always").unwrap();
    let file = machine.memory().create_shmem((), NUMBERS * PAGE).unwrap();
    let request = file_request(0, NUMBERS, RW, SHARED).at(AREA, SHARED | MapFlags::FIXED);
    let area = space.mmap_file(&request, &file).unwrap();
    (0..NUMBERS).for_each(|at| write(cpu, space, page(area, at), at + 1));
    (file, area)
}

fn assert_numbers(cpu: &Vcpu, space: &HostSpace<'_>, area: VirtAddr) {
    (0..NUMBERS).for_each(|at| assert_eq!(read(cpu, space, page(area, at)), at + 1));
}

/// A folio that one process maps is split into pages, which unmaps all of it and drops nothing.
#[test]
fn advice_for_a_part_of_a_large_folio_splits_it() {
    for advice in [Advice::PageOut, Advice::Cold] {
        for (file, order) in [("shmem_enabled", 9), ("hugepages-64kB/shmem_enabled", 4)] {
            let machine = swapping(64, 1, 4096);
            let (cpu, space) = cpu_and_space(&machine);
            let (file, area) = numbered(&machine, (&cpu, &space), file);
            let split = || folios(&machine, order, FolioCounter::Split);
            let pages = 1 << order;
            space.madvise(page(area, 5), PAGE, advice).unwrap();
            assert_eq!((split(), file.figures().cached, file.figures().swapped), (1, NUMBERS, 0));
            assert_eq!(resident(&space)[2], NUMBERS - pages);
            assert_audit(&machine);
            // What a fault maps again is advised like any other page.
            assert_eq!(read(&cpu, &space, page(area, 5)), 6);
            space.madvise(page(area, 5), PAGE, advice).unwrap();
            assert_eq!((split(), file.figures().swapped), (1, u64::from(advice == Advice::PageOut)));
            assert_numbers(&cpu, &space, area);
            assert_audit(&machine);
        }
    }
}

#[test]
fn advice_for_a_part_of_what_others_map_or_hold_does_nothing() {
    let machine = swapping(64, 1, 4096);
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = numbered(&machine, (&cpu, &space), "hugepages-64kB/shmem_enabled");
    let split = || folios(&machine, 4, FolioCounter::Split);
    let child = space.fork().unwrap();
    assert_eq!(read(&cpu, &child, page(area, 20)), 21);
    let pinned = space.pin_page(page(area, 40), Access::Write).unwrap();
    for at in [5, 20, 40] {
        space.madvise(page(area, at), PAGE, Advice::PageOut).unwrap();
    }
    assert_eq!((split(), file.figures().swapped, file.figures().cached), (1, 0, NUMBERS));
    drop(pinned);
    drop(child);
    for at in [20, 40] {
        let _ = read(&cpu, &space, page(area, at));
        space.madvise(page(area, at), PAGE, Advice::PageOut).unwrap();
    }
    assert_eq!((split(), file.figures().swapped), (3, 0));
    assert_numbers(&cpu, &space, area);
}

/// Pages that were only read are holes again; those that were written, by a program, a call or a device, or
/// allocated ahead, are on the device, or without one are unmapped.
#[test]
fn what_was_only_read_is_dropped_and_comes_back_as_zeros() {
    for slots in [0, 256] {
        let machine = swapping(32, 1, slots);
        let (cpu, space) = cpu_and_space(&machine);
        let taken = Taken::default();
        let file = machine.memory().create_shmem(taken.clone(), 16 * PAGE).unwrap();
        let area = space.mmap_file(&file_request(0, 16, RW, SHARED), &file).unwrap();
        file.allocate(14 * PAGE..16 * PAGE, false).unwrap();
        (0..14).for_each(|at| assert_eq!(read(&cpu, &space, page(area, at)), 0));
        file.allocate(13 * PAGE..14 * PAGE, false).unwrap();
        let _ = read(&cpu, &space, page(area, 15));
        // By the entry that the read has made; zeros, too.
        write(&cpu, &space, page(area, 1), 7);
        write(&cpu, &space, page(area, 2), 0);
        write_file(&file, 3 * PAGE, &[5; 8]);
        let pinned = space.pin_page(page(area, 4), Access::Write).unwrap();
        device_writes(&machine, &pinned, 9);
        drop(pinned);
        space.madvise(area, 16 * PAGE, Advice::PageOut).unwrap();
        let kept: Vec<bool> = (0..16).map(|at| [1, 2, 3, 4, 13, 14, 15].contains(&at)).collect();
        assert_eq!(taken.pages(), 7);
        assert_eq!(resident(&space)[2], 0);
        if slots > 0 {
            // One that no entry maps stays.
            assert_eq!((file.figures().swapped, file.figures().cached), (6, 1));
        } else {
            assert_eq!((file.figures().swapped, file.figures().cached), (0, 7));
            assert_eq!(in_memory(&space, area, 14), kept[..14]);
        }
        assert_audit(&machine);
        let found: Vec<u64> = (0..16).map(|at| read(&cpu, &space, page(area, at))).collect();
        assert_eq!(found[..5], [0, 7, 0, u64::from_ne_bytes([5; 8]), 9]);
        assert_eq!(found[5..], [0; 11]);
        assert_eq!(taken.pages(), 16);
        assert_audit(&machine);
    }
}

/// A page that one program has read and another has written is not dropped, whatever its entries say.
#[test]
fn what_was_written_by_an_entry_that_is_gone_is_not_dropped() {
    for slots in [0, 256] {
        let machine = swapping(32, 1, slots);
        let (cpu, space) = cpu_and_space(&machine);
        let file = machine.memory().create_shmem((), 4 * PAGE).unwrap();
        let other = create_space(&machine);
        let area = space.mmap_file(&file_request(0, 4, RW, SHARED), &file).unwrap();
        let there = other.mmap_file(&file_request(0, 4, RW, SHARED), &file).unwrap();
        (0..4).for_each(|at| assert_eq!(read(&cpu, &other, page(there, at)), 0));
        (0..4).for_each(|at| write(&cpu, &other, page(there, at), at + 1));
        drop(other);
        (0..4).for_each(|at| assert_eq!(read(&cpu, &space, page(area, at)), at + 1));
        space.madvise(area, 4 * PAGE, Advice::PageOut).unwrap();
        assert_eq!(file.figures().cached + file.figures().swapped, 4);
        assert_eq!(file.figures().swapped, if slots > 0 { 4 } else { 0 });
        assert_audit(&machine);
        (0..4).for_each(|at| assert_eq!(read(&cpu, &space, page(area, at)), at + 1));
    }
}
