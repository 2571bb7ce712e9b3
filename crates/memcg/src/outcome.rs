//! What a write to a file of a memcg leaves to be done.

/// How much reclaim prefers anonymous pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swappiness {
    /// From 0 (hardly) to 200 (hardly anything else).
    Of(u8),
    /// Only anonymous pages.
    Max,
}

/// What is left to be done after a file was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the memcg may have to be reclaimed from"]
pub enum WriteOutcome {
    /// Nothing.
    Done,
    /// The memcg uses so many pages more than its new `memory.high`: these are to be reclaimed, as far as
    /// they can.
    AboveHigh {
        /// Pages.
        pages: u64,
    },
    /// The memcg uses so many pages more than its new `memory.max`: these are to be reclaimed, and if they
    /// cannot be, processes are killed.
    AboveMax {
        /// Pages.
        pages: u64,
    },
    /// `memory.reclaim`: so many pages are to be reclaimed. Fewer are an error (`EAGAIN`).
    Reclaim {
        /// Pages.
        pages: u64,
        /// If it was said.
        swappiness: Option<Swappiness>,
    },
}
