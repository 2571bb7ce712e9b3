//! Why a page could not be made available, and what is needed for it.

use quire_arch::{Order, OrderSet, SwapEntry};
use quire_file::{IndexRange, LargeOrders, PageIndex, SwappedPage};
use quire_frame::AllocError;
use quire_memcg::OverLimit;

/// Why an access to memory was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FaultError {
    /// SIGSEGV with `SEGV_MAPERR`: nothing is mapped there.
    #[error("SIGSEGV (MAPERR)")]
    NotMapped,
    /// SIGSEGV with `SEGV_ACCERR`: the mapping does not allow the access.
    #[error("SIGSEGV (ACCERR)")]
    AccessDenied,
    /// SIGBUS: the contents cannot be read.
    #[error("SIGBUS")]
    Bus,
    /// SIGBUS: the file ends before the page.
    #[error("SIGBUS (past the end of the file)")]
    PastEnd,
    /// No frame for the page or a table.
    #[error("out of memory: {0}")]
    OutOfMemory(AllocError),
    /// SIGKILL: the OOM killer chose this program.
    #[error("SIGKILL (out of memory)")]
    Killed,
}

impl From<AllocError> for FaultError {
    fn from(error: AllocError) -> Self {
        Self::OutOfMemory(error)
    }
}

/// Why a page could not be made available under the lock that was held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The program gets this error.
    Fault(FaultError),
    /// The VMA needs its anon_vma first, and that takes the mmap lock.
    NeedsAnonVma,
    /// The page has to be swapped in first.
    Swapped(Swapped),
    /// The page of a file has to be brought into the cache, or marked dirty, first.
    File(FilePage),
    /// A memcg is at its limit.
    OverLimit(OverLimit),
}

impl From<FaultError> for Refusal {
    fn from(error: FaultError) -> Self {
        Self::Fault(error)
    }
}

impl From<OverLimit> for Refusal {
    fn from(over: OverLimit) -> Self {
        Self::OverLimit(over)
    }
}

impl From<AllocError> for Refusal {
    fn from(error: AllocError) -> Self {
        Self::Fault(FaultError::OutOfMemory(error))
    }
}

impl From<SwapInError> for Refusal {
    fn from(error: SwapInError) -> Self {
        match error {
            SwapInError::Short(_, Need::Memcg(over, _)) => over.into(),
            SwapInError::Short(cause, Need::Frames(_)) => cause.into(),
            SwapInError::Unreadable => FaultError::Bus.into(),
        }
    }
}

/// A page of a file that a fault needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePage {
    /// The page.
    pub index: PageIndex,
    /// Whether the fault writes to it, so that it is to be marked dirty first.
    pub dirties: bool,
    /// The large folios that it may come in, if it is not cached.
    pub large: LargeOrders,
    /// The pages that may be read with it then.
    pub around: IndexRange,
}

/// The swap entry that a fault found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swapped {
    /// The entry.
    pub entry: SwapEntry,
    /// The orders that a folio for it may have, besides order 0: the policy allows them, and the entries
    /// around it name the slots around it.
    pub orders: OrderSet,
}

impl Swapped {
    /// A page of shared memory, with those that it was paged out with.
    pub fn of_shmem(page: SwappedPage) -> Self {
        Self { entry: page.slot.entry(false), orders: OrderSet::of(page.order) }
    }
}

/// What is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// A block of frames.
    Frames(Order),
    /// Room under the limit of the memcg at which a charge failed, in pages.
    Memcg(OverLimit, u64),
}

/// Why a page could not be swapped in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapInError {
    /// No memory for it: this is needed.
    Short(AllocError, Need),
    /// The device failed to read it.
    Unreadable,
}
