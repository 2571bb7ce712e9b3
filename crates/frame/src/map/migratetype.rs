//! How the contents of a block can be moved, by which free memory is kept apart.

/// The mobility of what a frame holds. Every page block has one, and allocations of the same type share blocks,
/// so that what can never move does not end up scattered over all of memory (M. Gorman, P. Healy, "Supporting
/// superpage allocation without additional hardware support", ISMM 2008).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Migratetype {
    /// Stays where it is until it is freed: tables, slabs.
    Unmovable = 0,
    /// Can be copied elsewhere: what programs map.
    Movable = 1,
    /// Cannot be moved but can be dropped under pressure: caches.
    Reclaimable = 2,
}

impl Migratetype {
    /// Number of types.
    pub const COUNT: usize = 3;
    /// Every type, in the order of its number.
    pub const ALL: [Self; Self::COUNT] = [Self::Unmovable, Self::Movable, Self::Reclaimable];

    /// The type as an index into per-type arrays.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The type whose number is in the low two bits. Three is never stored and reads as movable.
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            0 => Self::Unmovable,
            2 => Self::Reclaimable,
            _ => Self::Movable,
        }
    }

    /// Where memory is taken from when blocks of this type have none left, best first. What cannot move prefers
    /// what at least can be dropped; what can move goes last to what never moves.
    pub(crate) const fn fallbacks(self) -> [Self; 2] {
        match self {
            Self::Unmovable => [Self::Reclaimable, Self::Movable],
            Self::Movable => [Self::Reclaimable, Self::Unmovable],
            Self::Reclaimable => [Self::Unmovable, Self::Movable],
        }
    }

    /// Name as in Linux's pagetypeinfo.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmovable => "Unmovable",
            Self::Movable => "Movable",
            Self::Reclaimable => "Reclaimable",
        }
    }
}
