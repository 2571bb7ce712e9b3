//! A compressed cache in front of a device (Linux's zswap).
//!
//! Written pages are compressed into RAM, and none reaches the device behind while the cache has room. At the
//! limit, new pages bypass the cache, and its oldest pages are written back: copied out, written to the
//! device, and only then dropped from the cache.
//!
//! A slot's page is in the cache, or on the device, or under writeback, and then the cache still has it. The
//! few under writeback are in a list ([`Leaving`]), under a lock:
//!
//! - A thread that frees such a slot, or stores a new page in it, strikes it off: then the cache must not
//!   drop what it has.
//! - A thread that wants to write to such a slot, bypassing the cache, waits: two writes to one place of a
//!   device may land in any order.
//!
//! A read tries the cache first, page by page. The device has all pages that the cache does not have: a page
//! is dropped only after it was written. So only those pages of a folio are read from the device
//! ([`PartReads`]).
//!
//! Nothing here goes through the swap cache, so writeback never waits for a swap-in, or for itself.

mod ages;
mod parts;

use super::compressed::{CompressedStore, Lz4};
use super::memory::{frame_for_contents, give_back};
use super::{DeviceError, DeviceFlags, DeviceMemory, DeviceReport, Direction, PageIo, Submitted, SwapDevice};
use ages::Ages;
use arrayvec::ArrayVec;
use core::fmt;
use parts::{AT_ONCE, PartReads, note};
use quire_arch::{LockClass, Order, Pfn, Platform};
use quire_frame::{AllocError, FaultSite, Frames, VmEvent};
use quire_sync::SpinLock;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SITE: FaultSite = FaultSite::new("zswap");

/// The most pages under writeback at once.
const LEAVING: usize = 16;
/// Pages that a thread writes back when it finds the cache full.
const SENT_AT_ONCE: usize = 4;

/// A page under writeback.
struct Leaving {
    slot: u64,
    /// The copy that the device reads.
    frame: Pfn,
    /// Whether the slot was freed or refilled since.
    struck: bool,
}

/// The state behind the lock.
#[derive(Default)]
struct State {
    leaving: ArrayVec<Leaving, LEAVING>,
    ages: Ages,
    parts: PartReads,
    /// Completed reads in parts that were not reported yet.
    done: ArrayVec<(PageIo, Result<(), DeviceError>), AT_ONCE>,
}

/// A device with a compressed cache in front.
pub struct CompressedCache<P: Platform, D> {
    store: CompressedStore<P>,
    behind: D,
    state: SpinLock<State, P>,
    written_back: AtomicU64,
    /// Reads that wait in the state to be reaped.
    done: AtomicU32,
}

impl<P: Platform, D: SwapDevice<P>> CompressedCache<P, D> {
    /// `behind` with a cache that takes up to `limit` bytes of RAM.
    ///
    /// # Errors
    ///
    /// As for [`CompressedStore::new`].
    #[doc(hidden)]
    pub fn new(frames: &Frames<P>, behind: D, limit: u64) -> Result<Self, AllocError> {
        let store = CompressedStore::new(frames, behind.slots(), Lz4)?;
        store.set_limit(Some(limit));
        Ok(Self {
            store,
            behind,
            state: SpinLock::new(LockClass::CompressedFront, State::default()),
            written_back: AtomicU64::new(0),
            done: AtomicU32::new(0),
        })
    }

    /// Pages that were written back to the device.
    #[doc(hidden)]
    pub fn written_back(&self) -> u64 {
        self.written_back.load(Ordering::Relaxed)
    }

    fn slots_of(io: PageIo) -> impl Iterator<Item = (u64, Pfn)> {
        (0..u64::from(io.pages)).map(move |nth| (io.slot + nth, io.pfn.offset(nth)))
    }

    /// Strikes off pages under writeback of these slots. Returns whether there are any.
    fn strike(&self, frames: &Frames<P>, slot: u64, pages: u64) -> bool {
        let _pin = frames.platform().pin();
        let mut state = self.state.lock();
        let mut found = false;
        for page in &mut state.leaving {
            if page.slot.wrapping_sub(slot) < pages {
                page.struck = true;
                found = true;
            }
        }
        found
    }

    /// Stores all pages, or none.
    fn store_all(&self, frames: &Frames<P>, io: PageIo) -> bool {
        self.strike(frames, io.slot, u64::from(io.pages));
        for (slot, pfn) in Self::slots_of(io) {
            if self.store.store(frames, slot, pfn).is_err() {
                (io.slot..slot).for_each(|slot| self.store.free(frames, slot));
                return false;
            }
        }
        let pin = frames.platform().pin();
        let mut state = self.state.lock();
        Self::slots_of(io).for_each(|(slot, _)| state.ages.push(frames, &pin, slot as u32));
        self.forget_stale(frames, &mut state);
        true
    }

    /// Keeps the queue from growing by slots that were freed: there are hardly more numbers than pages.
    fn forget_stale(&self, frames: &Frames<P>, state: &mut State) {
        let pin = frames.platform().pin();
        let most = 2 * self.store.statistics().orig_data_size / quire_arch::PAGE_SIZE + 1024;
        for _ in 0..2 {
            if state.ages.len <= most {
                return;
            }
            if let Some(slot) = state.ages.pop(frames, &pin)
                && self.store.has(frames, u64::from(slot))
            {
                state.ages.push(frames, &pin, slot);
            }
        }
    }

    fn write(&self, frames: &Frames<P>, io: PageIo) -> Submitted {
        if self.store_all(frames, io) {
            return Submitted::Done(Ok(()));
        }
        self.send_oldest(frames);
        // An older page for the same place may be on its way. Its completion makes room in the device's
        // queue, too.
        if self.is_leaving(frames, io) {
            return Submitted::QueueFull;
        }
        Self::slots_of(io).for_each(|(slot, _)| self.store.free(frames, slot));
        self.behind.submit(DeviceMemory::new(frames), io)
    }

    fn is_leaving(&self, frames: &Frames<P>, io: PageIo) -> bool {
        let _pin = frames.platform().pin();
        let state = self.state.lock();
        state.leaving.iter().any(|page| page.slot.wrapping_sub(io.slot) < u64::from(io.pages))
    }

    fn read(&self, frames: &Frames<P>, io: PageIo) -> Submitted {
        let (mut found, mut missing) = (0, Default::default());
        for (nth, (slot, pfn)) in (0..).zip(Self::slots_of(io)) {
            match self.store.load(frames, slot, pfn) {
                Ok(true) => found += 1,
                Ok(false) => note(&mut missing, nth),
                Err(error) => return Submitted::Done(Err(error)),
            }
        }
        if found == u64::from(io.pages) {
            return Submitted::Done(Ok(()));
        }
        if found == 0 {
            return self.behind.submit(DeviceMemory::new(frames), io);
        }
        let mut parts = PartReads::default();
        let at_once = self.behind.flags().contains(DeviceFlags::SYNCHRONOUS);
        if at_once && parts.begin(io, missing) {
            return Submitted::Done(self.read_now(frames, &mut parts));
        }
        let begun = {
            let _pin = frames.platform().pin();
            let mut state = self.state.lock();
            // Each of them may have to wait until it is reaped.
            state.parts.len() + state.done.len() < AT_ONCE && state.parts.begin(io, missing)
        };
        if !begun {
            return Submitted::QueueFull;
        }
        self.ask(frames);
        Submitted::Begun
    }

    /// Reads the pages of `parts` from a device that completes at once.
    fn read_now(&self, frames: &Frames<P>, parts: &mut PartReads) -> Result<(), DeviceError> {
        while let Some(page) = parts.next() {
            match self.behind.submit(DeviceMemory::new(frames), page) {
                Submitted::Done(result) => result?,
                Submitted::Begun | Submitted::QueueFull => return Err(DeviceError::Io),
            }
        }
        Ok(())
    }

    /// Asks the device for pages that are read in parts, as long as it takes requests.
    fn ask(&self, frames: &Frames<P>) {
        loop {
            let page = {
                let _pin = frames.platform().pin();
                self.state.lock().parts.next()
            };
            let Some(page) = page else { return };
            match self.behind.submit(DeviceMemory::new(frames), page) {
                Submitted::Begun => {}
                Submitted::Done(result) => self.keep_done(frames, page, result),
                Submitted::QueueFull => {
                    let _pin = frames.platform().pin();
                    self.state.lock().parts.put_back(page);
                    return;
                }
            }
        }
    }

    /// A part completed at once. If it was the last, the next reap reports the whole read.
    fn keep_done(&self, frames: &Frames<P>, page: PageIo, result: Result<(), DeviceError>) {
        if let Some(Some(whole)) = self.finish_part(frames, page, result) {
            {
                let _pin = frames.platform().pin();
                // There are no more of them than reads in parts.
                let _ = self.state.lock().done.try_push(whole);
            }
            // Release: pairs with the load in `has_done`.
            self.done.fetch_add(1, Ordering::Release);
            frames.platform().unpark(self.wait_key());
        }
    }

    fn finish_part(
        &self,
        frames: &Frames<P>,
        page: PageIo,
        result: Result<(), DeviceError>,
    ) -> Option<Option<(PageIo, Result<(), DeviceError>)>> {
        let _pin = frames.platform().pin();
        self.state.lock().parts.finish(page, result)
    }

    /// Starts writeback of the oldest pages.
    fn send_oldest(&self, frames: &Frames<P>) {
        for _ in 0..SENT_AT_ONCE {
            if !self.send_one(frames) {
                return;
            }
        }
    }

    fn send_one(&self, frames: &Frames<P>) -> bool {
        let Some((slot, frame)) = self.begin_leaving(frames) else { return false };
        let io = PageIo { direction: Direction::Write, slot, pfn: frame, pages: 1 };
        match self.store.load(frames, slot, frame) {
            Ok(true) => match self.behind.submit(DeviceMemory::new(frames), io) {
                Submitted::Begun => true,
                Submitted::Done(result) => {
                    self.left(frames, frame, result);
                    true
                }
                Submitted::QueueFull => {
                    self.left(frames, frame, Err(DeviceError::NoSpace));
                    false
                }
            },
            // It was freed meanwhile, or is damaged; its reader will get the error.
            Ok(false) | Err(_) => {
                self.left(frames, frame, Err(DeviceError::OutOfRange));
                true
            }
        }
    }

    /// The oldest page, with a frame for its copy, recorded as under writeback.
    fn begin_leaving(&self, frames: &Frames<P>) -> Option<(u64, Pfn)> {
        let pin = frames.platform().pin();
        let frame = frames.allocate(&pin, frame_for_contents(SITE)).ok()?;
        let mut state = self.state.lock();
        let mut found = None;
        while !state.leaving.is_full()
            && let Some(slot) = state.ages.pop(frames, &pin)
        {
            let slot = u64::from(slot);
            let again = state.leaving.iter().any(|page| page.slot == slot);
            if !again && self.store.has(frames, slot) {
                state.leaving.push(Leaving { slot, frame, struck: false });
                found = Some((slot, frame));
                break;
            }
        }
        drop(state);
        if found.is_none() {
            give_back(frames, &pin, frame, Order::ZERO);
        }
        found
    }

    /// The device has completed the page whose copy is in `frame`. If the write failed the page stays in the
    /// cache, as the youngest.
    fn left(&self, frames: &Frames<P>, frame: Pfn, result: Result<(), DeviceError>) {
        let pin = frames.platform().pin();
        {
            let mut state = self.state.lock();
            let Some(at) = state.leaving.iter().position(|page| page.frame == frame) else { return };
            let page = state.leaving.swap_remove(at);
            if page.struck {
                // The cache now has another page, or none.
            } else if result.is_ok() {
                // Under the lock: a thread that fills the slot anew strikes it off first.
                self.store.free(frames, page.slot);
                self.written_back.fetch_add(1, Ordering::Relaxed);
                frames.events().add(&pin, VmEvent::Zswpwb, 1);
                frames.events().add(&pin, VmEvent::Pswpout, 1);
            } else {
                state.ages.push(frames, &pin, page.slot as u32);
            }
        }
        give_back(frames, &pin, frame, Order::ZERO);
    }

    fn is_copy(&self, frames: &Frames<P>, io: PageIo) -> bool {
        let _pin = frames.platform().pin();
        io.direction == Direction::Write && self.state.lock().leaving.iter().any(|page| page.frame == io.pfn)
    }
}

impl<P: Platform, D: SwapDevice<P>> SwapDevice<P> for CompressedCache<P, D> {
    fn kind(&self) -> &'static str {
        self.behind.kind()
    }

    fn slots(&self) -> u64 {
        self.behind.slots()
    }

    fn flags(&self) -> DeviceFlags {
        self.behind.flags() | DeviceFlags::NOTES_FREED
    }

    fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted {
        let frames = memory.frames();
        match io.direction {
            Direction::Read => self.read(frames, io),
            Direction::Write => self.write(frames, io),
        }
    }

    fn cached(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> u64 {
        let frames = memory.frames();
        Self::slots_of(io).filter(|&(slot, _)| self.store.has(frames, slot)).count() as u64
    }

    fn reap(&self, memory: DeviceMemory<'_, P>, done: &mut dyn FnMut(PageIo, Result<(), DeviceError>)) {
        let frames = memory.frames();
        self.behind.reap(memory, &mut |io, result| match io.direction {
            Direction::Write if self.is_copy(frames, io) => self.left(frames, io.pfn, result),
            Direction::Write => done(io, result),
            Direction::Read => match self.finish_part(frames, io, result) {
                None => done(io, result),
                Some(None) => {}
                Some(Some((whole, result))) => done(whole, result),
            },
        });
        self.ask(frames);
        loop {
            let whole = {
                let _pin = frames.platform().pin();
                self.state.lock().done.pop()
            };
            let Some((whole, result)) = whole else { return };
            self.done.fetch_sub(1, Ordering::Relaxed);
            done(whole, result);
        }
    }

    fn has_done(&self) -> bool {
        self.behind.has_done() || self.done.load(Ordering::Acquire) != 0
    }

    fn wait_key(&self) -> usize {
        self.behind.wait_key()
    }

    fn freed(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        let frames = memory.frames();
        self.strike(frames, slot, count);
        (slot..slot.saturating_add(count).min(self.slots())).for_each(|slot| self.store.free(frames, slot));
        if self.behind.flags().contains(DeviceFlags::NOTES_FREED) {
            self.behind.freed(memory, slot, count);
        }
    }

    fn discard(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        self.behind.discard(memory, slot, count);
    }

    fn compact(&self, memory: DeviceMemory<'_, P>) -> u64 {
        let frames = memory.frames();
        self.store.compact(frames) / quire_arch::PAGE_SIZE + self.behind.compact(memory)
    }

    fn report(&self) -> DeviceReport {
        DeviceReport {
            is_cache: true,
            written_back_pages: self.written_back(),
            ..self.store.statistics().report()
        }
    }

    fn close(&self, memory: DeviceMemory<'_, P>) {
        let frames = memory.frames();
        // Pages under writeback are not needed any more, but the device still reads the copies.
        loop {
            self.reap(memory, &mut |_, _| {});
            let is_empty = {
                let _pin = frames.platform().pin();
                self.state.lock().leaving.is_empty()
            };
            if is_empty {
                break;
            }
            frames.platform().park(self.wait_key(), &mut || !self.has_done());
        }
        {
            let pin = frames.platform().pin();
            self.state.lock().ages.clear(frames, &pin);
        }
        self.store.close(frames);
        self.behind.close(DeviceMemory::new(frames));
    }
}

impl<P: Platform, D> fmt::Debug for CompressedCache<P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompressedCache").field("store", &self.store).finish_non_exhaustive()
    }
}
