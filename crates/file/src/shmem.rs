//! Shared memory: files whose bytes are nowhere else (Linux's shmem).
//!
//! A page that was never written is a hole, and a new page of zeros where a program maps it. All pages are
//! dirty for good, so writes are not noticed, and nothing is written back.

use crate::backing::{FileBacking, FileError, FileIo, IoLimits, Transferred};
use core::ops::Range;
use quire_arch::Platform;
use quire_swap::{DeviceMemory, Direction, Submitted};

/// Who is asked for each page that comes to exist of shared memory, in RAM or on a swap device, and told of
/// each that is gone: a file system with a size, for one.
///
/// The first is called with nothing locked but the mmap lock, where a call populates memory; the second with
/// the locks of the file, too, so it does not call the memory management.
pub trait ShmemOwner: Send + Sync + 'static {
    /// `pages` more are about to exist.
    ///
    /// # Errors
    ///
    /// There is no room for them: a fault is `SIGBUS`, as in Linux.
    fn take_pages(&self, pages: u64) -> Result<(), FileError>;

    /// So many that were taken are gone, or did not come.
    fn give_back_pages(&self, pages: u64);
}

/// Memory without a limit of its own.
impl ShmemOwner for () {
    fn take_pages(&self, _pages: u64) -> Result<(), FileError> {
        Ok(())
    }

    fn give_back_pages(&self, _pages: u64) {}
}

/// How pages of shared memory count as committed (`Committed_AS`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShmemPromise {
    /// So many from the start, for as long as it is there.
    Whole(u64),
    /// Those that exist, as of a file in a tmpfs.
    Each,
}

/// The backing of shared memory.
pub(crate) struct Shmem<O>(pub(crate) O);

impl<O: ShmemOwner> ShmemOwner for Shmem<O> {
    fn take_pages(&self, pages: u64) -> Result<(), FileError> {
        self.0.take_pages(pages)
    }

    fn give_back_pages(&self, pages: u64) {
        self.0.give_back_pages(pages);
    }
}

impl<P: Platform, O: ShmemOwner> FileBacking<P> for Shmem<O> {
    unsafe fn submit(
        &self,
        _memory: DeviceMemory<'_, P>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        Submitted::Done(match io.direction {
            Direction::Read => Ok(Transferred::Zeros),
            Direction::Write => Err(FileError::Io),
        })
    }

    fn limits(&self) -> IoLimits {
        IoLimits { readahead: 0, holes: true, tail_stays: true, ..IoLimits::default() }
    }

    fn punch(&self, _bytes: Range<u64>) -> Result<(), FileError> {
        Ok(())
    }
}
