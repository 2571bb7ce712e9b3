//! The descriptor of one frame.

mod folio_io;
mod folio_lock;
mod views;

pub use folio_io::{FolioIo, InHand};
pub use views::{DeferredLink, FolioFrame, OwnerWord, SlabFrame, TableFrame, ZspageFrame};

use super::migratetype::Migratetype;
use super::word::{FrameFlags, FrameState};
use crate::error::{FreeError, KindError};
use crate::kind::Kind;
use crate::zone_id::ZoneId;
// A hint orders nothing, so no model has to see it.
use core::sync::atomic::AtomicU16;
use quire_arch::{CpuId, Order};
use quire_sync::RawSpin;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The place of a frame's descriptor in the memory map. Lists link frames by it. Neighbouring frames need not
/// have neighbouring places.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub(crate) struct FrameIndex(pub(crate) u32);

impl FrameIndex {
    /// The end of a list.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// The index, or `None` at the end of a list.
    #[inline]
    pub(crate) const fn some(self) -> Option<Self> {
        if self.0 == u32::MAX { None } else { Some(self) }
    }
}

/// Whether a frame's lock may be held when the frame is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockCheck {
    /// The frame can be reused at once.
    MustBeFree,
    /// The frame may still have readers; they release the lock before it is reused.
    MayBeHeld,
}

/// The descriptor of one frame: one cache line.
///
/// For a block of several frames the first one's descriptor holds the state; the others are [`Kind::Tail`].
/// While a frame is free its state word and links belong to the list that it is on and change under that
/// list's lock. While it is allocated they belong to its user, except that the state word changes only by
/// atomic read-modify-write.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Frame {
    word: AtomicU64,
    /// Base pages of the block that page-table entries map, each as often as it is mapped.
    maps: AtomicU32,
    lock: RawSpin,
    next: AtomicU32,
    prev: AtomicU32,
    owner: AtomicU64,
    index: AtomicU64,
    private: AtomicU64,
    live: AtomicU32,
    audit: AtomicU32,
    /// The CPU whose list the block was allocated from.
    home: AtomicU16,
    zone: ZoneId,
    /// The memcg that the folio is charged to, and which of its lists the folio is on.
    memcg: AtomicU16,
    list: AtomicU16,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Frame>() == 64 && align_of::<Frame>() == 64);

/// A mapping of what may be a single page of private memory has gone, and is counted no more:
/// [`take_single`](Frame::take_single) if it was the only one.
#[inline]
pub(crate) fn unmap_single(frame: &Frame) -> SingleUnmapped {
    let unmapped = frame.take_single(false);
    if unmapped != SingleUnmapped::Mapped {
        return unmapped;
    }
    let maps = frame.maps.load(Ordering::Relaxed);
    // Ordered as where mappings are counted otherwise (`Folio::remove_maps`).
    let is_shared =
        maps > 1 && frame.maps.compare_exchange(maps, maps - 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if is_shared { SingleUnmapped::Mapped } else { SingleUnmapped::Other }
}

/// What became of a page when a mapping of it went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SingleUnmapped {
    /// It was taken from its user.
    Taken,
    /// The same, and it is charged to a memcg still.
    TakenCharged,
    /// Others map it.
    Mapped,
    /// It is on a list, and the mapping was the only one: nothing has changed.
    Listed,
    /// It is no single page of private memory, or other threads use it: nothing has changed.
    Other,
}

impl SingleUnmapped {
    /// Whether the page was taken from its user.
    #[inline]
    pub fn is_taken(self) -> bool {
        matches!(self, Self::Taken | Self::TakenCharged)
    }
}

impl Frame {
    pub(crate) fn new(kind: Kind, zone: ZoneId) -> Self {
        Self {
            word: AtomicU64::new(FrameState::new(kind, Order::ZERO, Migratetype::Unmovable).raw()),
            maps: AtomicU32::new(0),
            lock: RawSpin::default(),
            next: AtomicU32::new(FrameIndex::NONE.0),
            prev: AtomicU32::new(FrameIndex::NONE.0),
            owner: AtomicU64::new(0),
            index: AtomicU64::new(0),
            private: AtomicU64::new(0),
            live: AtomicU32::new(0),
            audit: AtomicU32::new(0),
            home: AtomicU16::new(0),
            zone,
            memcg: AtomicU16::new(0),
            list: AtomicU16::new(0),
        }
    }

    /// The state at this moment.
    #[inline]
    pub fn word(&self) -> FrameState {
        FrameState::from_raw(self.word.load(Ordering::Acquire))
    }

    /// The frame's kind at this moment.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.word().kind()
    }

    /// Writes the state of a frame that the caller took off a list or is about to put on one. No bit of
    /// others is lost: no thread but the list's holder writes the word of a free frame, since every
    /// transition that a user can ask for is refused before it stores ([`FrameState::release`],
    /// [`FrameState::classify`], [`FrameState::get`], [`FrameState::change_flags`]).
    #[inline]
    pub(crate) fn set_word(&self, word: FrameState) {
        // Pairs with the acquiring load in `word`: a CPU that sees the state sees what was done to the frame.
        self.word.store(word.raw(), Ordering::Release);
    }

    /// Applies `transition` until it happens without interference or is refused.
    #[inline]
    fn update<E>(&self, transition: impl Fn(FrameState) -> Result<FrameState, E>) -> Result<FrameState, E> {
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            let next = transition(FrameState::from_raw(now))?;
            // Release: what the caller did with the frame comes before; acquire: what others did before they
            // released it is seen. Both sides of the pair are this exchange.
            match self.word.compare_exchange_weak(now, next.raw(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(FrameState::from_raw(now)),
                Err(found) => now = found,
            }
        }
    }

    /// Takes the block of `order` from its user, who frees it.
    #[inline]
    pub(crate) fn release(&self, order: Order, lock: LockCheck) -> Result<(), FreeError> {
        self.update(|word| {
            let next = word.release(order)?;
            match self.maps.load(Ordering::Relaxed) {
                0 if lock == LockCheck::MustBeFree && self.lock.is_locked() => Err(FreeError::Locked),
                0 => Ok(next),
                maps => Err(FreeError::Mapped { maps }),
            }
        })
        .map(|_| ())
    }

    /// As [`release`](Self::release) with a lock that may be held: one attempt, which changes nothing if
    /// anything stands in its way, other threads included.
    #[inline]
    pub(crate) fn try_release(&self, order: Order) -> bool {
        let now = self.word.load(Ordering::Relaxed);
        let Some(next) = FrameState::from_raw(now).released(order) else { return false };
        // Ordered as in `update`.
        self.maps.load(Ordering::Relaxed) == 0
            && self.word.compare_exchange(now, next.raw(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Counts one more mapping of what may be a single page of private memory that an entry of the caller, in
    /// a locked table, maps. False, with nothing changed, if it is anything else, is mapped by `most`
    /// entries, has `pin` references or more, or may be mapped by name.
    #[inline]
    pub(crate) fn share_single(&self, pin: u32, most: u32) -> bool {
        // Acquire: before the word, as in `Folio::add_maps`.
        let maps = self.maps.load(Ordering::Acquire);
        if !self.word().is_shareable_page(pin) || maps >= most {
            return false;
        }
        if maps == 1 {
            // What is mapped by the caller's entry alone cannot be mapped by others in the meantime.
            self.maps.store(2, Ordering::Relaxed);
        } else {
            self.maps.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// The caller's mapping of what may be a single page of private memory goes, or has gone: takes the page
    /// from its user if that was the only one and nothing else knows the page; nothing changes otherwise. One
    /// attempt. `is_listed` as in [`FrameState::released_single`].
    ///
    /// The word is read before the count. A thread that maps the page by name has a reference, and marks the
    /// page before it counts and drops that, so the exchange fails.
    #[inline]
    pub(crate) fn take_single(&self, is_listed: bool) -> SingleUnmapped {
        let now = self.word.load(Ordering::Acquire);
        let word = FrameState::from_raw(now);
        let maps = self.maps.load(Ordering::Acquire);
        if maps != 1 {
            return if word.is_private_page() { SingleUnmapped::Mapped } else { SingleUnmapped::Other };
        }
        if let Some(next) = word.released_single(is_listed) {
            // Ordered as in `update`.
            if self.word.compare_exchange(now, next.raw(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
                return SingleUnmapped::Other;
            }
            // No thread has the frame but this one.
            self.maps.store(0, Ordering::Relaxed);
            // Whose it is stays: the thread that made the page said so before it mapped it, and a memcg that
            // inherits the page says so under the locks of lists, on which it is not.
            let is_charged = self.memcg.load(Ordering::Relaxed) != 0;
            return if is_charged { SingleUnmapped::TakenCharged } else { SingleUnmapped::Taken };
        }
        if word.released_single(true).is_some() { SingleUnmapped::Listed } else { SingleUnmapped::Other }
    }

    /// Whether the frame is an untouched inner part of a block.
    #[inline]
    pub(crate) fn is_clean_tail(&self) -> bool {
        self.word() == FrameState::TAIL && self.maps.load(Ordering::Relaxed) == 0 && !self.lock.is_locked()
    }

    /// Says what a given-out frame is for: from [`Kind::Allocated`] to the user's kind, or back.
    ///
    /// # Errors
    ///
    /// Every other change is refused; see [`KindError`].
    pub fn classify(&self, kind: Kind) -> Result<(), KindError> {
        self.update(|word| word.classify_user(kind)).map(|_| ())
    }

    /// What was read from a swap device as private memory is shared memory, whose folio comes to the cache of
    /// its file. Returns false if it is no private memory. The caller has locked the folio, which nothing
    /// maps; others may have references.
    pub fn make_shmem(&self) -> bool {
        self.update(|word| word.into_shmem().ok_or(())).is_ok()
    }

    /// As [`classify`](Self::classify), with the kinds that only slab caches use.
    ///
    /// # Errors
    ///
    /// As for [`classify`](Self::classify).
    ///
    /// # Safety
    ///
    /// The frame was allocated to the caller, which is the slab cache that it becomes a part of, or leaves
    /// without an object in use.
    pub unsafe fn classify_slab(&self, kind: Kind) -> Result<(), KindError> {
        self.update(|word| word.classify(kind)).map(|_| ())
    }

    /// References to the block that starts here. A block is allocated with one.
    #[inline]
    pub fn refs(&self) -> u32 {
        self.word().refs()
    }

    /// One more reference for a caller that does not hold one: fails when the block is free or about to be,
    /// and past [`MAX_REFS`](crate::MAX_REFS). The caller must then check that the frame is still what it
    /// looked for.
    #[inline]
    pub fn try_get(&self) -> bool {
        self.update(|word| word.try_get().ok_or(())).is_ok()
    }

    /// As [`try_get`](Self::try_get) for a caller to whom the frame may be another owner's by now: only if a
    /// folio of a program's memory is here, which is found out in the same step. A table or a slab has no
    /// owner but one.
    #[inline]
    pub fn try_get_folio(&self) -> bool {
        self.try_get_mapped(1)
    }

    /// `count` more references for a caller that holds one. Past [`MAX_REFS`](crate::MAX_REFS), and where
    /// there is none to hold, nothing changes and the result is false.
    #[inline]
    pub fn get(&self, count: u32) -> bool {
        self.update(|word| word.get(count).ok_or(())).is_ok()
    }

    /// As [`get`](Self::get) for a caller that holds none, if a program's memory is here.
    #[inline]
    pub(crate) fn try_get_mapped(&self, count: u32) -> bool {
        let mapped = |word: FrameState| matches!(word.kind(), Kind::Anonymous | Kind::File | Kind::Shmem);
        self.update(|word| if mapped(word) { word.get(count).ok_or(()) } else { Err(()) }).is_ok()
    }

    /// Drops `count` references and returns whether none is left: then the caller frees the block with
    /// [`Frames::free`](crate::Frames::free). Dropping more than there are drops nothing and returns false.
    #[inline]
    pub fn put(&self, count: u32) -> bool {
        match self.update(|word| word.put(count).ok_or(())) {
            Ok(before) => before.refs() == count,
            Err(()) => false,
        }
    }

    /// Drops a reference unless it is the last one, in one step, and returns whether it did.
    #[inline]
    pub fn put_unless_last(&self) -> bool {
        let others = |word: FrameState| word.put(1).filter(|left| left.refs() > 0);
        self.update(|word| others(word).ok_or(())).is_ok()
    }

    /// Freezes the refcount at zero, if it is exactly `expected` and none of the flags `unless` is set. Then
    /// no thread can take a reference, and the caller alone decides what the frame becomes. Both are checked
    /// in one step.
    ///
    /// For callers that make something else of a folio where it is, or free it; all others drop references of
    /// their own ([`put`](Self::put)). The caller holds one of those that go, and has made sure that
    /// all others are the bookkeeping of the crates that it acts for.
    pub fn freeze(&self, expected: u32, unless: FrameFlags) -> bool {
        let frozen = |word: FrameState| {
            let wanted = word.refs() == expected && !word.flags().intersects(unless);
            if wanted { word.put(expected) } else { None }
        };
        self.update(|word| frozen(word).ok_or(())).is_ok()
    }

    /// Sets flags and returns those that were set before, or `None` if the frame is not allocated; then
    /// nothing changed.
    #[inline]
    pub fn set_flags(&self, flags: FrameFlags) -> Option<FrameFlags> {
        self.change_flags(flags, FrameFlags::empty())
    }

    /// As [`set_flags`](Self::set_flags), but clears them.
    #[inline]
    pub fn clear_flags(&self, flags: FrameFlags) -> Option<FrameFlags> {
        self.change_flags(FrameFlags::empty(), flags)
    }

    /// As [`set_flags`](Self::set_flags), and clears `clear` in the same step.
    #[inline]
    pub fn change_flags(&self, set: FrameFlags, clear: FrameFlags) -> Option<FrameFlags> {
        self.update(|word| word.change_flags(set, clear).ok_or(())).ok().map(FrameState::flags)
    }

    /// As [`change_flags`](Self::change_flags), if the state in which that happens is as `wanted`. Returns
    /// whether it was.
    #[inline]
    pub fn change_flags_if(
        &self,
        set: FrameFlags,
        clear: FrameFlags,
        wanted: impl Fn(FrameState) -> bool,
    ) -> bool {
        let change = |word: FrameState| if wanted(word) { word.change_flags(set, clear) } else { None };
        self.update(|word| change(word).ok_or(())).is_ok()
    }

    /// Base pages of the block that page-table entries map, each as often as it is mapped (see
    /// [`Folio`](crate::Folio)). Its users count; what is mapped cannot be freed.
    #[inline]
    pub(crate) fn map_count(&self) -> &AtomicU32 {
        &self.maps
    }

    /// A lock for the user of the frame: a page table's own lock, a large folio's head lock. Must be free
    /// when the frame is freed, except for a thread that took it [for a look](RawSpin::try_look): the next
    /// user may find it taken for a moment. So the word is never set anew.
    #[inline]
    pub(crate) fn lock_word(&self) -> &RawSpin {
        &self.lock
    }

    /// The frame's owner: a space, an anon_vma, a slab cache. Its meaning is the user's. It is kept when the
    /// frame is freed, so a user sets it before relying on it.
    #[inline]
    pub(crate) fn owner(&self) -> &AtomicU64 {
        &self.owner
    }

    /// Where in its owner the frame is: a table's address and level, a page's index. As
    /// [`owner`](Self::owner).
    #[inline]
    pub(crate) fn index(&self) -> &AtomicU64 {
        &self.index
    }

    /// A word for the user. As [`owner`](Self::owner).
    #[inline]
    pub(crate) fn private(&self) -> &AtomicU64 {
        &self.private
    }

    /// A count for the user: a table's entries in use, a slab's free objects, the PMD entries that map a
    /// folio whole. As [`owner`](Self::owner).
    #[inline]
    pub(crate) fn live(&self) -> &AtomicU32 {
        &self.live
    }

    /// The memcg that the folio is charged to; 0 for none. As [`owner`](Self::owner), but zero whenever the
    /// frame is freed.
    #[inline]
    pub(crate) fn memcg(&self) -> &AtomicU16 {
        &self.memcg
    }

    /// The LRU list that the folio is on while it has [`FrameFlags::LRU`]; defined by quire-memcg.
    #[inline]
    pub(crate) fn list(&self) -> &AtomicU16 {
        &self.list
    }

    /// The zone that the frame belongs to.
    #[inline]
    pub fn zone(&self) -> ZoneId {
        self.zone
    }

    /// The CPU whose list the block was last allocated from: a hint at where it is missed.
    #[inline]
    pub(crate) fn home(&self) -> Option<CpuId> {
        CpuId::new(usize::from(self.home.load(Ordering::Relaxed)))
    }

    /// Records the CPU whose list the block is allocated from.
    #[inline]
    pub(crate) fn set_home(&self, cpu: CpuId) {
        self.home.store(cpu.index() as u16, Ordering::Relaxed);
    }

    /// Scratch of the auditor; zero outside audits.
    #[inline]
    pub fn audit(&self) -> &AtomicU32 {
        &self.audit
    }

    /// The next frame of the list that this frame is on.
    #[inline]
    pub(crate) fn next(&self) -> FrameIndex {
        FrameIndex(self.next.load(Ordering::Relaxed))
    }

    /// The frame before this one on its list.
    #[inline]
    pub(crate) fn prev(&self) -> FrameIndex {
        FrameIndex(self.prev.load(Ordering::Relaxed))
    }

    /// Links the next frame. The list's lock orders accesses, so the store need not.
    #[inline]
    pub(crate) fn set_next(&self, next: FrameIndex) {
        self.next.store(next.0, Ordering::Relaxed);
    }

    /// Links the frame before. As [`set_next`](Self::set_next).
    #[inline]
    pub(crate) fn set_prev(&self, prev: FrameIndex) {
        self.prev.store(prev.0, Ordering::Relaxed);
    }
}
