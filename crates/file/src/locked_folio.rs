//! A folio of a file, locked.

use crate::index::{IndexRange, PageIndex};
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, Range};
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{FolioGuard, Frame};
use quire_memcg::Memcgs;

/// A folio of a file's cache, under the folio lock and with a reference. As long as it is locked it stays in
/// the cache, and its contents are good.
#[must_use = "the folio is unlocked when this is dropped"]
pub struct LockedFolio<'m, P: Platform> {
    memcgs: &'m Memcgs<P>,
    head: Pfn,
    guard: Option<FolioGuard<'m, P>>,
}

impl<'m, P: Platform> LockedFolio<'m, P> {
    /// The folio at `head`, with its lock and a reference, which are the caller's.
    pub(crate) const fn new(memcgs: &'m Memcgs<P>, head: Pfn, guard: FolioGuard<'m, P>) -> Self {
        Self { memcgs, head, guard: Some(guard) }
    }

    /// The folio at `head` for a caller whose lock and reference are held elsewhere.
    ///
    /// # Safety
    ///
    /// They are held as long as the result is used.
    pub(crate) const unsafe fn lent(memcgs: &'m Memcgs<P>, head: Pfn) -> Lent<'m, P> {
        Lent(ManuallyDrop::new(Self { memcgs, head, guard: None }))
    }

    /// Its first frame.
    #[inline]
    pub fn head(&self) -> Pfn {
        self.head
    }

    /// Its first descriptor.
    #[inline]
    pub fn frame(&self) -> &'m Frame {
        self.memcgs.frames().known(self.head)
    }

    /// Its order. It stays, as no other thread splits a folio that is locked.
    #[inline]
    pub fn order(&self) -> Order {
        self.frame().word().order()
    }

    /// The first page of the file that it has.
    #[inline]
    pub fn start(&self) -> PageIndex {
        PageIndex::known(self.frame().as_folio().index())
    }

    /// The pages of the file that it has.
    #[inline]
    pub fn range(&self) -> IndexRange {
        IndexRange::block(self.start(), self.order())
    }

    /// The frame of page `index` of the file, which it has.
    #[inline]
    pub fn frame_of(&self, index: PageIndex) -> Pfn {
        let range = self.range();
        debug_assert!(range.contains(index), "{index:?} is not one of {range:?}");
        self.head.offset(index.get() - range.start())
    }

    /// The first byte of the file that it has, and the first one behind it.
    pub(crate) fn bytes(&self) -> Range<u64> {
        self.range().bytes()
    }

    /// Fills these bytes of the file with zeros, as far as it has them.
    pub(crate) fn zero(&self, bytes: &Range<u64>) {
        let own = self.bytes();
        let (start, end) = (bytes.start.max(own.start), bytes.end.min(own.end));
        if start < end {
            let platform = self.memcgs.frames().platform();
            // SAFETY: the folio is locked, and the bytes are in it.
            unsafe { zero_bytes(platform, self.head, start - own.start, end - own.start) };
        }
    }

    /// Unlocks it, for a caller with locks under which nothing may be freed. The folio is in the cache, so
    /// another reference is left.
    pub fn unlock_cached(mut self) {
        let last = self.frame().put(1);
        debug_assert!(!last, "{:?} is in no cache", self.head);
        drop(self.guard.take());
        core::mem::forget(self);
    }

    /// Unlocks it. The reference is the caller's, e.g. that of the mappings.
    pub fn unlock_and_keep(mut self) -> Pfn {
        drop(self.guard.take());
        let head = self.head;
        core::mem::forget(self);
        head
    }
}

/// A folio of a file's cache whose lock and reference are held elsewhere.
pub struct Lent<'m, P: Platform>(ManuallyDrop<LockedFolio<'m, P>>);

impl<'m, P: Platform> Deref for Lent<'m, P> {
    type Target = LockedFolio<'m, P>;

    fn deref(&self) -> &LockedFolio<'m, P> {
        &self.0
    }
}

impl<P: Platform> fmt::Debug for Lent<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<P: Platform> Drop for LockedFolio<'_, P> {
    fn drop(&mut self) {
        drop(self.guard.take());
        self.memcgs.folios().release_folio(self.head);
    }
}

impl<P: Platform> fmt::Debug for LockedFolio<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedFolio").field("head", &self.head).finish_non_exhaustive()
    }
}

/// Fills the bytes of a folio from `from` up to `to` with zeros.
///
/// # Safety
///
/// The folio at `head` is in RAM, and locked by the caller; `from..to` is within it. Only programs that
/// expect the race use these bytes at the same time.
pub(crate) unsafe fn zero_bytes<P: Platform>(platform: &P, head: Pfn, from: u64, to: u64) {
    if from < to {
        // SAFETY: the caller's promise.
        unsafe { platform.direct_map(head).as_ptr().add(from as usize).write_bytes(0, (to - from) as usize) };
    }
}
