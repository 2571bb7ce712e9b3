//! The state word of a frame: kind, order, migratetype, flags and references in 64 bits.
//!
//! Each transition is a pure function from one word to the next. [`Frame`](super::Frame) applies it under one
//! compare-exchange, so a transition that was checked is the transition that happened, and a frame that a
//! second caller frees at the same moment is freed once.
//!
//! | bits | holds |
//! |---|---|
//! | 0..5 | [`Kind`] |
//! | 5..9 | order of the block that starts here |
//! | 9..12 | [`Migratetype`]: of the list for free frames, of the request for given-out ones |
//! | 12..36 | [`FrameFlags`]; no bit is free |
//! | 36..64 | references; above everything else, so that an overflow falls off instead of changing the rest |

use super::migratetype::Migratetype;
use crate::error::{FreeError, KindError};
use crate::kind::Kind;
use bitflags::bitflags;
use quire_arch::Order;

bitflags! {
    /// Flags that the users of an allocated frame set. Cleared when the frame is freed.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct FrameFlags: u32 {
        /// A program locked the frame in RAM (mlock).
        const MLOCKED = 1 << 0;
        /// Dirty: the contents differ from what is stored elsewhere.
        const DIRTY = 1 << 1;
        /// Referenced since this was last cleared.
        const REFERENCED = 1 << 2;
        /// An exclusive anonymous page: no other space maps it, so it may be written without a copy.
        const ANONYMOUS_EXCLUSIVE = 1 << 3;
        /// Inner frames of the block have maps or locks of their own. Their user sets this on the block's
        /// first frame before; then every frame is checked when the block is freed.
        const TAILS_IN_USE = 1 << 4;
        /// Some pages of the folio may be unmapped, and it is queued for deferred split.
        const PARTLY_MAPPED = 1 << 5;
        /// Lazily freed: the contents are not needed unless they are written to again.
        const LAZY_FREE = 1 << 6;
        /// The folio lock is held.
        const LOCKED = 1 << 7;
        /// A thread sleeps until it is released.
        const WAITERS = 1 << 8;
        /// The folio is on an LRU list, which keeps it from being freed: a thread that drops the last
        /// reference takes it off first.
        const LRU = 1 << 9;
        /// Active: it belongs on an active list.
        const ACTIVE = 1 << 10;
        /// It was active before it was last swapped out.
        const WORKINGSET = 1 << 11;
        /// It is in the swap cache, which holds a reference.
        const SWAP_CACHE = 1 << 12;
        /// A device is writing it.
        const WRITEBACK = 1 << 13;
        /// Reading it failed: no program may see its contents.
        const READ_FAILED = 1 << 14;
        /// It was read by readahead, and not used yet.
        const READAHEAD = 1 << 15;
        /// It is to be freed as soon as it is written.
        const RECLAIM = 1 << 16;
        /// It holds mlocked pages and is on no list that reclaim scans.
        const UNEVICTABLE = 1 << 17;
        /// A device is reading it, and a thread that began that holds the folio lock.
        const READING = 1 << 18;
        /// A device is reading it without a waiter: the thread that reaps the completion releases the folio
        /// lock.
        const UNATTENDED = 1 << 19;
        /// A single page that a thread without an entry for it may map: it was mapped from its swap slot while
        /// another mapping existed, or it was put into a file's cache. Set until it is freed.
        const SHARED_BY_NAME = 1 << 20;
        /// A thread that was told of the end of a device's request for it finds out whether there is such a
        /// request, and ends it. Others wait.
        const COMPLETING = 1 << 21;
        /// A device may have a request for it, and report its end
        /// ([`FolioIo::begin`](crate::FolioIo::begin)).
        const ASKED = 1 << 22;
        /// A large folio of which one of the spaces that map it, or that did, has mapped a part only at some
        /// time. Set until it is freed or split.
        const MAPPED_IN_PART = 1 << 23;
    }
}

const KIND_MASK: u64 = 0x1f;
const ORDER_SHIFT: u32 = 5;
const ORDER_MASK: u64 = 0xf;
const MIGRATETYPE_SHIFT: u32 = 9;
const MIGRATETYPE_MASK: u64 = 0x7;
const FLAGS_SHIFT: u32 = 12;
const FLAGS_MASK: u64 = 0xff_ffff << FLAGS_SHIFT;
const REFS_SHIFT: u32 = 36;

const _: () =
    assert!((FrameFlags::all().bits() as u64) << FLAGS_SHIFT & !FLAGS_MASK == 0, "a flag without a bit");

/// What says nothing of who uses a page.
const UNCHECKED: u64 = MIGRATETYPE_MASK << MIGRATETYPE_SHIFT
    | FrameState::flag_bits(
        FrameFlags::DIRTY
            .union(FrameFlags::REFERENCED)
            .union(FrameFlags::ANONYMOUS_EXCLUSIVE)
            .union(FrameFlags::LAZY_FREE)
            .union(FrameFlags::WORKINGSET)
            .union(FrameFlags::READAHEAD),
    );
const ON_LIST: u64 = FrameState::flag_bits(FrameFlags::LRU.union(FrameFlags::ACTIVE));

/// One reference, as it is added to the word.
pub(super) const ONE_REF: u64 = 1 << REFS_SHIFT;
/// The most references that a frame may have: all that the field holds. The exchange that adds one has looked
/// at those that are there, so the field cannot overflow.
pub const MAX_REFS: u32 = (1 << (u64::BITS - REFS_SHIFT)) - 1;

const _: () = assert!(Kind::ALL.len() as u64 <= KIND_MASK + 1);
const _: () = assert!((Order::MAX.get() as u64) <= ORDER_MASK);

/// A frame's state at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct FrameState(u64);

impl FrameState {
    /// The first frame of a block, with no references and no flags.
    #[inline]
    pub(crate) const fn new(kind: Kind, order: Order, migratetype: Migratetype) -> Self {
        Self(kind as u64 | (order.get() as u64) << ORDER_SHIFT | (migratetype as u64) << MIGRATETYPE_SHIFT)
    }

    /// A frame inside a block.
    pub(crate) const TAIL: Self = Self::new(Kind::Tail, Order::ZERO, Migratetype::Unmovable);

    /// A block that was just allocated: one reference, which is the caller's.
    #[inline]
    pub(crate) const fn given_out(kind: Kind, order: Order, migratetype: Migratetype) -> Self {
        Self(Self::new(kind, order, migratetype).0 | ONE_REF)
    }

    #[inline]
    pub(super) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    #[inline]
    pub(super) const fn raw(self) -> u64 {
        self.0
    }

    /// The frame's kind.
    #[inline]
    pub const fn kind(self) -> Kind {
        Kind::from_number((self.0 & KIND_MASK) as usize)
    }

    /// The order of the block that starts here; meaningful where [`Kind::is_head`].
    #[inline]
    pub const fn order(self) -> Order {
        // The field holds only what `new` put there, so the fallback is never taken.
        match Order::new((self.0 >> ORDER_SHIFT & ORDER_MASK) as u8) {
            Some(order) => order,
            None => Order::ZERO,
        }
    }

    /// The type of a free block's list, or of the request that allocated the block.
    #[inline]
    pub const fn migratetype(self) -> Migratetype {
        Migratetype::from_bits(self.0 >> MIGRATETYPE_SHIFT)
    }

    /// The users' notes.
    #[inline]
    pub const fn flags(self) -> FrameFlags {
        FrameFlags::from_bits_truncate(((self.0 & FLAGS_MASK) >> FLAGS_SHIFT) as u32)
    }

    /// References to the block.
    #[inline]
    pub const fn refs(self) -> u32 {
        (self.0 >> REFS_SHIFT) as u32
    }

    /// Whether this is a free block of `order` on a zone's list.
    #[inline]
    pub(crate) const fn is_free_block(self, order: Order) -> bool {
        let wanted = Kind::Free as u64 | (order.get() as u64) << ORDER_SHIFT;
        self.0 & (KIND_MASK | ORDER_MASK << ORDER_SHIFT) == wanted
    }

    /// The user frees the block of `order` and drops its last reference.
    #[inline]
    pub(crate) const fn release(self, order: Order) -> Result<Self, FreeError> {
        match self.released(order) {
            Some(released) => Ok(released),
            None => Err(self.refusal()),
        }
    }

    /// As [`release`](Self::release), without the reason.
    #[inline]
    pub(crate) const fn released(self, order: Order) -> Option<Self> {
        // One pass over the word decides; what is wrong with it is found out apart.
        let kind = self.0 & KIND_MASK;
        let ordinary =
            kind >= Kind::Allocated as u64 && kind != Kind::Slab as u64 && kind != Kind::CacheArea as u64;
        // The order is the block's, no thread has the folio lock, and no list of folios leads to it.
        let expected = (order.get() as u64) << ORDER_SHIFT;
        let mask = ORDER_MASK << ORDER_SHIFT | Self::flag_bits(FrameFlags::LOCKED.union(FrameFlags::LRU));
        if ordinary && self.0 & mask == expected && self.refs() <= 1 {
            let kept = self.0 & (MIGRATETYPE_MASK << MIGRATETYPE_SHIFT | ORDER_MASK << ORDER_SHIFT);
            return Some(Self(kept | Kind::Gathered as u64));
        }
        None
    }

    /// As [`released`](Self::released), for a single page of private memory whose mappings have the only
    /// reference, and which no thread may map by name. On a list of folios only if `listed`: the caller has
    /// the list's lock, and takes it off.
    #[inline]
    pub(super) const fn released_single(self, listed: bool) -> Option<Self> {
        let free = if listed { UNCHECKED | ON_LIST } else { UNCHECKED };
        if self.0 & !free == Kind::Anonymous as u64 | ONE_REF {
            Some(Self(self.0 & MIGRATETYPE_MASK << MIGRATETYPE_SHIFT | Kind::Gathered as u64))
        } else {
            None
        }
    }

    /// Whether this is a single page of private memory with fewer than `refs` references, and no thread may
    /// map it by name.
    #[inline]
    pub(super) const fn is_shareable_page(self, refs: u32) -> bool {
        let by_name = Self::flag_bits(FrameFlags::SWAP_CACHE.union(FrameFlags::SHARED_BY_NAME));
        self.0 & (KIND_MASK | ORDER_MASK << ORDER_SHIFT | by_name) == Kind::Anonymous as u64
            && self.refs() < refs
    }

    /// Whether this is a single page of private memory.
    #[inline]
    pub(super) const fn is_private_page(self) -> bool {
        self.0 & (KIND_MASK | ORDER_MASK << ORDER_SHIFT) == Kind::Anonymous as u64
    }

    /// Why the word cannot be released.
    #[cold]
    const fn refusal(self) -> FreeError {
        match self.kind() {
            Kind::Hole => FreeError::OutOfRange,
            Kind::Reserved => FreeError::Reserved,
            Kind::Offline => FreeError::Offline,
            Kind::Tail => FreeError::NotHead,
            Kind::Slab | Kind::CacheArea => FreeError::Slab,
            Kind::Free | Kind::Pcp | Kind::Gathered | Kind::Limbo => FreeError::DoubleFree,
            _ if self.refs() > 1 => FreeError::Referenced { references: self.refs() },
            _ if self.flags().contains(FrameFlags::LOCKED) => FreeError::Locked,
            _ if self.flags().contains(FrameFlags::LRU) => FreeError::Listed,
            _ => FreeError::WrongOrder { allocated: self.order() },
        }
    }

    /// A gathered block whose readers may still be there.
    #[inline]
    pub(crate) const fn in_limbo(self) -> Self {
        Self(self.0 & !KIND_MASK | Kind::Limbo as u64)
    }

    /// The user sets what the frame is for, or resets it with [`Kind::Allocated`].
    pub(crate) const fn classify(self, kind: Kind) -> Result<Self, KindError> {
        let now = self.kind();
        if !now.is_given_out() {
            return Err(KindError::NotGivenOut(now));
        }
        let allowed =
            kind.is_given_out() && (matches!(now, Kind::Allocated) || matches!(kind, Kind::Allocated));
        if allowed {
            Ok(Self(self.0 & !KIND_MASK | kind as u64))
        } else {
            Err(KindError::Refused { now, wanted: kind })
        }
    }

    /// Private memory becomes shared memory: `None` if it is no private memory.
    pub(super) const fn into_shmem(self) -> Option<Self> {
        match self.kind() {
            Kind::Anonymous => Some(Self(self.0 & !KIND_MASK | Kind::Shmem as u64)),
            _ => None,
        }
    }

    /// As [`classify`](Self::classify), for users outside this crate.
    pub(super) const fn classify_user(self, kind: Kind) -> Result<Self, KindError> {
        if kind.is_slab_internal() || self.kind().is_slab_internal() {
            return Err(KindError::Refused { now: self.kind(), wanted: kind });
        }
        self.classify(kind)
    }

    /// One more reference, unless there is none (the block is being freed) or there are too many.
    #[inline]
    pub(super) const fn try_get(self) -> Option<Self> {
        self.get(1)
    }

    /// `count` references more, or `None` if there is none yet, or too many.
    #[inline]
    pub(super) const fn get(self, count: u32) -> Option<Self> {
        if self.refs() == 0 || count > MAX_REFS.saturating_sub(self.refs()) {
            return None;
        }
        Some(Self(self.0 + count as u64 * ONE_REF))
    }

    /// `count` references fewer, or `None` if there are not so many.
    #[inline]
    pub(super) const fn put(self, count: u32) -> Option<Self> {
        if self.refs() < count { None } else { Some(Self(self.0 - ((count as u64) << REFS_SHIFT))) }
    }

    /// The same for a part of the block: with `order`, `flags` and `refs` of its own.
    pub(crate) const fn part(self, order: Order, flags: FrameFlags, refs: u32) -> Self {
        let kept = self.0 & (KIND_MASK | MIGRATETYPE_MASK << MIGRATETYPE_SHIFT);
        Self(kept | (order.get() as u64) << ORDER_SHIFT | Self::flag_bits(flags) | (refs as u64 * ONE_REF))
    }

    /// With `set` set and `clear` cleared, or `None` if no thread has the block whose flags these would be.
    #[inline]
    pub(super) const fn change_flags(self, set: FrameFlags, clear: FrameFlags) -> Option<Self> {
        if !self.kind().is_given_out() {
            return None;
        }
        Some(Self(self.0 & !Self::flag_bits(clear) | Self::flag_bits(set)))
    }

    const fn flag_bits(flags: FrameFlags) -> u64 {
        ((flags.bits() as u64) << FLAGS_SHIFT) & FLAGS_MASK
    }
}

impl core::fmt::Debug for FrameState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?} order {} {:?} refs {}", self.kind(), self.order(), self.migratetype(), self.refs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: Order = Order::ALL[3];

    #[test]
    fn every_kind_order_and_type_survives_the_packing() {
        for kind in Kind::ALL {
            for order in Order::ALL {
                for migratetype in Migratetype::ALL {
                    let word = FrameState::new(kind, order, migratetype);
                    assert_eq!(
                        (word.kind(), word.order(), word.migratetype(), word.refs()),
                        (kind, order, migratetype, 0)
                    );
                    assert_eq!(word.is_free_block(THREE), kind == Kind::Free && order == THREE);
                }
            }
        }
    }

    /// A hazard of docs/hazards.md: double free, wrong order, referenced: each a distinct error.
    #[test]
    fn release_tells_every_mistake_apart() {
        let out = FrameState::given_out(Kind::Allocated, THREE, Migratetype::Movable);
        assert_eq!(out.refs(), 1);
        let back = out.release(THREE).unwrap();
        assert_eq!((back.kind(), back.refs()), (Kind::Gathered, 0));
        assert_eq!(back.release(THREE), Err(FreeError::DoubleFree));
        assert_eq!(out.release(Order::ZERO), Err(FreeError::WrongOrder { allocated: THREE }));
        let shared = out.try_get().unwrap();
        assert_eq!(shared.release(THREE), Err(FreeError::Referenced { references: 2 }));
        assert!(out.put(1).unwrap().release(THREE).is_ok());
        let tail = FrameState::TAIL;
        assert_eq!(tail.release(Order::ZERO), Err(FreeError::NotHead));
        let reserved = FrameState::new(Kind::Reserved, Order::ZERO, Migratetype::Unmovable);
        assert_eq!(reserved.release(Order::ZERO), Err(FreeError::Reserved));
    }

    #[test]
    fn kinds_change_only_through_allocated() {
        let out = FrameState::given_out(Kind::Allocated, Order::ZERO, Migratetype::Unmovable);
        let table = out.classify_user(Kind::Table).unwrap();
        assert_eq!((table.kind(), table.refs()), (Kind::Table, 1));
        assert!(table.classify_user(Kind::Anonymous).is_err());
        assert_eq!(table.classify_user(Kind::Allocated), Ok(out));
        assert!(out.classify_user(Kind::Slab).is_err() && out.classify(Kind::Slab).is_ok());
        assert!(out.classify_user(Kind::Free).is_err());
        let free = FrameState::new(Kind::Free, Order::ZERO, Migratetype::Unmovable);
        assert_eq!(free.classify_user(Kind::Table), Err(KindError::NotGivenOut(Kind::Free)));
    }

    #[test]
    fn references_cannot_come_from_zero_nor_overflow() {
        let none = FrameState::given_out(Kind::Allocated, Order::ZERO, Migratetype::Movable).put(1).unwrap();
        assert_eq!(none.try_get(), None);
        assert_eq!(none.put(1), None);
        let full = FrameState::from_raw(none.raw() | u64::from(MAX_REFS) << REFS_SHIFT);
        assert_eq!(full.try_get(), None);
    }
}
