//! An open file (Linux's `struct file`), as far as memory management knows it.

use crate::backing::FileError;
use crate::error::PageError;
use crate::error_sequence::Cursor;
use crate::file_core::{FileCore, Mapping};
use crate::opening::Opening;
use crate::seals::{Entering, Seals};
use crate::shmem::ShmemState;
use core::fmt;
use core::mem::offset_of;
use core::ptr::{self, NonNull};
use quire_arch::{Access, Platform};

/// An open file. A holder of its [`Opening`] may use it.
#[repr(C)]
pub struct OpenFile<P: Platform, V> {
    opening: Opening<V>,
    file: NonNull<FileCore<P, V>>,
    /// Which errors of writeback it has been told of.
    seen: Cursor,
    access: Access,
    /// What the file counts it as: one that writes, or that no one may write beside.
    counted: Access,
}

// SAFETY: the file is Send and Sync, and lives as long as this does; all else is, too.
unsafe impl<P: Platform, V: Mapping> Send for OpenFile<P, V> {}
// SAFETY: as for `Send`.
unsafe impl<P: Platform, V: Mapping> Sync for OpenFile<P, V> {}

impl<P: Platform, V: Mapping> OpenFile<P, V> {
    /// An opening of `file` for `access`, with the caller as its holder.
    ///
    /// # Safety
    ///
    /// The file counts it, also as one for `counted`, and lives until it is closed.
    pub(crate) unsafe fn new(file: NonNull<FileCore<P, V>>, access: Access, counted: Access) -> Self {
        const { assert!(offset_of!(Self, opening) == 0, "an opening leads to its open file") };
        // SAFETY: the file lives (caller).
        let core = unsafe { file.as_ref() };
        // SAFETY: the mappings are a part of the file, which lives until this is closed (caller).
        let opening = unsafe { Opening::new(NonNull::from(core.mappings())) };
        Self { opening, file, seen: core.errors.sample(), access, counted }
    }

    /// The open file that an opening is the first part of.
    ///
    /// # Safety
    ///
    /// The opening is one of an `OpenFile<P, V>` of these types, as all are that [`PageCache`] makes, and is
    /// held, or not closed yet, as long as the result is used.
    ///
    /// [`PageCache`]: crate::PageCache
    #[inline]
    pub unsafe fn of<'o>(opening: NonNull<Opening<V>>) -> &'o Self {
        // SAFETY: the opening is the first field of one (caller), whose provenance was exposed when it was
        // made.
        unsafe { &*ptr::with_exposed_provenance::<Self>(opening.addr().get()) }
    }

    /// What VMAs name it by.
    #[inline]
    pub fn opening(&self) -> NonNull<Opening<V>> {
        NonNull::from(self).cast()
    }

    /// Its file.
    #[inline]
    pub fn file(&self) -> &FileCore<P, V> {
        // SAFETY: it lives until this is closed.
        unsafe { self.file.as_ref() }
    }

    /// What it is for.
    #[inline]
    pub fn access(&self) -> Access {
        self.access
    }

    /// What the file counts it as.
    pub(crate) fn counted(&self) -> Access {
        self.counted
    }

    pub(crate) fn file_place(&self) -> NonNull<FileCore<P, V>> {
        self.file
    }

    /// Counts a shared mapping that may write to the file, or become writable, until the result is dropped:
    /// by then it is among the mappings of the file. `None` if a seal keeps it from ever writing: then it
    /// is no such mapping. If it `writes` it is writable from the start. May sleep.
    ///
    /// # Errors
    ///
    /// [`PageError::Sealed`].
    pub fn enter_writer(&self, platform: &P, writes: bool) -> Result<Option<Entering<'_>>, PageError> {
        let Some(state) = self.file().shmem().map(ShmemState::seal_state) else {
            return Ok(Some(Entering::FREE));
        };
        let refused = |seals: Seals| match seals.intersects(Seals::NO_WRITES) {
            true if writes => Some(Err(PageError::Sealed)),
            true => Some(Ok(None)),
            // Of what may not be sealed any more.
            false => seals.contains(Seals::SEAL).then_some(Ok(Some(Entering::FREE))),
        };
        if let Some(result) = refused(state.get()) {
            return result;
        }
        let _mappings = self.file().mappings().write(platform);
        match refused(state.get()) {
            Some(result) => result,
            None if state.denies_writers() => Err(PageError::Sealed),
            None => Ok(Some(state.begin_to_enter())),
        }
    }

    /// The last error of writeback that this opening has not been told of: each is reported once.
    ///
    /// # Errors
    ///
    /// That error.
    pub fn report_error(&self) -> Result<(), FileError> {
        self.file().errors.report(&self.seen)
    }
}

impl<P: Platform, V> fmt::Debug for OpenFile<P, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFile").field("opening", &self.opening).finish_non_exhaustive()
    }
}
