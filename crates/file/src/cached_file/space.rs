//! Space for pages that become dirty, beside holes that free it.
//!
//! Space is asked for with nothing locked, and the page becomes dirty later. A hole that frees space in
//! between is counted before Invalidate is released, and the thread asks again. Where it has locked the page
//! before the hole takes it, it makes it dirty, and the hole takes it as it is then.

use super::CachedFile;
use crate::backing::FileError;
use crate::index::IndexRange;
use crate::shmem::ShmemPromise;
use quire_arch::Platform;
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// Space for pages that was asked for.
#[derive(Clone, Copy)]
#[must_use = "the space may have been freed since"]
pub(crate) struct Prepared {
    /// The count of the file's cuts before.
    cuts: u64,
    pages: IndexRange,
}

/// What is stored of a file is being freed.
#[must_use = "it ends when this is dropped"]
pub(crate) struct Cut<'f>(&'f AtomicU64);

impl<P: Platform> CachedFile<P> {
    /// Asks the backing for space for pages that are about to be written to, by a call or through a mapping.
    /// For all of each: a dirty page may be written to anywhere. No folio is locked, and no lock of the file
    /// is held but the embedder's.
    ///
    /// # Errors
    ///
    /// There is none: the pages must not be written to.
    pub(crate) fn prepare_write(&self, pages: IndexRange) -> Result<Prepared, FileError> {
        let prepared = Prepared { cuts: self.cuts.load(Ordering::Acquire), pages };
        self.backing().prepare_write(pages.bytes())?;
        Ok(prepared)
    }

    /// Whether the space is there still, and enough for the pages of a folio, which become dirty together.
    /// The caller has locked the folio, or holds Invalidate.
    pub(crate) fn is_prepared(&self, prepared: Prepared, folio: IndexRange) -> bool {
        // Acquire: pairs with the end of a cut.
        self.cuts.load(Ordering::Acquire) == prepared.cuts && prepared.pages.covers(folio)
    }

    /// Takes pages of shared memory that are about to exist: nothing, of another file.
    ///
    /// # Errors
    ///
    /// Its owner's; or [`FileError::NoSpace`] where no promise covers them, and as much is committed as may
    /// be.
    pub(crate) fn take_pages(&self, pages: u64) -> Result<(), FileError> {
        let Some(shmem) = self.shmem() else { return Ok(()) };
        shmem.owner().take_pages(pages)?;
        if shmem.promise() == ShmemPromise::Each {
            let taken = self.memory().committed.take(pages);
            return taken.inspect_err(|_| shmem.owner().give_back_pages(pages));
        }
        Ok(())
    }

    /// Gives back pages that were taken, and are gone or did not come.
    pub(crate) fn give_back_pages(&self, pages: u64) {
        if let Some(shmem) = self.shmem() {
            if shmem.promise() == ShmemPromise::Each {
                self.memory().committed.drop_shared(pages);
            }
            shmem.owner().give_back_pages(pages);
        }
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
