//! What running a program on both sides comes to.

use crate::known::KnownCounts;
use crate::program::Outcome;

/// Where the sides diverged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Index of the operation in the program. Behind the last for what was found after the program.
    pub step: usize,
    /// What differs, in words.
    pub what: String,
}

/// The result of a run of a program.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The first difference.
    pub mismatch: Option<Mismatch>,
    /// The outcome of each operation on Linux, up to the one that differs.
    pub outcomes: Vec<Outcome>,
    /// Operations that were made and compared.
    pub compared: u64,
    /// Operations that were not made on either side.
    pub not_made: u64,
    /// Those among them that cannot be compared since the host merges equal pages.
    pub merging: u64,
    /// Those among them that are about SysV shared memory, which takes a privilege.
    pub segments: u64,
    /// Differences that are known.
    pub known: KnownCounts,
    /// The program differed, but not each time that it was run again; what differed.
    pub unconfirmed: Option<Mismatch>,
}
