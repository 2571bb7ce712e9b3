//! Operations on the large folios of a machine.

mod huge_zero;
mod split;
mod zeros;

use crate::policy::{HugeConfig, HugeControls};
use core::fmt;
use quire_arch::{LockClass, Pfn, Platform};
use quire_pagetable::MemoryCore;
use quire_sync::SpinLock;
use quire_sync::atomic::raw::{AtomicU64, Ordering};
use quire_vma::Rmap;

/// A machine's state for large folios.
pub struct ThpState<P: Platform> {
    /// The huge zero page, while there is one, with a reference of its own.
    huge_zero: SpinLock<Option<Pfn>, P>,
    controls: HugeControls,
    /// Blocks that were collapsed.
    collapsed: AtomicU64,
}

impl<P: Platform> ThpState<P> {
    /// Set as `config` says.
    pub fn new(config: HugeConfig) -> Self {
        let huge_zero = SpinLock::new(LockClass::HugeZero, None);
        Self { huge_zero, controls: HugeControls::new(config), collapsed: AtomicU64::new(0) }
    }

    /// The controls of large folios.
    #[inline]
    pub fn controls(&self) -> &HugeControls {
        &self.controls
    }
}

impl<P: Platform> fmt::Debug for ThpState<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThpState").field("controls", &self.controls).finish_non_exhaustive()
    }
}

/// The large folios of a machine, made from the parts that they need.
pub struct Thp<'s, P: Platform> {
    rmap: Rmap<'s, P>,
    state: &'s ThpState<P>,
}

impl<P: Platform> Clone for Thp<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Thp<'_, P> {}

impl<'s, P: Platform> Thp<'s, P> {
    /// The large folios of the machine that both belong to.
    pub fn new(rmap: Rmap<'s, P>, state: &'s ThpState<P>) -> Self {
        Self { rmap, state }
    }

    /// What all page tables of the machine share.
    #[inline]
    pub fn memory(self) -> &'s MemoryCore<P> {
        self.rmap.memory()
    }

    /// The rmap of the machine.
    #[inline]
    pub fn rmap(self) -> Rmap<'s, P> {
        self.rmap
    }

    /// The controls of large folios.
    #[inline]
    pub fn controls(self) -> &'s HugeControls {
        &self.state.controls
    }

    /// Counts a block that was collapsed.
    pub fn count_collapsed(self) {
        self.state.collapsed.fetch_add(1, Ordering::Relaxed);
    }

    /// Blocks that were collapsed so far, by khugepaged and by programs' own requests.
    pub fn collapsed(self) -> u64 {
        self.state.collapsed.load(Ordering::Relaxed)
    }
}

impl<P: Platform> fmt::Debug for Thp<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thp").finish_non_exhaustive()
    }
}
