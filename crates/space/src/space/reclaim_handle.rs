//! The handles of reclaim.

use super::{Space, SpaceOom};
use crate::spaces::Spaces;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use quire_arch::{PAGE_SIZE, Platform};
use quire_memcg::MemcgId;
use quire_sync::atomic::Ordering;
use quire_vma::{SpaceCore, SpaceFigures};

/// A handle of reclaim to a space. If it is the last one, the space exits when [`finish_exits`] is called: an
/// exit needs as much stack as the reclaim that it would happen in, and takes locks of its own.
pub struct ReclaimHandle<'s, P: Platform>(ManuallyDrop<Space<'s, P>>);

impl<'s, P: Platform> ReclaimHandle<'s, P> {
    /// A handle that the core counts already.
    pub(crate) fn adopt(spaces: &'s Spaces<P>, core: NonNull<SpaceCore>) -> Self {
        Self(ManuallyDrop::new(Space::adopt(spaces, core)))
    }

    /// As [`Space::next`].
    pub fn next(spaces: &'s Spaces<P>, space: Option<&Self>) -> Option<Self> {
        spaces.hold_next(space.map(Self::core)).map(|core| Self::adopt(spaces, core))
    }

    #[inline]
    pub(crate) fn core(&self) -> &SpaceCore {
        self.0.core()
    }

    /// The memcg that the space is in.
    pub fn memcg(&self) -> MemcgId {
        self.0.memcg()
    }

    /// The usage of the space at this moment.
    pub fn figures(&self) -> SpaceFigures {
        self.0.figures()
    }

    /// The program in the space.
    pub fn oom(&self) -> SpaceOom<'_, P> {
        self.0.oom()
    }
}

impl<P: Platform> Drop for ReclaimHandle<'_, P> {
    fn drop(&mut self) {
        if self.0.was_last() {
            // SAFETY: it was. The handle inside is not dropped.
            unsafe { self.0.spaces.exit_later(self.0.place()) };
        }
    }
}

impl<P: Platform> fmt::Debug for ReclaimHandle<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Lets the spaces exit whose last handles were those of reclaim. Called where reclaim has returned, with no
/// lock held but those of other mappings. Returns about how many pages they had.
pub fn finish_exits<P: Platform>(spaces: &Spaces<P>) -> u64 {
    let mut pages = 0;
    let mut next = spaces.take_exits();
    while let Some(core) = next {
        // SAFETY: it has no handle, and is this thread's alone.
        next = NonNull::new(unsafe { core.as_ref() }.next_exit.load(Ordering::Relaxed));
        let mut space = ManuallyDrop::new(Space::adopt(spaces, core));
        pages += (space.figures().resident + space.figures().page_tables) / PAGE_SIZE;
        space.exit();
        // SAFETY: it has no handle and is this thread's alone; it is empty now, and current nowhere.
        unsafe { spaces.destroy(core) };
    }
    pages
}
