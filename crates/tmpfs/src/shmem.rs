//! Files as shared memory of a machine: what a kernel takes for its tmpfs.

use crate::backend::{Backend, FileData, Seek, Time};
use crate::error::Error;
use crate::space::Account;
use core::fmt;
use core::ops::Range;
use quire_arch::Platform;
use quire_mm::Memory;
use quire_mm::file::{File, FileError, ShmemEnabled, ShmemOwner, Writing};
use quire_mm::space::Space;

/// The owner of a file's pages.
struct FileOwner {
    account: Account,
    huge: ShmemEnabled,
}

/// Each page of a file counts in its file system.
impl ShmemOwner for FileOwner {
    fn take_pages(&self, pages: u64) -> Result<(), FileError> {
        self.account.take_pages(pages).map_err(|_| FileError::NoSpace)
    }

    fn give_back_pages(&self, pages: u64) {
        self.account.give_back_pages(pages);
    }

    fn file_system(&self) -> usize {
        self.account.file_system()
    }

    fn huge(&self) -> Option<ShmemEnabled> {
        Some(self.huge)
    }
}

/// Files of a machine's shared memory, with a clock that says the time of day.
pub struct Shmem<'m, P: Platform, C> {
    memory: &'m Memory<P>,
    clock: C,
    huge: ShmemEnabled,
}

impl<'m, P: Platform, C: Fn() -> Time + Send + Sync> Shmem<'m, P, C> {
    /// Files in `memory`. `clock` may be called with spin locks held.
    pub const fn new(memory: &'m Memory<P>, clock: C) -> Self {
        Self { memory, clock, huge: ShmemEnabled::Never }
    }

    /// The same with large folios as the mount option `huge` says: not [`Deny`](ShmemEnabled::Deny) or
    /// [`Force`](ShmemEnabled::Force), which are as [`Never`](ShmemEnabled::Never) here.
    #[must_use]
    pub fn with_huge(self, huge: ShmemEnabled) -> Self {
        Self { huge, ..self }
    }
}

impl<P: Platform, C> fmt::Debug for Shmem<'_, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shmem").finish_non_exhaustive()
    }
}

/// The bytes of a regular file.
#[derive(Debug)]
pub struct ShmemFile<'m, P: Platform>(File<'m, P>);

impl<'m, P: Platform> ShmemFile<'m, P> {
    /// The inode's own handle. It is for writing, and does not count as a writer. A program maps, reads and
    /// writes what [`File::open`] makes of it, once for each `open`: so what is open for writing is not
    /// executed, and what is executed ([`Access::Execute`](quire_arch::Access::Execute)) not opened for
    /// writing. Its size changes by [`Node`](crate::Node) only.
    pub const fn file(&self) -> &File<'m, P> {
        &self.0
    }
}

impl<'m, P: Platform, C: Fn() -> Time + Send + Sync> Backend for Shmem<'m, P, C> {
    type Platform = P;
    type Data = ShmemFile<'m, P>;

    fn platform(&self) -> &P {
        self.memory.platform()
    }

    fn now(&self) -> Time {
        (self.clock)()
    }

    fn create(&self, account: Account) -> Result<ShmemFile<'m, P>, Error> {
        Ok(ShmemFile(self.memory.create_shmem(FileOwner { account, huge: self.huge }, 0)?))
    }
}

impl<'m, P: Platform> FileData for ShmemFile<'m, P> {
    type Program = Space<'m, P>;
    type Writing<'f>
        = Writing<'f>
    where
        Self: 'f;

    fn writing(&self) -> Result<Writing<'_>, Error> {
        Ok(self.0.writing()?)
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn pages(&self) -> u64 {
        let figures = self.0.figures();
        figures.cached + figures.swapped
    }

    fn set_size(&self, size: u64) -> Result<(), Error> {
        Ok(self.0.set_size(size)?)
    }

    fn punch(&self, bytes: Range<u64>, program: Option<&Space<'m, P>>) -> Result<(), Error> {
        Ok(match program {
            Some(program) => program.files().punch(&self.0, bytes, |_| Ok(())),
            None => self.0.punch(bytes, |_| Ok(())),
        }?)
    }

    fn allocate(&self, bytes: Range<u64>, program: Option<&Space<'m, P>>) -> Result<(), Error> {
        Ok(match program {
            Some(program) => program.files().allocate(&self.0, bytes, true),
            None => self.0.allocate(bytes, true),
        }?)
    }

    fn seek(&self, at: u64, what: Seek) -> Option<u64> {
        match what {
            Seek::Data => self.0.seek_data(at),
            Seek::Hole => self.0.seek_hole(at),
        }
    }
}
