//! The mappings of a space for a reader.

use super::{SpaceCore, Vma};
use core::fmt;
use quire_arch::{Platform, VirtAddr, VirtRange};
use quire_sync::RwSleepReadGuard;
use quire_vma_tree::tree::{Entry, TreeViolation, View};

/// The mappings of a space, with its mmap lock held shared: they stay as they are.
pub struct Mappings<'s, P: Platform> {
    view: View<'s, Vma>,
    // Dropped last.
    _guard: RwSleepReadGuard<'s, P>,
}

impl SpaceCore {
    /// Takes the mmap lock shared. The caller is not pinned.
    #[inline]
    pub fn read_mappings<'s, P: Platform>(&'s self, platform: &'s P) -> Mappings<'s, P> {
        let guard = self.mmap_lock.read(platform);
        // SAFETY: the lock is held for as long as the view is.
        let view = unsafe { self.vmas.view() };
        Mappings { view, _guard: guard }
    }
}

impl<P: Platform> Mappings<'_, P> {
    fn vma(&self, entry: Entry<Vma>) -> &Vma {
        // SAFETY: a VMA in the tree is live while the mmap lock is held.
        unsafe { entry.value.as_ref() }
    }

    /// The mapping that holds `addr`.
    #[inline]
    pub fn find(&self, addr: VirtAddr) -> Option<&Vma> {
        self.view.find(addr).map(|entry| self.vma(entry))
    }

    /// The lowest mapping that ends after `addr`.
    #[inline]
    pub fn first_ending_after(&self, addr: VirtAddr) -> Option<&Vma> {
        self.view.first_ending_after(addr).map(|entry| self.vma(entry))
    }

    /// The mappings, lowest first.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Vma> {
        self.entries().map(|(_, vma)| vma)
    }

    /// Those that end after `addr`, lowest first.
    #[inline]
    pub fn iter_from(&self, addr: VirtAddr) -> impl Iterator<Item = &Vma> {
        self.view.entries(VirtRange::new(addr, VirtAddr(u64::MAX))).map(|entry| self.vma(entry))
    }

    /// The mappings, lowest first, each with its range as the tree has it.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = (VirtRange, &Vma)> {
        self.view.iter().map(|entry| (entry.range, self.vma(entry)))
    }

    /// How many there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.view.len()
    }

    /// Checks the tree of mappings.
    ///
    /// # Errors
    ///
    /// The first violation found.
    #[inline]
    pub fn validate(&self) -> Result<(), TreeViolation> {
        self.view.validate()
    }
}

impl<P: Platform> fmt::Debug for Mappings<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mappings").field("count", &self.view.len()).finish_non_exhaustive()
    }
}
