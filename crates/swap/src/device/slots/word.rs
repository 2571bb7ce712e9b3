//! The word of a slot.
//!
//! | bits | holds |
//! |---|---|
//! | 0 | lock |
//! | 1..4 | what the slot's contents are |
//! | 4..16 | an object's length |
//! | 16..64 | where the object is: a frame and the place in it in units of 16 bytes |
//! | 4..64 | the word of a page all of whose words are equal, with its sign |

use quire_arch::Pfn;

/// Set while another thread has the slot.
pub(super) const LOCKED: u64 = 1;

const TAG_SHIFT: u32 = 1;
const TAG_MASK: u64 = 7;
const SAME: u64 = 1;
const PATTERN: u64 = 2;
const PACKED: u64 = 3;
const WHOLE: u64 = 4;

const VALUE_SHIFT: u32 = 4;
const LENGTH_MASK: u64 = 0xfff;
const LOCATION_SHIFT: u32 = 16;
const PLACE_SHIFT: u32 = 8;

/// Bytes to which objects are aligned.
pub(in crate::device) const GRAIN: usize = 16;

/// Where an object begins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::device) struct Location(u64);

impl Location {
    /// Frames whose number a location can hold: all that 52 address bits reach.
    pub(in crate::device) const PFNS: u64 = 1 << (u64::BITS - LOCATION_SHIFT - PLACE_SHIFT);

    /// `offset` bytes into the frame.
    #[inline]
    pub(in crate::device) const fn new(pfn: Pfn, offset: usize) -> Self {
        Self(pfn.0 << PLACE_SHIFT | (offset / GRAIN) as u64)
    }

    /// The frame.
    #[inline]
    pub(in crate::device) const fn pfn(self) -> Pfn {
        Pfn(self.0 >> PLACE_SHIFT)
    }

    /// Bytes into the frame.
    #[inline]
    pub(in crate::device) const fn offset(self) -> usize {
        (self.0 & ((1 << PLACE_SHIFT) - 1)) as usize * GRAIN
    }
}

/// A slot's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::device) enum Contents {
    /// Nothing.
    Empty,
    /// A page all of whose words are this one, which [`fits`](Contents::fits).
    Same(u64),
    /// A page all of whose words are the one that is kept there.
    Pattern(Location),
    /// A compressed page.
    Packed {
        /// Where.
        location: Location,
        /// How long it is.
        length: u16,
    },
    /// An uncompressed page.
    Whole(Pfn),
}

impl Contents {
    /// Whether the word of a page all of whose words are equal can be kept in the slot's word.
    #[inline]
    pub(in crate::device) const fn fits(word: u64) -> bool {
        ((word << VALUE_SHIFT) as i64 >> VALUE_SHIFT) as u64 == word
    }

    /// The object that holds the contents, if one does.
    #[inline]
    pub(in crate::device) const fn location(self) -> Option<Location> {
        match self {
            Self::Pattern(location) | Self::Packed { location, .. } => Some(location),
            Self::Empty | Self::Same(_) | Self::Whole(_) => None,
        }
    }

    /// The same contents in an object elsewhere.
    #[inline]
    pub(in crate::device) const fn moved_to(self, to: Location) -> Self {
        match self {
            Self::Pattern(_) => Self::Pattern(to),
            Self::Packed { length, .. } => Self::Packed { location: to, length },
            Self::Empty | Self::Same(_) | Self::Whole(_) => self,
        }
    }
}

#[inline]
pub(super) const fn pack(contents: Contents) -> u64 {
    match contents {
        Contents::Empty => 0,
        Contents::Same(word) => SAME << TAG_SHIFT | word << VALUE_SHIFT,
        Contents::Pattern(location) => PATTERN << TAG_SHIFT | location.0 << LOCATION_SHIFT,
        Contents::Packed { location, length } => {
            PACKED << TAG_SHIFT | (length as u64) << VALUE_SHIFT | location.0 << LOCATION_SHIFT
        }
        Contents::Whole(pfn) => WHOLE << TAG_SHIFT | Location::new(pfn, 0).0 << LOCATION_SHIFT,
    }
}

#[inline]
pub(super) const fn unpack(word: u64) -> Contents {
    let location = Location(word >> LOCATION_SHIFT);
    match word >> TAG_SHIFT & TAG_MASK {
        SAME => Contents::Same((word as i64 >> VALUE_SHIFT) as u64),
        PATTERN => Contents::Pattern(location),
        PACKED => Contents::Packed { location, length: (word >> VALUE_SHIFT & LENGTH_MASK) as u16 },
        WHOLE => Contents::Whole(location.pfn()),
        _ => Contents::Empty,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_what_was_packed() {
        let far = Location::new(Pfn(Location::PFNS - 1), 4080);
        assert_eq!((far.pfn(), far.offset()), (Pfn(Location::PFNS - 1), 4080));
        let near = Location::new(Pfn(1), 0);
        let all = [
            Contents::Empty,
            Contents::Same(0),
            Contents::Same(u64::MAX),
            Contents::Same((1 << 59) - 1),
            Contents::Same(1 << 63 | 0x1f << 59),
            Contents::Pattern(far),
            Contents::Packed { location: far, length: 4095 },
            Contents::Packed { location: near, length: 1 },
            Contents::Whole(Pfn(Location::PFNS - 1)),
        ];
        for contents in all {
            assert_eq!(unpack(pack(contents)), contents);
            assert_eq!(unpack(pack(contents) | LOCKED), contents);
            assert_eq!(pack(contents) & LOCKED, 0);
        }
        assert_eq!(pack(Contents::Empty), 0, "a frame of zeros is a table of empty slots");
    }

    #[test]
    fn a_word_fits_if_its_upper_bits_are_its_sign() {
        for (word, fits) in [
            (0, true),
            (u64::MAX, true),
            ((1 << 59) - 1, true),
            (1 << 59, false),
            (0x5a5a_5a5a_5a5a_5a5a, false),
            (!0 << 59, true),
            (!0 << 60, false),
        ] {
            assert_eq!(Contents::fits(word), fits, "{word:#x}");
        }
    }
}
