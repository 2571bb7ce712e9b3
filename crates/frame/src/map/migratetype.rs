//! The mobility of a block's contents, by which free memory is grouped.

/// The mobility of what a frame holds. Every page block has one, and allocations of the same type share
/// blocks, so that what can never move does not end up scattered over all of memory (M. Gorman, P. Healy,
/// "Supporting superpage allocation without additional hardware support", ISMM 2008).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Migratetype {
    /// Stays where it is until it is freed: tables, slabs.
    Unmovable = 0,
    /// Can be copied elsewhere: what programs map.
    Movable = 1,
    /// Cannot be moved but can be dropped under pressure: caches.
    Reclaimable = 2,
    /// Kept for requests that cannot wait and need more than one frame. A type of page blocks only: no
    /// request has it.
    HighAtomic = 3,
    /// Serves no allocation: the range is being taken offline. A type of page blocks only.
    Isolate = 4,
}

impl Migratetype {
    /// Number of types.
    pub const COUNT: usize = 5;
    /// Every type, in the order of its number.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Unmovable, Self::Movable, Self::Reclaimable, Self::HighAtomic, Self::Isolate];
    /// Number of types that requests and per-CPU lists have.
    pub const PCP_COUNT: usize = 3;
    /// The types that requests and per-CPU lists have.
    pub const PCP_TYPES: [Self; Self::PCP_COUNT] = [Self::Unmovable, Self::Movable, Self::Reclaimable];

    /// Whether requests and per-CPU lists have the type. Frames of other blocks go straight to their zone.
    #[inline]
    pub const fn is_pcp_type(self) -> bool {
        (self as usize) < Self::PCP_COUNT
    }

    /// The type as an index into per-type arrays.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether free neighbours of the two types become one block. What is reserved or isolated stays by
    /// itself.
    #[inline]
    pub(crate) fn joins(self, other: Self) -> bool {
        self == other || (self.is_pcp_type() && other.is_pcp_type())
    }

    /// The type whose number is in the low three bits. What is never stored reads as movable.
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        const BY_BITS: [Migratetype; 8] = [
            Migratetype::Unmovable,
            Migratetype::Movable,
            Migratetype::Reclaimable,
            Migratetype::HighAtomic,
            Migratetype::Isolate,
            Migratetype::Movable,
            Migratetype::Movable,
            Migratetype::Movable,
        ];
        BY_BITS[(bits & 7) as usize]
    }

    /// Where memory is taken from when blocks of this type have none left, best first. Unmovable allocations
    /// prefer reclaimable blocks; movable ones use unmovable blocks last.
    pub(crate) const fn fallbacks(self) -> &'static [Self] {
        match self {
            Self::Unmovable => &[Self::Reclaimable, Self::Movable],
            Self::Movable => &[Self::Reclaimable, Self::Unmovable],
            Self::Reclaimable => &[Self::Unmovable, Self::Movable],
            Self::HighAtomic | Self::Isolate => &[],
        }
    }

    /// Name as in Linux's pagetypeinfo.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmovable => "Unmovable",
            Self::Movable => "Movable",
            Self::Reclaimable => "Reclaimable",
            Self::HighAtomic => "HighAtomic",
            Self::Isolate => "Isolate",
        }
    }
}
