//! Files that a program reads and writes by calls.

use super::{Space, closing};
use crate::calls::detach::shmdt;
use crate::calls::install::install;
use crate::error::Error;
use crate::file::File;
use crate::mapping::Mapping;
use quire_arch::{Platform, VirtAddr, part_of};
use quire_file::{PageError, Transfer, UserCopy};

part_of! {
    /// The program of a space as the one that reads and writes files: its memcg is charged for what comes
    /// into the cache.
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

    /// Puts a mapping of an open file in place; otherwise as [`Space::install`]. The number of a file in
    /// `mapping` is ignored. The mapping keeps the file open.
    ///
    /// # Errors
    ///
    /// As [`Space::install`], and [`Error::BadDescriptor`] for a file of another machine.
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
