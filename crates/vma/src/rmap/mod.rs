//! The rmap: from a page to the mappings that may map it.
//!
//! Every VMA that has private pages belongs to an [`AnonVma`]. The anon_vmas of a process and of its children
//! form a tree. A page names the anon_vma that it was faulted in for, and only VMAs of that anon_vma and of
//! those below it can map it: `fork` gives the VMAs of the child an anon_vma below the parent's. One sleeping
//! lock in the root (Linux's `anon_vma->root->rwsem`) orders everything: it is held exclusively to link,
//! unlink or change a VMA, and shared by a walk.
//!
//! A VMA leaves its anon_vma before its tables are freed, so that a walker may rely on the tables of the VMAs
//! that it meets. The anon_vma itself stays until the pages are out of the tables ([`Emptied`]). So a page
//! that is mapped names an anon_vma that is not freed. A walker, which finds the page before it holds any
//! lock, relies on that ([`walk`]).
//!
//! A page of a file names the file, whose [`FileMappings`](quire_file::FileMappings) has the VMAs
//! ([`FileRmap`]). A change of VMAs takes both locks, in [`RmapLocks`].

mod anon_vma_tree;
mod file_rmap;
mod owned;
mod rmap_locks;
mod walk;

use anon_vma_tree::AnonVmaTree;
pub use anon_vma_tree::{Branch, Emptied, Freed};
pub use file_rmap::FileRmap;
pub use rmap_locks::RmapLocks;
pub(crate) use rmap_locks::shares_writes;
pub use walk::{HeldMappings, Mapped};

use crate::exits::Exits;
use crate::space_core::{AnonVma, Vma};
use core::fmt;
use quire_arch::{Pin, Platform};
use quire_file::ClosingStack;
use quire_frame::AllocError;
use quire_pagetable::MemoryCore;
use quire_slab::SlabCache;
use quire_sync::atomic::AtomicU64;

/// The anon_vmas of a machine, the spaces that exit later since the rmap led reclaim to them, and the open
/// files that are closed later since their last VMA left under locks.
pub struct RmapState<P: Platform> {
    anon_vmas: SlabCache<AnonVma, P>,
    /// A number for each VMA that a fork copies, from 1.
    next_branch: AtomicU64,
    exits: Exits,
    closing: ClosingStack<Vma>,
}

impl<P: Platform> RmapState<P> {
    /// No anon_vma yet.
    ///
    /// # Errors
    ///
    /// When there is no frame for the slab cache.
    pub fn new(memory: &MemoryCore<P>, pin: &Pin<'_, P>) -> Result<Self, AllocError> {
        let anon_vmas = SlabCache::new(memory.frames(), pin, "anon_vma")?;
        Ok(Self {
            anon_vmas,
            next_branch: AtomicU64::new(1),
            exits: Exits::new(),
            closing: ClosingStack::new(),
        })
    }

    /// The slab cache of anon_vmas.
    pub fn cache(&self) -> &SlabCache<AnonVma, P> {
        &self.anon_vmas
    }
}

impl<P: Platform> fmt::Debug for RmapState<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RmapState").finish_non_exhaustive()
    }
}

/// The rmap of a machine, made from the parts that it needs.
pub struct Rmap<'s, P: Platform> {
    memory: &'s MemoryCore<P>,
    state: &'s RmapState<P>,
}

impl<P: Platform> Clone for Rmap<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Rmap<'_, P> {}

impl<'s, P: Platform> Rmap<'s, P> {
    /// The rmap of the machine that both belong to.
    pub fn new(memory: &'s MemoryCore<P>, state: &'s RmapState<P>) -> Self {
        Self { memory, state }
    }

    /// What all page tables of the machine share.
    #[inline]
    pub fn memory(self) -> &'s MemoryCore<P> {
        self.memory
    }

    /// The spaces of the machine that are to exit.
    #[inline]
    pub fn exits(self) -> &'s Exits {
        &self.state.exits
    }

    /// The open files that are to be closed of spaces whose last handle was reclaim's.
    #[inline]
    pub fn closing(self) -> &'s ClosingStack<Vma> {
        &self.state.closing
    }
}

impl<P: Platform> fmt::Debug for Rmap<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rmap").finish_non_exhaustive()
    }
}
