//! Devices in RAM against a map of pages, alone and with threads, and with failing allocations.

use crate::pages::{
    Look, Machine, Page, Random, assert_sound, frame, frames, frames_of, io, put, read_frame, run_on, submit,
    write_frame,
};
use proptest::prelude::*;
use quire_arch::{Order, Pfn};
use quire_frame::{FailPlan, Frames, PcpTechnique};
use quire_swap::{
    CompressedRam, DeviceError, DeviceFlags, DeviceMemory, Direction, Lz4, PageIo, RamDisk, Submitted,
    SwapDevice,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

type Zram = CompressedRam<Machine, Lz4>;

const SLOTS: u64 = 1500;
const READ: Direction = Direction::Read;
const WRITE: Direction = Direction::Write;

fn small_machine() -> Frames<Machine> {
    frames(&[(1, 4096)], 1, PcpTechnique::default())
}

fn zram(frames: &Frames<Machine>) -> Zram {
    Zram::new(frames, SLOTS, Lz4).unwrap()
}

fn ramdisk(frames: &Frames<Machine>) -> RamDisk<Machine> {
    RamDisk::new(frames, SLOTS).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Write { slot: u64, seed: u64 },
    Read { slot: u64 },
    Free { slot: u64, count: u64 },
    Compact,
}

fn step() -> impl Strategy<Value = Step> {
    // A few slots often, all of them sometimes.
    let slot = || prop_oneof![3 => 0..40_u64, 1 => 0..SLOTS];
    prop_oneof![
        6 => (slot(), any::<u64>()).prop_map(|(slot, seed)| Step::Write { slot, seed }),
        4 => slot().prop_map(|slot| Step::Read { slot }),
        2 => (slot(), 1..20_u64).prop_map(|(slot, count)| Step::Free { slot, count }),
        1 => Just(Step::Compact),
    ]
}

/// Runs the steps on a device and on a map.
fn compare<D: SwapDevice<Machine>>(
    steps: &[Step],
    make: impl FnOnce(&Frames<Machine>) -> D,
    compact: impl Fn(&D, &Frames<Machine>),
) {
    let frames = small_machine();
    let free = frames.reports().free_frames();
    let device = make(&frames);
    let page = frame(&frames);
    let mut model: HashMap<u64, Page> = HashMap::new();
    let check = |model: &HashMap<u64, Page>, slot| {
        write_frame(&frames, page, &[!0; 512]);
        io(&frames, &device, READ, slot, page).unwrap();
        assert!(read_frame(&frames, page) == model.get(&slot).copied().unwrap_or([0; 512]), "slot {slot}");
    };
    for step in steps {
        match *step {
            Step::Write { slot, seed } => {
                let random = &mut Random(seed);
                let contents = Look::any(random).page(random);
                write_frame(&frames, page, &contents);
                io(&frames, &device, WRITE, slot, page).unwrap();
                model.insert(slot, contents);
            }
            Step::Read { slot } => check(&model, slot),
            Step::Free { slot, count } => {
                device.freed(DeviceMemory::new(&frames), slot, count);
                model.retain(|&at, _| !(slot..slot + count).contains(&at));
            }
            Step::Compact => compact(&device, &frames),
        }
    }
    assert_eq!(device.report().stored_pages, model.len() as u64);
    (0..SLOTS).for_each(|slot| check(&model, slot));
    device.freed(DeviceMemory::new(&frames), 0, SLOTS);
    assert_eq!((device.report().stored_pages, device.report().used_bytes), (0, 0));
    // What is still there when a device is closed goes back too.
    write_frame(&frames, page, &Look::Mixed(2).page(&mut Random(1)));
    (0..3).for_each(|slot| io(&frames, &device, WRITE, slot, page).unwrap());
    device.close(DeviceMemory::new(&frames));
    put(&frames, page, Order::ZERO);
    assert_eq!(frames.reports().free_frames(), free);
    assert_sound(&frames);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn compressed_ram_is_a_map(steps in prop::collection::vec(step(), 1..300)) {
        compare(&steps, zram, |device, frames| {
            let before = device.store().used();
            assert_eq!(before - device.store().compact(frames, u64::MAX), device.store().used());
        });
    }

    #[test]
    fn a_ram_disk_is_a_map(steps in prop::collection::vec(step(), 1..300)) {
        compare(&steps, ramdisk, |_, _| {});
    }
}

/// A page that says which slot it is for, and when it was written, in words all over it.
fn stamp(slot: u64, turn: u64, random: &mut Random) -> Page {
    let mut page = Look::any(random).page(random);
    (page[0], page[255], page[511]) = (slot << 32 | turn, turn, !turn);
    page[1] = page
        .iter()
        .enumerate()
        .filter(|&(at, _)| at != 1)
        .fold(0, |sum, (at, word)| sum ^ word.rotate_left(at as u32));
    page
}

fn check_stamp(page: &Page, slot: u64) {
    if page[0] == 0 && page[511] == 0 {
        assert!(page.iter().all(|&word| word == 0), "slot {slot}: neither zeros nor a page");
        return;
    }
    let sum = page
        .iter()
        .enumerate()
        .filter(|&(at, _)| at != 1)
        .fold(0, |sum, (at, word)| sum ^ word.rotate_left(at as u32));
    assert_eq!(page[0] >> 32, slot, "another slot's page");
    assert!(page[1] == sum, "slot {slot}: a mixture of pages");
}

fn stress<D: SwapDevice<Machine>>(
    seed: u64,
    make: impl FnOnce(&Frames<Machine>) -> D,
    compact: impl Fn(&D, &Frames<Machine>) + Sync,
) {
    println!("seed {seed}");
    const THREADS: u64 = 4;
    let frames = frames_of(Machine::new(&[(1, 8192)], THREADS as usize), PcpTechnique::default());
    let free = frames.reports().free_frames();
    let device = make(&frames);
    let turns = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (frames, device, turns, compact) = (&frames, &device, &turns, &compact);
            scope.spawn(move || {
                run_on(thread as usize);
                let mut random = Random(seed + thread);
                let page = frame(frames);
                for _ in 0..6000 {
                    // Few slots, so that threads meet.
                    let slot = random.below(60);
                    match random.below(16) {
                        0..=6 => {
                            let turn = turns.fetch_add(1, Ordering::Relaxed);
                            write_frame(frames, page, &stamp(slot, turn, &mut random));
                            io(frames, device, WRITE, slot, page).unwrap();
                        }
                        7..=12 => {
                            io(frames, device, READ, slot, page).unwrap();
                            check_stamp(&read_frame(frames, page), slot);
                        }
                        13..=14 => device.freed(DeviceMemory::new(frames), slot, 1 + random.below(3)),
                        _ => compact(device, frames),
                    }
                }
                put(frames, page, Order::ZERO);
            });
        }
    });
    run_on(0);
    assert!(device.report().stored_pages <= 62);
    device.freed(DeviceMemory::new(&frames), 0, SLOTS);
    assert_eq!((device.report().stored_pages, device.report().used_bytes), (0, 0));
    device.close(DeviceMemory::new(&frames));
    assert_eq!(frames.reports().free_frames(), free);
    assert_sound(&frames);
}

#[test]
fn threads_find_whole_pages_in_compressed_ram() {
    stress(21, zram, |device, frames| {
        device.store().compact(frames, u64::MAX);
    });
}

#[test]
fn threads_find_whole_pages_on_a_ram_disk() {
    stress(22, ramdisk, |_, _| {});
}

#[test]
fn a_close_waits_for_those_who_are_there() {
    let frames = frames_of(Machine::new(&[(1, 8192)], 3), PcpTechnique::default());
    let free = frames.reports().free_frames();
    for round in 0..30 {
        let device = zram(&frames);
        std::thread::scope(|scope| {
            for thread in 1..3 {
                let (frames, device) = (&frames, &device);
                scope.spawn(move || {
                    run_on(thread);
                    let mut random = Random(round * 2 + thread as u64);
                    let page = frame(frames);
                    for slot in (0..SLOTS).cycle() {
                        write_frame(frames, page, &Look::any(&mut random).page(&mut random));
                        if io(frames, device, WRITE, slot, page) == Err(DeviceError::Io) {
                            break;
                        }
                    }
                    put(frames, page, Order::ZERO);
                });
            }
            run_on(0);
            while device.report().stored_pages < 20 {
                std::thread::yield_now();
            }
            device.close(DeviceMemory::new(&frames));
        });
        assert_eq!(frames.reports().free_frames(), free);
    }
    assert_sound(&frames);
}

/// Writes every kind of page, with the nth allocation failing, for every n.
fn every_allocation_fails<D: SwapDevice<Machine>>(
    make: impl Fn(&Frames<Machine>) -> Result<D, quire_frame::AllocError>,
) {
    let frames = small_machine();
    let free = frames.reports().free_frames();
    let page = frame(&frames);
    let looks = [Look::Zero, Look::Pattern, Look::Mixed(0), Look::Mixed(3), Look::Mixed(5), Look::Mixed(8)];
    let (mut refused, mut failed_writes) = (0, 0);
    for nth in 1.. {
        frames.fail_points().set(FailPlan::nth(nth));
        if let Ok(device) = make(&frames) {
            for (slot, look) in (0..SLOTS).step_by(97).zip(looks.iter().cycle()) {
                let contents = look.page(&mut Random(slot));
                write_frame(&frames, page, &contents);
                let written = io(&frames, &device, WRITE, slot, page);
                write_frame(&frames, page, &[!0; 512]);
                io(&frames, &device, READ, slot, page).unwrap();
                let expected = if written.is_ok() { contents } else { [0; 512] };
                assert!(read_frame(&frames, page) == expected, "allocation {nth}, slot {slot}");
                if written.is_err() {
                    failed_writes += 1;
                    assert_eq!(written, Err(DeviceError::NoSpace));
                }
            }
            device.close(DeviceMemory::new(&frames));
        } else {
            refused += 1;
        }
        frames.fail_points().set(FailPlan::OFF);
        assert_eq!(frames.reports().free_frames(), free - 1, "allocation {nth}");
        if frames.fail_points().failed() == 0 {
            break;
        }
    }
    assert!(refused > 0 && failed_writes > 0, "{refused} refused, {failed_writes} failed");
    put(&frames, page, Order::ZERO);
    assert_sound(&frames);
}

#[test]
fn compressed_ram_survives_every_failing_allocation() {
    every_allocation_fails(|frames| Zram::new(frames, SLOTS, Lz4));
}

#[test]
fn a_ram_disk_survives_every_failing_allocation() {
    every_allocation_fails(|frames| RamDisk::new(frames, SLOTS));
}

#[test]
fn a_write_that_fails_leaves_what_was_there() {
    let frames = small_machine();
    let device = zram(&frames);
    let page = frame(&frames);
    let first = Look::Mixed(3).page(&mut Random(1));
    write_frame(&frames, page, &first);
    io(&frames, &device, WRITE, 7, page).unwrap();
    let before = device.statistics();
    device.store().set_limit(Some(before.mem_used_total));
    write_frame(&frames, page, &Look::Mixed(8).page(&mut Random(2)));
    assert_eq!(io(&frames, &device, WRITE, 7, page), Err(DeviceError::NoSpace));
    io(&frames, &device, READ, 7, page).unwrap();
    assert!(read_frame(&frames, page) == first);
    assert_eq!(
        device.statistics(),
        quire_swap::StoreStatistics { mem_limit: Some(before.mem_used_total), ..before }
    );
    device.close(DeviceMemory::new(&frames));
}

#[test]
fn the_limit_is_never_passed() {
    let frames = small_machine();
    let device = zram(&frames);
    let page = frame(&frames);
    let limit = 40 * 4096 + 123;
    device.store().set_limit(Some(limit));
    let mut random = Random(5);
    let mut refused = 0;
    for slot in 0..SLOTS {
        write_frame(&frames, page, &Look::any(&mut random).page(&mut random));
        refused += u64::from(io(&frames, &device, WRITE, slot, page) == Err(DeviceError::NoSpace));
        assert!(device.statistics().mem_used_max <= limit);
    }
    assert!(refused > 0);
    let at_limit = device.statistics();
    assert!(at_limit.mem_used_total > limit - 5 * 4096);
    // Pages of equal words need nothing.
    write_frame(&frames, page, &[9; 512]);
    io(&frames, &device, WRITE, 0, page).unwrap();
    device.freed(DeviceMemory::new(&frames), 0, SLOTS);
    assert_eq!(device.statistics().mem_used_total, 0);
    assert_eq!(device.statistics().mem_used_max, at_limit.mem_used_max);
    device.store().reset_peak();
    assert_eq!(device.statistics().mem_used_max, 0);
    device.close(DeviceMemory::new(&frames));
}

#[test]
fn statistics_are_those_of_linux() {
    let frames = small_machine();
    let device = zram(&frames);
    let page = frame(&frames);
    let write = |slot, contents: Page| {
        write_frame(&frames, page, &contents);
        io(&frames, &device, WRITE, slot, page).unwrap();
    };
    write(0, [0; 512]);
    write(1, [0x5a5a_5a5a_5a5a_5a5a; 512]);
    write(2, Look::Mixed(8).page(&mut Random(1)));
    write(3, Look::Mixed(8).page(&mut Random(2)));
    write(3, [1; 512]);
    let mut text = String::new();
    device.mm_stat(&mut text).unwrap();
    // A whole page, and a chain of one frame for the word that does not fit.
    assert_eq!(text, "   16384     4096     8192        0    12288        3        0        1        2\n");
    write(4, core::array::from_fn(|word| word as u64));
    let packed = device.statistics();
    assert_eq!(packed.orig_data_size, 5 * 4096);
    assert!((4096..8192).contains(&packed.compr_data_size));
    device.freed(DeviceMemory::new(&frames), 0, 5);
    let (report, statistics) = (device.report(), device.statistics());
    assert_eq!(
        (report.stored_pages, report.same_pages, report.huge_pages, report.compressed_bytes),
        (0, 0, 0, 0)
    );
    assert_eq!((statistics.mem_used_total, statistics.huge_pages_since), (0, 2));
    device.close(DeviceMemory::new(&frames));
}

#[test]
fn an_unused_device_is_small() {
    let frames = small_machine();
    let free = frames.reports().free_frames();
    let device = Zram::new(&frames, 1 << 18, Lz4).unwrap();
    let bytes = (free - frames.reports().free_frames()) * 4096;
    assert!(bytes < 50_000, "a GiB of slots costs {bytes} bytes");
    // Neither reading nor freeing makes it larger.
    let page = frame(&frames);
    for slot in (0..1 << 18).step_by(5000) {
        io(&frames, &device, READ, slot, page).unwrap();
        device.freed(DeviceMemory::new(&frames), slot, 3);
    }
    put(&frames, page, Order::ZERO);
    assert_eq!((free - frames.reports().free_frames()) * 4096, bytes);
    device.close(DeviceMemory::new(&frames));
    assert_eq!(frames.reports().free_frames(), free);
}

fn block_of(frames: &Frames<Machine>, order: u8) -> (Pfn, Order) {
    let order = Order::new(order).unwrap();
    (crate::pages::get(frames, order), order)
}

#[test]
fn several_pages_go_at_once_and_the_bounds_are_kept() {
    let frames = small_machine();
    let (block, order) = block_of(&frames, 3);
    let devices: [&dyn SwapDevice<Machine>; 2] = [&zram(&frames), &ramdisk(&frames)];
    for device in devices {
        assert!(device.flags().contains(DeviceFlags::SYNCHRONOUS | DeviceFlags::NOTES_FREED));
        let request = |direction, slot, pages| PageIo { direction, slot, pfn: block, pages };
        let pages: Vec<Page> = (0..8).map(|nth| Look::Mixed(nth).page(&mut Random(nth))).collect();
        pages.iter().zip(0..).for_each(|(page, nth)| write_frame(&frames, block.offset(nth), page));
        assert_eq!(submit(&frames, device, request(WRITE, SLOTS - 8, 8)), Submitted::Done(Ok(())));
        (0..8).for_each(|nth| write_frame(&frames, block.offset(nth), &[!0; 512]));
        assert_eq!(submit(&frames, device, request(READ, SLOTS - 8, 8)), Submitted::Done(Ok(())));
        for (page, nth) in pages.iter().zip(0..) {
            assert!(read_frame(&frames, block.offset(nth)) == *page);
        }
        for (slot, pages) in [(SLOTS - 7, 8), (SLOTS, 1), (u64::MAX, 1), (u64::MAX - 3, 8)] {
            for direction in [READ, WRITE] {
                let result = submit(&frames, device, request(direction, slot, pages));
                assert_eq!(result, Submitted::Done(Err(DeviceError::OutOfRange)), "slot {slot}");
            }
        }
        device.freed(DeviceMemory::new(&frames), SLOTS - 8, u64::MAX);
        assert_eq!(device.report().stored_pages, 0);
        device.close(DeviceMemory::new(&frames));
    }
    put(&frames, block, order);
}

#[test]
fn pages_before_the_one_that_fails_are_written() {
    let frames = small_machine();
    let device = zram(&frames);
    let (block, order) = block_of(&frames, 2);
    (0..4).for_each(|nth| write_frame(&frames, block.offset(nth), &Look::Mixed(8).page(&mut Random(nth))));
    device.store().set_limit(Some(2 * 4096));
    let io = PageIo { direction: WRITE, slot: 0, pfn: block, pages: 4 };
    assert_eq!(submit(&frames, &device, io), Submitted::Done(Err(DeviceError::NoSpace)));
    assert_eq!(device.report().stored_pages, 2);
    device.close(DeviceMemory::new(&frames));
    put(&frames, block, order);
    assert_sound(&frames);
}

#[test]
fn a_preallocated_disk_needs_no_memory_to_write() {
    let frames = small_machine();
    let free = frames.reports().free_frames();
    let disk = RamDisk::preallocated(&frames, 100).unwrap();
    assert_eq!(disk.flags(), DeviceFlags::SYNCHRONOUS);
    let page = frame(&frames);
    let taken = frames.reports().free_frames();
    frames.fail_points().set(FailPlan::every(1));
    for slot in 0..100 {
        write_frame(&frames, page, &[slot + 1; 512]);
        io(&frames, &disk, WRITE, slot, page).unwrap();
        disk.freed(DeviceMemory::new(&frames), slot, 1);
    }
    frames.fail_points().set(FailPlan::OFF);
    assert_eq!(frames.reports().free_frames(), taken);
    assert_eq!(disk.report().used_bytes, 100 * 4096);
    put(&frames, page, Order::ZERO);
    disk.close(DeviceMemory::new(&frames));
    assert_eq!(frames.reports().free_frames(), free);

    // Where there are not enough frames, all that were taken go back.
    assert!(RamDisk::preallocated(&frames, 100_000).is_err());
    assert_eq!(frames.reports().free_frames(), free);
    assert!(RamDisk::new(&frames, (1 << 28) + 1).is_err());
    assert!(Zram::new(&frames, (1 << 28) + 1, Lz4).is_err());
    assert_eq!(frames.reports().free_frames(), free);
}
