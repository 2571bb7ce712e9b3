//! Memcg identifiers.

use core::fmt;

/// The number of a memcg. A number is used again when its memcg is gone with all charges.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct MemcgId(u16);

impl MemcgId {
    /// The root of the tree: it has no limits, and nothing is counted for it.
    pub const ROOT: Self = Self(0);
    /// Number of ids; leaves one spare bit beside an id.
    pub const COUNT: usize = 1 << 15;

    /// Memcg `number`, or `None` if it is out of range.
    #[doc(hidden)]
    #[inline]
    pub const fn new(number: u16) -> Option<Self> {
        if (number as usize) < Self::COUNT { Some(Self(number)) } else { None }
    }

    /// The number as it is kept in a descriptor or a word. The highest bit is lost, which no number has.
    #[doc(hidden)]
    #[inline]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & (Self::COUNT as u16 - 1))
    }

    /// The number.
    #[doc(hidden)]
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The number as an index into tables.
    #[doc(hidden)]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether this is [`ROOT`](Self::ROOT).
    #[doc(hidden)]
    #[inline]
    pub const fn is_root(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for MemcgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memcg{}", self.0)
    }
}

impl fmt::Display for MemcgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
