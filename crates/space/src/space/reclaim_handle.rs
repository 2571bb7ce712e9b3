//! The handles of reclaim.

use super::{SpaceOom, exit};
use crate::spaces::Spaces;
use core::fmt;
use core::ptr::NonNull;
use quire_arch::{PAGE_SIZE, Platform};
use quire_memcg::MemcgId;
use quire_sync::atomic::Ordering;
use quire_vma::{SpaceCore, SpaceFigures, SpaceHold};

/// A handle of reclaim to a space. If it is the last one, the space exits when [`finish_exits`] is called.
pub struct ReclaimHandle<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    hold: SpaceHold<'s>,
}

impl<'s, P: Platform> ReclaimHandle<'s, P> {
    /// As [`Space::next`](super::Space::next).
    pub fn next(spaces: &'s Spaces<P>, space: Option<&Self>) -> Option<Self> {
        let core = spaces.hold_next(space.map(Self::core))?;
        // SAFETY: `destroy` frees the cores of these spaces, when they have no handle; `hold_next` gave us
        // one.
        Some(Self { spaces, hold: unsafe { SpaceHold::adopt(core, spaces.rmap().exits()) } })
    }

    fn core(&self) -> &SpaceCore {
        self.hold.core()
    }

    /// The memcg that the space is in.
    pub fn memcg(&self) -> MemcgId {
        self.core().memcg()
    }

    /// The usage of the space at this moment.
    pub fn figures(&self) -> SpaceFigures {
        self.core().figures()
    }

    /// The program in the space.
    pub fn oom(&self) -> SpaceOom<'_, P> {
        SpaceOom::new(self.spaces, self.core())
    }
}

impl<P: Platform> fmt::Debug for ReclaimHandle<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.fmt(f)
    }
}

/// Lets the spaces exit whose last handles were those of reclaim. Called where reclaim has returned, with no
/// lock held but those of other mappings. Returns about how many pages they had.
pub fn finish_exits<P: Platform>(spaces: &Spaces<P>) -> u64 {
    let mut pages = 0;
    let mut next = spaces.rmap().exits().take();
    while let Some(core) = next {
        // SAFETY: it has no handle, and is this thread's alone.
        let shared = unsafe { core.as_ref() };
        next = NonNull::new(shared.next_exit.load(Ordering::Relaxed));
        let figures = shared.figures();
        pages += (figures.resident + figures.page_tables) / PAGE_SIZE;
        // SAFETY: as above.
        unsafe { exit(spaces, core, spaces.rmap().closing()) };
    }
    pages
}

impl<P: Platform> Drop for Spaces<P> {
    /// The machine ends. No handle is left but those that were leaked; so what has no holder any more is
    /// closed, and other files end without that.
    fn drop(&mut self) {
        finish_exits(self);
        self.close_unused_files();
        // SAFETY: handles borrow the spaces, so no thread has one.
        unsafe { self.page_cache().end_all() };
    }
}
