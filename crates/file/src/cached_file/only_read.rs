//! What a file may have only while it is open for writing nowhere.

use super::CachedFile;
use crate::error::PageError;
use crate::write_access::Writing;
use core::fmt;
use quire_arch::{Order, Platform};

/// A file, as far as it has folios that its backing does not take, and who may write to it.
pub struct OnlyRead<'f, P: Platform>(&'f CachedFile<P>);

impl<'f, P: Platform> OnlyRead<'f, P> {
    /// This file.
    #[inline]
    pub const fn of(file: &'f CachedFile<P>) -> Self {
        Self(file)
    }

    /// Whether an opening of the file is for writing, at a moment (Linux's `inode_is_open_for_write`).
    pub fn is_open_for_writing(&self) -> bool {
        self.0.access.is_written()
    }

    /// Counts a writer to shared memory beside its openings, until the result is dropped: it has no folios
    /// that one for writing removes.
    ///
    /// # Errors
    ///
    /// [`PageError::TextBusy`]; [`PageError::NotSupported`] for other files.
    pub fn write(&self) -> Result<Writing<'f>, PageError> {
        if self.0.is_shmem() { self.0.access.write() } else { Err(PageError::NotSupported) }
    }

    /// Whether the file may have folios of `order` only while none is: its backing does not take them.
    pub(crate) fn limits(&self, order: Order) -> bool {
        !self.0.is_shmem() && self.0.limits.folio_order() < order
    }
}

impl<P: Platform> fmt::Debug for OnlyRead<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnlyRead").field(&self.0.access).finish()
    }
}
