//! Why a page or bytes of a file cannot be had.

use crate::backing::FileError;
use crate::entry::Stored;
use crate::index::PageIndex;
use quire_arch::Order;
use quire_frame::AllocError;
use quire_memcg::OverLimit;
use quire_swap::SlotId;

/// Why a page of a file cannot be had, or bytes of it not be read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PageError {
    /// The file ends before it: a fault is `SIGBUS`.
    #[error("the file ends before it")]
    PastEnd,
    /// The file would become larger than files can be (`EFBIG`).
    #[error("a file cannot be so large")]
    TooLarge,
    /// The bytes could not be transferred or stored.
    #[error(transparent)]
    File(#[from] FileError),
    /// A seal of the shared memory refuses the change (`EPERM`).
    #[error("a seal refuses the change")]
    Sealed,
    /// The file is not open for writing (`EBADF`; of a call that changes the size `EINVAL`).
    #[error("the file is not open for writing")]
    NotForWriting,
    /// It would be open for writing and for execution (`ETXTBSY`).
    #[error("the file is being executed, or written to")]
    TextBusy,
    /// A file of this sort has no such call (`EOPNOTSUPP`): one that is not shared memory, or one that is.
    #[error("a file of this sort has no such call")]
    NotSupported,
    /// The file is one of another machine (`EBADF`).
    #[error("the file is another machine's")]
    OtherMachine,
    /// The program was killed (`EINTR`).
    #[error("the program was killed")]
    Killed,
    /// The program's memory cannot be accessed (`EFAULT`).
    #[error("the program's memory cannot be accessed")]
    BadAddress,
    /// The page of shared memory is on a swap device. Below the memory calls only: they swap it in, and try
    /// again.
    #[error("the page is on a swap device")]
    Swapped(SwappedPage),
    /// There is no memory: the caller reclaims some, and tries again.
    #[error("no memory for a page of a file: {0}")]
    NoMemory(#[from] AllocError),
    /// The memcg is at its limit: the caller reclaims there, and tries again.
    #[error(transparent)]
    OverLimit(#[from] OverLimit),
}

impl PageError {
    /// Whether it is for want of memory: nothing was changed, and the same may succeed once some was freed.
    #[doc(hidden)]
    pub const fn is_shortage(&self) -> bool {
        matches!(self, Self::NoMemory(_) | Self::OverLimit(_))
    }
}

/// A page of shared memory that is on a swap device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwappedPage {
    /// Which page of the file.
    pub index: PageIndex,
    /// Where it is.
    pub slot: SlotId,
    /// The order of the folio that it was paged out with, if nothing else became of that since: aligned
    /// blocks of so many pages, and of so many slots, have both.
    pub order: Order,
}

impl SwappedPage {
    /// Page `index`, which is one of those of an entry, if that names slots.
    pub(crate) fn of(stored: &Stored, index: PageIndex) -> Option<Self> {
        let first = stored.entry.swap_slot()?;
        let slot = first.plus(index.get() - stored.start.get());
        Some(Self { index, slot, order: stored.order })
    }
}

/// Folios of the range are still cached: they are dirty, being written, mapped or held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{pages} pages of the file are in use")]
pub struct Busy {
    /// How many pages they have.
    pub pages: u64,
}
