//! Pins of shared memory without a lock.

use crate::common::*;
use crate::large::AREA;
use quire_mm::file::Seals;
use quire_mm::proc::HugeFile;

const SHARED: MapFlags = MapFlags::SHARED;

/// A page that an entry lets the program write is pinned at once, alone or as a part of a large leaf.
#[test]
fn a_writable_page_of_shared_memory_is_pinned_without_a_lock() {
    for huge in [false, true] {
        let machine = swapping(64, 1, 1024);
        if huge {
            HugeFile::find("shmem_enabled").unwrap().write(machine.memory(), "always").unwrap();
        }
        let (cpu, space) = cpu_and_space(&machine);
        let file = machine.memory().create_shmem((), 512 * PAGE).unwrap();
        let request = file_request(0, 512, RW, SHARED).at(AREA, SHARED | MapFlags::FIXED);
        let area = space.mmap_file(&request, &file).unwrap();
        assert!(space.pin_page_fast(page(area, 7), Access::Read).is_none(), "nothing is there");
        write(&cpu, &space, page(area, 7), 7);
        for access in [Access::Read, Access::Write] {
            let pinned = space.pin_page_fast(page(area, 7), access).unwrap();
            assert_eq!((pinned.pfn(), device_reads(&machine, &pinned)), (frame_of(&space, page(area, 7)), 7));
        }
        let pinned = space.pin_page_fast(page(area, 7), Access::Write).unwrap();
        // It stays in its file, and is what a hole leaves behind.
        space.madvise(area, 512 * PAGE, Advice::PageOut).unwrap();
        reclaim(&machine, 4, 512);
        assert_eq!(file.figures().swapped, 0);
        device_writes(&machine, &pinned, 8);
        assert_eq!(read(&cpu, &space, page(area, 7)), 8);
        file.punch(7 * PAGE..8 * PAGE, |_| Ok(())).unwrap();
        assert_eq!(read(&cpu, &space, page(area, 7)), 0);
        device_writes(&machine, &pinned, 9);
        drop(pinned);
        assert_audit(&machine);
    }
}

#[test]
fn what_may_not_be_written_and_files_with_a_backing_are_pinned_under_the_lock() {
    let machine = swapping(64, 1, 1024);
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), 4 * PAGE).unwrap();
    write_file(&file, 0, &[1; 8]);
    let area = space.mmap_file(&file_request(0, 4, RW, SHARED), &file).unwrap();
    let own = space.mmap_file(&file_request(0, 4, RW, MapFlags::empty()), &file).unwrap();
    let for_reading = space.mmap_file(&file_request(0, 4, Protection::READ, SHARED), &file).unwrap();
    for at in [own, for_reading] {
        let _ = read(&cpu, &space, at);
        assert!(space.pin_page_fast(at, Access::Read).is_none());
        drop(space.pin_page(at, Access::Read).unwrap());
    }
    write(&cpu, &space, area, 1);
    space.mprotect(area, PAGE, Protection::READ, false).unwrap();
    assert!(space.pin_page_fast(area, Access::Write).is_none());
    assert!(space.pin_page(area, Access::Write).is_err());
    space.munmap(area, 4 * PAGE).unwrap();
    space.munmap(for_reading, 4 * PAGE).unwrap();
    assert_eq!(file.add_seals(Seals::WRITE), Ok(()));
}
