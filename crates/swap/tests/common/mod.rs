//! A machine with swap for tests and benches.

#[allow(dead_code, reason = "the tests of quire-frame use more of it")]
#[path = "../../../frame/tests/common/mod.rs"]
pub(crate) mod machine;

#[allow(unused_imports, reason = "not every test draws lots")]
pub(crate) use machine::{Machine, Random, order};

use quire_arch::{Order, PAGE_SIZE, Pfn, Platform};
use quire_frame::{AllocRequest, FrameChain, Kind, PcpTechnique};
use quire_memcg::Memcgs;
use quire_swap::{
    DeviceError, DeviceFlags, DeviceMemory, Direction, PageIo, Seen, SlotId, Submitted, Swap, SwapDevice,
    SwapTechnique, SwapViolation,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What a test knows of its device while the swap has it.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) freed: AtomicU64,
    pub(crate) discarded: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) closed: AtomicBool,
    pub(crate) dropped: AtomicBool,
    pages: Mutex<std::collections::HashMap<u64, Vec<u8>>>,
    queue: Mutex<VecDeque<PageIo>>,
}

/// A device in memory of the test. With a queue it completes only when it is polled.
pub(crate) struct TestDevice {
    pub(crate) slots: u64,
    pub(crate) flags: DeviceFlags,
    pub(crate) queue: usize,
    pub(crate) watch: Arc<Watch>,
}

impl TestDevice {
    pub(crate) fn new(slots: u64) -> Self {
        let flags = DeviceFlags::SYNCHRONOUS | DeviceFlags::NOTES_FREED;
        Self { slots, flags, queue: 0, watch: Arc::default() }
    }

    fn transfer(&self, memory: DeviceMemory<'_, Machine>, io: PageIo) -> Result<(), DeviceError> {
        if io.slot + u64::from(io.pages) > self.slots {
            return Err(DeviceError::OutOfRange);
        }
        for nth in 0..u64::from(io.pages) {
            let page = memory.platform().direct_map(io.pfn.offset(nth)).as_ptr();
            let mut pages = self.watch.pages.lock().expect("no test panicked under it");
            match io.direction {
                Direction::Write => {
                    let mut data = vec![0; PAGE_SIZE as usize];
                    // SAFETY: a frame of the machine, which the request keeps.
                    unsafe { page.copy_to_nonoverlapping(data.as_mut_ptr(), data.len()) };
                    pages.insert(io.slot + nth, data);
                    self.watch.written.fetch_add(1, Ordering::Relaxed);
                }
                Direction::Read => {
                    let data = pages.get(&(io.slot + nth)).ok_or(DeviceError::Corrupt)?;
                    // SAFETY: a frame of the machine, which the request keeps.
                    unsafe { page.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
                }
            }
        }
        Ok(())
    }
}

impl Drop for TestDevice {
    fn drop(&mut self) {
        self.watch.dropped.store(true, Ordering::Relaxed);
    }
}

impl SwapDevice<Machine> for TestDevice {
    fn kind(&self) -> &'static str {
        "test"
    }

    fn slots(&self) -> u64 {
        self.slots
    }

    fn flags(&self) -> DeviceFlags {
        self.flags
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, Machine>, io: PageIo) -> Submitted {
        if self.queue == 0 {
            return Submitted::Done(self.transfer(memory, io));
        }
        let mut queue = self.watch.queue.lock().expect("no test panicked under it");
        if queue.len() == self.queue {
            return Submitted::QueueFull;
        }
        queue.push_back(io);
        Submitted::Begun
    }

    fn reap(&self, memory: DeviceMemory<'_, Machine>, done: &mut dyn FnMut(PageIo, Result<(), DeviceError>)) {
        while let Some(io) = self.watch.queue.lock().expect("no test panicked under it").pop_front() {
            done(io, self.transfer(memory, io));
        }
    }

    fn has_done(&self) -> bool {
        !self.watch.queue.lock().expect("no test panicked under it").is_empty()
    }

    fn freed(&self, _memory: DeviceMemory<'_, Machine>, slot: u64, count: u64) {
        self.watch.freed.fetch_add(count, Ordering::Relaxed);
        let mut pages = self.watch.pages.lock().expect("no test panicked under it");
        for slot in slot..slot + count {
            pages.remove(&slot);
        }
    }

    fn discard(&self, _memory: DeviceMemory<'_, Machine>, _slot: u64, count: u64) {
        self.watch.discarded.fetch_add(count, Ordering::Relaxed);
    }

    fn close(&self, _memory: DeviceMemory<'_, Machine>) {
        self.watch.closed.store(true, Ordering::Relaxed);
    }
}

/// A machine with `frames` frames and `cpus` CPUs, and no device.
pub(crate) fn swap(frames: u64, cpus: usize, technique: SwapTechnique) -> Swap<Machine> {
    let frames = machine::frames(&[(0, frames)], cpus, PcpTechnique::All);
    Swap::new(Memcgs::new(frames).expect("the memcgs find memory"), technique)
}

/// A folio of the test: one reference, nothing maps it. Its contents are not zeros.
pub(crate) fn folio(swap: &Swap<Machine>, order: Order) -> Pfn {
    let pin = swap.platform().pin();
    let request = AllocRequest::new(order, machine::TEST).kind(Kind::Anonymous);
    let head = swap.frames().allocate(&pin, request).expect("memory is free");
    swap.frames().known(head).as_folio().set_memcg(0);
    for nth in 0..order.pages() {
        fill(swap, head.offset(nth), 1 + nth);
    }
    head
}

/// Writes a number to the page.
pub(crate) fn fill(swap: &Swap<Machine>, page: Pfn, value: u64) {
    let words = swap.platform().direct_map(page).cast::<AtomicU64>();
    // SAFETY: a frame of the machine, which the test has.
    let words = unsafe { std::slice::from_raw_parts(words.as_ptr(), 512) };
    words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
}

/// What was written to the page.
pub(crate) fn value(swap: &Swap<Machine>, page: Pfn) -> u64 {
    let word = swap.platform().direct_map(page).cast::<AtomicU64>();
    // SAFETY: as in `fill`.
    unsafe { word.as_ref() }.load(Ordering::Relaxed)
}

/// Drops a reference to a folio.
pub(crate) fn put(swap: &Swap<Machine>, head: Pfn) {
    let mut chain = FrameChain::new();
    let order = swap.frames().known(head).word().order();
    swap.frames().folios().put_folio(&mut chain, head, order).expect("the folio can go");
    swap.frames().free_chain(&swap.platform().pin(), chain);
}

/// The largest order at which a folio could be inserted for the block around `slot`; none if not even one
/// page could.
pub(crate) fn order_to_insert(swap: &Swap<Machine>, slot: SlotId) -> Option<Order> {
    match swap.cache().look(slot, Order::PMD) {
        Seen::Out { order, .. } => Some(order),
        Seen::Cached(page) => {
            swap.memcgs().folios().release_folio(swap.frames().folio(page).head());
            None
        }
        Seen::Gone => None,
    }
}

/// Everything that is wrong.
pub(crate) fn violations(swap: &Swap<Machine>) -> Vec<SwapViolation> {
    let mut found = Vec::new();
    swap.audit().validate(&mut |violation| found.push(violation));
    found
}

#[track_caller]
pub(crate) fn assert_sound(swap: &Swap<Machine>) {
    let found: Vec<String> = violations(swap).iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{found:#?}");
    machine::assert_sound(swap.frames());
}
