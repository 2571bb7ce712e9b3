//! The word of a slot: its state in 64 bits.
//!
//! | bits | holds |
//! |---|---|
//! | 0..2 | [`Tag`] |
//! | 2 | *whole*: the word speaks for all slots of its block |
//! | 3 | *zero*: the device has nothing of the page; one that is out is all zeros |
//! | 4 | *busy*: another thread reads the page past the cache |
//! | 5..28 | how many page-table entries name the slot (each slot, of a whole word) |
//! | 28..64 | payload: the frame, the shadow, or the memcg |
//!
//! Words change under their cluster's lock, so a transition is a function from one to the next.

use crate::shadow::Shadow;

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Tag {
    /// In use by none.
    Free = 0,
    /// The cache has the page.
    Folio = 1,
    /// The page is on the device only, with a shadow.
    Shadow = 2,
    /// The page is on the device only, without a shadow.
    Bare = 3,
}

const TAG_MASK: u64 = 3;
const WHOLE: u64 = 1 << 2;
const ZERO: u64 = 1 << 3;
const BUSY: u64 = 1 << 4;
const COUNT_SHIFT: u32 = 5;
const COUNT_BITS: u32 = 23;
const COUNT_MASK: u64 = ((1 << COUNT_BITS) - 1) << COUNT_SHIFT;
const ONE: u64 = 1 << COUNT_SHIFT;
const PAYLOAD_SHIFT: u32 = COUNT_SHIFT + COUNT_BITS;

/// There are never more than 2^22 - 64 spaces, each with one name for a slot.
const _: () = assert!((1u64 << 22) < 1 << COUNT_BITS);
const _: () = assert!(Shadow::BITS + PAYLOAD_SHIFT == u64::BITS);

/// How a page leaves the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Out {
    /// With a shadow.
    Shadow(Shadow),
    /// Without one; the memcg stays known.
    Bare(u16),
}

/// A slot's word.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct SlotWord(u64);

impl SlotWord {
    pub(crate) const FREE: Self = Self(0);

    #[inline]
    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    #[inline]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// A page that has just entered the cache and that nothing names. Frames are numbered from the lowest of
    /// the machine.
    #[inline]
    pub(crate) const fn folio(frame: u32) -> Self {
        Self(Tag::Folio as u64 | (frame as u64) << PAYLOAD_SHIFT)
    }

    #[inline]
    pub(crate) const fn tag(self) -> Tag {
        match self.0 & TAG_MASK {
            0 => Tag::Free,
            1 => Tag::Folio,
            2 => Tag::Shadow,
            _ => Tag::Bare,
        }
    }

    #[inline]
    pub(crate) const fn is_free(self) -> bool {
        self.0 & TAG_MASK == Tag::Free as u64
    }

    #[inline]
    pub(crate) const fn is_cached(self) -> bool {
        self.0 & TAG_MASK == Tag::Folio as u64
    }

    #[inline]
    pub(crate) const fn is_whole(self) -> bool {
        self.0 & WHOLE != 0
    }

    #[inline]
    pub(crate) const fn is_zero(self) -> bool {
        self.0 & ZERO != 0
    }

    #[inline]
    pub(crate) const fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    #[inline]
    pub(crate) const fn count(self) -> u32 {
        ((self.0 & COUNT_MASK) >> COUNT_SHIFT) as u32
    }

    /// Whether the page is all zeros, on the device only, read by no thread past the cache, and named once.
    #[inline]
    pub(crate) const fn is_zeros_named_once(self) -> bool {
        // Of the tags these two have this bit.
        const OUT: u64 = Tag::Shadow as u64 & Tag::Bare as u64;
        const _: () = assert!(OUT & (Tag::Free as u64 | Tag::Folio as u64) == 0 && OUT != 0);
        self.0 & (OUT | ZERO | BUSY | COUNT_MASK) == OUT | ZERO | ONE
    }

    /// The frame, if the cache has the page.
    #[inline]
    pub(crate) const fn frame(self) -> Option<u32> {
        if self.is_cached() { Some((self.0 >> PAYLOAD_SHIFT) as u32) } else { None }
    }

    #[inline]
    pub(crate) const fn shadow(self) -> Option<Shadow> {
        match self.tag() {
            Tag::Shadow => Some(Shadow::unpack(self.0 >> PAYLOAD_SHIFT)),
            _ => None,
        }
    }

    /// The memcg of a page that is swapped out; in the cache its folio has it.
    #[inline]
    pub(crate) const fn memcg(self) -> Option<u16> {
        match self.tag() {
            Tag::Shadow => Some(Shadow::unpack(self.0 >> PAYLOAD_SHIFT).memcg()),
            Tag::Bare => Some((self.0 >> PAYLOAD_SHIFT) as u16),
            Tag::Free | Tag::Folio => None,
        }
    }

    /// The page is on the device only, and charged to `memcg` from now on.
    #[inline]
    pub(crate) const fn charged_to(self, memcg: u16, shadow: Option<Shadow>) -> Self {
        let out = match shadow {
            Some(shadow) => Out::Shadow(shadow),
            None => Out::Bare(memcg),
        };
        Self(self.left(out).0 | self.0 & BUSY)
    }

    /// The same, for all slots of its block.
    #[inline]
    pub(crate) const fn whole(self) -> Self {
        Self(self.0 | WHOLE)
    }

    /// A whole word's value for slot `nth` of its block.
    #[inline]
    pub(crate) const fn of_slot(self, nth: u32) -> Self {
        let moved = if self.is_cached() { (nth as u64) << PAYLOAD_SHIFT } else { 0 };
        Self((self.0 & !WHOLE) + moved)
    }

    /// With or without the mark *zero*.
    #[inline]
    pub(crate) const fn with_zero(self, zero: bool) -> Self {
        if zero { Self(self.0 | ZERO) } else { Self(self.0 & !ZERO) }
    }

    /// With or without the mark *busy*.
    #[inline]
    pub(crate) const fn with_busy(self, busy: bool) -> Self {
        if busy { Self(self.0 | BUSY) } else { Self(self.0 & !BUSY) }
    }

    /// With no names: a word's count while its cluster counts in one sum.
    #[inline]
    pub(crate) const fn without_count(self) -> Self {
        Self(self.0 & !COUNT_MASK)
    }

    /// Named once more, unless the count is at its limit.
    #[inline]
    pub(crate) const fn named(self) -> Option<Self> {
        if self.0 & COUNT_MASK == COUNT_MASK { None } else { Some(Self(self.0 + ONE)) }
    }

    /// Named once less, unless nothing names it.
    #[inline]
    pub(crate) const fn unnamed(self) -> Option<Self> {
        if self.count() == 0 { None } else { Some(Self(self.0 - ONE)) }
    }

    /// The cache has the page from now on.
    #[inline]
    pub(crate) const fn entered(self, frame: u32) -> Self {
        Self(self.0 & (COUNT_MASK | ZERO | WHOLE) | Self::folio(frame).0)
    }

    /// The page has left the cache.
    #[inline]
    pub(crate) const fn left(self, out: Out) -> Self {
        let kept = self.0 & (COUNT_MASK | ZERO | WHOLE);
        Self(match out {
            Out::Shadow(shadow) => kept | Tag::Shadow as u64 | shadow.pack() << PAYLOAD_SHIFT,
            Out::Bare(memcg) => kept | Tag::Bare as u64 | (memcg as u64) << PAYLOAD_SHIFT,
        })
    }
}

impl core::fmt::Debug for SlotWord {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.tag())?;
        let marks = [(self.is_whole(), " whole"), (self.is_zero(), " zero"), (self.is_busy(), " busy")];
        for (_, name) in marks.into_iter().filter(|(on, _)| *on) {
            f.write_str(name)?;
        }
        write!(f, " x{} {:#x}", self.count(), self.0 >> PAYLOAD_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_arch::NodeId;

    #[test]
    fn a_page_goes_out_and_in_and_its_count_and_zeros_stay() {
        let named = SlotWord::folio(u32::MAX).named().unwrap().named().unwrap().with_zero(true).whole();
        assert_eq!((named.frame(), named.count(), named.memcg()), (Some(u32::MAX), 2, None));
        let shadow = Shadow::new(NodeId::new(7).unwrap(), Shadow::MAX_GROUP, true, Shadow::MAX_AGE);
        let out = named.left(Out::Shadow(shadow));
        assert_eq!(
            (out.tag(), out.shadow(), out.memcg()),
            (Tag::Shadow, Some(shadow), Some(Shadow::MAX_GROUP))
        );
        assert!(out.is_whole() && out.is_zero() && out.count() == 2 && out.frame().is_none());
        let bare = named.left(Out::Bare(u16::MAX));
        assert_eq!((bare.tag(), bare.shadow(), bare.memcg()), (Tag::Bare, None, Some(u16::MAX)));
        for out in [out, bare] {
            let back = out.with_busy(true).entered(5);
            assert_eq!(back, SlotWord::folio(5).named().unwrap().named().unwrap().with_zero(true).whole());
        }
    }

    #[test]
    fn a_whole_word_says_which_frame_each_slot_has() {
        let whole = SlotWord::folio(64).named().unwrap().whole();
        let third = whole.of_slot(3);
        assert_eq!((third.frame(), third.count(), third.is_whole()), (Some(67), 1, false));
        let out = whole.left(Out::Bare(9)).of_slot(3);
        assert_eq!((out.memcg(), out.is_whole()), (Some(9), false));
    }

    #[test]
    fn zeros_that_are_out_are_told_by_their_bits() {
        let cached = SlotWord::folio(3).named().unwrap().with_zero(true);
        let out = cached.left(Out::Bare(9));
        let shadow = Shadow::new(NodeId::FIRST, 1, false, Shadow::MAX_AGE);
        assert!(out.is_zeros_named_once() && cached.left(Out::Shadow(shadow)).is_zeros_named_once());
        for other in [
            cached,
            out.with_zero(false),
            out.with_busy(true),
            out.without_count(),
            out.named().unwrap(),
            SlotWord::FREE.with_zero(true),
        ] {
            assert!(!other.is_zeros_named_once(), "{other:?}");
        }
    }

    #[test]
    fn counts_neither_overflow_nor_go_below_nothing() {
        assert_eq!(SlotWord::folio(1).unnamed(), None);
        let full = SlotWord::from_raw(SlotWord::folio(1).raw() | COUNT_MASK);
        assert_eq!((full.count(), full.named()), ((1 << COUNT_BITS) - 1, None));
        assert_eq!(full.unnamed().and_then(SlotWord::named), Some(full));
        assert_eq!(full.without_count(), SlotWord::folio(1));
    }
}
