//! The order of what a compressed cache stores, writes back and drops, with a device that stops in a write.

use crate::common::machine::{after_all_holds, frames, get, run_on};
use crate::common::{Machine, Random};
use crate::pages::submit;
use quire_arch::{LockClass, Order, PAGE_SIZE, Pfn, Platform};
use quire_frame::{Frames, PcpTechnique};
use quire_swap::{
    CompressedCache, DeviceError, DeviceFlags, DeviceMemory, Direction, PageIo, Submitted, SwapDevice,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const SLOTS: u64 = 1024;
/// Pages that the cache has room for, if they cannot be compressed.
const ROOM: u64 = 16;
const NONE: u64 = u64::MAX;

/// What the tests set, and see, of their device.
struct Gate {
    /// The first write to this slot stops until the gate is open.
    stops: AtomicU64,
    stopped: AtomicBool,
    open: AtomicBool,
    fails: AtomicBool,
    pages: Mutex<HashMap<u64, u64>>,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            stops: AtomicU64::new(NONE),
            stopped: AtomicBool::new(false),
            open: AtomicBool::new(false),
            fails: AtomicBool::new(false),
            pages: Mutex::default(),
        })
    }

    /// The number of the page that the device has for the slot.
    fn page(&self, slot: u64) -> Option<u64> {
        self.pages.lock().unwrap().get(&slot).copied()
    }
}

struct Gated(Arc<Gate>);

impl SwapDevice<Machine> for Gated {
    fn kind(&self) -> &'static str {
        "gated"
    }

    fn slots(&self) -> u64 {
        SLOTS
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::SYNCHRONOUS | DeviceFlags::NOTES_FREED
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, Machine>, io: PageIo) -> Submitted {
        if self.0.fails.load(Ordering::SeqCst) {
            return Submitted::Done(Err(DeviceError::Io));
        }
        let is_write = io.direction == Direction::Write;
        if is_write
            && io.slot == self.0.stops.load(Ordering::SeqCst)
            && !self.0.stopped.swap(true, Ordering::SeqCst)
        {
            wait(&self.0.open);
        }
        for nth in 0..u64::from(io.pages) {
            let mut pages = self.0.pages.lock().unwrap();
            let page = memory.platform().direct_map(io.pfn.offset(nth)).cast::<[u64; 512]>();
            // SAFETY: a frame of the machine, which the request keeps; the test writes none meanwhile.
            unsafe {
                if is_write {
                    pages.insert(io.slot + nth, page.read()[1]);
                } else if let Some(&number) = pages.get(&(io.slot + nth)) {
                    page.write([number; 512]);
                } else {
                    return Submitted::Done(Err(DeviceError::Corrupt));
                }
            }
        }
        Submitted::Done(Ok(()))
    }

    fn freed(&self, _memory: DeviceMemory<'_, Machine>, slot: u64, count: u64) {
        let mut pages = self.0.pages.lock().unwrap();
        pages.retain(|at, _| !(slot..slot + count).contains(at));
    }
}

fn wait(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        thread::yield_now();
    }
}

/// A cache for the rest of the test's process, so that threads of no scope can use it.
struct Front {
    frames: &'static Frames<Machine>,
    gate: Arc<Gate>,
    cache: &'static CompressedCache<Machine, Gated>,
}

impl Front {
    fn new(room: u64) -> Self {
        run_on(0);
        let frames: &Frames<Machine> = Box::leak(Box::new(frames(&[(0, 4096)], 2, PcpTechnique::All)));
        let gate = Gate::new();
        let cache = CompressedCache::new(frames, Gated(Arc::clone(&gate)), room * PAGE_SIZE).unwrap();
        Self { frames, gate, cache: Box::leak(Box::new(cache)) }
    }

    /// A cache that is nearly full, with slot 7 as the oldest of its pages.
    fn nearly_full() -> Self {
        let front = Self::new(ROOM);
        let page = get(front.frames, Order::ZERO);
        front.fill_slots(page, [7].into_iter().chain(20..20 + ROOM - 2));
        assert_eq!(front.cache.written_back(), 0);
        front
    }

    fn memory(&self) -> DeviceMemory<'static, Machine> {
        DeviceMemory::new(self.frames)
    }

    fn contents(&self, pfn: Pfn, page: [u64; 512]) {
        // SAFETY: the frame is the test's.
        unsafe { self.frames.platform().direct_map(pfn).cast().write(page) };
    }

    /// A page that cannot be compressed, and whose number is `number`.
    fn fill(&self, pfn: Pfn, number: u64) {
        let mut random = Random(number | 1);
        self.contents(pfn, core::array::from_fn(|word| if word == 1 { number } else { random.next() }));
    }

    /// A page for which there is room in a full cache.
    fn fill_small(&self, pfn: Pfn, number: u64) {
        self.contents(pfn, [number; 512]);
    }

    fn write(&self, slot: u64, pfn: Pfn) -> Submitted {
        submit(self.frames, self.cache, PageIo { direction: Direction::Write, slot, pfn, pages: 1 })
    }

    /// Writes the page to each of these slots, filled with its number each time.
    #[track_caller]
    fn fill_slots(&self, page: Pfn, slots: impl IntoIterator<Item = u64>) {
        for slot in slots {
            self.fill(page, slot);
            assert_eq!(self.write(slot, page), Submitted::Done(Ok(())));
        }
    }

    /// The number of the page that is read from the slot.
    #[track_caller]
    fn read(&self, slot: u64) -> u64 {
        let pfn = get(self.frames, Order::ZERO);
        let io = PageIo { direction: Direction::Read, slot, pfn, pages: 1 };
        assert_eq!(submit(self.frames, self.cache, io), Submitted::Done(Ok(())), "slot {slot}");
        // SAFETY: the frame is the test's.
        unsafe { self.frames.platform().direct_map(pfn).cast::<[u64; 512]>().read()[1] }
    }

    fn freed(&self, slot: u64, count: u64) {
        self.cache.freed(self.memory(), slot, count);
    }

    /// Fills slots from `first` on, as CPU 1, in a thread that ends when all are filled or the gate is open.
    fn pressure(&self, first: u64) -> (thread::JoinHandle<()>, Arc<AtomicBool>) {
        let over = Arc::new(AtomicBool::new(false));
        let front = Self { frames: self.frames, gate: Arc::clone(&self.gate), cache: self.cache };
        let told = Arc::clone(&over);
        let run = move || {
            run_on(1);
            let page = get(front.frames, Order::ZERO);
            let shut = |_: &u64| !front.gate.open.load(Ordering::SeqCst);
            front.fill_slots(page, (first..first + 60).take_while(shut));
            told.store(true, Ordering::SeqCst);
        };
        (thread::spawn(run), over)
    }

    /// CPU 1 writes slot 7 back and stops in the device.
    fn stopped_in_slot_7(&self) -> thread::JoinHandle<()> {
        self.gate.stops.store(7, Ordering::SeqCst);
        let (thread, _) = self.pressure(100);
        wait(&self.gate.stopped);
        thread
    }

    /// The device goes on.
    fn go(&self, thread: thread::JoinHandle<()>) {
        self.gate.open.store(true, Ordering::SeqCst);
        thread.join().unwrap();
    }

    fn end(self) {
        self.freed(0, SLOTS);
        assert_eq!(self.cache.report().stored_pages, 0);
        self.cache.close(self.memory());
    }
}

/// A slot is filled anew, and not freed before, while the writeback of its older page begins. It ends when
/// the newer page has just been stored.
#[test]
fn a_page_stored_while_an_older_one_is_written_back_is_not_dropped() {
    let front = Front::nearly_full();
    front.gate.stops.store(7, Ordering::SeqCst);
    let page = get(front.frames, Order::ZERO);
    front.fill_small(page, 0x4e3);
    let inner = Front { gate: Arc::clone(&front.gate), ..front };
    let ended = Arc::new(AtomicBool::new(false));
    let (mut started, told) = (None, Arc::clone(&ended));
    let step = move |class| match class {
        LockClass::CompressedFront if started.is_none() && !told.load(Ordering::SeqCst) => {
            let (thread, over) = inner.pressure(100);
            while !inner.gate.stopped.load(Ordering::SeqCst) && !over.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            started = Some(thread);
        }
        LockClass::CompressedSlot => {
            if let Some(thread) = started.take() {
                inner.go(thread);
                told.store(true, Ordering::SeqCst);
            }
        }
        _ => {}
    };
    let front = Front { gate: Arc::clone(&front.gate), ..front };
    assert_eq!(after_all_holds(step, || front.write(7, page)), Submitted::Done(Ok(())));
    assert!(ended.load(Ordering::SeqCst));
    assert_eq!(front.read(7), 0x4e3, "an older page came back");
    front.end();
}

/// A slot is filled anew while its older page is being written back. The newer page gets its turn, too.
#[test]
fn a_page_that_was_stored_during_a_writeback_is_written_back_later() {
    let front = Front::nearly_full();
    let thread = front.stopped_in_slot_7();
    let page = get(front.frames, Order::ZERO);
    front.fill_small(page, 0x4e3);
    assert_eq!(front.write(7, page), Submitted::Done(Ok(())));
    // It is the oldest now, and the next to be written back.
    front.freed(20, SLOTS - 20);
    front.fill_slots(page, 200..300);
    front.go(thread);
    assert_eq!(front.read(7), 0x4e3);
    front.fill_slots(page, 300..400);
    assert_eq!(front.gate.page(7), Some(0x4e3), "it stays in the cache for ever");
    assert_eq!(front.read(7), 0x4e3);
    front.end();
}

/// A slot is freed while its page is written back: the device, which was told before it had the page, is told
/// again.
#[test]
fn a_device_keeps_no_page_of_a_slot_that_was_freed_during_its_writeback() {
    let front = Front::nearly_full();
    let thread = front.stopped_in_slot_7();
    front.freed(7, 1);
    front.go(thread);
    assert_eq!(front.gate.page(7), None, "the device keeps a page of a free slot");
    front.end();
}

/// A page that bypasses the cache waits for an older one of its slot, and hears of the end of its writeback.
#[test]
fn a_write_behind_a_writeback_waits_until_the_progress_changes() {
    let front = Front::nearly_full();
    let thread = front.stopped_in_slot_7();
    front.freed(7, 1);
    let page = get(front.frames, Order::ZERO);
    front.fill(page, 8);
    let mut progress = front.cache.progress();
    while let Submitted::Done(result) = front.write(7, page) {
        // There was room in the cache.
        assert_eq!(result, Ok(()));
        let other = get(front.frames, Order::ZERO);
        front.fill(other, 9);
        assert_eq!(front.write(600, other), Submitted::Done(Ok(())));
        progress = front.cache.progress();
    }
    front.go(thread);
    assert_ne!(front.cache.progress(), progress);
    assert_eq!(front.write(7, page), Submitted::Done(Ok(())));
    assert_eq!(front.read(7), 8);
    front.end();
}

/// Pages come and go in a cache that is never full.
#[test]
fn pages_that_are_written_and_freed_leave_nothing_behind() {
    for order in [Order::ZERO, Order::new(4).unwrap()] {
        let front = Front::new(1024);
        let page = get(front.frames, order);
        let pages = order.pages();
        (0..pages).for_each(|nth| front.fill_small(page.offset(nth), 0x4e3));
        let write = || {
            let io = PageIo { direction: Direction::Write, slot: 0, pfn: page, pages: pages as u32 };
            assert_eq!(submit(front.frames, front.cache, io), Submitted::Done(Ok(())));
        };
        write();
        let free = front.frames.reports().totals().free;
        for round in 0..40_000 / pages {
            write();
            if round % 2 == 0 {
                front.freed(0, pages);
            }
        }
        assert_eq!(front.frames.reports().totals().free, free, "each write takes memory");
        front.end();
    }
}

/// The device fails for a while: the cache keeps what it has, and loses nothing.
#[test]
fn pages_that_could_not_be_written_back_stay() {
    let front = Front::nearly_full();
    let kept: Vec<u64> = [7].into_iter().chain(20..20 + ROOM - 2).collect();
    let page = get(front.frames, Order::ZERO);
    front.gate.fails.store(true, Ordering::SeqCst);
    let failed = (100..160).filter(|&slot| {
        front.fill(page, slot);
        front.write(slot, page) == Submitted::Done(Err(DeviceError::Io))
    });
    assert!(failed.count() > 40);
    assert_eq!(front.cache.written_back(), 0);
    front.gate.fails.store(false, Ordering::SeqCst);
    kept.iter().for_each(|&slot| assert_eq!(front.read(slot), slot));
    front.freed(100, 60);
    front.fill_slots(page, 100..200);
    assert!(front.cache.written_back() > kept.len() as u64);
    kept.into_iter().chain(100..200).for_each(|slot| assert_eq!(front.read(slot), slot));
    front.end();
}

/// What no request of swap asks for is refused, and harms nothing.
#[test]
fn requests_outside_the_device_are_refused() {
    let front = Front::new(ROOM);
    let page = get(front.frames, Order::ZERO);
    for direction in [Direction::Read, Direction::Write] {
        for (slot, pages) in [(SLOTS, 1), (SLOTS - 1, 2), (u64::MAX, 1), (u64::MAX - 3, 8), (0, 513)] {
            let io = PageIo { direction, slot, pfn: page, pages };
            assert_eq!(
                submit(front.frames, front.cache, io),
                Submitted::Done(Err(DeviceError::OutOfRange)),
                "{io:?}"
            );
            assert_eq!(front.cache.cached(front.memory(), io), 0);
        }
    }
    front.freed(SLOTS + 1, 5);
    front.freed(u64::MAX, u64::MAX);
    front.end();
}

/// A device that says once that its queue is full, and has made room by then.
#[derive(Default)]
struct MakesRoom {
    asked: Arc<AtomicU64>,
    progress: AtomicU32,
}

impl SwapDevice<Machine> for MakesRoom {
    fn kind(&self) -> &'static str {
        "makes-room"
    }

    fn slots(&self) -> u64 {
        SLOTS
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::empty()
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, Machine>, _: PageIo) -> Submitted {
        if self.asked.fetch_add(1, Ordering::SeqCst) > 0 {
            return Submitted::Begun;
        }
        self.progress.fetch_add(1, Ordering::SeqCst);
        memory.platform().unpark(self.wait_key());
        Submitted::QueueFull
    }

    fn progress(&self) -> u32 {
        self.progress.load(Ordering::SeqCst)
    }
}

/// Hazard: the device behind has room again before a part that it refused is put back. What made room did not
/// find the part, and nothing asks for it again.
#[test]
fn a_part_is_asked_for_again_when_the_device_behind_made_room() {
    run_on(0);
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::All);
    let behind = MakesRoom::default();
    let asked = Arc::clone(&behind.asked);
    let cache = CompressedCache::new(&frames, behind, ROOM * PAGE_SIZE).unwrap();
    let pfn = get(&frames, Order::new(1).unwrap());
    let io = PageIo { direction: Direction::Write, slot: 0, pfn, pages: 1 };
    assert_eq!(submit(&frames, &cache, io), Submitted::Done(Ok(())));
    let both = PageIo { direction: Direction::Read, pages: 2, ..io };
    let (before, after) = (cache.progress(), submit(&frames, &cache, both));
    assert_eq!((after, cache.progress()), (Submitted::Begun, before.wrapping_add(1)));
    assert_eq!(asked.load(Ordering::SeqCst), 2, "the part waits, and nothing asks for it");
}
