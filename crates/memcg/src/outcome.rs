//! The work that a write to a memcg's file leaves to the caller.

use crate::peak::MemcgPeak;

/// The work left after a file was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the memcg may have to be reclaimed from"]
pub enum WriteOutcome {
    /// Nothing.
    Done,
    /// The file reads its peak since now, if the embedder tells so with each read.
    PeakReset(MemcgPeak),
    /// The memcg exceeds its new `memory.high`: reclaim down to that, as far as possible.
    AboveHigh,
    /// The memcg exceeds its new `memory.max`: reclaim down to that, as far as possible.
    AboveMax,
    /// `memory.reclaim`: reclaim so many pages. Fewer are an error
    /// ([`MemcgError::Again`](crate::MemcgError::Again)).
    Reclaim {
        /// Pages.
        pages: u64,
    },
}
