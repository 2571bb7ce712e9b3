//! The doors of Linux's calls: each is one function of [`calls`](crate::calls).

use super::{Space, closing};
use crate::calls::advise::madvise;
use crate::calls::brk::brk;
use crate::calls::fault::fault;
use crate::calls::install::install;
use crate::calls::lock::{mlock, mlockall, munlock, munlockall};
use crate::calls::map::mmap;
use crate::calls::mincore::mincore;
use crate::calls::pin::{pin_page, pin_page_fast};
use crate::calls::protect::mprotect;
use crate::calls::remap::mremap;
use crate::calls::split::split_folio;
use crate::calls::sync::msync;
use crate::calls::unmap::munmap;

use crate::calls::advise::Advice;
use crate::calls::lock::LockAll;
use crate::calls::map_request::{MapFlags, MapRequest, MappedFile};
use crate::calls::pin::{Pinned, PinnedPage};
use crate::calls::remap_request::RemapFlags;
use crate::calls::sync::SyncFlags;
use crate::error::Error;
use crate::file::File;
use crate::mapping::Mapping;
use quire_arch::{Access, Order, Platform, VirtAddr};
use quire_fault::FaultError;
use quire_frame::SplitError;
use quire_sync::atomic::Ordering;
use quire_vma::{Protection, VmFlags};

impl<'m, P: Platform> Space<'m, P> {
    /// Gives advice on the pages that `len` bytes from `addr` touch.
    ///
    /// # Errors
    ///
    /// As Linux's `madvise`: a hole is reported after the rest was done; any other failure ends the call.
    pub fn madvise(&self, addr: VirtAddr, len: u64, advice: Advice) -> Result<(), Error> {
        madvise(self.caller(), addr, len, advice)
    }

    /// Moves the program break to `wanted` and returns where it is afterwards: at the old address where Linux
    /// refuses.
    pub fn brk(&self, wanted: VirtAddr) -> VirtAddr {
        closing(self, |caller| brk(caller, wanted))
    }

    /// Makes the access `access` to `addr` possible, or says why it is not allowed. Called by a CPU whose MMU
    /// could not translate; the CPU then tries again.
    ///
    /// # Errors
    ///
    /// What the program gets instead: a signal, or `OutOfMemory`, for the OOM killer.
    #[inline]
    pub fn fault(&self, addr: VirtAddr, access: Access) -> Result<(), FaultError> {
        fault(self.caller(), addr, access)
    }

    /// Puts `mapping` in place exactly as it is described, without merging it. For program loaders and for
    /// restoring a layout; programs call [`mmap`](Self::mmap).
    ///
    /// # Errors
    ///
    /// [`Error::Unaligned`], [`Error::OutOfRange`], [`Error::OffsetOverflow`], [`Error::Occupied`],
    /// [`Error::CommitLimit`] or [`Error::NoFrames`]; nothing is changed then.
    #[doc(hidden)]
    pub fn install(&self, mapping: &Mapping) -> Result<(), Error> {
        install(self.caller(), mapping, None)
    }

    /// Locks the pages that `len` bytes from `addr` touch; with `on_fault` only as they are faulted in.
    ///
    /// # Errors
    ///
    /// As Linux's `mlock`. Mappings before a hole are locked then.
    pub fn mlock(&self, addr: VirtAddr, len: u64, on_fault: bool) -> Result<(), Error> {
        mlock(self.caller(), addr, len, on_fault)
    }

    /// Unlocks the pages that `len` bytes from `addr` touch.
    ///
    /// # Errors
    ///
    /// As Linux's `munlock`.
    pub fn munlock(&self, addr: VirtAddr, len: u64) -> Result<(), Error> {
        munlock(self.caller(), addr, len)
    }

    /// Locks everything that is or will be mapped.
    ///
    /// # Errors
    ///
    /// As Linux's `mlockall`.
    pub fn mlockall(&self, what: LockAll) -> Result<(), Error> {
        mlockall(self.caller(), what)
    }

    /// Unlocks everything, and what will be mapped.
    pub fn munlockall(&self) {
        munlockall(self.caller());
    }

    /// Maps memory and returns its address.
    ///
    /// # Errors
    ///
    /// As Linux's `mmap`, and [`Error::BadFlags`] for a FIXED flag without an address; nothing is changed
    /// then.
    pub fn mmap(&self, request: &MapRequest) -> Result<VirtAddr, Error> {
        closing(self, |caller| mmap(caller, request, None))
    }

    /// Maps an open file, as the request says: of its own file the number is ignored, and without one it is
    /// file [`MappedFile::new`] from its first page on, `writable` if the file is open for that. The mapping
    /// keeps the file open.
    ///
    /// # Errors
    ///
    /// As for [`mmap`](Self::mmap), [`Error::BadDescriptor`] for a file of another machine,
    /// [`Error::BadFlags`] for huge pages, and [`Error::AccessDenied`] for what is shared and writable of a
    /// file that is not open for writing.
    pub fn mmap_file(&self, request: &MapRequest, file: &File<'_, P>) -> Result<VirtAddr, Error> {
        if !file.is_of(self.spaces) {
            return Err(Error::BadDescriptor);
        }
        if request.huge_pages.is_some() {
            return Err(Error::BadFlags);
        }
        let mut mapped = request.file.unwrap_or(MappedFile::new(0, 0));
        mapped.writable &= file.is_writable();
        let writes =
            request.flags.contains(MapFlags::SHARED) && request.protection.contains(Protection::WRITE);
        let denied = (writes && !file.is_writable()).then_some(Error::AccessDenied);
        let request = MapRequest { file: Some(mapped), objection: denied.or(request.objection), ..*request };
        // SAFETY: the handle holds the opening meanwhile.
        let opening = unsafe { file.opening().as_ref() };
        closing(self, |caller| mmap(caller, &request, Some(opening)))
    }

    /// Calls `tell` for each page that `len` bytes from `addr` touch, in order, with whether it was in memory
    /// a moment ago. The zero page counts. No lock is held then, and none for long: as in Linux a few pages
    /// are looked at at once.
    ///
    /// # Errors
    ///
    /// As Linux's `mincore`; pages before a hole have been reported then.
    pub fn mincore(&self, addr: VirtAddr, len: u64, tell: impl FnMut(bool)) -> Result<(), Error> {
        mincore(self.caller(), addr, len, tell)
    }

    /// Pins the page at `addr`, so that a device can read it, and with [`Access::Write`] also write it. A
    /// private page that other processes map too is copied first, so that what is pinned is exclusive to the
    /// program.
    ///
    /// # Errors
    ///
    /// As for an access of the program.
    pub fn pin_page(&self, addr: VirtAddr, access: Access) -> Result<PinnedPage<'m, P>, FaultError> {
        let pinned = pin_page(self.caller(), self.spaces, addr, access);
        pinned.map(|pinned| PinnedPage::new(self.spaces, pinned, access))
    }

    /// Pins the page at `addr` as [`pin_page`](Self::pin_page) does, if that takes no fault and no lock: for
    /// a caller that may not sleep. `None`: the slow path has to decide.
    pub fn pin_page_fast(&self, addr: VirtAddr, access: Access) -> Option<PinnedPage<'m, P>> {
        let pinned = pin_page_fast(self.caller(), addr, access);
        pinned.map(|pfn| PinnedPage::new(self.spaces, Pinned { pfn, file: None }, access))
    }

    /// Changes what the program may do with the pages that `len` bytes from `addr` touch. With `grows_down`
    /// the change reaches down to the start of the stack that `addr` lies in.
    ///
    /// # Errors
    ///
    /// As Linux's `mprotect`. Mappings before the one that made it fail have changed.
    pub fn mprotect(
        &self,
        addr: VirtAddr,
        len: u64,
        protection: Protection,
        grows_down: bool,
    ) -> Result<(), Error> {
        mprotect(self.caller(), addr, len, protection, grows_down)
    }

    /// Moves or resizes the mapping at `addr` and returns its address.
    ///
    /// `target` is where it goes with [`RemapFlags::FIXED`], and a hint with [`RemapFlags::DONTUNMAP`].
    /// Without either flag it is not used, as in Linux; huge pages want it aligned nevertheless.
    ///
    /// # Errors
    ///
    /// As Linux's `mremap`; [`Error::BadFlags`] for `FIXED` without a target. If memory is short no page of
    /// the mapping for which it was has moved; those before it have.
    pub fn mremap(
        &self,
        addr: VirtAddr,
        old_len: u64,
        new_len: u64,
        flags: RemapFlags,
        target: impl Into<Option<VirtAddr>>,
    ) -> Result<VirtAddr, Error> {
        closing(self, |caller| mremap(caller, addr, old_len, new_len, flags, target))
    }

    /// Splits the large folio that is mapped at `addr`, mapped as it is, into folios of order `to`. Pages of
    /// it that are not mapped are freed; returns how many. Programs notice nothing.
    ///
    /// # Errors
    ///
    /// [`SplitError`]; then the folio is unchanged, but PMD leaves that map it may have been split into
    /// tables.
    #[doc(hidden)]
    pub fn split_folio(&self, addr: VirtAddr, to: Order) -> Result<u64, SplitError> {
        split_folio(self.caller(), addr, to)
    }

    /// Writes back what is dirty of the open files that are shared in the range, with SYNC.
    ///
    /// # Errors
    ///
    /// As Linux's `msync`.
    pub fn msync(&self, addr: VirtAddr, len: u64, flags: SyncFlags) -> Result<(), Error> {
        msync(self.caller(), addr, len, flags)
    }

    /// Unmaps every page that `len` bytes from `addr` touch. A hole is no error.
    ///
    /// # Errors
    ///
    /// As Linux's `munmap`; nothing is changed then.
    pub fn munmap(&self, addr: VirtAddr, len: u64) -> Result<(), Error> {
        closing(self, |caller| munmap(caller, addr, len))
    }

    /// The program break.
    pub fn program_break(&self) -> VirtAddr {
        VirtAddr(self.core().brk.load(Ordering::Relaxed))
    }

    /// The lock flags of what will be mapped ([`mlockall`](Self::mlockall)).
    #[doc(hidden)]
    pub fn locks_future(&self) -> VmFlags {
        self.core().default_flags() & VmFlags::LOCK_MASK
    }
}
