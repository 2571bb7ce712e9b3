//! A compressed cache in front of a device that completes when it likes.

use crate::common::machine::{frames, get, put, run_on};
use crate::common::{Machine, Random, TestDevice, Watch};
use crate::pages::submit;
use quire_arch::{Order, PAGE_SIZE, Pfn, Platform};
use quire_frame::{AllocError, FailPlan, Frames, PcpTechnique, VmEvent};
use quire_swap::{
    CompressedCache, DeviceError, DeviceFlags, DeviceMemory, Direction, PageIo, RamDisk, Submitted,
    SwapDevice,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SLOTS: u64 = 256;
type Cache = CompressedCache<Machine, TestDevice>;

/// A page that says what it is, half of it random.
fn fill(frames: &Frames<Machine>, pfn: Pfn, value: u64) {
    let mut random = Random(value | 1);
    let page: [u64; 512] = core::array::from_fn(|word| if word % 2 == 0 { random.next() } else { value });
    // SAFETY: the frame is the test's.
    unsafe { frames.platform().direct_map(pfn).cast::<[u64; 512]>().write(page) };
}

fn is(frames: &Frames<Machine>, pfn: Pfn, value: u64) -> bool {
    let expected = get(frames, Order::ZERO);
    fill(frames, expected, value);
    // SAFETY: both frames are the test's.
    let read = |pfn| unsafe { frames.platform().direct_map(pfn).cast::<[u64; 512]>().read() };
    let equal = read(pfn) == read(expected);
    put(frames, expected, Order::ZERO);
    equal
}

/// Programs of the cache, with what each slot has.
struct Life<'m> {
    frames: &'m Frames<Machine>,
    cache: Cache,
    held: BTreeMap<u64, u64>,
    random: Random,
    /// Frames that another thread reads or writes, by the request.
    under_way: Vec<(PageIo, u64)>,
}

impl Life<'_> {
    fn finish(&mut self, io: PageIo, result: Result<(), DeviceError>) {
        assert_eq!(result, Ok(()));
        let at = self.under_way.iter().position(|(other, _)| *other == io).expect("it was begun");
        let (io, value) = self.under_way.swap_remove(at);
        self.done(io, value);
    }

    fn done(&mut self, io: PageIo, first: u64) {
        if io.direction == Direction::Read {
            for nth in 0..u64::from(io.pages) {
                let wanted = self.held.get(&(io.slot + nth)).copied();
                assert!(
                    wanted.is_none_or(|value| is(self.frames, io.pfn.offset(nth), value)),
                    "{io:?} {first}"
                );
            }
        }
        put(self.frames, io.pfn, Order::new(io.pages.trailing_zeros() as u8).expect("small"));
    }

    fn reap(&mut self) {
        let mut all = Vec::new();
        self.cache.reap(DeviceMemory::new(self.frames), &mut |io, result| all.push((io, result)));
        all.into_iter().for_each(|(io, result)| self.finish(io, result));
    }

    /// As swap does: nothing is asked of slots of which something is under way.
    fn is_busy(&self, slot: u64, pages: u64) -> bool {
        self.under_way.iter().any(|(io, _)| io.slot < slot + pages && slot < io.slot + u64::from(io.pages))
    }

    fn step(&mut self) {
        let order = if self.random.below(4) == 0 { 2 } else { 0 };
        let pages = 1 << order;
        let slot = self.random.below(SLOTS) & !(pages - 1);
        match self.random.below(10) {
            _ if self.is_busy(slot, pages) => self.reap(),
            0..=4 => {
                let value = self.random.next();
                let pfn = get(self.frames, Order::new(order).expect("small"));
                (0..pages).for_each(|nth| fill(self.frames, pfn.offset(nth), value.wrapping_add(nth)));
                let io = PageIo { direction: Direction::Write, slot, pfn, pages: pages as u32 };
                (0..pages).for_each(|nth| {
                    self.held.insert(slot + nth, value.wrapping_add(nth));
                });
                self.begin(io, value);
            }
            5..=7 if (0..pages).all(|nth| self.held.contains_key(&(slot + nth))) => {
                let pfn = get(self.frames, Order::new(order).expect("small"));
                self.begin(PageIo { direction: Direction::Read, slot, pfn, pages: pages as u32 }, 0);
            }
            8 => {
                self.cache.freed(DeviceMemory::new(self.frames), slot, pages);
                (0..pages).for_each(|nth| {
                    self.held.remove(&(slot + nth));
                });
            }
            _ => self.reap(),
        }
    }

    fn begin(&mut self, io: PageIo, value: u64) {
        loop {
            match submit(self.frames, &self.cache, io) {
                Submitted::Done(result) => {
                    assert_eq!(result, Ok(()));
                    return self.done(io, value);
                }
                Submitted::Begun => return self.under_way.push((io, value)),
                Submitted::QueueFull => self.reap(),
            }
        }
    }
}

fn life(queue: usize, seed: u64) {
    run_on(0);
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::All);
    let free = frames.reports().totals().free;
    let watch = Arc::new(Watch::default());
    let flags = if queue == 0 { DeviceFlags::SYNCHRONOUS } else { DeviceFlags::empty() };
    let behind = TestDevice { slots: SLOTS, flags, queue, watch: Arc::clone(&watch) };
    // A quarter of what it is given.
    let cache = CompressedCache::new(&frames, behind, SLOTS * PAGE_SIZE / 8).expect("there is memory");
    let mut life =
        Life { frames: &frames, cache, held: BTreeMap::new(), random: Random(seed), under_way: Vec::new() };
    for _ in 0..20_000 {
        life.step();
    }
    while !life.under_way.is_empty() {
        life.reap();
    }
    let all: Vec<u64> = life.held.keys().copied().collect();
    for slot in all {
        let pfn = get(&frames, Order::ZERO);
        life.begin(PageIo { direction: Direction::Read, slot, pfn, pages: 1 }, 0);
        life.reap();
    }
    while !life.under_way.is_empty() {
        life.reap();
    }
    assert!(life.cache.written_back() > 100, "{} were written back", life.cache.written_back());
    assert!(life.cache.report().used_bytes <= SLOTS * PAGE_SIZE / 8);
    let back = frames.events().sum(VmEvent::Zswpwb);
    assert_eq!(back, life.cache.written_back());
    life.cache.close(DeviceMemory::new(&frames));
    drop(life);
    assert_eq!(frames.reports().totals().free, free, "seed {seed}: frames are lost");
}

#[test]
fn what_was_written_is_read_with_a_synchronous_device() {
    life(0, 1);
}

#[test]
fn what_was_written_is_read_with_an_asynchronous_device() {
    for seed in 2..5 {
        life(3, seed);
        life(16, seed);
    }
}

/// Hazard: the device behind a cache that gets no memory is dropped, and the frames that it has are lost.
#[test]
fn a_cache_that_cannot_be_made_closes_its_device() {
    run_on(0);
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::All);
    let free = frames.reports().totals().free;
    for nth in 1.. {
        let disk = RamDisk::preallocated(&frames, 64).unwrap();
        frames.fail_points().set(FailPlan::nth(nth));
        let made = CompressedCache::new(&frames, disk, 1 << 20);
        frames.fail_points().set(FailPlan::OFF);
        let done = made.map(|cache| cache.close(DeviceMemory::new(&frames))).is_ok();
        assert_eq!(frames.reports().totals().free, free, "after allocation {nth} failed");
        if done {
            assert!(nth > 4, "blocks for the slots, the pool, each CPU, and the list");
            break;
        }
    }
    let disk = RamDisk::preallocated(&frames, 64).unwrap();
    let wide = Wide(disk);
    assert_eq!(CompressedCache::new(&frames, wide, 1 << 20).map(drop), Err(AllocError::OutOfMemory));
    assert_eq!(frames.reports().totals().free, free, "there are more slots than a cache can have");
}

/// A device that says that it has very many slots.
struct Wide(RamDisk<Machine>);

impl SwapDevice<Machine> for Wide {
    fn kind(&self) -> &'static str {
        "wide"
    }

    fn slots(&self) -> u64 {
        1 << 40
    }

    fn flags(&self) -> DeviceFlags {
        self.0.flags()
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, Machine>, io: PageIo) -> Submitted {
        // SAFETY: the caller's promise.
        unsafe { self.0.submit(memory, io) }
    }

    fn close(&self, memory: DeviceMemory<'_, Machine>) {
        self.0.close(memory);
    }
}

/// A device that takes writes and tells of no end.
#[derive(Default)]
struct Silent {
    taken: Arc<AtomicU64>,
    closed: Arc<AtomicBool>,
}

impl SwapDevice<Machine> for Silent {
    fn kind(&self) -> &'static str {
        "silent"
    }

    fn slots(&self) -> u64 {
        SLOTS
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::empty()
    }

    unsafe fn submit(&self, _memory: DeviceMemory<'_, Machine>, _io: PageIo) -> Submitted {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Submitted::Begun
    }

    fn close(&self, _memory: DeviceMemory<'_, Machine>) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

/// Hazard: the end of a cache waits for a writeback whose end the device behind never tells.
#[test]
fn a_cache_closes_over_a_device_that_never_ends_a_writeback() {
    run_on(0);
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::All);
    let free = frames.reports().totals().free;
    let silent = Silent::default();
    let (taken, closed) = (Arc::clone(&silent.taken), Arc::clone(&silent.closed));
    let cache = CompressedCache::new(&frames, silent, 8 * PAGE_SIZE).unwrap();
    let page = get(&frames, Order::ZERO);
    for slot in 0..32 {
        fill(&frames, page, slot);
        let io = PageIo { direction: Direction::Write, slot, pfn: page, pages: 1 };
        if submit(&frames, &cache, io) == Submitted::QueueFull {
            break;
        }
    }
    assert!(taken.load(Ordering::Relaxed) > 0, "no page leaves the cache");
    cache.close(DeviceMemory::new(&frames));
    put(&frames, page, Order::ZERO);
    assert!(closed.load(Ordering::Relaxed));
    assert_eq!(frames.reports().totals().free, free);
}
