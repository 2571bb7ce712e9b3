//! How many discards were begun and have ended.

use core::ptr;
use quire_sync::atomic::{AtomicU64, Ordering};

/// Discards of clusters, of all devices together.
#[derive(Debug)]
pub(crate) struct Discards {
    pub(crate) begun: AtomicU64,
    pub(crate) ended: AtomicU64,
    /// One more than had ended when a thread waited in vain for the next: none waits for that any more.
    pub(crate) given_up: AtomicU64,
}

impl Discards {
    pub(crate) fn new() -> Self {
        Self { begun: AtomicU64::new(0), ended: AtomicU64::new(0), given_up: AtomicU64::new(0) }
    }

    /// How many have ended; `None` if none was ever begun.
    pub(crate) fn ended(&self) -> Option<u64> {
        // Acquire: pairs with the release of the end.
        let ended = self.ended.load(Ordering::Acquire);
        (self.begun.load(Ordering::Relaxed) > 0).then_some(ended)
    }

    /// What threads that wait for a discard sleep on.
    pub(crate) fn key(&self) -> usize {
        ptr::from_ref(self).addr()
    }
}
