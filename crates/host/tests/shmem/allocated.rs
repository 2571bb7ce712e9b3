//! Shared memory that is allocated ahead, and where it has holes.

use crate::common::*;
use quire_frame::FolioCounter;
use quire_mm::file::{FileError, PageError, Seals, ShmemOwner};
use quire_mm::proc::HugeFile;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type HostFile<'m> = File<'m, HostPlatform>;

fn memfd(machine: &Machine, pages: u64) -> HostFile<'_> {
    machine.memory().create_shmem((), pages * PAGE).unwrap()
}

/// Room for some pages.
#[derive(Clone)]
struct Room(Arc<AtomicU64>);

impl ShmemOwner for Room {
    fn take_pages(&self, pages: u64) -> Result<(), FileError> {
        let take = |left: u64| left.checked_sub(pages);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map(drop)
            .map_err(|_| FileError::NoSpace)
    }

    fn give_back_pages(&self, pages: u64) {
        self.0.fetch_add(pages, Ordering::Relaxed);
    }
}

#[test]
fn what_is_allocated_ahead_is_zeros_and_looks_like_holes_until_it_is_used() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let file = memfd(&machine, 1);
    file.allocate(0..4 * PAGE, false).unwrap();
    assert_eq!((file.size(), file.figures().cached), (4 * PAGE, 4));
    assert_eq!((file.seek_data(0), file.seek_hole(0)), (None, Some(0)));
    let area = space.mmap_file(&file_request(0, 4, RW, MapFlags::SHARED), &file).unwrap();
    assert_eq!(crate::mapped::in_memory(&space, area, 4), [false; 4]);
    assert_eq!(read_file(&file, PAGE, 8), [0; 8]);
    assert_eq!(file.seek_data(0), None, "a call that reads does not use it");
    assert_eq!(read(&cpu, &space, page(area, 1)), 0);
    write_file(&file, 3 * PAGE + 5, &[1]);
    assert_eq!(crate::mapped::in_memory(&space, area, 4), [false, true, false, true]);
    let data = [0, PAGE, PAGE + 7, 2 * PAGE, 3 * PAGE, 4 * PAGE].map(|from| file.seek_data(from));
    assert_eq!(data, [Some(PAGE), Some(PAGE), Some(PAGE + 7), Some(3 * PAGE), Some(3 * PAGE), None]);
    let holes = [0, PAGE, PAGE + 7, 2 * PAGE + 9, 3 * PAGE, 4 * PAGE].map(|from| file.seek_hole(from));
    assert_eq!(holes, [Some(0), Some(2 * PAGE), Some(2 * PAGE), Some(2 * PAGE + 9), Some(4 * PAGE), None]);
    // What a hole begins or ends in stays unused.
    file.punch(2 * PAGE - 5..2 * PAGE + 5, |_| Ok(())).unwrap();
    assert_eq!(file.seek_data(2 * PAGE), Some(3 * PAGE));
    // What is there stays as it is, and what is allocated twice is used.
    file.allocate(PAGE..4 * PAGE, false).unwrap();
    assert_eq!(read_file(&file, 3 * PAGE + 5, 1), [1]);
    assert_eq!((file.seek_data(0), file.seek_hole(PAGE)), (Some(PAGE), Some(4 * PAGE)));
    assert_eq!(machine.memory().file_totals().promised, 4);
    assert_audit(&machine);
}

#[test]
fn what_is_allocated_behind_the_end_goes_when_the_size_is_set_unless_the_file_grows() {
    let machine = machine(16, 1);
    let file = memfd(&machine, 2);
    file.allocate(PAGE..5 * PAGE, true).unwrap();
    assert_eq!((file.size(), file.figures().cached), (2 * PAGE, 4));
    file.punch(4 * PAGE..9 * PAGE, |_| Ok(())).unwrap();
    assert_eq!((file.size(), file.figures().cached), (2 * PAGE, 3));
    assert_audit(&machine);
    // Linux 6.18, also where the size is what it was.
    file.set_size(2 * PAGE).unwrap();
    assert_eq!((file.size(), file.figures().cached), (2 * PAGE, 1));
    file.allocate(2 * PAGE..4 * PAGE, true).unwrap();
    file.set_size(3 * PAGE).unwrap();
    assert_eq!(file.figures().cached, 3);
    file.set_size(2 * PAGE).unwrap();
    file.allocate(2 * PAGE..4 * PAGE, true).unwrap();
    file.set_size(2 * PAGE - 1).unwrap();
    assert_eq!(file.figures().cached, 1);
    assert_audit(&machine);
    assert_eq!((file.seek_data(0), file.seek_hole(2 * PAGE - 1)), (None, None));
    assert_eq!(file.allocate(0..u64::MAX, true), Err(PageError::TooLarge));
    file.add_seals(Seals::GROW | Seals::WRITE).unwrap();
    assert_eq!(file.allocate(0..2 * PAGE - 1, false), Ok(()), "as Linux, a seal against writes allows it");
    for keep_size in [true, false] {
        assert_eq!(file.allocate(0..2 * PAGE, keep_size), Err(PageError::Sealed));
    }
    let (backing, _) = MemoryFile::new(Vec::new());
    let plain = machine.memory().create_file(backing, PAGE).unwrap();
    assert_eq!(plain.allocate(0..PAGE, false), Err(PageError::NotSupported));
    assert_eq!((plain.seek_data(5), plain.seek_hole(5), plain.seek_data(PAGE)), (Some(5), Some(PAGE), None));
}

#[test]
fn an_allocation_without_room_gives_back_what_no_program_has_used() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let room = Room(Arc::new(AtomicU64::new(6)));
    let file = machine.memory().create_shmem(room.clone(), 8 * PAGE).unwrap();
    let area = space.mmap_file(&file_request(0, 8, RW, MapFlags::SHARED), &file).unwrap();
    write(&cpu, &space, page(area, 2), 5);
    assert_eq!(file.allocate(0..8 * PAGE, false), Err(PageError::File(FileError::NoSpace)));
    assert_eq!((room.0.load(Ordering::Relaxed), file.figures().cached), (5, 1));
    assert_eq!(read(&cpu, &space, page(area, 2)), 5);
    assert_eq!(machine.memory().file_totals().promised, 1);
    assert_audit(&machine);
}

/// Hazard: a call that fails takes away what an earlier one has promised. As in Linux 6.18 what both allocate
/// counts as used.
#[test]
fn an_allocation_without_room_keeps_what_an_earlier_one_has_made() {
    let machine = machine(16, 1);
    for size in ["never", "always"] {
        HugeFile::find("shmem_enabled").unwrap().write(machine.memory(), size).unwrap();
        let is_huge = size == "always";
        let (scale, most) = if is_huge { (512, 1024) } else { (1, 8) };
        let room = Room(Arc::new(AtomicU64::new(most)));
        let file = machine.memory().create_shmem(room.clone(), 0).unwrap();
        let first = if is_huge { 100..101 } else { 0..4 };
        file.allocate(first.start * PAGE..first.end * PAGE, false).unwrap();
        let kept = file.figures().cached;
        assert_eq!((kept, file.seek_data(0)), (4.max(scale), None));
        let second = if is_huge { 101..1100 } else { 2..10 };
        let failed = file.allocate(second.start * PAGE..second.end * PAGE, false);
        assert_eq!(failed, Err(PageError::File(FileError::NoSpace)));
        assert_eq!((room.0.load(Ordering::Relaxed), file.figures().cached), (most - kept, kept));
        let data = if is_huge { 0 } else { 2 * PAGE };
        assert_eq!((file.seek_data(0), file.size()), (Some(data), first.end * PAGE));
        // Its own folios it makes once, and they are not used then.
        file.punch(0..u64::MAX, |_| Ok(())).unwrap();
        file.allocate(0..6 * PAGE, true).unwrap();
        assert_eq!((file.figures().cached, file.seek_data(0)), (6.max(scale), None));
        assert_audit(&machine);
    }
}

#[test]
fn what_was_allocated_ahead_and_paged_out_is_data() {
    let machine = swapping(32, 1, 256);
    let file = memfd(&machine, 64);
    file.allocate(0..64 * PAGE, false).unwrap();
    reclaim(&machine, 4, 64);
    assert_eq!((file.figures().cached, file.figures().swapped), (0, 64));
    assert_eq!((file.seek_data(0), file.seek_hole(0)), (Some(0), Some(64 * PAGE)));
    file.allocate(0..64 * PAGE, false).unwrap();
    assert_eq!(file.figures().swapped, 64, "it stays there");
    assert_audit(&machine);
}

/// Hazard: `fallocate` makes pages without end that no memcg is charged.
#[test]
fn the_memcg_of_the_caller_pays_for_what_is_allocated_and_no_more_than_it_may() {
    let machine = swapping(32, 1, 256);
    let (_cpu, group, space) = in_memcg(&machine, "group", &[(Limit::Max, 16)]);
    let file = memfd(&machine, 64);
    space.files().allocate(&file, 0..12 * PAGE, false).unwrap();
    assert_eq!((usage(&machine, group), swap_usage(&machine, group)), (12, 0));
    let shmem = machine.memory().memcgs().counters().stats(group)[MemcgStat::Shmem as usize];
    assert_eq!(shmem, 12);
    // The first ones go to the device.
    space.files().allocate(&file, 0..40 * PAGE, false).unwrap();
    assert!(usage(&machine, group) <= 16);
    assert_eq!(usage(&machine, group) + swap_usage(&machine, group), 40);
    assert_eq!(
        (file.figures().cached, file.figures().swapped),
        (usage(&machine, group), swap_usage(&machine, group))
    );
    // What a hole cuts is swapped in, and charged to the slot's.
    space.files().punch(&file, PAGE + 8..39 * PAGE, |_| Ok(())).unwrap();
    assert_eq!(usage(&machine, group) + swap_usage(&machine, group), 3);
    // Without swap there is an end to it, and what was allocated is given back.
    let small = Setup::mib(32).overcommit().build();
    let (_cpu, group, space) = in_memcg(&small, "group", &[(Limit::Max, 16)]);
    let file = memfd(&small, 64);
    let failed = space.files().allocate(&file, 0..40 * PAGE, false);
    assert!(matches!(failed, Err(PageError::OverLimit(_))), "{failed:?}");
    assert_eq!((usage(&small, group), file.figures().cached, file.size()), (0, 0, 64 * PAGE));
    let other = memfd(&machine, 64);
    assert_eq!(space.files().allocate(&other, 0..PAGE, false), Err(PageError::OtherMachine));
    assert_eq!(space.files().punch(&other, 0..PAGE, |_| Ok(())), Err(PageError::OtherMachine));
    file.allocate(0..40 * PAGE, true).unwrap();
    assert_eq!((usage(&small, group), file.figures().cached), (0, 40), "the root pays without a program");
}

/// Hazard: what the death of a program was to free goes to a call of the same program.
#[test]
fn a_killed_program_allocates_no_more() {
    let machine = Setup::mib(32).overcommit().build();
    let (_cpu, group, space) = in_memcg(&machine, "group", &[]);
    let file = memfd(&machine, 8);
    space.files().allocate(&file, 0..4 * PAGE, false).unwrap();
    assert!(space.oom().kill());
    let killed = space.files().allocate(&file, 4 * PAGE..64 * PAGE, false);
    assert_eq!(killed, Err(PageError::Killed));
    assert_eq!((usage(&machine, group), file.figures().cached, file.size()), (4, 4, 8 * PAGE));
    assert_audit(&machine);
}

/// Two threads allocate, use, cut and free the same pages; nothing is counted twice.
#[test]
fn allocations_beside_faults_and_holes_keep_the_counts() {
    let machine = machine(16, 2);
    let room = Room(Arc::new(AtomicU64::new(12)));
    let file = machine.memory().create_shmem(room.clone(), 16 * PAGE).unwrap();
    on_cpus(&machine, 2, |number, cpu| {
        let space = create_space(&machine);
        let area = space.mmap_file(&file_request(0, 16, RW, MapFlags::SHARED), &file).unwrap();
        let mut random = 1 + number as u64;
        for _ in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (at, what) = (random >> 40 & 15, random >> 60);
            match what {
                0..4 => drop(file.allocate(at * PAGE..16 * PAGE, true)),
                4..8 => file.punch(at * PAGE..(at + 5) * PAGE, |_| Ok(())).unwrap(),
                8..12 => drop(cpu.program(&space).write_u64(page(area, at), random)),
                _ => drop((file.seek_data(at * PAGE), file.seek_hole(at * PAGE))),
            }
        }
    });
    let cached = file.figures().cached;
    assert_eq!(room.0.load(Ordering::Relaxed) + cached, 12);
    assert_audit(&machine);
    file.punch(0..16 * PAGE, |_| Ok(())).unwrap();
    assert_eq!((room.0.load(Ordering::Relaxed), file.figures().cached), (12, 0));
    assert_audit(&machine);
}

/// As Linux 6.18 on a tmpfs with `huge=always` and `size=3m`: the first file has the first two MiB of it.
#[test]
fn a_page_is_made_where_there_is_no_room_for_a_large_folio() {
    let machine = machine(32, 1);
    HugeFile::find("shmem_enabled").unwrap().write(machine.memory(), "always").unwrap();
    let room = Room(Arc::new(AtomicU64::new(768)));
    let [first, second] = [0, 1].map(|_| machine.memory().create_shmem(room.clone(), 0).unwrap());
    write_file(&first, 0, &vec![1; 512 * PAGE as usize]);
    write_file(&second, 0, &[1]);
    assert_eq!([&first, &second].map(|file| file.figures().cached), [512, 1]);
    let fallbacks = |order| machine.memory().frames().events().folios(order, FolioCounter::ShmemFallback);
    assert_eq!(Order::ALL.map(fallbacks), [0; Order::COUNT]);
    second.allocate(0..256 * PAGE, true).unwrap();
    assert_eq!((room.0.load(Ordering::Relaxed), second.figures().cached), (0, 256));
}
