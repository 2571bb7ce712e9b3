//! A cluster: 512 slots and their shared state.

use crate::word::SlotWord;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use quire_arch::{LockClass, Order, Pfn, Platform};
use quire_sync::RawSpin;
use quire_sync::atomic::raw::AtomicU64;
use quire_sync::atomic::{AtomicU8, AtomicU32, Ordering, UnsafeCell};

/// Slots of a cluster.
pub(crate) const CLUSTER_SLOTS: u32 = 512;
/// The order of a folio that fills a cluster.
pub(crate) const CLUSTER_ORDER: Order = Order::PMD;

const _: () = assert!(CLUSTER_ORDER.pages() == CLUSTER_SLOTS as u64);

/// No cluster.
pub(crate) const NONE: u32 = u32::MAX;

/// The words of a cluster's slots.
pub(crate) type Words = [AtomicU64; CLUSTER_SLOTS as usize];

/// A frame of words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableRef {
    pub(crate) words: NonNull<Words>,
    pub(crate) pfn: Pfn,
}

/// What a cluster's lock guards.
#[derive(Debug)]
pub(crate) struct State {
    /// Of a cluster without a table: the word of its one block.
    pub(crate) word: SlotWord,
    pub(crate) table: Option<TableRef>,
    /// Of a torn cluster: how often its slots are named, all together.
    pub(crate) sum: u32,
    /// Slots that are not free.
    pub(crate) used: u16,
    /// Slots whose page the cache has.
    pub(crate) cached: u16,
    /// The order that the cluster serves.
    pub(crate) order: Order,
    /// Where the next search begins, in blocks of the order.
    pub(crate) cursor: u16,
    /// Whether names are counted in `sum` only.
    pub(crate) torn: bool,
}

/// Links of a list of clusters, guarded by the lock of the device's lists.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) next: AtomicU32,
    pub(crate) prev: AtomicU32,
}

impl Links {
    fn new() -> Self {
        Self { next: AtomicU32::new(NONE), prev: AtomicU32::new(NONE) }
    }
}

/// 512 slots of a device.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Cluster {
    lock: RawSpin,
    /// Which list the cluster is on ([`ListId`](crate::lists::ListId)). It enters a list, or moves to
    /// another, under both locks; only a thread that takes one off, to allocate from it or to discard it,
    /// holds the lists' lock alone.
    list: AtomicU8,
    /// Whether it is on the list of those that hold nothing but shadows; under both locks.
    only_shadows: AtomicU8,
    pub(crate) links: Links,
    pub(crate) shadow_links: Links,
    state: UnsafeCell<State>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Cluster>() <= 128 && align_of::<Cluster>() == 64);

// SAFETY: the state is reached only by the holder of the lock; everything else is atomic.
unsafe impl Sync for Cluster {}
// SAFETY: as for `Sync`; the table is memory of the machine.
unsafe impl Send for Cluster {}

impl Cluster {
    pub(crate) fn new() -> Self {
        let state = State {
            word: SlotWord::FREE,
            table: None,
            sum: 0,
            used: 0,
            cached: 0,
            order: Order::ZERO,
            cursor: 0,
            torn: false,
        };
        Self {
            lock: RawSpin::default(),
            list: AtomicU8::new(0),
            only_shadows: AtomicU8::new(0),
            links: Links::new(),
            shadow_links: Links::new(),
            state: UnsafeCell::new(state),
        }
    }

    /// Takes the lock. The caller is pinned.
    #[inline]
    pub(crate) fn lock<P: Platform>(&self) -> ClusterGuard<'_, P> {
        self.lock.lock::<P>(LockClass::SwapCluster);
        ClusterGuard { cluster: self, execution: PhantomData, not_send: PhantomData }
    }

    #[inline]
    pub(crate) fn list(&self) -> u8 {
        self.list.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_list(&self, list: u8) {
        self.list.store(list, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_listed_for_shadows(&self) -> bool {
        self.only_shadows.load(Ordering::Relaxed) != 0
    }

    #[inline]
    pub(crate) fn set_listed_for_shadows(&self, listed: bool) {
        self.only_shadows.store(u8::from(listed), Ordering::Relaxed);
    }
}

/// A cluster under its lock.
#[must_use = "the lock is released when the guard is dropped"]
pub(crate) struct ClusterGuard<'c, P: Platform> {
    cluster: &'c Cluster,
    execution: PhantomData<fn() -> P>,
    not_send: PhantomData<*const ()>,
}

impl<'c, P: Platform> ClusterGuard<'c, P> {
    #[inline]
    pub(crate) fn cluster(&self) -> &'c Cluster {
        self.cluster
    }
}

impl<P: Platform> Deref for ClusterGuard<'_, P> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        // SAFETY: the guard holds the lock, so no other thread reaches the state.
        self.cluster.state.with_mut(|state| unsafe { &*state })
    }
}

impl<P: Platform> DerefMut for ClusterGuard<'_, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: the guard holds the lock, and it is borrowed exclusively here.
        self.cluster.state.with_mut(|state| unsafe { &mut *state })
    }
}

impl<P: Platform> Drop for ClusterGuard<'_, P> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard holds the lock and is gone after this.
        unsafe { self.cluster.lock.unlock::<P>(LockClass::SwapCluster) };
    }
}

/// A run of slots that share one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unit {
    pub(crate) first: u32,
    pub(crate) pages: u32,
    pub(crate) word: SlotWord,
}

impl State {
    /// Whether nothing names any slot from `first` up to `end`.
    pub(crate) fn all_unnamed(&self, first: u32, end: u32) -> bool {
        let mut at = first;
        while let Some(unit) = self.next_unit(at, end) {
            if self.is_named(unit) {
                return false;
            }
            at = unit.first + unit.pages;
        }
        true
    }

    /// Slots of a block of the cluster's order.
    #[inline]
    pub(crate) fn block_pages(&self) -> u32 {
        self.order.pages() as u32
    }

    #[inline]
    fn raw(&self, slot: u32) -> SlotWord {
        match self.table {
            // SAFETY: the cluster owns the table, whose words are only used under the lock.
            Some(table) => unsafe {
                SlotWord::from_raw(table.words.as_ref()[slot as usize].load(Ordering::Relaxed))
            },
            None if slot == 0 => self.word,
            None => SlotWord::FREE,
        }
    }

    #[inline]
    fn set_raw(&mut self, slot: u32, word: SlotWord) {
        match self.table {
            // SAFETY: as in `raw`.
            Some(table) => unsafe {
                table.words.as_ref()[slot as usize].store(word.raw(), Ordering::Relaxed);
            },
            None => {
                debug_assert!(slot == 0, "a cluster without a table has one word");
                self.word = word;
            }
        }
    }

    /// The unit that holds `slot`.
    #[inline]
    pub(crate) fn unit(&self, slot: u32) -> Unit {
        let block = slot & !(self.block_pages() - 1);
        let word = self.raw(block);
        if word.is_whole() {
            return Unit { first: block, pages: self.block_pages(), word };
        }
        Unit { first: slot, pages: 1, word: if slot == block { word } else { self.raw(slot) } }
    }

    /// The word of `slot`, as if it had its own.
    #[inline]
    pub(crate) fn word_of(&self, slot: u32) -> SlotWord {
        let unit = self.unit(slot);
        if unit.word.is_whole() { unit.word.of_slot(slot - unit.first) } else { unit.word }
    }

    /// The word of a slot for which [`SwapCache::zeros`](crate::SwapCache::zeros) returns a memcg.
    #[inline]
    pub(crate) fn zeros(&self, at: u32) -> Option<SlotWord> {
        let word = self.word_of(at);
        // Of a torn cluster it is not known how often the slot alone is named.
        (word.is_zeros_named_once() && !self.torn).then_some(word)
    }

    /// Writes the word of a unit.
    #[inline]
    pub(crate) fn store(&mut self, unit: Unit, word: SlotWord) {
        let pages = unit.pages as u16;
        self.used =
            self.used - if unit.word.is_free() { 0 } else { pages } + if word.is_free() { 0 } else { pages };
        self.cached = self.cached - if unit.word.is_cached() { pages } else { 0 }
            + if word.is_cached() { pages } else { 0 };
        self.set_raw(unit.first, word);
    }

    /// Whether page-table entries name slots of the unit, as far as is known.
    #[inline]
    pub(crate) fn is_named(&self, unit: Unit) -> bool {
        if self.torn { self.sum > 0 } else { unit.word.count() > 0 }
    }

    /// Whether slots from `first` on, up to `end`, share words with others.
    #[inline]
    pub(crate) fn cuts(&self, first: u32, end: u32) -> bool {
        let head = self.unit(first);
        if end - first == 1 {
            return head.pages > 1;
        }
        let tail = self.unit(end - 1);
        head.first < first || tail.first + tail.pages > end
    }

    /// Gives each slot of the unit a word of its own. There is a table.
    pub(crate) fn split(&mut self, unit: Unit) {
        debug_assert!(self.table.is_some());
        if unit.word.is_whole() {
            for nth in 0..unit.pages {
                self.set_raw(unit.first + nth, unit.word.of_slot(nth));
            }
        }
    }

    /// As [`split`](Self::split) for the units that the borders of these slots cut.
    pub(crate) fn split_borders(&mut self, first: u32, end: u32) {
        for slot in [first, end - 1] {
            let unit = self.unit(slot);
            if unit.first < first || unit.first + unit.pages > end {
                self.split(unit);
            }
        }
    }

    /// Gives the cluster a zeroed table, into which its single word moves.
    pub(crate) fn attach(&mut self, table: TableRef) {
        debug_assert!(self.table.is_none());
        self.table = Some(table);
        let word = core::mem::replace(&mut self.word, SlotWord::FREE);
        self.set_raw(0, word);
    }

    /// From now on names are counted in one sum.
    pub(crate) fn tear(&mut self) {
        debug_assert!(self.table.is_none() && !self.torn);
        self.torn = true;
        self.sum = self.word.count() * CLUSTER_SLOTS;
        self.word = self.word.without_count();
    }

    /// The units of the slots from `first` up to `end`.
    pub(crate) fn next_unit(&self, at: u32, end: u32) -> Option<Unit> {
        if at < end { Some(self.unit(at)) } else { None }
    }

    /// Whether a block of the cluster's order is free.
    #[inline]
    pub(crate) fn is_free_block(&self, first: u32) -> bool {
        (first..first + self.block_pages()).all(|slot| self.unit(slot).word.is_free())
    }
}
