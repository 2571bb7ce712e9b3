//! Seals: changes of shared memory that are refused from some moment on (`F_ADD_SEALS`).
//!
//! A process that gets memory from one that it does not trust needs them to hold for good. So none is set
//! while something may still make the change: a mapping counts before it looks at the seals, and who adds a
//! seal looks for mappings under the same lock, FileRmap. Calls look again with Invalidate held, which is
//! held alone when a seal is set.

use bitflags::bitflags;
use quire_sync::atomic::raw::{AtomicU64, AtomicUsize, Ordering};

bitflags! {
    /// Seals of shared memory, with Linux's values (`F_SEAL_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Seals: u32 {
        /// No further seal.
        const SEAL = 0x1;
        /// It does not get smaller.
        const SHRINK = 0x2;
        /// It does not get larger.
        const GROW = 0x4;
        /// It is not written to.
        const WRITE = 0x8;
        /// It is not written to, but by mappings that are there already.
        const FUTURE_WRITE = 0x10;
        /// The bits of its mode that allow execution do not change. The mode is the embedder's, and so is the
        /// check.
        const EXEC = 0x20;
    }
}

impl Seals {
    /// What [`EXEC`](Self::EXEC) brings with it where the mode allows execution: such memory does not change.
    pub const OF_EXECUTABLE: Self =
        Self::SHRINK.union(Self::GROW).union(Self::WRITE).union(Self::FUTURE_WRITE);

    /// Seals that refuse calls that write, and new mappings that may.
    pub(crate) const NO_WRITES: Self = Self::WRITE.union(Self::FUTURE_WRITE);
}

/// Why seals are not added. None is then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SealError {
    /// It is not shared memory (`EINVAL`).
    #[error("the file has no seals")]
    NoShmem,
    /// It has [`Seals::SEAL`] (`EPERM`).
    #[error("no seal may be added")]
    Sealed,
    /// A shared mapping may write to it, or a page of it is pinned for a device (`EBUSY`).
    #[error("it may be being written to")]
    Busy,
}

/// The seals of a file, and what keeps others from being set.
#[derive(Debug)]
pub(crate) struct SealState {
    /// [`Seals`], and [`DENIES`]. Set with Invalidate held alone, and FileRmap where mappings count.
    word: AtomicU64,
    /// Mappings that are about to enter, and whose writes will go to the file.
    entering: AtomicUsize,
}

/// No mapping that may write enters: someone waits until all writes that began before are through.
const DENIES: u64 = 1 << 32;

impl SealState {
    pub(crate) const fn new(seals: Seals) -> Self {
        Self { word: AtomicU64::new(seals.bits() as u64), entering: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn get(&self) -> Seals {
        // Acquire: pairs with the change in `set`. Who sees a seal comes after those that it found.
        Seals::from_bits_truncate(self.word.load(Ordering::Acquire) as u32)
    }

    /// Whether no mapping that may write may enter at this moment. The lock of the mappings is held.
    pub(crate) fn denies_writers(&self) -> bool {
        self.word.load(Ordering::Relaxed) & DENIES != 0
    }

    /// From now on no mapping that may write enters. Returns false, and changes nothing, where another thread
    /// has said so. The lock of the mappings is held alone.
    pub(crate) fn deny_writers(&self) -> bool {
        self.word.fetch_or(DENIES, Ordering::Relaxed) & DENIES == 0
    }

    /// They may again. For the thread that has denied it.
    pub(crate) fn admit_writers(&self) {
        self.word.fetch_and(!DENIES, Ordering::Relaxed);
    }

    /// Sets seals. Invalidate is held alone.
    pub(crate) fn set(&self, seals: Seals) {
        // Release: pairs with the load in `get`.
        self.word.fetch_or(u64::from(seals.bits()), Ordering::Release);
    }

    /// How many mappings are about to enter. Acquire: one that is not counted any more has entered, and is
    /// among the writers.
    pub(crate) fn entering(&self) -> usize {
        self.entering.load(Ordering::Acquire)
    }

    /// Counts a mapping that is about to enter. The lock of the mappings is held.
    pub(crate) fn begin_to_enter(&self) -> Entering<'_> {
        self.entering.fetch_add(1, Ordering::Relaxed);
        Entering(Some(self))
    }
}

/// A mapping that is about to enter a file, until this is dropped: no seal against it is set meanwhile.
#[derive(Debug)]
#[must_use = "the mapping enters while this is there"]
pub struct Entering<'f>(Option<&'f SealState>);

impl Entering<'_> {
    /// Of a mapping that no seal is against, now or later.
    pub(crate) const FREE: Self = Self(None);
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.0 {
            // Release: pairs with the load in `SealState::entering`.
            state.entering.fetch_sub(1, Ordering::Release);
        }
    }
}
