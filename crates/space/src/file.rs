//! Files as an embedder holds them.

use crate::caller::retry_with_reclaim;
use crate::error::{Errno, Error};
use crate::spaces::{CALL_ATTEMPTS, Spaces};
use core::fmt;
use core::ops::Range;
use core::ptr::{self, NonNull};
use quire_arch::{Access, Order, PAGE_SIZE, Platform};
use quire_fault::{Need, SwapInError};
use quire_file::{
    Allocation, Busy, Entering, FileBacking, FileError, FileFigures, FileHandle, HeldFile, IndexRange,
    KnownFile, OnlyRead, OpenFile, Opening, PageError, SealError, Sealing, Seals, ShmemName, ShmemOwner,
    ShmemPromise, ShmemState, SwappedPage, Transfer, UnusedPages, UserCopy, Wait, Writing,
};
use quire_frame::AllocError;
use quire_memcg::Membership;
use quire_pageout::FileMappers;
use quire_vma::{Backing, VmFlags, Vma};

/// An open file (Linux's `struct file`), held: the embedder's end of what [`Space::mmap_file`] maps. The last
/// one of a file to go, handle or mapping, has its dirty pages written back; that may sleep.
///
/// The file's size is kept here. An embedder calls what changes the size or writes under its own lock of the
/// inode, as Linux does.
///
/// [`Space::mmap_file`]: crate::Space::mmap_file
pub struct File<'m, P: Platform> {
    spaces: &'m Spaces<P>,
    handle: FileHandle<'m, P, Vma>,
}

impl<'m, P: Platform> File<'m, P> {
    /// A new file of `size` bytes, open for writing, whose contents `backing` has. The backing is dropped
    /// with the file, or if this fails.
    ///
    /// # Errors
    ///
    /// [`PageError::TooLarge`] and [`PageError::NoMemory`].
    #[cfg_attr(debug_assertions, track_caller)]
    #[doc(hidden)]
    pub fn create<B: FileBacking<P>>(
        spaces: &'m Spaces<P>,
        backing: B,
        size: u64,
    ) -> Result<Self, PageError> {
        Ok(Self { spaces, handle: spaces.page_cache().create(backing, size)? })
    }

    /// New shared memory of `size` bytes, open for writing, all of it zeros (Linux's `memfd_create`, or a
    /// file in a tmpfs): a file that has no backing. `owner` is asked for each of its pages that comes to
    /// exist, and dropped with the file, or if this fails. As in Linux this opening does not count as one for
    /// writing where others open it for execution.
    ///
    /// # Errors
    ///
    /// [`PageError::TooLarge`] and [`PageError::NoMemory`].
    #[cfg_attr(debug_assertions, track_caller)]
    #[doc(hidden)]
    pub fn create_shmem<O: ShmemOwner>(
        spaces: &'m Spaces<P>,
        owner: O,
        size: u64,
    ) -> Result<Self, PageError> {
        let handle = spaces.page_cache().create_shmem(owner, (size, ShmemPromise::Each), ShmemName::File)?;
        Ok(Self { spaces, handle })
    }

    /// New shared memory of `size` bytes without a name, as `mmap` makes it. If it `is_promised` all of it
    /// counts as committed.
    ///
    /// # Errors
    ///
    /// [`Error::CommitLimit`], [`Error::OffsetOverflow`] and [`Error::NoFrames`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn create_unnamed(spaces: &'m Spaces<P>, size: u64, is_promised: bool) -> Result<Self, Error> {
        Self::create_promised(spaces, size, is_promised, ShmemName::None)
    }

    /// New shared memory of `size` bytes, as `shmget` makes it; otherwise as `mmap` does.
    ///
    /// # Errors
    ///
    /// [`Error::CommitLimit`], [`Error::OffsetOverflow`] and [`Error::NoFrames`].
    #[doc(hidden)]
    pub fn create_segment(spaces: &'m Spaces<P>, size: u64, is_promised: bool) -> Result<Self, Error> {
        let is_promised = is_promised || !spaces.commit().honours_noreserve();
        retry_with_reclaim(
            spaces,
            || false,
            || Self::create_promised(spaces, size, is_promised, ShmemName::Segment),
        )
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn create_promised(
        spaces: &'m Spaces<P>,
        size: u64,
        is_promised: bool,
        name: ShmemName,
    ) -> Result<Self, Error> {
        let pages = if is_promised { size.div_ceil(PAGE_SIZE) } else { 0 };
        let promise = if is_promised { ShmemPromise::Whole(pages) } else { ShmemPromise::Each };
        spaces.promise_shared(pages)?;
        let made = spaces.page_cache().create_shmem((), (size, promise), name);
        if made.is_err() {
            spaces.page_cache().files().committed().drop_shared(pages);
        }
        match made {
            Ok(handle) => Ok(Self { spaces, handle }),
            Err(PageError::NoMemory(cause)) => Err(Error::NoFrames(cause)),
            Err(_) => Err(Error::OffsetOverflow),
        }
    }

    /// What a VMA that maps it has.
    pub(crate) fn backing_of(&self) -> Backing {
        // SAFETY: the handle holds the opening.
        unsafe { backing_of::<P>(self.opening().as_ref()) }
    }

    /// Opens the file once more: for reading only (`O_RDONLY`), with [`Access::Write`] also for writing, with
    /// [`Access::Execute`] for reading while none may write to it, as `exec` opens a program. What maps one
    /// opening does not merge with what maps another, and each is told of an error of writeback once. It is
    /// open as long as the result is there, or something is mapped of it. May sleep.
    ///
    /// As long as no opening is for writing, MADV_COLLAPSE and khugepaged make large folios of what is mapped
    /// of the file, where the machine [allows](crate::HugeConfig::read_only_files) it. The next one for
    /// writing drops what is cached of it and clean. So what an embedder keeps of a file for itself is for
    /// reading.
    ///
    /// # Errors
    ///
    /// [`PageError::NoMemory`]; [`PageError::TextBusy`] for writing beside an opening for execution, or the
    /// other way round.
    pub fn open(&self, access: Access) -> Result<Self, PageError> {
        let spaces = self.spaces;
        let handle = spaces.page_cache().open_again(&self.handle, access, &self.mappers())?;
        Ok(Self { spaces, handle })
    }

    /// Whether it is open for writing.
    pub(crate) fn is_writable(&self) -> bool {
        self.handle.access() == Access::Write
    }

    fn check_writable(&self) -> Result<(), PageError> {
        if self.is_writable() { Ok(()) } else { Err(PageError::NotForWriting) }
    }

    /// Keeps shared memory, however this is opened, from being opened for execution, until the result is
    /// dropped: for what a file system changes without an opening of its own (`truncate`).
    ///
    /// # Errors
    ///
    /// [`PageError::TextBusy`]; [`PageError::NotSupported`] for other files.
    #[doc(hidden)]
    pub fn writing(&self) -> Result<Writing<'_>, PageError> {
        OnlyRead::of(self.handle.file()).write()
    }

    /// The file, to be known when this handle is dropped.
    #[doc(hidden)]
    pub fn know(&self) -> KnownFile<'m, P, Vma> {
        self.handle.know()
    }

    /// Opens shared memory that is held, for writing.
    ///
    /// # Errors
    ///
    /// [`Error::NoFrames`]; [`Error::RefusedByFile`] where it is open for execution.
    #[doc(hidden)]
    pub fn open_held(spaces: &'m Spaces<P>, held: &HeldFile<'m, P, Vma>) -> Result<Self, Error> {
        let open = || {
            FileHandle::of_held(held).map_err(|error| match error {
                PageError::NoMemory(cause) => Error::NoFrames(cause),
                _ => Error::RefusedByFile(Errno::ETXTBSY),
            })
        };
        retry_with_reclaim(spaces, || false, open).map(|handle| Self { spaces, handle })
    }

    /// The machine.
    #[doc(hidden)]
    pub fn platform(&self) -> &'m P {
        self.spaces.platform()
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.handle.file().size()
    }

    /// A number that no other file of the machine has, or had.
    pub fn number(&self) -> u64 {
        self.handle.file().number()
    }

    /// Its pages.
    pub fn figures(&self) -> FileFigures {
        self.handle.file().figures(self.spaces.frames())
    }

    /// Changes its size (`ftruncate`). What is past the new one is lost, in every mapping, copies that
    /// programs have made of it included; what is new is zeros. May sleep.
    ///
    /// # Errors
    ///
    /// [`PageError::NotForWriting`], [`PageError::TooLarge`], [`PageError::Sealed`]; of shared memory also
    /// for want of memory, where the page that the new end is in is to be swapped in, or more than it was
    /// swapped out in one piece. Nothing has changed then.
    pub fn set_size(&self, size: u64) -> Result<(), PageError> {
        self.check_writable()?;
        let mut failed = 0;
        loop {
            let file = self.handle.file();
            match self.spaces.page_cache().set_size(file, size, &self.mappers()) {
                Err(PageError::Swapped(page)) => self.swap_in_or_lose(page)?,
                Err(short) if failed < CALL_ATTEMPTS && self.made_room(short) => failed += 1,
                result => return result,
            }
        }
    }

    /// Adds seals to shared memory (`F_ADD_SEALS`): changes that are refused from now on. New shared memory
    /// has none; a file in a tmpfs, and a memfd without `MFD_ALLOW_SEALING`, gets [`Seals::SEAL`] at once.
    /// May sleep.
    ///
    /// # Errors
    ///
    /// [`Error::NotPermitted`] if this is not open for writing, [`Error::NotSealable`], [`Error::Sealed`] for
    /// what has [`Seals::SEAL`], and [`Error::InUse`] against writes while a shared mapping may write, or a
    /// page is pinned for a device. No seal is added then.
    pub fn add_seals(&self, seals: Seals) -> Result<(), Error> {
        if !self.is_writable() {
            return Err(Error::NotPermitted);
        }
        let users = self.mappers();
        let added = Sealing::new(self.spaces.page_cache(), self.handle.file(), &users).add(seals);
        added.map_err(|error| match error {
            SealError::NoShmem => Error::NotSealable,
            SealError::Sealed => Error::Sealed,
            SealError::Busy => Error::InUse,
        })
    }

    /// Its seals (`F_GET_SEALS`). `None` if it is not shared memory, which alone has some.
    pub fn seals(&self) -> Option<Seals> {
        self.handle.file().shmem().map(ShmemState::seals)
    }

    /// As [`SpaceFiles::allocate`](crate::SpaceFiles::allocate); the root memcg pays.
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(hidden)]
    pub fn allocate(&self, bytes: Range<u64>, keep_size: bool) -> Result<(), PageError> {
        self.allocate_for(bytes, keep_size, &Membership::default(), &|| false)
    }

    /// [`allocate`](Self::allocate) for a program of this machine, whose memcg pays, until it `is_killed`.
    pub(crate) fn allocate_for(
        &self,
        bytes: Range<u64>,
        keep_size: bool,
        program: &Membership,
        is_killed: &dyn Fn() -> bool,
    ) -> Result<(), PageError> {
        self.check_writable()?;
        let file = self.handle.file();
        let allocation = Allocation::new(self.spaces.page_cache(), file, &bytes)?;
        let allocate = |index| {
            // What is freed by its death is not for it.
            let end = || if is_killed() { Err(PageError::Killed) } else { Ok(()) };
            self.with_reclaim(program, || end().and_then(|()| allocation.allocate(index, program)))
        };
        let mut allocated = allocation.try_for_each(allocate);
        if allocated.is_ok() && !keep_size && bytes.end > file.size() {
            allocated = self.set_size(bytes.end);
        }
        if allocated.is_err() {
            allocation.give_back(&self.mappers());
        }
        allocated
    }

    /// The first byte from `from` on that is data (`SEEK_DATA`); of a file with a backing each is. `None`,
    /// for `ENXIO`, if there is none.
    pub fn seek_data(&self, from: u64) -> Option<u64> {
        UnusedPages::of(self.handle.file()).seek_data(self.spaces.frames(), from)
    }

    /// The first byte from `from` on that is in a hole (`SEEK_HOLE`), or the end. `None`, for `ENXIO`, if the
    /// file ends before it.
    pub fn seek_hole(&self, from: u64) -> Option<u64> {
        UnusedPages::of(self.handle.file()).seek_hole(self.spaces.frames(), from)
    }

    /// As [`SpaceFiles::punch`](crate::SpaceFiles::punch); the root memcg pays.
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(hidden)]
    pub fn punch(
        &self,
        bytes: Range<u64>,
        mut free: impl FnMut(Range<u64>) -> Result<(), FileError>,
    ) -> Result<(), PageError> {
        self.punch_for(bytes, &Membership::default(), &mut free)
    }

    /// [`punch`](Self::punch) for a program of this machine, whose memcg pays for the pages at the ends.
    pub(crate) fn punch_for(
        &self,
        bytes: Range<u64>,
        program: &Membership,
        free: &mut dyn FnMut(Range<u64>) -> Result<(), FileError>,
    ) -> Result<(), PageError> {
        self.check_writable()?;
        let users = self.mappers();
        self.with_reclaim(program, || {
            let file = self.handle.file();
            self.spaces.page_cache().punch(file, bytes.clone(), program, &users, &mut *free)
        })
    }

    /// Changes what is stored from the page on that has byte `from`, and the size: for calls that move bytes
    /// within the file (`fallocate` with COLLAPSE_RANGE or INSERT_RANGE). What is dirty there is written
    /// first. `change` does the embedder's part, while no page from there on is cached and none can come; it
    /// may not call the memory management. As in Linux, programs lose their copies of these pages. May sleep.
    ///
    /// # Errors
    ///
    /// [`PageError::NotForWriting`], [`PageError::TooLarge`]; [`PageError::NotSupported`] for shared memory;
    /// a page could not be written, or `change` failed: the size is the one before.
    pub fn replace_from(
        &self,
        from: u64,
        size: u64,
        mut change: impl FnMut() -> Result<(), FileError>,
    ) -> Result<(), PageError> {
        self.check_writable()?;
        let file = self.handle.file();
        self.spaces.page_cache().replace_from(file, (from, size), &self.mappers(), &mut change)
    }

    /// Removes the pages from the cache that hold these bytes, if they are clean and unused: those that come
    /// to be read again are asked of the backing.
    ///
    /// # Errors
    ///
    /// [`Busy`]: some are not. All others are removed.
    pub fn invalidate(&self, bytes: Range<u64>) -> Result<(), Busy> {
        self.spaces.page_cache().invalidate(self.handle.file(), pages_of(&bytes))
    }

    /// Reads from byte `at` on, until the end of the file or of `to`. The root memcg is charged for what
    /// comes into the cache; [`Space::files`](crate::Space::files) charges a program's. May sleep.
    pub fn read(&self, at: u64, to: &mut dyn UserCopy) -> Transfer {
        self.read_for(at, to, &Membership::default())
    }

    /// Writes from byte `at` on, and makes the file as large as that needs; otherwise as
    /// [`read`](Self::read). Nothing is written by an opening that is not for it
    /// ([`PageError::NotForWriting`]).
    pub fn write(&self, at: u64, from: &mut dyn UserCopy) -> Transfer {
        self.write_for(at, from, &Membership::default())
    }

    /// [`read`](Self::read) for a program of this machine, whose memcg is charged.
    pub(crate) fn read_for(&self, at: u64, to: &mut dyn UserCopy, program: &Membership) -> Transfer {
        self.transfer(program, |done| {
            self.spaces.page_cache().read(self.handle.file(), at.saturating_add(done), to, program)
        })
    }

    /// [`write`](Self::write) for a program of this machine, whose memcg is charged.
    pub(crate) fn write_for(&self, at: u64, from: &mut dyn UserCopy, program: &Membership) -> Transfer {
        if let Err(error) = self.check_writable() {
            return Transfer { bytes: 0, stopped: Some(error) };
        }
        self.transfer(program, |done| {
            let at = at.saturating_add(done);
            self.spaces.page_cache().write(self.handle.file(), at, from, program, &self.mappers())
        })
    }

    /// Writes dirty pages that hold these bytes to the backing, and with [`Wait::Yes`] waits for the end of
    /// it.
    ///
    /// # Errors
    ///
    /// With [`Wait::Yes`], an error of the backing. Every opening is told by its next [`sync`](Self::sync) in
    /// any case.
    pub fn write_back(&self, bytes: Range<u64>, wait: Wait) -> Result<(), FileError> {
        let file = self.handle.file();
        self.spaces.page_cache().write_back(file, pages_of(&bytes), wait, &self.mappers())
    }

    /// Writes what is dirty of these bytes and makes it lasting (`fsync`; with `data_only`, `fdatasync`).
    ///
    /// # Errors
    ///
    /// An error of writeback, also an earlier one, that this opening has not been told of: each is told once.
    pub fn sync(&self, bytes: Range<u64>, data_only: bool) -> Result<(), FileError> {
        self.spaces.page_cache().sync(&self.handle, bytes, data_only, &self.mappers())
    }

    /// Whether a mapping may have pages of it in its tables. Another thread may change that at any time.
    #[doc(hidden)]
    pub fn is_mapped(&self) -> bool {
        // SAFETY: the handle holds the opening.
        !unsafe { self.opening().as_ref() }.mappings().is_empty()
    }

    /// The open file below.
    #[cfg(feature = "internals")]
    pub fn open_file(&self) -> &OpenFile<P, Vma> {
        &self.handle
    }

    /// Whether it is one of these spaces' machine.
    pub(crate) fn is_of(&self, spaces: &Spaces<P>) -> bool {
        ptr::eq(self.spaces, spaces)
    }

    /// What VMAs name it by.
    pub(crate) fn opening(&self) -> NonNull<Opening<Vma>> {
        self.handle.opening()
    }

    fn mappers(&self) -> FileMappers<'m, P> {
        FileMappers::new(self.spaces.rmap())
    }

    /// Swaps a page of shared memory in that a call needs.
    fn swap_in(&self, page: SwappedPage, program: &Membership) -> Result<(), PageError> {
        let swapped_in = self.spaces.direct_reclaim().swap_in_shmem(program, self.handle.file(), page);
        swapped_in.map_err(|error| match error {
            SwapInError::Short(_, Need::Memcg(over, _)) => PageError::OverLimit(over),
            SwapInError::Short(cause, _) => PageError::NoMemory(cause),
            SwapInError::Unreadable => PageError::File(FileError::Io),
        })
    }

    /// The same for a call that has to succeed: a page that cannot be read is lost.
    fn swap_in_or_lose(&self, page: SwappedPage) -> Result<(), PageError> {
        let root = Membership::default();
        match self.with_reclaim(&root, || self.swap_in(page, &root)) {
            Err(PageError::File(_)) => {
                let shmem = self.spaces.page_cache().shmem();
                self.with_reclaim(&root, || Ok(shmem.lose(self.handle.file(), page)?))
            }
            result => result,
        }
    }

    /// Goes on with a call as long as memory is freed for it.
    fn transfer(&self, program: &Membership, mut part: impl FnMut(u64) -> Transfer) -> Transfer {
        let (mut done, mut failed) = (0, 0);
        loop {
            let Transfer { bytes, stopped } = part(done);
            done += bytes;
            // Each step has all attempts.
            failed = if bytes > 0 { 0 } else { failed + 1 };
            match stopped {
                Some(PageError::Swapped(page)) => match self.swap_in(page, program) {
                    Ok(()) => failed = 0,
                    Err(short) if failed < CALL_ATTEMPTS && self.made_room(short) => {}
                    Err(error) => return Transfer { bytes: done, stopped: Some(error) },
                },
                Some(short) if failed < CALL_ATTEMPTS && self.made_room(short) => {}
                stopped => return Transfer { bytes: done, stopped },
            }
        }
    }

    fn with_reclaim<R>(
        &self,
        program: &Membership,
        mut call: impl FnMut() -> Result<R, PageError>,
    ) -> Result<R, PageError> {
        let mut failed = 0;
        loop {
            let result = match call() {
                Err(PageError::Swapped(page)) => match self.swap_in(page, program) {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
                result => result,
            };
            failed += 1;
            match result {
                Err(short) if failed < CALL_ATTEMPTS && self.made_room(short) => {}
                result => return result,
            }
        }
    }

    /// Whether memory was freed for a call that lacks some.
    #[cold]
    fn made_room(&self, error: PageError) -> bool {
        let (cause, need) = match error {
            // That is no shortage.
            PageError::NoMemory(AllocError::Injected) => return false,
            PageError::NoMemory(cause) => (cause, Need::Frames(Order::ZERO)),
            PageError::OverLimit(over) => (AllocError::OutOfMemory, Need::Memcg(over, 1)),
            PageError::File(FileError::NoSpace) => {
                return self.spaces.direct_reclaim().free_ends(self.handle.file()) > 0;
            }
            _ => return false,
        };
        self.spaces.direct_reclaim().free_some(cause, need)
    }
}

/// What a VMA has that maps this opening.
///
/// # Safety
///
/// It is one of a machine of this platform.
pub(crate) unsafe fn backing_of<P: Platform>(opening: &Opening<Vma>) -> Backing {
    // SAFETY: openings that VMAs name are of files of their machine.
    let is_shmem = unsafe { OpenFile::<P, Vma>::of(NonNull::from(opening)) }.file().is_shmem();
    if is_shmem { Backing::shmem(opening) } else { Backing::opened(opening) }
}

/// Counts a mapping with these flags of an open file that is about to come, until the result is dropped. Of
/// one that a seal keeps from ever writing the flags become so. `None` if the file has no seals to keep.
///
/// # Errors
///
/// [`Error::Sealed`] for one that writes; [`Error::AccessDenied`] for one that may, of an opening that is not
/// for writing.
///
/// # Safety
///
/// The opening is one of a file of a machine of this platform.
pub(crate) unsafe fn enter_file<'o, P: Platform>(
    platform: &P,
    opening: &'o Opening<Vma>,
    flags: &mut VmFlags,
) -> Result<Option<Entering<'o>>, Error> {
    if !flags.contains(VmFlags::SHARED | VmFlags::MAYWRITE) {
        return Ok(None);
    }
    // SAFETY: openings that VMAs name are of files of their machine (caller), and this one is held as long as
    // the reference to it is valid.
    let open = unsafe { OpenFile::<P, Vma>::of(NonNull::from(opening)) };
    if open.access() != Access::Write {
        return Err(Error::AccessDenied);
    }
    match open.enter_writer(platform, flags.contains(VmFlags::WRITE)) {
        Ok(None) => {
            *flags -= VmFlags::MAYWRITE;
            Ok(None)
        }
        Ok(entering) => Ok(entering),
        Err(_) => Err(Error::Sealed),
    }
}

/// The pages that hold these bytes.
fn pages_of(bytes: &Range<u64>) -> IndexRange {
    IndexRange::new(bytes.start / PAGE_SIZE, bytes.end.div_ceil(PAGE_SIZE))
}

impl<P: Platform> fmt::Debug for File<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("number", &self.number()).field("size", &self.size()).finish()
    }
}
