//! Protection of memory: `memory.min` or `memory.low`.

use quire_sync::atomic::{AtomicU64, Ordering};

/// One claim of a memcg, and what its children claim of it.
#[derive(Debug)]
pub(crate) struct Protected {
    setting: AtomicU64,
    /// The used part of the claim, as in the parent's sum.
    used: AtomicU64,
    /// The sum of that over the children.
    children: AtomicU64,
}

impl Protected {
    pub(crate) fn new() -> Self {
        Self { setting: AtomicU64::new(0), used: AtomicU64::new(0), children: AtomicU64::new(0) }
    }

    pub(crate) fn reset(&self) {
        self.setting.store(0, Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
        self.children.store(0, Ordering::Relaxed);
    }

    pub(crate) fn setting(&self) -> u64 {
        self.setting.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, pages: u64) {
        self.setting.store(pages, Ordering::Relaxed);
    }

    /// The sum of the children's claims.
    pub(crate) fn of_children(&self) -> u64 {
        self.children.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.setting() == 0 && self.used.load(Ordering::Relaxed) == 0
    }

    /// Takes what is left of the claim out of the parent's sum: its memcg is gone, and no thread notes its
    /// use any more. One that did beside the removal may have had the old setting.
    pub(crate) fn end(&self, parent: &Self) {
        self.set(0);
        self.note(0, parent);
    }

    /// Updates the parent's sum. Each change of `used` is added there once, by the first CPU.
    pub(crate) fn note(&self, usage: u64, parent: &Self) {
        if !self.is_idle() {
            let now = usage.min(self.setting());
            let before = self.used.swap(now, Ordering::Relaxed);
            parent.children.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
    }
}
