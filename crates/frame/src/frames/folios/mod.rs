//! Finding, pinning, locking and freeing folios.

mod folio_lock;
mod singles;
mod split;
mod split_cached;

pub use folio_lock::FolioGuard;
pub use singles::SinglePages;
pub use split::{FolioSplit, HeldParts, PartIs, SplitError};

use super::Frames;
use crate::chain::FrameChain;
use crate::error::FreeError;
use crate::folio::{Folio, HeadGuard, PIN};
use crate::kind::Kind;
use crate::map::FrameFlags;
use quire_arch::{LockClass, Order, Pfn, Platform};

/// What [`FrameFolios::try_pin_folio`] pinned.
#[derive(Clone, Copy, Debug)]
#[must_use = "what is pinned is to be let go"]
pub enum Pinned<'m> {
    /// The folio that the frame lies in.
    Folio(Folio<'m>),
    /// Another one, which starts here: the frame was reused. The caller must unpin it.
    Another(Pfn),
    /// Nothing.
    Nothing,
}

impl<P: Platform> Frames<P> {
    /// The folio that `pfn` lies in. The caller keeps it from being freed.
    #[inline]
    pub fn folio(&self, pfn: Pfn) -> Folio<'_> {
        let frame = self.known(pfn);
        let word = frame.word();
        if word.kind() == Kind::Tail {
            return self.folio_of_tail(pfn);
        }
        Folio::new(pfn, word.order(), frame)
    }

    /// A tail does not say where its block starts. The first frame that is no tail among those that a larger
    /// and larger block with `pfn` in it could start at is the block's: all nearer ones lie inside of it.
    #[inline(never)]
    fn folio_of_tail(&self, pfn: Pfn) -> Folio<'_> {
        let mut attempt = 0;
        loop {
            let heads = Order::ALL.iter().map(|order| pfn.block_start(*order));
            let found = heads.map(|head| (head, self.known(head))).find_map(|(head, frame)| {
                let word = frame.word();
                (word.kind() != Kind::Tail).then_some(Folio::new(head, word.order(), frame))
            });
            match found {
                // One that does not reach so far was just cut off: parts become folios from the last to the
                // first, so that of `pfn` is one by now.
                Some(folio) if folio.order().pages() <= pfn.0 - folio.head().0 => P::relax(attempt),
                Some(folio) => return folio,
                None => return Folio::new(pfn, Order::ZERO, self.known(pfn)),
            }
            attempt = attempt.saturating_add(1);
        }
    }
}

quire_arch::part_of! {
    /// The folios of a machine: pinned, locked, put and split.
    pub struct FrameFolios { pub(super) frames: Frames }
}

impl<'f, P: Platform> FrameFolios<'f, P> {
    /// Pins the folio that `pfn` lies in for device access: it stays in place, and a child gets a copy. The
    /// caller keeps it from being freed. Returns false if the refcount would overflow.
    pub fn pin_folio(self, pfn: Pfn) -> bool {
        self.frames.folio(pfn).frame().get(PIN)
    }

    /// As [`pin_folio`](Self::pin_folio) for a caller that does not keep the folio from being freed, and
    /// found `pfn` in an entry a moment ago. The caller has to check again that it pinned the right folio. A
    /// thread that frees a wrongly pinned one leaves the freeing to the caller, who does it by dropping the
    /// pin.
    pub fn try_pin_folio(self, pfn: Pfn) -> Pinned<'f> {
        let folio = self.frames.folio(pfn);
        if !folio.frame().try_get_mapped(PIN) {
            return Pinned::Nothing;
        }
        // It may have been freed and reused, or split, before it was pinned. From now on it is stable.
        let now = self.frames.folio(pfn);
        if now.head() == folio.head() { Pinned::Folio(now) } else { Pinned::Another(folio.head()) }
    }

    /// Unpins the folio that `pfn` lies in, except for one reference, which the caller drops
    /// ([`put_folio`](Self::put_folio)). Returns its first frame and its order.
    pub fn unpin_folio(self, pfn: Pfn) -> (Pfn, Order) {
        let folio = self.frames.folio(pfn);
        folio.frame().put(PIN - 1);
        (folio.head(), folio.order())
    }

    /// The folio that `pfn` lies in, under its head lock: its counts are stable. The caller keeps it from
    /// being freed, and is pinned to its CPU.
    #[inline]
    pub fn lock_head(self, pfn: Pfn) -> HeadGuard<'f, P> {
        let folio = self.frames.folio(pfn);
        if folio.is_large() {
            if cfg!(debug_assertions) {
                P::lock_taken(LockClass::Folio);
            }
            if folio.try_lock_head() != Some(true) {
                return self.lock_head_again(pfn);
            }
        }
        // SAFETY: the folio has one page, or its lock was taken just above, and is handed over.
        unsafe { HeadGuard::new(folio) }
    }

    /// The same where the folio is a single page of the cache of a file, else `None`.
    #[inline]
    pub fn cached_page(self, pfn: Pfn) -> Option<HeadGuard<'f, P>> {
        let frame = self.frames.known(pfn);
        let word = frame.word();
        let is_cached = word.kind().is_of_file() && word.flags().contains(FrameFlags::SHARED_BY_NAME);
        // SAFETY: it has one page, so there is no lock.
        (is_cached && word.order() == Order::ZERO)
            .then(|| unsafe { HeadGuard::new(Folio::new(pfn, Order::ZERO, frame)) })
    }

    /// As [`lock_head`](Self::lock_head), of a folio that is large, or was when it was looked up. The lock is
    /// counted already.
    #[cold]
    fn lock_head_again(self, pfn: Pfn) -> HeadGuard<'f, P> {
        let mut attempt = 0;
        loop {
            let folio = self.frames.folio(pfn);
            if !folio.is_large() {
                if cfg!(debug_assertions) {
                    P::lock_dropped(LockClass::Folio);
                }
                // SAFETY: the folio has one page.
                return unsafe { HeadGuard::new(folio) };
            }
            // Only tried: the first frame of a folio that was split may be another owner's, who may hold this
            // lock, e.g. of a table, and wait for one of the caller's.
            match folio.try_lock_head() {
                // SAFETY: taken just above, and handed over.
                Some(true) => return unsafe { HeadGuard::new(folio) },
                Some(false) => {}
                None => {
                    P::relax(attempt);
                    attempt = attempt.saturating_add(1);
                }
            }
        }
    }

    /// Drops a reference to the folio of `order` that starts at `pfn`. If it was the last one, the folio
    /// enters `chain`, and the result is true.
    ///
    /// # Errors
    ///
    /// As for [`gather`](Frames::gather): the folio is still mapped, or no such block was allocated. The
    /// reference is dropped nevertheless.
    #[inline]
    pub fn put_folio(self, chain: &mut FrameChain, pfn: Pfn, order: Order) -> Result<bool, FreeError> {
        if self.frames.try_gather(chain, pfn, order) {
            return Ok(true);
        }
        self.put_held_folio(chain, pfn, order)
    }

    /// As [`put_folio`](Self::put_folio), for a folio that others hold, or that is not freed at once.
    #[inline(never)]
    fn put_held_folio(self, chain: &mut FrameChain, pfn: Pfn, order: Order) -> Result<bool, FreeError> {
        // While others hold it, one of them may be splitting it, and keeps counts in its inner frames: those
        // are checked only when this is the last reference.
        if self.frames.known(pfn).put_unless_last() {
            return Ok(false);
        }
        match self.frames.gather(chain, pfn, order) {
            Ok(()) => Ok(true),
            // Another thread took one since the check.
            Err(FreeError::Referenced { .. }) if !self.frames.known(pfn).put(1) => Ok(false),
            Err(FreeError::Referenced { .. }) => self.frames.gather(chain, pfn, order).map(|()| true),
            Err(error) => Err(error),
        }
    }
}
