//! Openings as the embedder holds them.

use super::PageCache;
use crate::backing::FileBacking;
use crate::cached_file::MAX_FILE_BYTES;
use crate::error::PageError;
use crate::file_core::Mapping;
use crate::open_file::OpenFile;
use crate::shmem::{ShmemOwner, ShmemPromise};
use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;
use quire_arch::Platform;
use quire_frame::AllocError;
use quire_sync::atomic::raw::Ordering;

/// An open file, held. Dropping it lets the opening go, and closes it if nothing else holds it: that may
/// sleep.
pub struct FileHandle<'m, P: Platform, V: Mapping> {
    cache: PageCache<'m, P, V>,
    open: NonNull<OpenFile<P, V>>,
}

// SAFETY: an open file is Send and Sync, and so is what it was made of.
unsafe impl<P: Platform, V: Mapping> Send for FileHandle<'_, P, V> {}
// SAFETY: as for `Send`.
unsafe impl<P: Platform, V: Mapping> Sync for FileHandle<'_, P, V> {}

impl<'m, P: Platform, V: Mapping> PageCache<'m, P, V> {
    /// A file of `size` bytes, open. The backing is dropped with the last opening, or if this fails.
    ///
    /// # Errors
    ///
    /// [`PageError::TooLarge`], or there is no memory for it.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn create<B: FileBacking<P>>(self, backing: B, size: u64) -> Result<FileHandle<'m, P, V>, PageError> {
        if size > MAX_FILE_BYTES {
            return Err(PageError::TooLarge);
        }
        let open = self.files.create(self.frames(), backing, size)?;
        Ok(FileHandle { cache: self, open })
    }

    /// Shared memory of `size` bytes, open: a file without a backing, whose pages `owner` is asked for. The
    /// owner is dropped with the last opening, or if this fails. It has a number if it `is_named`.
    ///
    /// # Errors
    ///
    /// [`PageError::TooLarge`], or there is no memory for it.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn create_shmem<O: ShmemOwner>(
        self,
        owner: O,
        (size, promise): (u64, ShmemPromise),
        is_named: bool,
    ) -> Result<FileHandle<'m, P, V>, PageError> {
        if size > MAX_FILE_BYTES {
            return Err(PageError::TooLarge);
        }
        let open = self.files.create_shmem(self.frames(), owner, (size, promise), is_named)?;
        Ok(FileHandle { cache: self, open })
    }

    /// Opens the file of `open` once more.
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn open_again(self, open: &OpenFile<P, V>) -> Result<FileHandle<'m, P, V>, AllocError> {
        let file = open.file();
        // Relaxed: the opening at hand is counted, so this is not the first.
        file.openings.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the file lives, and has just counted the opening.
        let made = unsafe { self.files.opening_of(self.frames(), open.file_place()) };
        let open = made.inspect_err(|_| {
            file.openings.fetch_sub(1, Ordering::Relaxed);
        })?;
        Ok(FileHandle { cache: self, open })
    }
}

impl<P: Platform, V: Mapping> Deref for FileHandle<'_, P, V> {
    type Target = OpenFile<P, V>;

    fn deref(&self) -> &OpenFile<P, V> {
        // SAFETY: this holds it.
        unsafe { self.open.as_ref() }
    }
}

impl<P: Platform, V: Mapping> Drop for FileHandle<'_, P, V> {
    fn drop(&mut self) {
        let opening = self.opening();
        // SAFETY: this holds it, and does not use it after this.
        if unsafe { opening.as_ref().let_go() } {
            // SAFETY: that was the last holder.
            unsafe { self.cache.close(opening) };
        }
    }
}

impl<P: Platform, V: Mapping> fmt::Debug for FileHandle<'_, P, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
