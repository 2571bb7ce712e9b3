//! The deferred split queue of each memcg: where it begins and ends, and the memcgs that have any folio
//! there. `splits` links the folios.

use crate::id::MemcgId;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_arch::Pfn;

/// What the lock of all queues guards, apart from the queues.
#[derive(Debug, Default)]
pub(crate) struct DeferredTurn {
    /// The memcg whose turn it is, of those with folios.
    pub(crate) turn: Option<MemcgId>,
    /// Folios in all queues.
    pub(crate) folios: u64,
}

/// A queue: its words, which are read and written under the lock of all queues.
#[derive(Debug, Default)]
pub(crate) struct DeferredQueue {
    /// Frame numbers plus one; 0 for none.
    first: AtomicU64,
    last: AtomicU64,
    folios: AtomicU64,
    /// Memcgs, in a ring. Meaningful while it has folios.
    next: AtomicU32,
    previous: AtomicU32,
}

fn pfn_in(word: &AtomicU64) -> Option<Pfn> {
    word.load(Ordering::Relaxed).checked_sub(1).map(Pfn)
}

fn put_pfn(word: &AtomicU64, pfn: Option<Pfn>) {
    word.store(pfn.map_or(0, |pfn| pfn.0 + 1), Ordering::Relaxed);
}

impl DeferredQueue {
    /// The oldest folio.
    pub(crate) fn first(&self) -> Option<Pfn> {
        pfn_in(&self.first)
    }

    /// The one that came last.
    pub(crate) fn last(&self) -> Option<Pfn> {
        pfn_in(&self.last)
    }

    /// Changes the oldest one.
    pub(crate) fn set_first(&self, head: Option<Pfn>) {
        put_pfn(&self.first, head);
    }

    /// Changes the one that came last.
    pub(crate) fn set_last(&self, head: Option<Pfn>) {
        put_pfn(&self.last, head);
    }

    /// How many there are. Without the lock: at some moment.
    pub(crate) fn folios(&self) -> u64 {
        self.folios.load(Ordering::Relaxed)
    }

    /// Changes their number.
    pub(crate) fn set_folios(&self, folios: u64) {
        self.folios.store(folios, Ordering::Relaxed);
    }

    /// The memcgs before it and after it in the ring of those with folios.
    pub(crate) fn neighbours(&self) -> (MemcgId, MemcgId) {
        let at = |word: &AtomicU32| MemcgId::from_bits(word.load(Ordering::Relaxed) as u16);
        (at(&self.previous), at(&self.next))
    }

    /// Changes the memcg before it.
    pub(crate) fn set_previous(&self, memcg: MemcgId) {
        self.previous.store(u32::from(memcg.get()), Ordering::Relaxed);
    }

    /// Changes the memcg after it.
    pub(crate) fn set_next(&self, memcg: MemcgId) {
        self.next.store(u32::from(memcg.get()), Ordering::Relaxed);
    }
}
