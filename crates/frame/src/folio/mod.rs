//! Folios: blocks that programs map.
//!
//! Only the first descriptor of a folio holds its state, whatever its order. So mapping and unmapping many of
//! its pages costs the same as one page:
//!
//! - [`Frame::map_count`] is the sum over all mappings of the base pages that they map. An entry of a bottom
//!   table counts 1, an entry of a PMD table [`Order::PMD`]'s pages; so splitting such an entry changes no
//!   count.
//! - All mappings together hold one reference: the one with which the block was allocated. The thread that
//!   unmaps the last page drops it, once no TLB has an entry for the folio.
//! - The map count of a *large* folio (order above 0), and the entries that map it, change under its *head
//!   lock* ([`HeadGuard`]), so a thread that holds that sees counts and entries agree. A folio of one page
//!   needs no lock: its count is one word. A large folio can become several small ones, never the other way,
//!   so it is checked again after the head lock was taken.
//!
//! The head lock spins. For long work there is the *folio lock*, which sleeps
//! ([`FolioGuard`](crate::FolioGuard)).
//!
//! The counts do not say which spaces map a folio: the rmap finds which pages are mapped, and where.

mod counts;
mod list;
#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used, reason = "models are tests")]
mod models;

pub use counts::MAX_MAPS;
pub use list::FolioList;

use crate::kind::Kind;
use crate::map::{Frame, FrameFlags};
use core::fmt;
use core::marker::PhantomData;
use quire_arch::{LockClass, Order, Pfn, Platform};
use quire_sync::atomic::{Ordering, fence};

/// A folio, as found from one of its frames. A snapshot: the caller keeps it valid, e.g. by an entry that
/// maps the frame, under the lock of its table, and for a large folio the head lock.
#[derive(Clone, Copy)]
pub struct Folio<'m> {
    head: Pfn,
    order: Order,
    frame: &'m Frame,
}

impl<'m> Folio<'m> {
    /// The folio of `order` that starts at `head`, which `frame` describes.
    #[inline]
    pub(crate) fn new(head: Pfn, order: Order, frame: &'m Frame) -> Self {
        Self { head, order, frame }
    }

    /// Its first frame.
    #[inline]
    pub fn head(&self) -> Pfn {
        self.head
    }

    /// Its order.
    #[inline]
    pub fn order(&self) -> Order {
        self.order
    }

    /// Whether it has more than one page.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.order > Order::ZERO
    }

    /// Its first descriptor, which holds its state.
    #[inline]
    pub fn frame(&self) -> &'m Frame {
        self.frame
    }

    /// Takes the head lock if it is free now and still that of this folio, `None` if it is not free. The
    /// caller keeps one of its pages from being freed, perhaps of another folio by now, and has announced its
    /// wish.
    #[inline]
    pub(crate) fn try_lock_head(&self) -> Option<bool> {
        let lock = self.frame.lock_word();
        // Only looked at: once the folio is split, its first frame may become another owner's, who may free
        // it at this moment, and does not wait for this thread.
        if !lock.try_look() {
            return None;
        }
        // It may have been split before this thread got the lock. If not, the caller's page still lies in it,
        // so the frame was not reused.
        let now = self.frame.word();
        let is_same = now.kind() != Kind::Tail && now.order() == self.order;
        // SAFETY: taken just above.
        unsafe {
            if is_same {
                lock.keep();
            } else {
                lock.give_back();
            }
        }
        Some(is_same)
    }

    /// Its kind.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.frame.kind()
    }

    /// Whether it is a page of the cache of a file, which a thread that looks it up there may map.
    #[inline]
    pub fn is_in_file_cache(&self) -> bool {
        let word = self.frame.word();
        word.kind().is_of_file() && word.flags().contains(FrameFlags::SHARED_BY_NAME)
    }

    /// Whether it may be pinned for device access: it has so many references that some are probably pins
    /// ([`FrameFolios::pin_folio`](crate::FrameFolios::pin_folio)).
    #[inline]
    pub fn may_be_pinned(&self) -> bool {
        self.frame.refs() >= PIN
    }

    /// The same for a caller that has just cleared an entry that maps the folio, or made it unusable, to put
    /// something else there. A thread that pins without a lock
    /// ([`try_pin_folio`](crate::FrameFolios::try_pin_folio)) has a fence between the pin and its second look
    /// at the entry: a pin that is not found here finds the entry changed.
    #[inline]
    pub fn may_be_pinned_after_unmap(&self) -> bool {
        fence(Ordering::SeqCst);
        self.may_be_pinned()
    }

    /// References beside those of pins.
    #[inline]
    pub fn unpinned_refs(&self) -> u32 {
        self.frame.refs() % PIN
    }

    /// Base pages from `pfn`, which lies in it, to its end.
    #[inline]
    pub fn pages_from(&self, pfn: Pfn) -> u64 {
        self.head.0 + self.order.pages() - pfn.0
    }
}

impl fmt::Debug for Folio<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folio").field("head", &self.head).field("order", &self.order).finish_non_exhaustive()
    }
}

/// What is left of a folio's mappings after some were removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the last unmapping frees the folio"]
pub enum MapsLeft {
    /// None: the caller owns the reference that the mappings held.
    None,
    /// Some, of a folio of one page or of one that was unmapped whole, and that all who map it map whole as
    /// far as is known.
    Some,
    /// Some, of a large folio of which pages may be unmapped: a part of it was, or a part only was mapped, or
    /// what is left is less than one mapping of all of it.
    Part,
}

/// A folio whose counts and entries stay as they are while this lives. Of a folio of one page it holds no
/// lock.
pub struct HeadGuard<'m, P: Platform> {
    folio: Folio<'m>,
    execution: PhantomData<fn() -> P>,
}

impl<'m, P: Platform> HeadGuard<'m, P> {
    /// The folio, with its counts stable.
    ///
    /// # Safety
    ///
    /// If the folio is large, the caller has taken its head lock, and passes it to the result.
    #[inline]
    pub(crate) unsafe fn new(folio: Folio<'m>) -> Self {
        Self { folio, execution: PhantomData }
    }

    /// The folio.
    #[inline]
    pub fn folio(&self) -> Folio<'m> {
        self.folio
    }

    /// Whether no thread but the caller, whose entry maps a page of it under the lock of its table, can see
    /// the folio.
    #[inline]
    pub fn is_exclusive(&self) -> bool {
        self.folio.is_exclusive()
    }

    /// Whether no thread but the caller can see the folio. The caller found `mapped` entries of its own that
    /// map it. If so the folio remembers it.
    #[inline]
    pub fn claim(&self, mapped: u32) -> bool {
        let refs = self.folio.frame.refs();
        let alone = self.maps() == mapped && (refs == 1 || refs >= PIN) && !self.folio.may_be_named();
        if alone && self.folio.is_large() {
            self.folio.frame.set_flags(FrameFlags::ANONYMOUS_EXCLUSIVE);
        }
        alone
    }

    /// Notes that a page of the folio is about to be mapped by another space too, and returns whether the
    /// folio is large. Only large folios need the note: of a single page the count says as much.
    #[inline]
    pub fn no_longer_exclusive(&self) -> bool {
        let exclusive = FrameFlags::ANONYMOUS_EXCLUSIVE;
        let is_large = self.folio.is_large();
        if is_large && self.folio.frame.word().flags().contains(exclusive) {
            self.folio.frame.clear_flags(exclusive);
        }
        is_large
    }

    /// Base pages mapped, over all mappings.
    #[inline]
    pub fn maps(&self) -> u32 {
        self.folio.maps()
    }

    /// Whether [`add_maps`](Self::add_maps) would count `pages` more.
    #[inline]
    pub fn may_add(&self, pages: u32) -> bool {
        pages <= MAX_MAPS - self.maps().min(MAX_MAPS)
    }

    /// Adds `pages` to the map count, for a caller whose entries map them already or are about to. Returns
    /// false, with nothing changed, if the count would overflow.
    #[inline]
    pub fn add_maps(&self, pages: u32) -> bool {
        self.folio.add_maps(pages)
    }

    /// Counts `pages` more of a folio that was found in the swap cache. The caller holds the folio lock and
    /// saw that there is [room](Self::may_add). Mappings go at any time, so only the result says whether
    /// these are the first. The first take the mappings' reference.
    pub fn add_cached_maps(&self, pages: u32) -> bool {
        self.folio.add_cached_maps(pages)
    }

    /// Whether the folio is a single page whose slot swap entries may name, or is in the cache of a file:
    /// even if only the caller maps it now, others may map it at any time. To be checked after reading the
    /// [count](Self::maps).
    #[inline]
    pub fn may_be_mapped_by_name(&self) -> bool {
        self.folio.may_be_mapped_by_name()
    }

    /// Counts `pages` fewer.
    #[inline]
    pub fn remove_maps(&self, pages: u32) -> MapsLeft {
        self.folio.remove_maps(pages)
    }
}

impl<P: Platform> Drop for HeadGuard<'_, P> {
    #[inline]
    fn drop(&mut self) {
        if self.folio.is_large() {
            // SAFETY: the lock of a large folio was handed over with it (`new`).
            unsafe { self.folio.frame.lock_word().unlock::<P>(LockClass::Folio) };
        }
    }
}

impl<P: Platform> fmt::Debug for HeadGuard<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folio.fmt(f)
    }
}

/// References that a pin takes. All mappings of a folio hold one together, and others hold few for long, so a
/// folio with so many is pinned (Linux distinguishes pins from references the same way,
/// `GUP_PIN_COUNTING_BIAS`).
pub(crate) const PIN: u32 = 1024;
