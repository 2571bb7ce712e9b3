//! The work that a write to a memcg's file leaves to the caller.

/// Swappiness: how much reclaim prefers anonymous pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swappiness {
    /// From 0 (hardly) to 200 (hardly anything else).
    Of(u8),
    /// Only anonymous pages.
    Max,
}

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
    /// The memcg exceeds its new `memory.max` by so many pages: reclaim them, and if that fails, kill
    /// processes.
    AboveMax {
        /// Pages.
        pages: u64,
    },
    /// `memory.reclaim`: reclaim so many pages. Fewer are an error (`EAGAIN`).
    Reclaim {
        /// Pages.
        pages: u64,
        /// If it was given.
        swappiness: Option<Swappiness>,
    },
}
