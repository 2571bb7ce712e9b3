//! MADV_COLLAPSE and khugepaged of shared memory. What comes of a call, and what smaps and the counters say,
//! is what Linux 6.18 was measured to do.

use crate::common::*;
use crate::large::{AREA, figures, set, swapped, words};
use quire_frame::FailPlan;
use quire_mm::file::{FileError, Seals, ShmemOwner};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARED: MapFlags = MapFlags::SHARED;
const FIXED: MapFlags = MapFlags::FIXED;

/// What the sum of the counters of a machine is that a collapse changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Counted {
    allocated: u64,
    mapped: u64,
    shmem: u64,
    huge: u64,
}

fn counted(machine: &Machine) -> Counted {
    let totals = machine.memory().file_totals();
    Counted {
        allocated: count(machine, VmEvent::ThpCollapseAlloc),
        mapped: count(machine, VmEvent::ThpFileMapped),
        shmem: totals.shmem,
        huge: totals.shmem_huge / 512,
    }
}

/// What `call` adds to them.
fn adds<T>(machine: &Machine, call: impl FnOnce() -> T) -> (T, [u64; 4]) {
    let before = counted(machine);
    let result = call();
    let after = counted(machine);
    let more = [
        after.allocated - before.allocated,
        after.mapped - before.mapped,
        after.shmem - before.shmem,
        after.huge - before.huge,
    ];
    (result, more)
}

fn collapse(space: &HostSpace<'_>, at: VirtAddr, len: u64) -> Result<(), Errno> {
    space.madvise(at, len, Advice::Collapse).map_err(Error::errno)
}

/// Resident KiB of the mapping at `area`, and those of them that PMD leaves map.
fn mapped(space: &HostSpace<'_>, area: VirtAddr) -> (u64, u64) {
    let figures = figures(space, area);
    (figures.resident >> 10, figures.shmem_huge >> 10)
}

fn map<'m>(space: &HostSpace<'m>, file: &File<'m, HostPlatform>, pages: u64, flags: MapFlags) -> VirtAddr {
    space.mmap_file(&file_request(0, pages, RW, flags).at(AREA, flags | FIXED), file).unwrap()
}

/// A file of `pages` pages, mapped shared, of which those of `written` have their numbers from 1 on.
fn filled<'m>(
    machine: &'m Machine,
    (cpu, space): (&Vcpu, &HostSpace<'m>),
    pages: u64,
    written: impl Iterator<Item = u64>,
) -> (File<'m, HostPlatform>, VirtAddr) {
    let file = machine.memory().create_shmem((), pages * PAGE).unwrap();
    let area = map(space, &file, pages, SHARED);
    written.for_each(|at| write(cpu, space, page(area, at), at + 1));
    (file, area)
}

#[test]
fn all_pages_of_a_block_become_one_folio_that_one_leaf_maps() {
    let machine = machine(32, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let (_file, area) = filled(&machine, (&cpu, &space), 512, 0..512);
    assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Ok(()), [1, 1, 0, 1]));
    assert_eq!(mapped(&space, area), (2048, 2048));
    assert_audit(&machine);
    assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Ok(()), [0, 0, 0, 0]));
    assert_eq!(words(&cpu, &space, area, 512), (1..=512).collect::<Vec<_>>());
    let faults = count(&machine, VmEvent::Pgfault);
    write(&cpu, &space, page(area, 77), 5);
    assert_eq!(count(&machine, VmEvent::Pgfault), faults, "the leaf may be written to");
}

#[test]
fn a_block_of_which_there_is_nothing_is_refused_and_ends_the_call() {
    let machine = machine(64, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let (_file, area) = filled(&machine, (&cpu, &space), 2048, [0, 1024].into_iter());
    assert_eq!(
        adds(&machine, || collapse(&space, page(area, 512), MIB2)),
        (Err(Errno::EINVAL), [1, 0, 0, 0])
    );
    assert_eq!(collapse(&space, area, 3 * MIB2), Err(Errno::EINVAL));
    assert_eq!(mapped(&space, area), (2052, 2048), "the block before is collapsed, that behind is not");
    assert_eq!(read(&cpu, &space, page(area, 1024)), 1025);
}

#[test]
fn holes_are_zeros_and_count_from_then_on() {
    let machine = machine(32, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = filled(&machine, (&cpu, &space), 512, 5..6);
    file.allocate(100 * PAGE..104 * PAGE, false).unwrap();
    assert_eq!(file.seek_data(50 * PAGE), None, "what is allocated is a hole");
    assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Ok(()), [1, 1, 507, 1]));
    assert_eq!(mapped(&space, area), (2048, 2048));
    assert_eq!(file.seek_data(50 * PAGE), Some(50 * PAGE), "all of it is data");
    let mut wanted = vec![0; 512];
    wanted[5] = 6;
    assert_eq!(words(&cpu, &space, area, 512), wanted);
    assert_audit(&machine);
    file.punch(8 * PAGE..512 * PAGE, |_| Ok(())).unwrap();
    assert_eq!(machine.memory().file_totals().shmem, 8);
    assert_eq!(words(&cpu, &space, area, 512), wanted);
}

#[test]
fn a_block_reaches_past_the_end_of_its_file() {
    let machine = machine(32, 1);
    let (_cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), 100 * PAGE).unwrap();
    write_file(&file, 0, &[7; 8]);
    let area = map(&space, &file, 512, SHARED);
    assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Ok(()), [1, 1, 511, 1]));
    assert_eq!(mapped(&space, area), (2048, 2048));
    assert_eq!((file.size(), file.figures().cached), (100 * PAGE, 512));
    file.set_size(0).unwrap();
    assert_eq!(machine.memory().file_totals().shmem, 0);
    // A page behind the end that no program has used ends it.
    file.set_size(PAGE).unwrap();
    file.allocate(64 * PAGE..65 * PAGE, true).unwrap();
    assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Err(Errno::EINVAL), [1, 0, 0, 0]));
}

#[test]
fn a_private_mapping_is_collapsed_if_it_has_no_page_of_its_own() {
    let machine = machine(32, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), MIB2).unwrap();
    write_file(&file, 0, &[7; 8]);
    let area = map(&space, &file, 512, MapFlags::empty());
    assert_eq!(collapse(&space, area, MIB2), Ok(()));
    assert_eq!(mapped(&space, area), (2048, 2048));
    assert_audit(&machine);
    write(&cpu, &space, page(area, 7), 1);
    assert_eq!((mapped(&space, area).1, figures(&space, area).anonymous), (0, PAGE));
    assert_eq!(read_file(&file, 7 * PAGE, 8), [0; 8], "the write was to a copy");
    assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Err(Errno::EINVAL), [0, 0, 0, 0]));
    assert_eq!(read(&cpu, &space, page(area, 7)), 1);
}

/// As on Linux the file has the folio by then.
#[test]
fn a_copy_in_the_mapping_keeps_it_from_one_leaf_and_not_its_file_from_one_folio() {
    let machine = machine(32, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), MIB2).unwrap();
    write_file(&file, 9 * PAGE, &[7; 8]);
    let area = map(&space, &file, 512, MapFlags::empty());
    write(&cpu, &space, page(area, 3), 77);
    assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Err(Errno::EINVAL), [1, 0, 510, 1]));
    assert_eq!(mapped(&space, area), (4, 0));
    assert_audit(&machine);
    assert_eq!(read(&cpu, &space, page(area, 3)), 77);
    assert_eq!(read(&cpu, &space, page(area, 9)), u64::from_ne_bytes([7; 8]));
    assert_eq!(read_file(&file, 3 * PAGE, 8), [0; 8]);
}

#[test]
fn locked_sealed_unreadable_and_read_only_mappings_are_collapsed() {
    let machine = machine(64, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let (_file, area) = filled(&machine, (&cpu, &space), 512, 0..1);
    space.mlock(area, MIB2, false).unwrap();
    assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Ok(()), [1, 1, 0, 1]));
    assert_eq!(mapped(&space, area), (2048, 2048));
    assert_eq!(figures(&space, area).locked_share(), MIB2);
    assert_audit(&machine);
    space.munmap(area, MIB2).unwrap();
    for protection in [NONE, READ] {
        let file = machine.memory().create_shmem((), MIB2).unwrap();
        write_file(&file, 0, &[7; 8]);
        file.add_seals(Seals::WRITE | Seals::GROW | Seals::SHRINK).unwrap();
        let request = file_request(0, 512, protection, SHARED);
        let area = space.mmap_file(&request.at(AREA, SHARED | FIXED), &file).unwrap();
        assert_eq!(collapse(&space, area, MIB2), Ok(()), "{protection:?}");
        assert_eq!(mapped(&space, area), (2048, 2048), "{protection:?}");
        assert_audit(&machine);
    }
}

#[test]
fn ranges_that_are_no_blocks_get_what_linux_says() {
    let machine = machine(64, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = filled(&machine, (&cpu, &space), 2048, (0..4).map(|nth| nth * 512));
    for (from, len, wanted) in [
        (1, 1024, Ok(())),
        (0, 511, Ok(())),
        (1, 511, Ok(())),
        (1, 1, Err(Errno::EINVAL)),
        (2048, 512, Err(Errno::ENOMEM)),
    ] {
        assert_eq!(collapse(&space, page(area, from), len * PAGE), wanted, "{len} pages from {from} on");
    }
    assert_eq!(mapped(&space, area), (2048 + 12, 2048));
    space.munmap(area, 4 * MIB2).unwrap();
    // The file's blocks are not those of the mapping.
    let request = file_request(1, 1024, RW, SHARED).at(AREA, SHARED | FIXED);
    let area = space.mmap_file(&request, &file).unwrap();
    write(&cpu, &space, area, 1);
    assert_eq!(collapse(&space, area, 2 * MIB2), Err(Errno::EINVAL));
}

#[test]
fn advice_settings_and_prctl_refuse_as_on_linux() {
    let machine = machine(64, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let one = || {
        let (_, area) = filled(&machine, (&cpu, &space), 512, 0..1);
        area
    };
    for word in ["always", "within_size", "advise", "never", "deny", "force"] {
        set(&machine, "shmem_enabled", "never");
        let area = one();
        set(&machine, "shmem_enabled", word);
        let wanted = if word == "deny" { Err(Errno::EINVAL) } else { Ok(()) };
        assert_eq!(collapse(&space, area, MIB2), wanted, "{word}");
    }
    set(&machine, "shmem_enabled", "never");
    for (word, plain, advised) in [
        ("always", true, true),
        ("inherit", true, true),
        ("within_size", true, true),
        ("advise", false, true),
        ("never", false, false),
    ] {
        let area = one();
        set(&machine, "hugepages-2048kB/shmem_enabled", word);
        assert_eq!(collapse(&space, area, MIB2).is_ok(), plain, "{word}");
        space.madvise(area, MIB2, Advice::HugePage).unwrap();
        assert_eq!(collapse(&space, area, MIB2).is_ok(), advised, "{word}, advised");
        set(&machine, "hugepages-2048kB/shmem_enabled", "inherit");
    }
    let area = one();
    space.madvise(area, MIB2, Advice::NoHugePage).unwrap();
    assert_eq!(collapse(&space, area, MIB2), Err(Errno::EINVAL));
    let area = one();
    space.prctl().set_huge_disable(HugeDisable::Completely);
    assert_eq!(collapse(&space, area, MIB2), Err(Errno::EINVAL));
    space.prctl().set_huge_disable(HugeDisable::ExceptAdvised);
    assert_eq!(collapse(&space, area, MIB2), Ok(()));
}

/// Linux takes their tables away, so their next faults find a place for a leaf.
#[test]
fn other_programs_lose_their_entries_and_get_a_leaf_by_a_fault() {
    for technique in [TablesTechnique::Free, TablesTechnique::Keep] {
        let machine = Setup::mib(64).cpus(1).with(|memory| memory.techniques.tables = technique).build();
        let (cpu, space) = cpu_and_space(&machine);
        let (_file, area) = filled(&machine, (&cpu, &space), 512, 0..512);
        // More than lose their tables at once.
        let children: Vec<_> = (0..20).map(|_| space.fork().unwrap()).collect();
        for child in &children {
            assert_eq!(words(&cpu, child, area, 512), (1..=512).collect::<Vec<_>>());
            assert_eq!(mapped(child, area), (2048, 0));
        }
        assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Ok(()), [1, 1, 0, 1]));
        assert_audit(&machine);
        for child in &children {
            assert_eq!(mapped(child, area), (0, 0));
            assert_eq!(read(&cpu, child, page(area, 300)), 301);
            assert_eq!(mapped(child, area), (2048, 2048));
        }
        write(&cpu, &children[3], page(area, 9), 99);
        assert_eq!(read(&cpu, &space, page(area, 9)), 99);
    }
}

/// A file of whose 2 MiB one folio has all is mapped anew, without another one.
#[test]
fn a_folio_that_a_table_maps_gets_a_leaf() {
    let machine = machine(32, 1);
    set(&machine, "shmem_enabled", "force");
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = filled(&machine, (&cpu, &space), 512, 0..512);
    space.munmap(area, MIB2).unwrap();
    set(&machine, "shmem_enabled", "never");
    let area = map(&space, &file, 512, SHARED);
    space.prctl().set_huge_disable(HugeDisable::Completely);
    assert_eq!((read(&cpu, &space, area), read(&cpu, &space, page(area, 40))), (1, 41));
    space.prctl().set_huge_disable(HugeDisable::No);
    assert_eq!(mapped(&space, area).1, 0);
    assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Ok(()), [0, 1, 0, 0]));
    assert_eq!(mapped(&space, area), (2048, 2048));
    assert_audit(&machine);
    space.madvise(area, MIB2, Advice::DontNeed).unwrap();
    assert_eq!(mapped(&space, area), (0, 0));
    assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Ok(()), [0, 1, 0, 0]));
    assert_eq!(words(&cpu, &space, area, 512), (1..=512).collect::<Vec<_>>());
}

#[test]
fn smaller_folios_become_one() {
    let machine = machine(32, 1);
    set(&machine, "hugepages-64kB/shmem_enabled", "always");
    let (cpu, space) = cpu_and_space(&machine);
    let (_file, area) = filled(&machine, (&cpu, &space), 512, (0..512).filter(|at| at / 16 % 3 != 1));
    set(&machine, "hugepages-64kB/shmem_enabled", "never");
    let holes = 512 - machine.memory().file_totals().shmem;
    assert!(holes > 100);
    assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Ok(()), [1, 1, holes, 1]));
    let wanted: Vec<_> = (0..512).map(|at| if at / 16 % 3 == 1 { 0 } else { at + 1 }).collect();
    assert_eq!(words(&cpu, &space, area, 512), wanted);
}

#[test]
fn a_pinned_page_keeps_its_block_as_it_is() {
    let machine = machine(64, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let (_file, area) = filled(&machine, (&cpu, &space), 1024, [0, 1, 512].into_iter());
    let pin = space.pin_page(page(area, 1), Access::Write).unwrap();
    assert_eq!(adds(&machine, || collapse(&space, area, 2 * MIB2)), (Err(Errno::EAGAIN), [1, 1, 511, 1]));
    assert_eq!(mapped(&space, area), (2048 + 8, 2048), "the block behind is collapsed");
    assert_audit(&machine);
    write(&cpu, &space, page(area, 1), 5);
    drop(pin);
    assert_eq!(collapse(&space, area, MIB2), Ok(()));
    assert_eq!((read(&cpu, &space, area), read(&cpu, &space, page(area, 1))), (1, 5));
}

/// Room for so many pages.
struct Limited(Arc<AtomicU64>);

impl ShmemOwner for Limited {
    fn take_pages(&self, pages: u64) -> Result<(), FileError> {
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(pages));
        taken.map(|_| ()).map_err(|_| FileError::NoSpace)
    }

    fn give_back_pages(&self, pages: u64) {
        self.0.fetch_add(pages, Ordering::Relaxed);
    }
}

#[test]
fn the_owner_of_the_memory_has_to_have_room_for_the_holes() {
    let machine = machine(64, 1);
    let (cpu, space) = cpu_and_space(&machine);
    for (room, wanted) in [(256, Err(Errno::EINVAL)), (512, Ok(()))] {
        let left = Arc::new(AtomicU64::new(room));
        let file = machine.memory().create_shmem(Limited(Arc::clone(&left)), MIB2).unwrap();
        let area = map(&space, &file, 512, SHARED);
        write(&cpu, &space, page(area, 2), 3);
        assert_eq!(collapse(&space, area, MIB2), wanted);
        let used = if wanted.is_ok() { 512 } else { 1 };
        assert_eq!((left.load(Ordering::Relaxed), file.figures().cached), (room - used, used));
        assert_eq!(read(&cpu, &space, page(area, 2)), 3);
        assert_audit(&machine);
        space.munmap(area, MIB2).unwrap();
        drop(file);
        assert_eq!(left.load(Ordering::Relaxed), room, "all of it came back");
    }
}

#[test]
fn the_program_pays_for_the_folio() {
    let machine = swapping(64, 1, 64);
    let (cpu, _) = cpu_and_space(&machine);
    let [poor, rich] =
        [("poor", 300), ("rich", 4096)].map(|(name, pages)| memcg(&machine, name, &[(Limit::Max, pages)]));
    let space = space_in(&machine, rich);
    let (file, area) = filled(&machine, (&cpu, &space), 512, 0..200);
    assert_eq!(usage(&machine, rich), 200);
    let other = space_in(&machine, poor);
    let there = map(&other, &file, 512, SHARED);
    assert_eq!(adds(&machine, || collapse(&other, there, MIB2)), (Err(Errno::EBUSY), [1, 0, 0, 0]));
    assert_eq!((usage(&machine, rich), usage(&machine, poor)), (200, 0));
    assert_eq!(collapse(&space, area, MIB2), Ok(()));
    assert_eq!((usage(&machine, rich), usage(&machine, poor)), (512, 0));
    assert_audit(&machine);
    assert_eq!(read(&cpu, &other, page(there, 150)), 151);
}

#[test]
fn what_is_swapped_out_comes_back_first() {
    let machine = swapping(64, 1, 4096);
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = filled(&machine, (&cpu, &space), 512, 0..256);
    space.madvise(area, MIB2, Advice::PageOut).unwrap();
    assert_eq!((file.figures().swapped, swapped(&machine)), (256, 256));
    assert_eq!(adds(&machine, || collapse(&space, area, MIB2)), (Ok(()), [1, 1, 512, 1]));
    assert_eq!((file.figures().swapped, swapped(&machine)), (0, 0));
    assert_audit(&machine);
    let wanted: Vec<_> = (0..512).map(|at| if at < 256 { at + 1 } else { 0 }).collect();
    assert_eq!(words(&cpu, &space, area, 512), wanted);
    // In one piece, and back.
    space.madvise(area, MIB2, Advice::PageOut).unwrap();
    assert_eq!(file.figures().swapped, 512);
    assert_eq!(collapse(&space, area, MIB2), Ok(()));
    assert_eq!(mapped(&space, area), (2048, 2048));
    assert_eq!(words(&cpu, &space, area, 512), wanted);
}

/// A memcg has no room for the folio and what it replaces: what comes back makes others leave.
#[test]
fn what_takes_the_place_of_what_came_back_has_an_end() {
    let machine = swapping(64, 1, 4096);
    let (cpu, memcg, space) = in_memcg(&machine, "short", &[(Limit::Max, 2048)]);
    let (file, area) = filled(&machine, (&cpu, &space), 512, 0..512);
    space.madvise(area, MIB2, Advice::PageOut).unwrap();
    assert_eq!(file.figures().swapped, 512);
    set_limit(&machine, memcg, Limit::Max, 512 + 64);
    assert_eq!(collapse(&space, area, MIB2), Err(Errno::EAGAIN));
    assert!(usage(&machine, memcg) <= 64, "the folio is given back");
    assert_audit(&machine);
    set_limit(&machine, memcg, Limit::Max, 2048);
    assert_eq!(collapse(&space, area, MIB2), Ok(()));
    assert_eq!(words(&cpu, &space, area, 512), (1..=512).collect::<Vec<_>>());
}

#[test]
fn unnamed_memory_and_segments_are_collapsed() {
    let machine = machine(32, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = space.mmap(&MapRequest::anonymous(MIB2, RW).at(AREA, SHARED | FIXED)).unwrap();
    write(&cpu, &space, page(area, 9), 9);
    let child = space.fork().unwrap();
    assert_eq!(read(&cpu, &child, page(area, 9)), 9);
    assert_eq!(collapse(&space, area, MIB2), Ok(()));
    drop(space);
    assert_eq!(read(&cpu, &child, page(area, 9)), 9);
    assert_audit(&machine);
}

#[test]
fn without_a_block_of_memory_nothing_changes() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = filled(&machine, (&cpu, &space), 512, 0..64);
    let failed = count(&machine, VmEvent::ThpCollapseAllocFailed);
    let result = failing(&machine, FailPlan::every(1), || collapse(&space, area, MIB2));
    assert_eq!(result, Err(Errno::ENOMEM));
    assert_eq!(count(&machine, VmEvent::ThpCollapseAllocFailed), failed + 1);
    assert_eq!((file.figures().cached, mapped(&space, area)), (64, (256, 0)));
}

/// What Linux 6.18 makes of a read of a file of which a folio has more than the file.
#[test]
fn a_read_maps_the_folio_across_the_end_by_a_leaf() {
    for pages in [256, 512, 513, 1024] {
        let machine = machine(32, 1);
        let (cpu, space) = cpu_and_space(&machine);
        let (file, area) = filled(&machine, (&cpu, &space), pages, 0..1);
        space.munmap(area, pages * PAGE).unwrap();
        let area = map(&space, &file, 512, SHARED);
        collapse(&space, area, MIB2).unwrap();
        space.madvise(area, MIB2, Advice::DontNeed).unwrap();
        assert_eq!(read(&cpu, &space, page(area, 100)), 0);
        assert_eq!(mapped(&space, area), (2048, 2048), "{pages} pages");
    }
}

/// Words of `shmem_enabled`, whether HUGEPAGE was said, whether the file has all of the block; and whether
/// khugepaged collapses it.
const SCANNED: [(&str, [[bool; 2]; 2]); 6] = [
    ("always", [[true; 2]; 2]),
    ("within_size", [[false, true], [true, true]]),
    ("advise", [[false; 2], [true; 2]]),
    ("never", [[false; 2]; 2]),
    ("deny", [[false; 2]; 2]),
    ("force", [[true; 2]; 2]),
];

#[test]
fn khugepaged_takes_the_mappings_that_linux_takes() {
    for (word, collapsed) in SCANNED {
        for (is_advised, collapsed) in [false, true].into_iter().zip(collapsed) {
            for (is_whole, wanted) in [false, true].into_iter().zip(collapsed) {
                let machine = machine(32, 1);
                let (cpu, space) = cpu_and_space(&machine);
                let pages = if is_whole { 512 } else { 256 };
                let file = machine.memory().create_shmem((), pages * PAGE).unwrap();
                let area = map(&space, &file, 512, SHARED);
                (0..256).for_each(|at| write(&cpu, &space, page(area, at), at + 1));
                if is_advised {
                    space.madvise(area, MIB2, Advice::HugePage).unwrap();
                }
                set(&machine, "shmem_enabled", word);
                // One block in each step.
                machine.memory().huge().set_khugepaged(KhugepagedSetting::PagesToScan, 1).unwrap();
                let what = format!("{word}, advised: {is_advised}, whole: {is_whole}");
                // A folio that is there counts each time.
                for _ in 0..2 {
                    assert_eq!(machine.memory().khugepaged_step().collapsed, u64::from(wanted), "{what}");
                    assert_eq!(mapped(&space, area), (if wanted { 0 } else { 1024 }, 0), "{what}");
                }
                assert_eq!(machine.memory().file_totals().shmem_huge, if wanted { 512 } else { 0 });
                assert_audit(&machine);
                assert_eq!(words(&cpu, &space, area, 256), (1..=256).collect::<Vec<_>>());
                assert_eq!(mapped(&space, area).1, if wanted { 2048 } else { 0 }, "{what}");
                space.munmap(area, MIB2).unwrap();
            }
        }
    }
}

#[test]
fn khugepaged_looks_at_what_is_cached_and_what_is_swapped_out() {
    use KhugepagedSetting::{MaxPtesNone, MaxPtesSwap, PagesToScan};
    let machine = swapping(64, 1, 4096);
    set(&machine, "shmem_enabled", "always");
    let (cpu, space) = cpu_and_space(&machine);
    let step = || machine.memory().khugepaged_step().collapsed;
    let limit = |setting, value| machine.memory().huge().set_khugepaged(setting, value).unwrap();
    let small = |pages: u64| {
        set(&machine, "shmem_enabled", "never");
        let (file, area) = filled(&machine, (&cpu, &space), 512, 0..pages);
        set(&machine, "shmem_enabled", "always");
        (file, area)
    };
    limit(PagesToScan, 1);
    let (_file, _) = small(1);
    limit(MaxPtesNone, 510);
    assert_eq!(step(), 0);
    limit(MaxPtesNone, 511);
    assert_eq!(step(), 1);
    let (file, area) = small(512);
    space.madvise(area, 65 * PAGE, Advice::PageOut).unwrap();
    assert_eq!((step(), file.figures().swapped), (0, 65));
    limit(MaxPtesSwap, 65);
    assert_eq!((step(), file.figures().swapped), (1, 0));
    assert_audit(&machine);
    assert_eq!(words(&cpu, &space, area, 512), (1..=512).collect::<Vec<_>>());
    // A folio that is mapped by a table loses that.
    space.madvise(area, MIB2, Advice::DontNeed).unwrap();
    space.prctl().set_huge_disable(HugeDisable::Completely);
    assert_eq!(read(&cpu, &space, page(area, 40)), 41);
    assert_eq!(step(), 0);
    space.prctl().set_huge_disable(HugeDisable::No);
    assert_eq!((step(), mapped(&space, area)), (1, (0, 0)));
    // The file has pages that no mapping has.
    space.munmap(area, MIB2).unwrap();
    let file = machine.memory().create_shmem((), MIB2).unwrap();
    set(&machine, "shmem_enabled", "never");
    write_file(&file, 0, &vec![1; 100 << 12]);
    set(&machine, "shmem_enabled", "always");
    let area = map(&space, &file, 512, SHARED);
    assert_eq!(step(), 1);
    space.madvise(area, MIB2, Advice::NoHugePage).unwrap();
    assert_eq!(step(), 0);
}

/// As on Linux it is collapsed once, and not again, while the mapping keeps its page.
#[test]
fn khugepaged_leaves_a_private_mapping_its_copies() {
    let machine = machine(32, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), MIB2).unwrap();
    write_file(&file, 0, &vec![1; 100 << 12]);
    let area = map(&space, &file, 512, MapFlags::empty());
    write(&cpu, &space, page(area, 5), 7);
    set(&machine, "shmem_enabled", "always");
    machine.memory().huge().set_khugepaged(KhugepagedSetting::PagesToScan, 1).unwrap();
    let steps = [(); 3].map(|()| machine.memory().khugepaged_step().collapsed);
    assert_eq!((steps, mapped(&space, area)), ([1, 0, 0], (4, 0)));
    assert_audit(&machine);
    assert_eq!(read(&cpu, &space, page(area, 5)), 7);
    assert_eq!(read_file(&file, 5 * PAGE, 1), [1]);
}
