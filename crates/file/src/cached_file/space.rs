//! Space for pages that become dirty, beside holes that free it.
//!
//! Space is asked for with nothing locked, and the page becomes dirty later. A hole that frees space in
//! between is counted before Invalidate is released, and the thread asks again. Where it has locked the page
//! before the hole takes it, it makes it dirty, and the hole takes it as it is then.

use super::CachedFile;
use crate::backing::FileError;
use crate::index::PageIndex;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, Platform};
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// Space for a page was asked for when this was the count of the file's cuts.
#[derive(Clone, Copy)]
#[must_use = "the space may have been freed since"]
pub(crate) struct Prepared(u64);

/// What is stored of a file is being freed.
#[must_use = "it ends when this is dropped"]
pub(crate) struct Cut<'f>(&'f AtomicU64);

impl<P: Platform> CachedFile<P> {
    /// Asks the backing for space for a page that is about to be written to, by a call or through a mapping.
    /// For all of it: a dirty page may be written to anywhere. No folio is locked, and no lock of the file is
    /// held but the embedder's.
    ///
    /// # Errors
    ///
    /// There is none: the page must not be written to.
    pub(crate) fn prepare_write(&self, index: PageIndex) -> Result<Prepared, FileError> {
        let prepared = Prepared(self.cuts.load(Ordering::Acquire));
        let start = index.get() << PAGE_SHIFT;
        self.backing().prepare_write(start..start + PAGE_SIZE)?;
        Ok(prepared)
    }

    /// Whether the space is there still. The caller has locked the page's folio, or holds Invalidate.
    pub(crate) fn is_prepared(&self, prepared: Prepared) -> bool {
        // Acquire: pairs with the end of a cut.
        self.cuts.load(Ordering::Acquire) == prepared.0
    }

    /// Begins a cut. The caller holds Invalidate exclusively until it has ended.
    pub(crate) const fn cut(&self) -> Cut<'_> {
        Cut(&self.cuts)
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        // Release: pairs with the loads above.
        self.0.fetch_add(1, Ordering::Release);
    }
}
