//! Files that a program reads and writes by calls.

use super::{Space, closing};
use crate::calls::detach::shmdt;
use crate::calls::install::install;
use crate::error::Error;
use crate::file::File;
use crate::mapping::Mapping;
use core::ops::Range;
use quire_arch::{Platform, VirtAddr, part_of};
use quire_file::{FileError, PageError, Transfer, UserCopy};

part_of! {
    /// The program of a space as the one that calls for files: its memcg is charged for what comes into the
    /// cache.
    pub struct SpaceFiles { pub(super) space: Space<'w> }
}

impl<P: Platform> SpaceFiles<'_, P> {
    /// Reads a file as [`File::read`]. Nothing is read of a file of another machine
    /// ([`PageError::OtherMachine`]).
    pub fn read(self, file: &File<'_, P>, at: u64, to: &mut dyn UserCopy) -> Transfer {
        self.check(file).unwrap_or_else(|| file.read_for(at, to, &self.space.core().tables.membership))
    }

    /// Writes a file as [`File::write`]; otherwise as [`read`](Self::read).
    pub fn write(self, file: &File<'_, P>, at: u64, from: &mut dyn UserCopy) -> Transfer {
        self.check(file).unwrap_or_else(|| file.write_for(at, from, &self.space.core().tables.membership))
    }

    /// Allocates the pages of shared memory that hold these bytes, where there are holes, and makes it as
    /// large as that needs, unless it shall `keep_size` (`fallocate`). They are zeros, and count as holes for
    /// [`File::seek_data`] and `mincore` until they are used. May sleep.
    ///
    /// # Errors
    ///
    /// [`PageError::OtherMachine`], [`PageError::NotForWriting`], [`PageError::NotSupported`],
    /// [`PageError::TooLarge`], [`PageError::Sealed`]; or there is no memory, or no space, or
    /// [`PageError::Killed`]: then what was allocated and is not used is given back.
    pub fn allocate(self, file: &File<'_, P>, bytes: Range<u64>, keep_size: bool) -> Result<(), PageError> {
        if !file.is_of(self.space.spaces) {
            return Err(PageError::OtherMachine);
        }
        let core = self.space.core();
        file.allocate_for(bytes, keep_size, &core.tables.membership, &|| core.is_killed())
    }

    /// Makes these bytes zeros (`fallocate` with PUNCH_HOLE or ZERO_RANGE, and KEEP_SIZE). They may be past
    /// the end, in the last page: a hole that reaches the end goes on to the end of that page in ext4, not in
    /// tmpfs. Copies that programs have made stay. May sleep.
    ///
    /// `free` frees what is stored of the bytes that it is called with: the whole pages of the hole, of which
    /// the last may have the end of the file. It is called once, if there are such pages, with their faults
    /// and their writeback shut out, and does not call the memory management.
    ///
    /// # Errors
    ///
    /// [`PageError::OtherMachine`], [`PageError::NotForWriting`], [`PageError::Sealed`]; a page at one end
    /// could not be read, or there is no memory or no space for it: nothing has changed. Or what `free`
    /// failed with: the whole pages have what is stored then.
    pub fn punch(
        self,
        file: &File<'_, P>,
        bytes: Range<u64>,
        mut free: impl FnMut(Range<u64>) -> Result<(), FileError>,
    ) -> Result<(), PageError> {
        if !file.is_of(self.space.spaces) {
            return Err(PageError::OtherMachine);
        }
        file.punch_for(bytes, &self.space.core().tables.membership, &mut free)
    }

    /// Puts a mapping of an open file in place; otherwise as [`Space::install`]. The number of a file in
    /// `mapping` is ignored. The mapping keeps the file open.
    ///
    /// # Errors
    ///
    /// As [`Space::install`], [`Error::BadDescriptor`] for a file of another machine, and
    /// [`Error::AccessDenied`] for what may be written to of a file that is not open for that.
    #[doc(hidden)]
    pub fn install(self, mapping: &Mapping, file: &File<'_, P>) -> Result<(), Error> {
        if !file.is_of(self.space.spaces) {
            return Err(Error::BadDescriptor);
        }
        // SAFETY: the handle holds the opening meanwhile.
        let opening = unsafe { file.opening().as_ref() };
        install(self.space.caller(), mapping, Some(opening))
    }

    /// Unmaps what is left of the attachment of a segment of SysV shared memory at `addr`.
    ///
    /// # Errors
    ///
    /// As Linux's `shmdt`.
    #[doc(hidden)]
    pub fn detach(self, addr: VirtAddr) -> Result<(), Error> {
        closing(self.space, |caller| shmdt(caller, addr))
    }

    fn check(self, file: &File<'_, P>) -> Option<Transfer> {
        let other = Transfer { bytes: 0, stopped: Some(PageError::OtherMachine) };
        (!file.is_of(self.space.spaces)).then_some(other)
    }
}
