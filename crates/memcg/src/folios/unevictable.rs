//! The unevictable list, which reclaim does not scan.
//!
//! A folio is there because a mapping locks it, and then it is marked, or because its file stays in memory.

use super::MemcgFolios;
use crate::lists::LruList;
use core::fmt;
use quire_arch::{Pfn, Pin, Platform};
use quire_frame::{FrameFlags, HeadGuard, VmEvent};
use quire_sync::atomic::{Ordering, fence};

const NONE: FrameFlags = FrameFlags::empty();

/// The folios of memcgs, as far as they are unevictable.
pub struct UnevictableFolios<'m, P: Platform>(MemcgFolios<'m, P>);

impl<'m, P: Platform> UnevictableFolios<'m, P> {
    /// Those of these.
    #[inline]
    pub const fn of(folios: MemcgFolios<'m, P>) -> Self {
        Self(folios)
    }

    /// A locked mapping no longer maps a page of `folio`; others may. The page was taken out of the mapping
    /// before: a thread that marks the folio for a locked mapping that it saw looks at the mappings once more
    /// (`quire_pageout::referenced`). `stays` is as in [`set_mlocked`](Self::set_mlocked).
    pub fn munlock(self, pin: &Pin<'_, P>, folio: &HeadGuard<'_, P>, stays: impl FnOnce() -> bool) {
        if self.0.lists_anonymous() {
            self.set_mlocked(pin, folio, false, stays);
        }
    }

    /// Marks a folio of private or shared memory as mlocked, or not, and puts it on the unevictable list, or
    /// back on an evictable one. If it is not marked any more, `stays` says whether it stays there all the
    /// same, because its file does.
    pub fn set_mlocked(
        self,
        pin: &Pin<'_, P>,
        folio: &HeadGuard<'_, P>,
        locks: bool,
        stays: impl FnOnce() -> bool,
    ) {
        let (frame, head) = (folio.folio().frame(), folio.folio().head());
        if !folio.folio().kind().is_swap_backed() {
            return;
        }
        let marked = if locks { VmEvent::UnevictablePgsMlocked } else { VmEvent::UnevictablePgsMunlocked };
        let (set, clear) = if locks { (FrameFlags::MLOCKED, NONE) } else { (NONE, FrameFlags::MLOCKED) };
        if frame.change_flags(set, clear).is_some_and(|was| was.contains(FrameFlags::MLOCKED) != locks) {
            self.0.tree.frames().events().add(pin, marked, folio.folio().order().pages());
        }
        // Pairs with the fences of `rescue`, and of those who say that the file does not stay any more.
        fence(Ordering::SeqCst);
        // What reclaim has isolated at this moment it puts back on the right list, by the flag.
        if locks {
            self.cull(pin, head);
        } else if !stays() {
            self.rescue(pin, head);
        }
    }

    /// Puts a listed folio on the unevictable list, if it is not there yet.
    pub fn cull(self, pin: &Pin<'_, P>, head: Pfn) {
        let is_evictable = self.0.list_of(head).is_some_and(|list| list != LruList::Unevictable);
        let to = |list| (list != LruList::Unevictable).then_some(LruList::Unevictable);
        if is_evictable && self.0.relist(head, to, true) {
            self.count_moved(pin, VmEvent::UnevictablePgsCulled, head);
        }
    }

    /// Puts a folio that is on the unevictable list, and not mlocked, back on an evictable one: the file list
    /// of the kind, if it was freed lazily.
    pub fn rescue(self, pin: &Pin<'_, P>, head: Pfn) {
        let is_mlocked = || self.0.tree.frames().known(head).word().flags().contains(FrameFlags::MLOCKED);
        if self.0.list_of(head) != Some(LruList::Unevictable) || is_mlocked() {
            return;
        }
        let to = |list| (list == LruList::Unevictable).then_some(LruList::InactiveAnon);
        if self.0.relist(head, to, true) {
            self.count_moved(pin, VmEvent::UnevictablePgsRescued, head);
            // Pairs with that of `set_mlocked`: that finds it moved, or the mark is found here.
            fence(Ordering::SeqCst);
            if is_mlocked() {
                self.cull(pin, head);
            }
        }
    }

    fn count_moved(self, pin: &Pin<'_, P>, event: VmEvent, head: Pfn) {
        let pages = self.0.tree.frames().folio(head).order().pages();
        self.0.tree.frames().events().add(pin, event, pages);
    }
}

impl<P: Platform> Clone for UnevictableFolios<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for UnevictableFolios<'_, P> {}

impl<P: Platform> fmt::Debug for UnevictableFolios<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnevictableFolios").finish_non_exhaustive()
    }
}
