//! The folio lock: for long work on one folio, e.g. splitting it. A thread that waits for it sleeps.
//!
//! It is two bits of the state word: see `map/descriptor/folio_lock.rs`. No wake-up is lost between the check
//! of the bits and the sleep, since [`Platform::park`] looks once more under the lock that `unpark` takes.

use super::FrameFolios;
use crate::frames::Frames;
use crate::map::{Frame, FrameFlags};
use core::fmt;
use core::marker::PhantomData;
use core::ptr;
use quire_arch::{Pfn, Platform};

/// A folio under its folio lock.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct FolioGuard<'m, P: Platform> {
    frames: &'m Frames<P>,
    frame: &'m Frame,
    not_send: PhantomData<*const ()>,
}

impl<'f, P: Platform> FrameFolios<'f, P> {
    /// Takes the folio lock of the folio that starts at `head`, to which the caller holds a reference. Sleeps
    /// while another thread has it, so the caller is not pinned. `None` if no folio starts there.
    pub fn lock_folio(self, head: Pfn) -> Option<FolioGuard<'f, P>> {
        let frame = self.frames.frame(head)?;
        let key = ptr::from_ref(frame).addr();
        let locked = frame.lock_folio_with(|still| self.frames.platform().park(key, still));
        locked.then(|| FolioGuard { frames: self.frames, frame, not_send: PhantomData })
    }

    /// As [`lock_folio`](Self::lock_folio), but does not wait.
    pub fn try_lock_folio(self, head: Pfn) -> Option<FolioGuard<'f, P>> {
        let frame = self.frames.frame(head)?;
        // A guard made without the lock would, when dropped, release another thread's.
        frame.try_lock_folio().then(|| FolioGuard { frames: self.frames, frame, not_send: PhantomData })
    }

    /// Whether the single page at `head`, which an entry of the caller's in a locked table maps, is exclusive
    /// though it was [shared by name](FrameFlags::SHARED_BY_NAME). If so, the mark is cleared. False also
    /// where another thread holds the folio lock.
    pub fn forget_names(self, head: Pfn) -> bool {
        self.try_lock_folio(head).is_some_and(|_locked| self.frames.folio(head).forget_names())
    }

    /// The folio lock of the folio at `head`, which another thread [left held](FolioGuard::leave_held) for
    /// the caller alone.
    pub fn adopt_folio_lock(self, head: Pfn) -> FolioGuard<'f, P> {
        let frame = self.frames.known(head);
        debug_assert!(
            frame.word().flags().contains(FrameFlags::LOCKED),
            "the lock of {head:?} was not left held"
        );
        FolioGuard { frames: self.frames, frame, not_send: PhantomData }
    }
}

impl<P: Platform> FolioGuard<'_, P> {
    /// Whether this is the lock of the folio at `head`, of these frames.
    pub fn is_of(&self, frames: &Frames<P>, head: Pfn) -> bool {
        ptr::eq(self.frames, frames) && frames.frame(head).is_some_and(|frame| ptr::eq(self.frame, frame))
    }

    /// The lock stays held, until a thread [adopts](FrameFolios::adopt_folio_lock) it.
    pub fn leave_held(self) {
        core::mem::forget(self);
    }
}

impl<P: Platform> Drop for FolioGuard<'_, P> {
    fn drop(&mut self) {
        if self.frame.unlock_folio() {
            self.frames.platform().unpark(ptr::from_ref(self.frame).addr());
        }
    }
}

impl<P: Platform> fmt::Debug for FolioGuard<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolioGuard").field("word", &self.frame.word()).finish_non_exhaustive()
    }
}
