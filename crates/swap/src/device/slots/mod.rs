//! A device's state for each slot: one word, in a frame allocated when the first of its 512 slots is used.

mod word;

pub(super) use word::{Contents, GRAIN, Location};

use super::DeviceError;
use super::memory::{WORDS, frame_for_contents, give_back, own_block, words_of};
use super::section::Section;
use core::fmt;
use core::marker::PhantomData;
use quire_arch::{LockClass, Order, Pfn, Pin, Platform};
use quire_frame::{AllocError, FailSite, Frames};
use quire_sync::atomic::raw::{AtomicU64, Ordering};
use word::{LOCKED, pack, unpack};

/// Slots whose words lie in one frame.
const CHUNK: u64 = WORDS as u64;
/// The most slots that a device can have: the frames of words are found through one block, which is 4 MiB at
/// most.
pub(super) const MAX_SLOTS: u64 = Order::MAX.bytes() / size_of::<u64>() as u64 * CHUNK;

/// A word for each slot.
///
/// The directory has a word for each 512 slots: zero, or the frame that holds their words.
pub(super) struct SlotTable<P> {
    slots: u64,
    site: FailSite,
    directory: Pfn,
    platform: PhantomData<fn() -> P>,
}

impl<P: Platform> SlotTable<P> {
    /// A table of empty slots.
    pub(super) fn new(frames: &Frames<P>, slots: u64, site: FailSite) -> Result<Self, AllocError> {
        let bytes = Self::directory_bytes(slots);
        let (directory, _) = own_block(frames, &frames.platform().pin(), bytes, site)?;
        Ok(Self { slots, site, directory, platform: PhantomData })
    }

    fn directory_bytes(slots: u64) -> u64 {
        slots.div_ceil(CHUNK) * size_of::<u64>() as u64
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> u64 {
        self.slots
    }

    fn directory(&self, frames: &Frames<P>, number: u64) -> &AtomicU64 {
        debug_assert!(number < self.slots.div_ceil(CHUNK));
        let first = frames.platform().direct_map(self.directory).cast::<AtomicU64>();
        // SAFETY: the directory is the table's, has a word for each chunk, and is only accessed by atomics.
        // It stays until `close`, which comes after the last section.
        unsafe { first.add(number as usize).as_ref() }
    }

    /// The word of `slot`, if there is a frame for it.
    #[inline]
    fn find<'s>(&'s self, frames: &'s Frames<P>, slot: u64) -> Option<&'s AtomicU64> {
        if slot >= self.slots {
            return None;
        }
        // Pairs with the exchange in `make_chunk`: a thread that sees the frame sees its zeros.
        let chunk = self.directory(frames, slot / CHUNK).load(Ordering::Acquire);
        if chunk == 0 {
            return None;
        }
        // SAFETY: what the directory names is a frame of words of this table, which stays as the directory
        // does.
        Some(unsafe { &words_of(frames, Pfn(chunk))[(slot % CHUNK) as usize] })
    }

    /// Makes sure that `slot` has a word.
    #[inline]
    pub(super) fn prepare(&self, section: &Section<'_, P>, slot: u64) -> Result<(), DeviceError> {
        if slot >= self.slots {
            return Err(DeviceError::OutOfRange);
        }
        let entry = self.directory(section.frames, slot / CHUNK);
        if entry.load(Ordering::Relaxed) == 0 { self.make_chunk(section, entry) } else { Ok(()) }
    }

    #[cold]
    fn make_chunk(&self, section: &Section<'_, P>, entry: &AtomicU64) -> Result<(), DeviceError> {
        let request = frame_for_contents(self.site).zeroed();
        let chunk = section.frames.allocate(section.pin, request).map_err(|_| DeviceError::NoSpace)?;
        // Frame 0 could not be distinguished from none. It is boot memory on every real machine.
        let lost = chunk == Pfn(0)
            || entry.compare_exchange(0, chunk.0, Ordering::AcqRel, Ordering::Relaxed).is_err();
        if lost {
            give_back(section.frames, section.pin, chunk, Order::ZERO);
        }
        if chunk == Pfn(0) { Err(DeviceError::NoSpace) } else { Ok(()) }
    }

    /// Locks the slot's word; none if nothing was ever written near it.
    ///
    /// Spins. The holder is pinned, by the section.
    #[inline]
    pub(super) fn lock<'s>(&'s self, section: &Section<'s, P>, slot: u64) -> Option<LockedSlot<'s, P>> {
        let word = self.find(section.frames, slot)?;
        if cfg!(debug_assertions) {
            P::lock_taken(LockClass::CompressedSlot);
        }
        let mut attempt = 0;
        loop {
            let seen = word.load(Ordering::Relaxed);
            if seen & LOCKED == 0
                && word
                    .compare_exchange_weak(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Some(LockedSlot { word, seen, ordered: true, platform: PhantomData });
            }
            P::relax(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// Locks the slot's word if it is free and the slot's contents are an object at `location`. Never waits,
    /// so that it may be called with locks that come after the slot's.
    pub(super) fn try_lock_at<'s>(
        &'s self,
        section: &Section<'s, P>,
        slot: u64,
        location: Location,
    ) -> Option<LockedSlot<'s, P>> {
        let word = self.find(section.frames, slot)?;
        let seen = word.load(Ordering::Relaxed);
        if seen & LOCKED != 0 || unpack(seen).location() != Some(location) {
            return None;
        }
        word.compare_exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(LockedSlot { word, seen, ordered: false, platform: PhantomData })
    }

    /// Takes the contents of every slot and then the table's frames: no thread is in a section, and none
    /// begins.
    pub(super) fn close(&self, frames: &Frames<P>, mut release: impl FnMut(&Pin<'_, P>, Contents)) {
        for number in 0..self.slots.div_ceil(CHUNK) {
            let chunk = self.directory(frames, number).swap(0, Ordering::Relaxed);
            if chunk == 0 {
                continue;
            }
            let pin = &frames.platform().pin();
            // SAFETY: as in `find`; it is freed after the last use.
            let words = unsafe { words_of(frames, Pfn(chunk)) };
            words
                .iter()
                .map(|word| unpack(word.load(Ordering::Relaxed)))
                .for_each(|contents| release(pin, contents));
            give_back(frames, pin, Pfn(chunk), Order::ZERO);
        }
        if let Some(order) = Order::for_bytes(Self::directory_bytes(self.slots)) {
            give_back(frames, &frames.platform().pin(), self.directory, order);
        }
    }
}

impl<P> fmt::Debug for SlotTable<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotTable").field("slots", &self.slots).finish_non_exhaustive()
    }
}

/// A slot whose word is locked, until dropped.
pub(super) struct LockedSlot<'s, P: Platform> {
    word: &'s AtomicU64,
    seen: u64,
    /// Reported to the check of the locks' order: it could have waited.
    ordered: bool,
    platform: PhantomData<*const P>,
}

impl<P: Platform> LockedSlot<'_, P> {
    /// The slot's contents.
    #[inline]
    pub(super) fn contents(&self) -> Contents {
        unpack(self.seen)
    }

    /// Replaces the contents and returns the old ones.
    #[inline]
    pub(super) fn replace(&mut self, contents: Contents) -> Contents {
        unpack(core::mem::replace(&mut self.seen, pack(contents)))
    }
}

impl<P: Platform> Drop for LockedSlot<'_, P> {
    #[inline]
    fn drop(&mut self) {
        // Pairs with the exchange in `lock`: the next holder sees what the contents name.
        self.word.store(self.seen, Ordering::Release);
        if cfg!(debug_assertions) && self.ordered {
            P::lock_dropped(LockClass::CompressedSlot);
        }
    }
}
