//! Regular files whose bytes are shared memory of the machine, as Linux's tmpfs has them.

use crate::backend::{FileData, Seek};
use crate::error::Error;
use crate::space::Account;
use core::ops::Range;
use quire_arch::Platform;
use quire_mm::file::{File, FileError, ShmemOwner};

/// A backend makes the bytes by `Memory::create_shmem(account, 0)`.
impl ShmemOwner for Account {
    fn take_pages(&self, pages: u64) -> Result<(), FileError> {
        Self::take_pages(self, pages).map_err(|_| FileError::NoSpace)
    }

    fn give_back_pages(&self, pages: u64) {
        Self::give_back_pages(self, pages);
    }
}

impl<P: Platform> FileData for File<'_, P> {
    fn size(&self) -> u64 {
        Self::size(self)
    }

    fn pages(&self) -> u64 {
        let figures = self.figures();
        figures.cached + figures.swapped
    }

    fn set_size(&self, size: u64) -> Result<(), Error> {
        Ok(Self::set_size(self, size)?)
    }

    fn punch(&self, bytes: Range<u64>) -> Result<(), Error> {
        Ok(Self::punch(self, bytes, |_| Ok(()))?)
    }

    fn allocate(&self, bytes: Range<u64>) -> Result<(), Error> {
        Ok(Self::allocate(self, bytes, true)?)
    }

    fn seek(&self, at: u64, what: Seek) -> Option<u64> {
        match what {
            Seek::Data => self.seek_data(at),
            Seek::Hole => self.seek_hole(at),
        }
    }
}
