//! Whether a process gets large folios at all.

use core::sync::atomic::{AtomicU8, Ordering};

/// What a process did with `prctl(PR_SET_THP_DISABLE)`. A child inherits it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum HugeDisable {
    /// Nothing.
    #[default]
    No,
    /// Large folios only where it said HUGEPAGE, or asks for a collapse (`PR_THP_DISABLE_EXCEPT_ADVISED`).
    ExceptAdvised,
    /// No large folios at all.
    Completely,
}

/// A [`HugeDisable`] that can be changed while faults look at it. It orders nothing.
#[derive(Debug, Default)]
pub struct AtomicHugeDisable(AtomicU8);

impl AtomicHugeDisable {
    /// The setting at this moment.
    #[inline]
    pub fn load(&self) -> HugeDisable {
        match self.0.load(Ordering::Relaxed) {
            0 => HugeDisable::No,
            1 => HugeDisable::ExceptAdvised,
            _ => HugeDisable::Completely,
        }
    }

    /// Changes it.
    #[inline]
    pub fn store(&self, disable: HugeDisable) {
        self.0.store(disable as u8, Ordering::Relaxed);
    }
}
