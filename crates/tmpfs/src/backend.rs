//! What a tmpfs needs from around it.

use crate::error::Error;
use crate::space::Account;
use core::ops::Range;
use quire_arch::Platform;

/// A time since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds of the second that has begun.
    pub nanoseconds: u32,
}

/// Whether a position has data or is in a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// The next byte with data (`SEEK_DATA`).
    Data,
    /// The next byte in a hole; the end counts as one (`SEEK_HOLE`).
    Hole,
}

/// What a tmpfs needs from around it: the machine, the time, and the bytes of regular files.
pub trait Backend: Send + Sync {
    /// The machine.
    type Platform: Platform;
    /// The bytes of a regular file.
    type Data: FileData;

    /// The machine, on which threads sleep for the locks.
    fn platform(&self) -> &Self::Platform;

    /// The time of day, as a file system sees it. Spin locks may be held; it calls nothing here.
    fn now(&self) -> Time;

    /// The bytes of a new, empty file. `account` is asked for each page and told of each that goes; it goes
    /// with the bytes, also if this fails. May sleep; locks of class Inode are held.
    ///
    /// # Errors
    ///
    /// There is no memory.
    fn create(&self, account: Account) -> Result<Self::Data, Error>;
}

/// The bytes of a regular file. What changes the size or makes holes is called under the lock of the inode,
/// and so is what a program writes. May sleep.
pub trait FileData: Send + Sync {
    /// A program, which pays for pages that a call of it makes.
    type Program: ?Sized;
    /// What keeps others from executing the file while it is changed.
    type Writing<'f>
    where
        Self: 'f;

    /// The file is about to be changed, and is not executed until the result is dropped (Linux's
    /// `get_write_access`).
    ///
    /// # Errors
    ///
    /// [`Error::TextBusy`]: it is executed.
    fn writing(&self) -> Result<Self::Writing<'_>, Error>;

    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Pages that it has, in RAM or in swap.
    fn pages(&self) -> u64;

    /// Changes its size; what is new is a hole.
    ///
    /// # Errors
    ///
    /// [`Error::FileTooLarge`]; nothing has changed.
    fn set_size(&self, size: u64) -> Result<(), Error>;

    /// Makes these bytes zeros, and frees whole pages of them. They may be past the end.
    ///
    /// # Errors
    ///
    /// There is no memory for a page at the edge.
    fn punch(&self, bytes: Range<u64>, program: Option<&Self::Program>) -> Result<(), Error>;

    /// Makes the file have all pages of these bytes, which may be past the end. The size stays.
    ///
    /// # Errors
    ///
    /// There is no memory or no space, or the calling program is to end: pages that were made by this call
    /// are given back. [`Error::NotSupported`].
    fn allocate(&self, bytes: Range<u64>, program: Option<&Self::Program>) -> Result<(), Error>;

    /// The next byte from `at` on, which is before the end, with data or in a hole; `None` if there is no
    /// more data.
    fn seek(&self, at: u64, what: Seek) -> Option<u64>;
}
