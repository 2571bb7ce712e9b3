//! Openings as the embedder holds them.

use super::PageCache;
use super::ends::free_end;
use crate::backing::FileBacking;
use crate::cached_file::MAX_FILE_BYTES;
use crate::error::{Busy, PageError};
use crate::file_core::{FileCore, Mapping, hold, let_go};
use crate::index::IndexRange;
use crate::open_file::OpenFile;
use crate::shmem::{ShmemName, ShmemOwner, ShmemPromise};
use crate::users::FileUsers;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr::NonNull;
use quire_arch::{Access, Platform};
use quire_sync::atomic::raw::Ordering;

/// Files whose ends are looked at, as in Linux.
const END_FILES: u32 = 128;

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
    /// A file of `size` bytes, open for writing. The backing is dropped with the last opening, or if this
    /// fails.
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

    /// Shared memory of `size` bytes, open for writing: a file without a backing, whose pages `owner` is
    /// asked for. The owner is dropped with the last opening, or if this fails. As in Linux this opening does
    /// not count as a writer: a program runs from its memfd.
    ///
    /// # Errors
    ///
    /// [`PageError::TooLarge`], or there is no memory for it.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn create_shmem<O: ShmemOwner>(
        self,
        owner: O,
        (size, promise): (u64, ShmemPromise),
        name: ShmemName,
    ) -> Result<FileHandle<'m, P, V>, PageError> {
        if size > MAX_FILE_BYTES {
            return Err(PageError::TooLarge);
        }
        let open = self.files.create_shmem(self.frames(), owner, (size, promise), name)?;
        Ok(FileHandle { cache: self, open })
    }

    /// Opens the file of `open` once more, for `access`. Before it may be written to, the folios leave its
    /// cache that it has only while none writes, with all else that is clean. May sleep; nothing is held.
    ///
    /// # Errors
    ///
    /// [`PageError::TextBusy`], or there is no memory for it.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn open_again(
        self,
        open: &OpenFile<P, V>,
        access: Access,
        users: &dyn FileUsers<P, V>,
    ) -> Result<FileHandle<'m, P, V>, PageError> {
        // SAFETY: the file has the opening at hand, so it lives.
        let handle = unsafe { FileHandle::counted(self, open.file_place(), access) }?;
        if access == Access::Write {
            handle.end_reading_only(users);
        }
        Ok(handle)
    }
}

// SAFETY: a file is Send and Sync, and so is what the cache is made of.
unsafe impl<P: Platform, V: Mapping> Send for HeldFile<'_, P, V> {}
// SAFETY: as for `Send`.
unsafe impl<P: Platform, V: Mapping> Sync for HeldFile<'_, P, V> {}

/// A file that is held without an opening of its own, so that it does not end. Dropping it may end the file,
/// and sleep.
pub struct HeldFile<'m, P: Platform, V: Mapping> {
    cache: PageCache<'m, P, V>,
    core: NonNull<FileCore<P, V>>,
}

impl<'m, P: Platform, V: Mapping> HeldFile<'m, P, V> {
    /// The first file, or the first behind `after`, that has pages on swap devices.
    pub fn next_swapped(cache: PageCache<'m, P, V>, after: Option<&Self>) -> Option<Self> {
        let core = cache.files.hold_swapped(cache.frames(), after.map(|held| held.core))?;
        Some(Self::new(cache, core))
    }

    /// Frees what large folios have past the end of files of one file system, or of any: until `wanted` pages
    /// are free, or 128 files were looked at. Returns how many there are. May sleep, and waits for no lock
    /// that is slept on: callers that ask for memory may hold any.
    pub fn free_ends(
        cache: PageCache<'m, P, V>,
        file_system: Option<usize>,
        wanted: u64,
        users: &dyn FileUsers<P, V>,
    ) -> u64 {
        let mut search = cache.files.search_ends(file_system);
        let mut freed = 0;
        for _ in 0..END_FILES {
            let Some(core) = cache.files.hold_end(cache.frames(), &mut search) else { break };
            let file = Self::new(cache, core);
            match free_end(cache, &file, users) {
                Ok(pages) => freed += pages,
                // Another time, behind those that this search looks at.
                Err(Busy { .. }) => cache.files.note_end(cache.frames(), &file),
            }
            file.leave();
            if freed >= wanted {
                break;
            }
        }
        freed
    }

    /// Lets it go where locks may be held. If it was the last opening the file ends with the next call of
    /// [`end_left`](Self::end_left).
    fn leave(self) {
        let held = ManuallyDrop::new(self);
        // SAFETY: one of the openings that the file counts is this, which is not dropped.
        if unsafe { let_go(held.core) } {
            // SAFETY: that was the last one.
            unsafe { held.cache.files.leave(held.cache.frames(), held.core) };
        }
    }

    /// Ends the files of which [`free_ends`](Self::free_ends) had the last opening. May sleep; nothing is
    /// held.
    #[inline]
    pub fn end_left(cache: PageCache<'m, P, V>) {
        while let Some(core) = cache.files.take_left(cache.frames()) {
            // SAFETY: it has no opening, and was left to who takes it.
            unsafe { cache.end(core) };
        }
    }

    /// The file counts an opening that goes over to this.
    const fn new(cache: PageCache<'m, P, V>, core: NonNull<FileCore<P, V>>) -> Self {
        Self { cache, core }
    }
}

/// A file that is known, and ends all the same when its last opening is closed. What is kept of it then is
/// its descriptor, without pages.
pub struct KnownFile<'m, P: Platform, V: Mapping> {
    cache: PageCache<'m, P, V>,
    core: NonNull<FileCore<P, V>>,
}

// SAFETY: a file is Send and Sync, and so is what the cache is made of.
unsafe impl<P: Platform, V: Mapping> Send for KnownFile<'_, P, V> {}
// SAFETY: as for `Send`.
unsafe impl<P: Platform, V: Mapping> Sync for KnownFile<'_, P, V> {}

impl<'m, P: Platform, V: Mapping> FileHandle<'m, P, V> {
    /// An opening for writing of a file that is held, and is shared memory.
    ///
    /// # Errors
    ///
    /// [`PageError::TextBusy`], or there is no memory for it.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn of_held(held: &HeldFile<'m, P, V>) -> Result<Self, PageError> {
        debug_assert!(held.is_shmem(), "what a file has only while none writes is not looked for");
        // SAFETY: one opening is counted for what holds it.
        unsafe { Self::counted(held.cache, held.core, Access::Write) }
    }

    /// One opening more.
    ///
    /// # Safety
    ///
    /// The file has one, so that it lives.
    #[cfg_attr(debug_assertions, track_caller)]
    unsafe fn counted(
        cache: PageCache<'m, P, V>,
        core: NonNull<FileCore<P, V>>,
        access: Access,
    ) -> Result<Self, PageError> {
        // SAFETY: the caller's promise.
        let file = unsafe { core.as_ref() };
        file.access.begin(access)?;
        // Relaxed: another opening is counted, so this is not the first.
        file.openings.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the file lives, and has just counted the opening.
        let made = unsafe { cache.files.opening_of(cache.frames(), core, (access, access)) };
        let open = made.inspect_err(|_| {
            file.openings.fetch_sub(1, Ordering::Relaxed);
            file.access.end(access);
        })?;
        Ok(Self { cache, open })
    }

    /// Removes what the file may have only while it is open for writing nowhere: this opening is for that. As
    /// in Linux everything that is clean leaves the cache. (What is dirty stays; Linux loses it.)
    fn end_reading_only(&self, users: &dyn FileUsers<P, V>) {
        let (cache, file) = (self.cache, self.file());
        if file.access.large() == 0 {
            return;
        }
        let _alone = file.invalidate.write(cache.platform());
        // Not the copies that programs have made. None of what comes from now on is of this sort.
        users.unmap(file, IndexRange::ALL, false);
        cache.remove_clean(file, IndexRange::ALL, |_| true, users);
        debug_assert_eq!(file.access.large(), 0, "{file:?} is written to");
    }

    /// The file, to be known when this is dropped.
    pub fn know(&self) -> KnownFile<'m, P, V> {
        // Relaxed: the openings are counted, and one is at hand.
        self.file().knowers.fetch_add(1, Ordering::Relaxed);
        KnownFile { cache: self.cache, core: self.file_place() }
    }
}

impl<'m, P: Platform, V: Mapping> KnownFile<'m, P, V> {
    fn core(&self) -> &FileCore<P, V> {
        // SAFETY: it is there as long as someone knows it.
        unsafe { self.core.as_ref() }
    }

    /// The file, held, if it has not ended.
    pub fn hold(&self) -> Option<HeldFile<'m, P, V>> {
        hold(self.core()).then_some(HeldFile { cache: self.cache, core: self.core })
    }

    /// From now on pages of shared memory that are in memory stay there, or do not (`SHM_LOCK`). Nothing is
    /// brought in. The caller [rescues](crate::ShmemPages::rescue) what does not stay any more. Waits for
    /// nothing.
    pub fn keep_in_memory(&self, stays: bool) {
        if let Some(shmem) = self.core().shmem() {
            shmem.keep_in_memory(stays);
        }
    }

    /// How many VMAs map it, at a moment.
    pub fn mapped(&self) -> usize {
        self.core().mappings().count()
    }

    /// How many VMAs have left it since it was made.
    pub fn departures(&self) -> usize {
        self.core().mappings().departures()
    }
}

impl<P: Platform, V: Mapping> Drop for KnownFile<'_, P, V> {
    fn drop(&mut self) {
        // SAFETY: this knows it, and does not after this.
        unsafe { self.cache.files.forget(self.cache.frames(), self.core) };
    }
}

impl<P: Platform, V: Mapping> fmt::Debug for KnownFile<'_, P, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.core(), f)
    }
}

impl<P: Platform, V: Mapping> Deref for HeldFile<'_, P, V> {
    type Target = FileCore<P, V>;

    fn deref(&self) -> &FileCore<P, V> {
        // SAFETY: the file lives as long as it has openings, and one is this.
        unsafe { self.core.as_ref() }
    }
}

impl<P: Platform, V: Mapping> Drop for HeldFile<'_, P, V> {
    fn drop(&mut self) {
        // SAFETY: one of the openings that the file counts is this.
        unsafe { self.cache.close_one(self.core) };
    }
}

impl<P: Platform, V: Mapping> fmt::Debug for HeldFile<'_, P, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
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
