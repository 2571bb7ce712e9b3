//! Large folios of shared memory.

use crate::common::*;
use crate::mapped::{in_memory, resident};
use quire_frame::{AllocRequest, FailPlan, FolioCounter};
use quire_mm::proc::HugeFile;
use quire_space::MappingFigures;

const SHARED: MapFlags = MapFlags::SHARED;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BUS: AccessError<FaultError> = AccessError::Fault(FaultError::Bus);
const PAST_END: AccessError<FaultError> = AccessError::Fault(FaultError::PastEnd);

pub(crate) fn set(machine: &Machine, file: &str, word: &str) {
    HugeFile::find(file).unwrap().write(machine.memory(), word).unwrap();
}

/// Folios that were counted, of each size in KiB.
fn folios(machine: &Machine, counter: FolioCounter) -> Vec<(u64, u64)> {
    let events = machine.memory().frames().events();
    let counted = Order::ALL.iter().map(|&order| (order.bytes() >> 10, events.folios(order, counter)));
    counted.filter(|(_, count)| *count > 0).collect()
}

pub(crate) fn figures(space: &HostSpace<'_>, area: VirtAddr) -> MappingFigures {
    let mut found = None;
    space.mappings().for_each_figures(|figures| {
        if figures.mapping.range.contains(area) {
            found = Some(*figures);
        }
    });
    found.unwrap()
}

/// Where a mapping has its borders at those of tables.
pub(crate) const AREA: VirtAddr = VirtAddr(1 << 30);

/// What makes pages of a new file.
#[derive(Clone, Copy)]
enum Use {
    /// An access to byte `at` of a mapping of `len` bytes. `size` is that of a file, 0 for memory that has
    /// none.
    Fault { size: u64, len: u64, at: u64, is_advised: bool, writes: bool },
    /// A call that writes to a file of `size` bytes.
    Write { size: u64, at: u64, bytes: u64 },
    /// One that allocates.
    Allocate { keep_size: bool, at: u64, bytes: u64 },
}

const fn fault(size: u64, len: u64, at: u64, is_advised: bool) -> Use {
    Use::Fault { size, len, at, is_advised, writes: true }
}

const fn read_of(size: u64) -> Use {
    Use::Fault { size, len: 4 * MIB, at: 0, is_advised: false, writes: false }
}

const HALF: u64 = 2 * MIB + MIB / 2;

const USES: [Use; 26] = [
    fault(0, 4 * MIB, 0, false),
    read_of(0),
    fault(0, 4 * MIB, 68 * KIB, false),
    fault(0, 3 * MIB, HALF, false),
    fault(0, 4 * MIB, 0, true),
    fault(0, 3 * MIB, HALF, true),
    fault(0, 52 * KIB, 32 * KIB, false),
    fault(0, 52 * KIB, 48 * KIB, false),
    fault(4 * MIB, 4 * MIB, 0, false),
    read_of(4 * MIB),
    fault(3 * MIB, 3 * MIB, HALF, false),
    fault(3 * MIB, 4 * MIB, HALF, false),
    fault(3 * MIB, 4 * MIB, HALF, true),
    fault(4 * MIB, MIB, 100 * KIB, false),
    fault(4 * MIB, 4 * MIB, 0, true),
    fault(20 * KIB, 20 * KIB, 0, false),
    Use::Write { size: 0, at: 0, bytes: 64 * KIB },
    Use::Write { size: 4 * MIB, at: 0, bytes: 64 * KIB },
    Use::Write { size: 0, at: 0, bytes: 4 * MIB },
    Use::Write { size: 0, at: 0, bytes: 100 },
    Use::Write { size: 0, at: 60 * KIB, bytes: 100 * KIB },
    Use::Write { size: 0, at: 4 * KIB, bytes: 3 * MIB },
    Use::Allocate { keep_size: false, at: 0, bytes: 4 * MIB },
    Use::Allocate { keep_size: false, at: 0, bytes: 3 * MIB },
    Use::Allocate { keep_size: true, at: 0, bytes: 4 * MIB },
    Use::Allocate { keep_size: false, at: 4 * KIB, bytes: 64 * KIB },
];

/// Some of these, and what Linux 6.18 made: KiB that the mapping has, whether it is eligible for large
/// folios, and these by their size in KiB.
type Made = (&'static [usize], (u64, bool), &'static [(u64, u64)]);

const ADVISE: &[Made] = &[(&[4, 12, 14], (2048, true), &[(2048, 1)]), (&[5], (4, true), &[])];
const WITHIN_SIZE: &[Made] = &[
    (&[0, 1, 2, 4, 8, 9, 12, 14], (2048, true), &[(2048, 1)]),
    (&[3, 5, 10, 11], (4, true), &[]),
    (&[16, 25], (0, false), &[(64, 1)]),
    (&[17], (0, false), &[(2048, 1)]),
    (&[18, 22, 24], (0, false), &[(2048, 2)]),
    (&[20], (0, false), &[(32, 1), (128, 1)]),
    (&[21, 23], (0, false), &[(1024, 1), (2048, 1)]),
];
const ALWAYS: &[Made] = &[
    (&[0, 1, 2, 4, 8, 9, 11, 12, 14], (2048, true), &[(2048, 1)]),
    (&[3, 5, 10], (4, true), &[]),
    (&[16, 17, 19, 20, 25], (0, false), &[(2048, 1)]),
    (&[18, 21, 22, 23, 24], (0, false), &[(2048, 2)]),
];
const KIB64: &[Made] = &[(&[0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14], (64, true), &[(64, 1)])];
const KIB64_ADVISED: &[Made] = &[(&[4, 5, 12, 14], (64, true), &[(64, 1)])];

/// The file `shmem_enabled`, that of 64 KiB, and what came of it.
const SETTINGS: [(&str, &str, &[Made]); 11] = [
    ("never", "never", &[]),
    ("advise", "never", ADVISE),
    ("within_size", "never", WITHIN_SIZE),
    ("always", "never", ALWAYS),
    ("force", "never", ALWAYS),
    ("deny", "never", &[]),
    ("never", "always", KIB64),
    ("never", "within_size", KIB64),
    ("never", "advise", KIB64_ADVISED),
    ("never", "inherit", &[]),
    ("deny", "always", &[]),
];

#[test]
fn folios_come_as_large_as_linux_makes_them() {
    for (common, of_64, made) in SETTINGS {
        for (number, how) in USES.iter().enumerate() {
            let wanted = made.iter().find(|(uses, ..)| uses.contains(&number));
            let (kib, is_eligible) = wanted.map_or((4, false), |wanted| wanted.1);
            let machine = machine(32, 1);
            set(&machine, "shmem_enabled", common);
            set(&machine, "hugepages-64kB/shmem_enabled", of_64);
            let (cpu, space) = cpu_and_space(&machine);
            let create = |size| machine.memory().create_shmem((), size).unwrap();
            match *how {
                Use::Fault { size, len, at, is_advised, writes } => {
                    let file = (size > 0).then(|| create(size));
                    let area = match &file {
                        Some(file) => {
                            let request = file_request(0, len / PAGE, RW, SHARED | MapFlags::FIXED);
                            space.mmap_file(&request.at(AREA, SHARED | MapFlags::FIXED), file).unwrap()
                        }
                        None => {
                            let request = MapRequest::anonymous(len, RW);
                            space.mmap(&request.at(AREA, SHARED | MapFlags::FIXED)).unwrap()
                        }
                    };
                    if is_advised {
                        space.madvise(area, len, Advice::HugePage).unwrap();
                    }
                    let place = area.checked_add(at).unwrap();
                    if writes {
                        write(&cpu, &space, place, 1);
                    } else {
                        _ = read(&cpu, &space, place);
                    }
                    let found = figures(&space, area);
                    let huge = if kib == 2048 { 2 * MIB } else { 0 };
                    assert_eq!(
                        (found.resident >> 10, found.shmem_huge, found.huge_eligible),
                        (kib, huge, is_eligible),
                        "{common}, {of_64}: use {number}"
                    );
                }
                Use::Write { size, at, bytes } => write_file(&create(size), at, &vec![1; bytes as usize]),
                Use::Allocate { keep_size, at, bytes } => {
                    create(0).allocate(at..at + bytes, keep_size).unwrap();
                }
            }
            let folios = folios(&machine, FolioCounter::ShmemAlloc);
            assert_eq!(folios, wanted.map_or(&[][..], |wanted| wanted.2), "{common}, {of_64}: use {number}");
            assert_audit(&machine);
        }
    }
}

/// A machine with swap, and shared memory in folios of 64 KiB.
fn with_large() -> Machine {
    let machine = swapping(64, 1, 4096);
    set(&machine, "hugepages-64kB/shmem_enabled", "always");
    machine
}

/// A file with the numbers of its pages, from 1 on, and where it is mapped.
fn fill<'m>(
    machine: &'m Machine,
    (cpu, space): (&Vcpu, &HostSpace<'_>),
    pages: u64,
) -> (File<'m, HostPlatform>, VirtAddr) {
    let file = machine.memory().create_shmem((), pages * PAGE).unwrap();
    let request = file_request(0, pages, RW, SHARED).at(AREA, SHARED | MapFlags::FIXED);
    let area = space.mmap_file(&request, &file).unwrap();
    (0..pages).for_each(|at| write(cpu, space, page(area, at), at + 1));
    (file, area)
}

pub(crate) fn words(cpu: &Vcpu, space: &HostSpace<'_>, area: VirtAddr, pages: u64) -> Vec<u64> {
    (0..pages).map(|at| read(cpu, space, page(area, at))).collect()
}

fn numbers(pages: u64) -> Vec<u64> {
    (1..=pages).collect()
}

pub(crate) fn swapped(machine: &Machine) -> u64 {
    let devices = machine.memory().swap().devices();
    devices.total_slots() - devices.free_slots()
}

#[test]
fn a_large_folio_is_paged_out_and_comes_back_in_one_piece() {
    let machine = with_large();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = fill(&machine, (&cpu, &space), 64);
    assert_eq!(folios(&machine, FolioCounter::ShmemAlloc), [(64, 4)]);
    let child = space.fork().unwrap();
    reclaim(&machine, 4, 64);
    assert_eq!((file.figures().swapped, swapped(&machine)), (64, 64));
    assert_eq!(folios(&machine, FolioCounter::Swpout), [(64, 4)]);
    assert_audit(&machine);
    assert_eq!(read(&cpu, &child, page(area, 20)), 21);
    assert_eq!((file.figures().swapped, swapped(&machine)), (48, 48), "16 pages came together");
    assert_eq!(words(&cpu, &space, area, 64), numbers(64));
    assert_eq!(folios(&machine, FolioCounter::Swpin), [(64, 4)]);
    assert_eq!(folios(&machine, FolioCounter::NrAnon), []);
    assert_eq!((file.figures().cached, swapped(&machine)), (64, 0));
}

#[test]
fn a_folio_of_the_pmds_order_is_unmapped_paged_out_and_mapped_by_a_leaf_again() {
    let machine = swapping(64, 1, 4096);
    set(&machine, "shmem_enabled", "always");
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = fill(&machine, (&cpu, &space), 1024);
    assert_eq!(figures(&space, area).shmem_huge, 4 * MIB);
    space.madvise(area, 2 * MIB, Advice::PageOut).unwrap();
    assert_eq!((file.figures().swapped, swapped(&machine)), (512, 512));
    assert_eq!((figures(&space, area).resident, resident(&space)[2]), (2 * MIB, 512));
    assert_eq!(read(&cpu, &space, page(area, 100)), 101);
    assert_eq!(figures(&space, area).shmem_huge, 4 * MIB, "it came back in one piece");
    assert_eq!(words(&cpu, &space, area, 1024), numbers(1024));
}

#[test]
fn a_hole_frees_a_part_of_what_is_swapped_out_in_one_piece() {
    let machine = with_large();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = fill(&machine, (&cpu, &space), 64);
    reclaim(&machine, 4, 64);
    file.punch(3 * PAGE..21 * PAGE, |_| Ok(())).unwrap();
    assert_eq!((file.figures().swapped, swapped(&machine)), (46, 46));
    file.set_size(57 * PAGE).unwrap();
    assert_eq!((file.figures().swapped, swapped(&machine)), (39, 39));
    assert_audit(&machine);
    file.set_size(64 * PAGE).unwrap();
    let mut left = numbers(64);
    left[3..21].fill(0);
    left[57..].fill(0);
    assert_eq!(words(&cpu, &space, area, 64), left);
}

#[test]
fn a_hole_cuts_a_listed_folio_that_is_mapped() {
    let machine = with_large();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = fill(&machine, (&cpu, &space), 64);
    file.punch(5 * PAGE..6 * PAGE, |_| Ok(())).unwrap();
    assert_eq!(file.figures().cached, 63);
    assert_audit(&machine);
    let mut left = numbers(64);
    left[5] = 0;
    assert_eq!(words(&cpu, &space, area, 64), left);
    // Its parts are found there.
    reclaim(&machine, 8, 64);
    assert_eq!((file.figures().swapped, file.figures().cached), (63, 0), "the hole was only read");
    assert_eq!(words(&cpu, &space, area, 64), left);
}

/// Hazard: a truncation looks until nothing is left, and a folio that it cannot cut stays.
#[test]
fn a_truncation_ends_where_a_pinned_folio_stays_whole() {
    let machine = machine(32, 1);
    set(&machine, "shmem_enabled", "always");
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = fill(&machine, (&cpu, &space), 1024);
    let pin = space.pin_page(page(area, 5), Access::Write).unwrap();
    file.set_size(100 * PAGE).unwrap();
    assert_eq!(file.figures().cached, 512);
    drop(pin);
    let mut left = numbers(512);
    left[100..].fill(0);
    assert_eq!(words(&cpu, &space, area, 512), left);
    file.set_size(40 * PAGE).unwrap();
    assert_eq!(file.figures().cached, 40);
}

#[test]
fn a_large_folio_without_a_block_of_slots_is_paged_out_page_by_page() {
    let machine = swapping(64, 1, 64);
    set(&machine, "hugepages-64kB/shmem_enabled", "always");
    let (cpu, space) = cpu_and_space(&machine);
    // Every second slot is taken by private memory.
    let private = space.mmap(&MapRequest::anonymous(64 * PAGE, RW)).unwrap();
    (0..64).for_each(|at| write(&cpu, &space, page(private, at), at));
    space.madvise(private, 64 * PAGE, Advice::PageOut).unwrap();
    for at in (0..64).step_by(2) {
        write(&cpu, &space, page(private, at), at);
    }
    let before = swapped(&machine);
    let (file, area) = fill(&machine, (&cpu, &space), 16);
    space.madvise(area, 16 * PAGE, Advice::PageOut).unwrap();
    assert_eq!((file.figures().swapped, swapped(&machine) - before), (16, 16));
    assert_eq!(folios(&machine, FolioCounter::SwpoutFallback), [(64, 1)]);
    assert_eq!(folios(&machine, FolioCounter::Split), [(64, 1)]);
    assert_audit(&machine);
    assert_eq!(words(&cpu, &space, area, 16), numbers(16));
}

#[test]
fn a_piece_that_is_read_page_by_page_is_divided() {
    let machine = with_large();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = fill(&machine, (&cpu, &space), 16);
    reclaim(&machine, 4, 16);
    // Into the swap cache, one page alone.
    space.madvise(page(area, 3), PAGE, Advice::WillNeed).unwrap();
    reap(&machine, 1);
    assert_eq!(in_memory(&space, area, 16).iter().filter(|is| **is).count(), 1);
    assert_eq!(read(&cpu, &space, page(area, 3)), 4);
    assert_eq!((file.figures().cached, file.figures().swapped), (1, 15));
    assert_eq!(words(&cpu, &space, area, 16), numbers(16));
    assert_eq!(swapped(&machine), 0);
}

#[test]
fn swapoff_brings_large_folios_back_and_loses_only_the_page_that_is_gone() {
    let machine = machine(64, 1);
    set(&machine, "hugepages-64kB/shmem_enabled", "always");
    let (disk, medium) = crate::disk::Disk::new(256);
    let device = swap_on(&machine, disk);
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = fill(&machine, (&cpu, &space), 32);
    reclaim(&machine, 4, 32);
    assert_eq!(file.figures().swapped, 32);
    crate::disk::lock(&medium).unreadable = true;
    machine.memory().swapoff(device, || true).unwrap();
    assert_eq!((file.figures().swapped, swapped(&machine)), (32, 0), "what is lost is known to be");
    for at in 0..32 {
        assert_eq!(cpu.program(&space).read_u64(page(area, at)), Err(BUS));
    }
    file.set_size(0).unwrap();
    assert_audit(&machine);
}

/// As in Linux, which keeps from a page past the end only where it is mapped alone.
#[test]
fn what_is_written_past_the_end_of_a_large_folio_is_there_when_the_file_grows() {
    let machine = machine(64, 1);
    set(&machine, "hugepages-64kB/shmem_enabled", "always");
    let (cpu, space) = cpu_and_space(&machine);
    let file = machine.memory().create_shmem((), 4 * PAGE).unwrap();
    let request = file_request(0, 32, RW, SHARED).at(AREA, SHARED | MapFlags::FIXED);
    let area = space.mmap_file(&request, &file).unwrap();
    write(&cpu, &space, area, 1);
    write(&cpu, &space, page(area, 9), 2);
    assert_eq!(cpu.program(&space).read_u64(page(area, 16)), Err(PAST_END));
    file.set_size(10 * PAGE).unwrap();
    assert_eq!(read_file(&file, 9 * PAGE, 8), 2_u64.to_le_bytes());
    write(&cpu, &space, page(area, 11), 3);
    write_file(&file, 13 * PAGE, &[1]);
    assert_eq!(read_file(&file, 11 * PAGE, 8), 3_u64.to_le_bytes(), "a call that writes keeps it, too");
    file.set_size(4 * PAGE).unwrap();
    assert_eq!(cpu.program(&space).read_u64(page(area, 9)), Err(PAST_END), "the folio was cut");
    file.set_size(10 * PAGE).unwrap();
    assert_eq!(read(&cpu, &space, page(area, 9)), 0);
}

/// Hazard: what removes all past the end waits for ever for a folio that begins before it.
#[test]
fn a_pinned_folio_stays_whole_with_zeros_where_its_file_is_cut() {
    for size in [7 * PAGE, 7 * PAGE + 16] {
        let machine = with_large();
        let (cpu, space) = cpu_and_space(&machine);
        let (file, area) = fill(&machine, (&cpu, &space), 32);
        let pinned = space.pin_page(page(area, 9), Access::Write).unwrap();
        file.set_size(size).unwrap();
        assert_eq!(file.figures().cached, 16);
        assert_eq!(folios(&machine, FolioCounter::SplitFailed), [(64, 1)]);
        assert_audit(&machine);
        file.punch(2 * PAGE..40 * PAGE, |_| Ok(())).unwrap();
        assert_eq!(file.figures().cached, 16);
        file.set_size(32 * PAGE).unwrap();
        let mut left = [0; 32];
        left[..2].copy_from_slice(&numbers(2));
        assert_eq!(words(&cpu, &space, area, 32), left);
        drop(pinned);
        file.set_size(0).unwrap();
        assert_eq!(file.figures().cached, 0);
        assert_audit(&machine);
    }
}

#[test]
fn a_truncation_without_memory_keeps_the_folio_with_zeros() {
    let machine = with_large();
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = fill(&machine, (&cpu, &space), 32);
    failing(&machine, FailPlan::every(1), || file.set_size(5 * PAGE)).unwrap();
    assert_eq!((file.size(), file.figures().cached), (5 * PAGE, 16));
    file.set_size(32 * PAGE).unwrap();
    let mut left = [0; 32];
    left[..5].copy_from_slice(&numbers(5));
    assert_eq!(words(&cpu, &space, area, 32), left);
}

/// What is swapped out in one piece has to be divided.
#[test]
fn a_truncation_frees_memory_for_its_nodes() {
    let machine = machine(16, 1);
    set(&machine, "hugepages-64kB/shmem_enabled", "always");
    swap_on(&machine, crate::disk::Disk::new(4096).0);
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = fill(&machine, (&cpu, &space), 32);
    reclaim(&machine, 4, 32);
    let private = space.mmap(&MapRequest::anonymous(512 * PAGE, RW)).unwrap();
    (0..512).for_each(|at| write(&cpu, &space, page(private, at), at));
    // The words of a cluster need a frame.
    space.madvise(private, PAGE, Advice::PageOut).unwrap();
    let frames = machine.memory().frames();
    let request = AllocRequest::anonymous().uninitialised();
    let held: Vec<_> = {
        let pin = machine.memory().platform().pin();
        std::iter::from_fn(|| frames.allocate(&pin, request).ok()).collect()
    };
    file.set_size(5 * PAGE).unwrap();
    assert_eq!((file.figures().swapped, file.figures().cached), (5, 0));
    let pin = machine.memory().platform().pin();
    held.into_iter().for_each(|frame| frames.free(&pin, frame, Order::ZERO).unwrap());
    drop(pin);
    assert_eq!(words(&cpu, &space, area, 5), numbers(5));
    assert_audit(&machine);
}

/// Hazard: the mark of an mlock stays when a leaf is taken out, and no unlocking finds what nothing maps.
#[test]
fn what_was_mlocked_can_be_paged_out_once_nothing_maps_it() {
    for cuts in [false, true] {
        let machine = swapping(64, 1, 4096);
        set(&machine, "shmem_enabled", "always");
        let (cpu, space) = cpu_and_space(&machine);
        let (file, area) = fill(&machine, (&cpu, &space), 512);
        space.mlock(area, 2 * MIB, false).unwrap();
        reclaim(&machine, 4, 512);
        assert_eq!(file.figures().swapped, 0);
        if cuts {
            // In Linux, too, this takes the leaf out.
            space.mprotect(area, MIB, Protection::READ, false).unwrap();
        }
        space.munlock(area, 2 * MIB).unwrap();
        space.munmap(area, 2 * MIB).unwrap();
        reclaim(&machine, 4, 512);
        assert_eq!(file.figures().swapped, 512, "{cuts}");
        assert_audit(&machine);
    }
}

/// The places of mappings from the top down, as Linux 6.18 chooses them (`shmem_get_unmapped_area`): of how
/// many bits they are multiples, or by how many pages they begin behind a border of 2 MiB.
#[test]
fn a_mapping_that_can_have_large_folios_is_aligned_for_them() {
    let all = [8 * MIB, 3 * MIB + PAGE, MIB + PAGE, 68 * KIB];
    for (common, of_64, unnamed, memfd) in [
        ("never", "never", [1; 4], [1; 4]),
        ("always", "never", [512, 512, 1, 1], [512, 512, 1, 1]),
        ("advise", "never", [512, 512, 1, 1], [512, 512, 1, 1]),
        ("never", "advise", [16; 4], [1; 4]),
        ("deny", "always", [1; 4], [1; 4]),
    ] {
        let machine = machine(32, 1);
        set(&machine, "shmem_enabled", common);
        set(&machine, "hugepages-64kB/shmem_enabled", of_64);
        let file = machine.memory().create_shmem((), 64 * MIB).unwrap();
        let odd = |space: &HostSpace<'_>| space.mmap(&MapRequest::anonymous(3 * PAGE, RW)).unwrap();
        for (nth, len) in all.into_iter().enumerate() {
            let space = create_space(&machine);
            let top = odd(&space);
            let request = MapRequest { flags: SHARED, ..MapRequest::anonymous(len, RW) };
            let below = |pages: u64| VirtAddr((top.0 - len) / (pages * PAGE) * (pages * PAGE));
            assert_eq!(space.mmap(&request), Ok(below(unnamed[nth])), "{common} {of_64}: {len:#x}");
            let space = create_space(&machine);
            assert_eq!(odd(&space), top);
            let request = file_request(0, len / PAGE, RW, SHARED);
            assert_eq!(space.mmap_file(&request, &file), Ok(below(memfd[nth])), "{common}: {len:#x}");
        }
        let space = create_space(&machine);
        let top = odd(&space);
        let request = file_request(7, 8 * MIB / PAGE, RW, MapFlags::empty());
        let at = space.mmap_file(&request, &file).unwrap();
        let behind = (at.0 >> 12) & 511;
        assert!(top.0 > at.0 && (memfd[0] == 1 || behind == 7), "{common}: {behind}");
        // A place that is asked for is taken as it is, and so it is where mremap looks for one.
        let hint = VirtAddr(AREA.0 + PAGE);
        let request = file_request(0, 2048, RW, SHARED).at(hint, SHARED);
        assert_eq!(space.mmap_file(&request, &file), Ok(hint));
        let moved = space.mremap(hint, 8 * MIB, 10 * MIB, RemapFlags::MAYMOVE, None);
        assert_eq!(moved, Ok(hint), "it grows where it is");
    }
}
