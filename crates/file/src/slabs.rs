//! Nodes in slab caches.

use crate::node::{Narrow, Wide};
use crate::source::NodeSource;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use quire_arch::{Pin, Platform};
use quire_frame::{AllocError, Frames};
use quire_slab::SlabCache;

/// The slab caches of the nodes of all stores of a machine.
pub struct NodeSlabs<P: Platform> {
    wide: SlabCache<MaybeUninit<Wide>, P>,
    narrow: SlabCache<MaybeUninit<Narrow>, P>,
}

impl<P: Platform> NodeSlabs<P> {
    /// No node yet.
    ///
    /// # Errors
    ///
    /// When there is no frame for the caches.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn new(frames: &Frames<P>, pin: &Pin<'_, P>) -> Result<Self, AllocError> {
        let wide = SlabCache::new(frames, pin, "folio_store_node")?;
        let narrow = SlabCache::new(frames, pin, "folio_store_narrow")?;
        Ok(Self { wide, narrow })
    }

    /// The nodes, with the frames that they lie on.
    pub const fn on<'f>(&'f self, frames: &'f Frames<P>) -> NodesOn<'f, P> {
        NodesOn { slabs: self, frames }
    }
}

impl<P: Platform> fmt::Debug for NodeSlabs<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeSlabs").field("wide", &self.wide).field("narrow", &self.narrow).finish()
    }
}

/// The nodes of a machine's stores.
pub struct NodesOn<'f, P: Platform> {
    slabs: &'f NodeSlabs<P>,
    frames: &'f Frames<P>,
}

// SAFETY: nodes come from slab caches and go back to them through the epoch of this machine's frames; a
// retired object is left as it is until the epoch has passed.
unsafe impl<P: Platform> NodeSource for NodesOn<'_, P> {
    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_wide(&self) -> Result<NonNull<Wide>, AllocError> {
        let pin = self.frames.platform().pin();
        self.slabs.wide.allocate(self.frames, &pin, MaybeUninit::uninit()).map(NonNull::cast)
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_narrow(&self) -> Result<NonNull<Narrow>, AllocError> {
        let pin = self.frames.platform().pin();
        self.slabs.narrow.allocate(self.frames, &pin, MaybeUninit::uninit()).map(NonNull::cast)
    }

    unsafe fn retire_wide(&self, node: NonNull<Wide>) {
        let pin = self.frames.platform().pin();
        // SAFETY: the caller's promise.
        unsafe { self.slabs.wide.retire(self.frames, &pin, node.cast()) };
    }

    unsafe fn retire_narrow(&self, node: NonNull<Narrow>) {
        let pin = self.frames.platform().pin();
        // SAFETY: the caller's promise.
        unsafe { self.slabs.narrow.retire(self.frames, &pin, node.cast()) };
    }
}

impl<P: Platform> fmt::Debug for NodesOn<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.slabs, f)
    }
}
