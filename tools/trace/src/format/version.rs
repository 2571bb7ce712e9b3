//! The version of a file, which its decoders need to know.

use super::{FORMAT_VERSION, OLDEST_VERSION};
use crate::event::EventKind;

/// The version of a file that is being read: one that this crate knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u16);

impl Version {
    /// The first that has privileges.
    pub(crate) const THREE: Self = Self(3);
    /// The first whose header has the settings of the host.
    pub(crate) const FOUR: Self = Self(4);
    /// The first whose header says whether pages were paged out, and that has samples of their contents.
    pub(crate) const FIVE: Self = Self(5);
    /// The first whose samples of contents compare LZ4 with zstd.
    pub(crate) const SIX: Self = Self(6);
    /// The first whose figures have the processor time.
    pub(crate) const SEVEN: Self = Self(7);
    /// The first whose samples of contents say which pages they are of.
    pub(crate) const EIGHT: Self = Self(8);
    /// The first whose header has the memory limit that the program was shown.
    pub(crate) const NINE: Self = Self(9);
    /// The first that says what a file in memory had when it was mapped.
    pub(crate) const ELEVEN: Self = Self(11);
    /// The first that says how long mapped files are and what of them is cached.
    pub(crate) const TWELVE: Self = Self(12);
    /// The first that says how large folios of shared memory may be.
    pub(crate) const THIRTEEN: Self = Self(13);

    /// The version with this number, if it can be read.
    pub(crate) fn new(number: u16) -> Option<Self> {
        (OLDEST_VERSION..=FORMAT_VERSION).contains(&number).then_some(Self(number))
    }

    /// Its number.
    pub(crate) fn number(self) -> u32 {
        self.0.into()
    }

    /// How many kinds of events it has.
    pub(crate) fn kinds(self) -> usize {
        match self.0 {
            // Up to `Unsupported`.
            1 => 9,
            // Up to `Compressibility`.
            2 => 11,
            // Up to `Privileges`.
            3 | 4 => 12,
            // Up to `Contents`.
            5..=9 => 13,
            // Up to `Window`.
            10 | 11 => 14,
            _ => EventKind::COUNT,
        }
    }
}
