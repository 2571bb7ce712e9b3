//! The gather: frames and tables on their way from an address space back to the frame room.
//!
//! What was unmapped may still be in some CPU's TLB, and a table that was unhooked may still be under a lock-free
//! walker's feet. So nothing that enters a gather is reused before [`Gather::finish`] has flushed the TLBs once for
//! all of it; frames are free then, tables after an epoch. Frames are chained through their own descriptors: a
//! gather takes any number of them and allocates nothing.

use crate::space::SpaceCore;
use crate::spaces::Spaces;
use core::sync::atomic::Ordering;
use quire_arch::{Order, Pfn, Platform, VirtRange};
use quire_frame::FrameChain;

/// Frames and tables that were taken out of the page tables of one space.
#[must_use = "what a gather holds is lost unless it is finished"]
pub(crate) struct Gather<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    core: &'s SpaceCore<P>,
    frames: FrameChain,
    tables: FrameChain,
    /// Smallest range that holds every translation that must go.
    stale: Option<VirtRange>,
}

impl<'s, P: Platform> Gather<'s, P> {
    pub(crate) fn new(spaces: &'s Spaces<P>, core: &'s SpaceCore<P>) -> Self {
        Self { spaces, core, frames: FrameChain::new(), tables: FrameChain::new(), stale: None }
    }

    /// Notes that translations in `range` may be cached and must not outlive the gather.
    #[inline]
    pub(crate) fn add_stale(&mut self, range: VirtRange) {
        self.stale = Some(match self.stale {
            None => range,
            Some(old) => VirtRange::new(old.start().min(range.start()), old.end().max(range.end())),
        });
    }

    /// Takes a frame whose last mapping was just removed. The caller held the only reference.
    #[inline]
    pub(crate) fn add_frame(&mut self, pfn: Pfn) {
        let frames = self.spaces.frames();
        frames.known(pfn).map_count().store(0, Ordering::Relaxed);
        let gathered = frames.gather(&mut self.frames, pfn, Order::ZERO);
        debug_assert!(gathered.is_ok(), "an unmapped frame could not be gathered: {gathered:?}");
    }

    /// Takes a table that was just unhooked from its parent, responsible for `range`.
    #[inline]
    pub(crate) fn add_table(&mut self, pfn: Pfn, range: VirtRange) {
        self.add_stale(range);
        let gathered = self.spaces.frames().gather(&mut self.tables, pfn, Order::ZERO);
        debug_assert!(gathered.is_ok(), "an unhooked table could not be gathered: {gathered:?}");
    }

    /// Flushes the TLBs and gives everything back. Cannot fail and allocates nothing.
    pub(crate) fn finish(self) {
        if self.stale.is_none() && self.frames.is_empty() && self.tables.is_empty() {
            return;
        }
        let pin = self.spaces.platform().pin();
        if let Some(range) = self.stale {
            self.core.flush(&pin, range);
        }
        let frames = self.spaces.frames();
        frames.free_chain(&pin, self.frames);
        frames.retire_chain(&pin, self.tables);
    }
}
