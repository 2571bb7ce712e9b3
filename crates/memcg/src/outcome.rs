//! The work that a write to a memcg's file leaves to the caller.

/// The work left after a file was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the memcg may have to be reclaimed from"]
pub enum WriteOutcome {
    /// Nothing.
    Done,
    /// The memcg exceeds its new `memory.high` by so many pages: reclaim as many of them as possible.
    AboveHigh {
        /// Pages.
        pages: u64,
    },
    /// The memcg exceeds its new `memory.max` by so many pages: reclaim as many of them as possible.
    AboveMax {
        /// Pages.
        pages: u64,
    },
    /// `memory.reclaim`: reclaim so many pages. Fewer are an error
    /// ([`MemcgError::Again`](crate::MemcgError::Again)).
    Reclaim {
        /// Pages.
        pages: u64,
    },
}
