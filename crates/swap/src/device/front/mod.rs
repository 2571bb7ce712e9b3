//! A compressed cache in front of a device (Linux's zswap).
//!
//! Written pages are compressed into RAM, and none reaches the device behind while the cache has room. At the
//! limit, new pages bypass the cache, and its oldest pages are written back: copied out, written to the
//! device, and only then dropped from the cache.
//!
//! A slot's page is in the cache, or on the device, or under writeback, and then the cache still has it. The
//! pages of the cache are on an LRU list ([`Lru`]), the few under writeback are not ([`WriteBack`]), both
//! under one lock:
//!
//! - A thread that frees a slot, or stores a new page in it, first takes it off the list, so that no
//!   writeback of the older page begins, and marks one that is under way: its end drops nothing then.
//! - A thread that wants to write to a slot of which a page is under writeback, bypassing the cache, waits:
//!   two writes to one place of a device may land in any order. The end of a writeback, on whatever CPU it is
//!   noticed, changes [`progress`](SwapDevice::progress) and wakes it.
//! - A page that is stored while an older one of its slot is under writeback goes on the list at the end of
//!   that.
//!
//! A read tries the cache first, page by page. The device has all pages that the cache does not have: a page
//! is dropped only after it was written. So only those pages of a folio are read from the device
//! ([`PartReads`]).
//!
//! While the cache works at a folio of swap itself no report of the device ends its I/O
//! ([`take_io_in_hand`](quire_frame::FolioIo::take_in_hand)): neither while pages are compressed and
//! decompressed, nor while it is read in parts.
//!
//! Nothing here goes through the swap cache, so writeback never waits for a swap-in, or for itself.

mod counted;
mod leaving;
mod lru;
mod parts;
mod write_back;

use super::compressed::{CompressedStore, Lz4};
use super::memory::{frame_for_contents, give_back};
use super::{
    DeviceError, DeviceFlags, DeviceMemory, DeviceReport, Direction, PageIo, Submitted, SwapDevice,
    keep_for_ever, slots_inside,
};
use arrayvec::ArrayVec;
use core::fmt;
use core::ops::Range;
use leaving::{Outcome, WriteBack};
use lru::Lru;
use parts::{AT_ONCE, Part, PartReads, Whole, give_back_io, note};
use quire_arch::{LockClass, Order, Pfn, Platform};
use quire_frame::{AllocError, FailSite, Frames, InHand};
use quire_memcg::{MemcgId, Memcgs};
use quire_sync::SpinLock;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};

const SITE: FailSite = FailSite::new("zswap");

/// Pages that a thread writes back when it finds the cache full.
const SENT_AT_ONCE: usize = 4;
/// Slots that change under one hold of the lock.
const HOLD: u64 = 32;
/// Of so many of the oldest pages one is sought that may be written back.
const LOOKS: u32 = 256;

/// The state behind the lock.
#[derive(Debug)]
struct State {
    back: WriteBack,
    parts: PartReads,
    /// Completed reads in parts that were not reported yet. With the reads in parts there are [`AT_ONCE`].
    done: ArrayVec<Whole, AT_ONCE>,
}

/// How a request goes on.
enum Step {
    /// It is complete, with success or an error, or it has to be begun again.
    Here(Submitted),
    /// The cache reads it in parts.
    InParts,
    /// The device behind is to do it.
    Behind,
}

/// A device with a compressed cache in front.
pub struct CompressedCache<P: Platform, D> {
    store: CompressedStore<P>,
    behind: D,
    /// Of the device behind.
    flags: DeviceFlags,
    state: SpinLock<State, P>,
    written_back: AtomicU64,
    /// Reads that wait in the state to be reaped.
    done: AtomicU32,
    /// Changes whenever a request that found no room, or an older page in its way, may go on.
    progress: AtomicU32,
}

impl<P: Platform, D: SwapDevice<P>> CompressedCache<P, D> {
    /// `behind` with a cache that takes up to `limit` bytes of RAM.
    ///
    /// # Errors
    ///
    /// As for [`CompressedStore::new`]; the device is closed and dropped then.
    #[doc(hidden)]
    pub fn new(frames: &Frames<P>, behind: D, limit: u64) -> Result<Self, AllocError> {
        let (slots, flags) = (behind.slots(), behind.flags());
        let made = CompressedStore::new(frames, slots, Lz4).and_then(|store| {
            let lru = Lru::new(frames, &frames.platform().pin(), slots, SITE);
            let lru = lru.inspect_err(|_| store.close(frames))?;
            Ok((store, lru))
        });
        // What the device has of the machine's memory would be lost with it.
        let (store, lru) = made.inspect_err(|_| behind.close(DeviceMemory::new(frames)))?;
        store.set_limit(Some(limit));
        let state = State { back: WriteBack::new(lru), parts: PartReads::default(), done: ArrayVec::new() };
        Ok(Self {
            store,
            behind,
            flags,
            state: SpinLock::new(LockClass::CompressedFront, state),
            written_back: AtomicU64::new(0),
            done: AtomicU32::new(0),
            progress: AtomicU32::new(0),
        })
    }

    /// Pages that were written back to the device.
    #[doc(hidden)]
    pub fn written_back(&self) -> u64 {
        self.written_back.load(Ordering::Relaxed)
    }

    /// The frames of `memory`, if that is the machine that the cache was made on: its list is of those.
    fn own<'f>(&self, memory: DeviceMemory<'f, P>) -> Option<&'f Frames<P>> {
        Some(memory.frames()).filter(|frames| self.store.is_of(frames))
    }

    /// Whether it asks for slots that there are, and for no more than a folio has.
    fn inside(&self, io: PageIo) -> Result<(), DeviceError> {
        slots_inside(self.behind.slots(), io)?;
        if u64::from(io.pages) <= Order::PMD.pages() { Ok(()) } else { Err(DeviceError::OutOfRange) }
    }

    fn is_synchronous(&self) -> bool {
        self.flags.contains(DeviceFlags::SYNCHRONOUS)
    }

    fn slots_of(io: PageIo) -> impl Iterator<Item = (u64, Pfn)> {
        (0..u64::from(io.pages)).map(move |nth| (io.slot + nth, io.pfn.offset(nth)))
    }

    /// Calls `change` with the state and some of the slots after the other, in holds of bounded length.
    fn in_holds(
        &self,
        frames: &Frames<P>,
        slots: &Range<u64>,
        mut change: impl FnMut(&mut WriteBack, Range<u64>),
    ) {
        let mut at = slots.start;
        while at < slots.end {
            let end = slots.end.min(at + HOLD);
            let _pin = frames.platform().pin();
            change(&mut self.state.lock().back, at..end);
            at = end;
        }
    }

    /// The slots are about to be freed or filled anew.
    fn take(&self, memory: DeviceMemory<'_, P>, slots: &Range<u64>) {
        let frames = memory.frames();
        self.in_holds(frames, slots, |back, some| {
            back.take(frames, some.clone());
            some.for_each(|slot| self.count_for(memory, &mut back.lru, slot, MemcgId::ROOT));
        });
    }

    /// Makes sure that the slots can be put on the list: after that nothing allocates.
    fn prepare(&self, frames: &Frames<P>, slots: &Range<u64>) -> Result<(), AllocError> {
        loop {
            let pin = frames.platform().pin();
            let missing = self.state.lock().back.lru.missing_chunk(frames, slots.clone());
            let Some(chunk) = missing else { return Ok(()) };
            let frame = frames.allocate(&pin, frame_for_contents(SITE).zeroed())?;
            if !self.state.lock().back.lru.add_chunk(frames, chunk, frame) {
                // Another thread was first; or the frame is none that can be told from none.
                give_back(frames, &pin, frame, Order::ZERO);
                if frame == Pfn(0) {
                    return Err(AllocError::OutOfMemory);
                }
            }
        }
    }

    /// Stores all pages, or none: then the slots are empty, for what they had is older than what the caller
    /// writes elsewhere.
    fn store_all(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> bool {
        let (frames, slots) = (memory.frames(), io.slot..io.slot + u64::from(io.pages));
        self.take(memory, &slots);
        let stored = self.prepare(frames, &slots).is_ok()
            && Self::slots_of(io).all(|(slot, pfn)| self.store.store(frames, slot, pfn).is_ok());
        if stored {
            let memcg = MemcgId::from_bits(frames.known(io.pfn).as_folio().memcg());
            self.in_holds(frames, &slots, |back, some| {
                some.clone().for_each(|slot| self.count_for(memory, &mut back.lru, slot, memcg));
                back.filled(frames, some);
            });
        } else {
            slots.for_each(|slot| self.store.free(frames, slot));
        }
        stored
    }

    fn write(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Step {
        let frames = memory.frames();
        // The folio is in the swap cache and locked: its memcg stays.
        let memcg = MemcgId::from_bits(frames.known(io.pfn).as_folio().memcg());
        let zswap = memory.memcgs().map(Memcgs::zswap);
        // As Linux: a memcg at its limit goes on if a page of it can go.
        let is_allowed =
            zswap.is_none_or(|zswap| zswap.may_store(memcg)) || self.send_one(memory, Some(memcg));
        if is_allowed && self.store_all(memory, io) {
            return Step::Here(Submitted::Done(Ok(())));
        }
        if !is_allowed {
            self.forget(memory, io);
        } else {
            self.send_oldest(memory);
        }
        if zswap.is_some_and(|zswap| !zswap.writes_back(memcg)) {
            // It stays in memory.
            return Step::Here(Submitted::Done(Err(DeviceError::NoSpace)));
        }
        // An older page for the same place may be on its way. None begins after this: the slots are on no
        // list.
        if self.is_leaving(frames, io) { Step::Here(Submitted::QueueFull) } else { Step::Behind }
    }

    /// What the slots have is older than what is written elsewhere.
    fn forget(&self, memory: DeviceMemory<'_, P>, io: PageIo) {
        let slots = io.slot..io.slot + u64::from(io.pages);
        self.take(memory, &slots);
        slots.for_each(|slot| self.store.free(memory.frames(), slot));
    }

    fn is_leaving(&self, frames: &Frames<P>, io: PageIo) -> bool {
        let _pin = frames.platform().pin();
        self.state.lock().back.is_leaving(&(io.slot..io.slot + u64::from(io.pages)))
    }

    /// A request that found no room, or an older page in its way, may go on: what is in its way is gone.
    fn move_on(&self, frames: &Frames<P>) {
        // Release: pairs with the loads of the threads that wait.
        self.progress.fetch_add(1, Ordering::Release);
        frames.platform().unpark(self.wait_key());
    }

    /// # Safety
    ///
    /// As for [`submit`](SwapDevice::submit).
    unsafe fn read(&self, frames: &Frames<P>, io: PageIo, in_hand: InHand) -> Step {
        let (mut found, mut missing) = (0, Default::default());
        for (nth, (slot, pfn)) in (0..).zip(Self::slots_of(io)) {
            match self.store.load(frames, slot, pfn) {
                Ok(true) => found += 1,
                Ok(false) => note(&mut missing, nth),
                Err(error) => return Step::Here(Submitted::Done(Err(error))),
            }
        }
        if found == u64::from(io.pages) {
            return Step::Here(Submitted::Done(Ok(())));
        }
        if found == 0 {
            return Step::Behind;
        }
        let mut parts = PartReads::default();
        if self.is_synchronous() && parts.begin((io, in_hand), missing) {
            // SAFETY: the caller's promise.
            return Step::Here(Submitted::Done(unsafe { self.read_now(frames, &mut parts) }));
        }
        let begun = {
            let _pin = frames.platform().pin();
            let mut state = self.state.lock();
            // Each of them may have to wait until it is reaped.
            state.parts.len() + state.done.len() < AT_ONCE && state.parts.begin((io, in_hand), missing)
        };
        if !begun {
            return Step::Here(Submitted::QueueFull);
        }
        self.ask(frames);
        Step::InParts
    }

    /// Reads the pages of `parts` from a device that completes at once.
    ///
    /// # Safety
    ///
    /// As for [`submit`](SwapDevice::submit), for the pages of `parts`.
    unsafe fn read_now(&self, frames: &Frames<P>, parts: &mut PartReads) -> Result<(), DeviceError> {
        while let Some(Part { page, .. }) = parts.next() {
            // SAFETY: the caller's promise.
            match unsafe { self.behind.submit(DeviceMemory::new(frames), page) } {
                Submitted::Done(result) => result?,
                Submitted::QueueFull => return Err(DeviceError::Io),
                Submitted::Begun => {
                    keep_for_ever(frames, page);
                    return Err(DeviceError::Io);
                }
            }
        }
        Ok(())
    }

    /// Asks the device for pages that are read in parts, as long as it takes requests.
    fn ask(&self, frames: &Frames<P>) {
        loop {
            let progress = self.progress();
            let part = {
                let _pin = frames.platform().pin();
                self.state.lock().parts.next()
            };
            let Some(part) = part else { return };
            // SAFETY: the page is of a read that was submitted here, and that is not reported before its last
            // page.
            match unsafe { self.behind.submit(DeviceMemory::new(frames), part.page) } {
                Submitted::Begun => {}
                Submitted::Done(result) => self.keep_done(frames, part, result),
                Submitted::QueueFull => {
                    {
                        let _pin = frames.platform().pin();
                        self.state.lock().parts.put_back(part);
                    }
                    // A thread that made room before the page was back did not find it, and may have been the
                    // last that looks. One that comes later does.
                    if self.progress() == progress {
                        return;
                    }
                }
            }
        }
    }

    /// A part completed at once. If it was the last, the next reap reports the whole read.
    fn keep_done(&self, frames: &Frames<P>, part: Part, result: Result<(), DeviceError>) {
        {
            let _pin = frames.platform().pin();
            let mut state = self.state.lock();
            // Under one hold: it keeps its place among the reads in parts until it is among those that are
            // done.
            let Some(whole) = state.parts.finish(part, result) else { return };
            let kept = state.done.try_push(whole);
            debug_assert!(kept.is_ok(), "there are no more of them than reads in parts");
            // Release: pairs with the load in `has_done`.
            self.done.store(state.done.len() as u32, Ordering::Release);
        }
        frames.platform().unpark(self.wait_key());
    }

    /// The device reports a read. `None` if that is none in parts; else the whole one, if this was the last
    /// page of it.
    fn reported(
        &self,
        frames: &Frames<P>,
        io: PageIo,
        result: Result<(), DeviceError>,
    ) -> Option<Option<Whole>> {
        let _pin = frames.platform().pin();
        let mut state = self.state.lock();
        // This one is reported below.
        let is_done = state.done.iter().any(|done| done.io == io);
        if is_done { Some(None) } else { state.parts.reported(io, result) }
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
        self.flags | DeviceFlags::NOTES_FREED
    }

    fn is_of(&self, memory: DeviceMemory<'_, P>) -> bool {
        self.own(memory).is_some() && self.behind.is_of(memory)
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted {
        let Some(frames) = self.own(memory) else { return Submitted::Done(Err(DeviceError::Io)) };
        if let Err(error) = self.inside(io) {
            return Submitted::Done(Err(error));
        }
        let frame = frames.known(io.pfn);
        let in_hand = frame.io().take_in_hand::<P>(u64::from(io.pages));
        if in_hand == InHand::NotAsked && !self.is_synchronous() {
            // The device behind reported it before it could be asked: the caller finds that it has ended.
            return Submitted::QueueFull;
        }
        let step = match io.direction {
            // SAFETY: the caller's promise.
            Direction::Read => unsafe { self.read(frames, io, in_hand) },
            Direction::Write => self.write(memory, io),
        };
        match step {
            // `reap` gives it back.
            Step::InParts => Submitted::Begun,
            Step::Here(submitted) => {
                give_back_io(frame, in_hand);
                submitted
            }
            Step::Behind => {
                give_back_io(frame, in_hand);
                // SAFETY: the caller's promise: this returns, and `reap` reports, what the device behind
                // does.
                unsafe { self.behind.submit(memory, io) }
            }
        }
    }

    fn cached(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> u64 {
        let Some(frames) = self.own(memory).filter(|_| self.inside(io).is_ok()) else { return 0 };
        Self::slots_of(io).filter(|&(slot, _)| self.store.has(frames, slot)).count() as u64
    }

    fn reap(&self, memory: DeviceMemory<'_, P>, done: &mut dyn FnMut(PageIo, Result<(), DeviceError>)) {
        let Some(frames) = self.own(memory) else { return };
        let mut any = false;
        self.behind.reap(memory, &mut |io, result| {
            any = true;
            match io.direction {
                Direction::Write => match self.sent(frames, io) {
                    Some(copied) => {
                        let outcome = if result.is_ok() { Outcome::Written } else { Outcome::Failed };
                        // Below, all are told.
                        self.left(memory, copied, outcome);
                    }
                    None => done(io, result),
                },
                Direction::Read => match self.reported(frames, io, result) {
                    None => done(io, result),
                    Some(None) => {}
                    Some(Some(whole)) => whole.report(frames, done),
                },
            }
        });
        if any {
            // The caller is not told of copies and parts, but they made room.
            self.move_on(frames);
        }
        self.ask(frames);
        loop {
            let whole = {
                let _pin = frames.platform().pin();
                let mut state = self.state.lock();
                let whole = state.done.pop();
                self.done.store(state.done.len() as u32, Ordering::Release);
                whole
            };
            let Some(whole) = whole else { return };
            whole.report(frames, done);
        }
    }

    fn has_done(&self) -> bool {
        self.behind.has_done() || self.done.load(Ordering::Acquire) != 0
    }

    fn wait_key(&self) -> usize {
        self.behind.wait_key()
    }

    fn progress(&self) -> u32 {
        // Acquire: pairs with the release in `move_on`.
        self.progress.load(Ordering::Acquire).wrapping_add(self.behind.progress())
    }

    fn freed(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        let Some(frames) = self.own(memory) else { return };
        let slots = slot..slot.saturating_add(count).min(self.slots());
        self.take(memory, &slots);
        slots.clone().for_each(|slot| self.store.free(frames, slot));
        if self.flags.contains(DeviceFlags::NOTES_FREED) && !slots.is_empty() {
            self.behind.freed(memory, slot, slots.end - slots.start);
        }
    }

    fn recharged(&self, memory: DeviceMemory<'_, P>, (slot, count): (u64, u64), to: MemcgId) {
        if self.own(memory).is_some() {
            self.count_elsewhere(memory, slot..slot.saturating_add(count).min(self.slots()), to);
            self.behind.recharged(memory, (slot, count), to);
        }
    }

    fn discard(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        if self.own(memory).is_some() {
            self.behind.discard(memory, slot, count);
        }
    }

    fn compact(&self, memory: DeviceMemory<'_, P>, wanted: u64) -> u64 {
        let frames = memory.frames();
        let freed = self.store.compact(frames, wanted) / quire_arch::PAGE_SIZE;
        if freed < wanted { freed.saturating_add(self.behind.compact(memory, wanted - freed)) } else { freed }
    }

    fn report(&self) -> DeviceReport {
        DeviceReport {
            is_cache: true,
            written_back_pages: self.written_back(),
            ..self.store.statistics().report()
        }
    }

    fn close(&self, memory: DeviceMemory<'_, P>) {
        let Some(frames) = self.own(memory) else { return self.behind.close(memory) };
        // Pages under writeback are not needed any more, and the device reads no copy after this, also one
        // that has not told of all ends.
        self.behind.close(memory);
        loop {
            let pin = frames.platform().pin();
            let Some(copy) = self.state.lock().back.abandon() else { break };
            give_back(frames, &pin, copy, Order::ZERO);
        }
        let lru = {
            let _pin = frames.platform().pin();
            core::mem::take(&mut self.state.lock().back.lru)
        };
        lru.close(frames);
        self.store.close(frames);
    }
}

impl<P: Platform, D> fmt::Debug for CompressedCache<P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompressedCache").field("store", &self.store).finish_non_exhaustive()
    }
}
