//! Contents for pages: as compressible as the recorded program's were.

use crate::event::Compressibility;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Pieces that a page is made of at most: each costs LZ4 some bytes, so that small sizes have room for few.
const MOST_PIECES: usize = 16;
/// The fewest bytes of noise in a piece: from here on LZ4 needs exactly one more byte for the length.
const LEAST_NOISE: usize = 16;

/// What a page is to be filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeClass {
    /// Zeros.
    Zero,
    /// One word again and again.
    Same,
    /// What LZ4 brings to a size in this class of [`Compressibility`]: to its middle.
    Compressed(u8),
}

impl SizeClass {
    /// The compressed size that pages of this class are made for.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Zero | Self::Same => 0,
            Self::Compressed(class) => {
                usize::from(class) * Compressibility::CLASS_BYTES + Compressibility::CLASS_BYTES / 2
            }
        }
    }
}

/// Makes contents for pages. The same page in the same version is always the same.
#[derive(Clone, Debug)]
pub struct PageContents {
    distribution: Compressibility,
}

impl PageContents {
    /// Contents that are distributed as `distribution` says; one without pages says zeros.
    #[must_use]
    pub fn new(distribution: Compressibility) -> Self {
        Self { distribution }
    }

    /// The class of a page: it keeps it for its life.
    #[must_use]
    pub fn class(&self, page: u64) -> SizeClass {
        let pages = self.distribution.pages();
        if pages == 0 {
            return SizeClass::Zero;
        }
        let mut place = mix(page) % pages;
        let classes = (0..).map(SizeClass::Compressed).zip(self.distribution.sizes);
        let all = [(SizeClass::Zero, self.distribution.zero), (SizeClass::Same, self.distribution.same)];
        for (class, count) in all.into_iter().chain(classes) {
            let count = u64::from(count);
            if place < count {
                return class;
            }
            place -= count;
        }
        SizeClass::Zero
    }

    /// Fills `into` with what version `version` of page `page` holds if it is of this class.
    pub fn fill(page: u64, version: u64, class: SizeClass, into: &mut [u8; PAGE_BYTES]) {
        let mut noise = Noise(mix(page ^ mix(version)));
        match class {
            SizeClass::Zero => into.fill(0),
            SizeClass::Same => {
                // A page of zeros is of another class.
                let word = (noise.next() | 1).to_le_bytes();
                into.as_chunks_mut().0.fill(word);
            }
            SizeClass::Compressed(_) => {
                into.fill(0);
                let (pieces, bytes) = layout(class.bytes());
                let step = PAGE_BYTES / pieces;
                for (number, piece) in into.chunks_exact_mut(step).enumerate() {
                    // The remainder goes to the first pieces, a byte each.
                    let bytes = bytes / pieces + usize::from(number < bytes % pieces);
                    for chunk in piece[..bytes.min(step)].chunks_mut(8) {
                        let word = noise.next().to_le_bytes();
                        chunk.copy_from_slice(&word[..chunk.len()]);
                    }
                }
            }
        }
    }
}

/// Into how many pieces a page is cut, each of which begins with noise and goes on with zeros, and how many
/// bytes of noise there are in all, so that LZ4 brings the page to `size` bytes.
fn layout(size: usize) -> (usize, usize) {
    let mut pieces = MOST_PIECES;
    loop {
        let step = PAGE_BYTES / pieces;
        // Noise, a literal zero, then a match that reaches to the next piece: a token, the lengths that do
        // not fit into it, and the distance.
        let overhead = |noise: usize| {
            let literals = noise / pieces + 1;
            let zeros = step.saturating_sub(literals);
            1 + 1 + literals / 255 + 2 + usize::from(zeros > 19) + zeros / 255 + 1
        };
        let guess = size.saturating_sub(pieces * overhead(size));
        let noise = size.saturating_sub(pieces * overhead(guess)).min(PAGE_BYTES);
        if pieces == 1 || (noise / pieces >= LEAST_NOISE && step - noise.div_ceil(pieces) >= 2 * LEAST_NOISE)
        {
            return (pieces, noise);
        }
        pieces /= 2;
    }
}

/// A stream of numbers in which LZ4 finds nothing.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

/// Scatters the bits of a number (the finaliser of splitmix64).
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Within a tenth of what was asked for, or within the few bytes that LZ4 needs for anything at all.
    #[test]
    fn pages_compress_to_their_class() {
        let mut bytes = [0; PAGE_BYTES];
        for class in 0..Compressibility::CLASSES {
            let wanted = SizeClass::Compressed(class as u8);
            for page in 0..64 {
                PageContents::fill(page, page % 3, wanted, &mut bytes);
                let found = lz4_flex::block::compress(&bytes).len();
                let off = found.abs_diff(wanted.bytes());
                assert!(off * 10 <= wanted.bytes(), "class {class}: {found} bytes, not {}", wanted.bytes());
                assert_eq!(Compressibility::class(found), class, "{found}");
            }
        }
    }

    #[test]
    fn a_page_is_the_same_again_and_another_version_is_not() {
        let class = SizeClass::Compressed(4);
        let [mut first, mut again, mut other] = [[0; PAGE_BYTES]; 3];
        PageContents::fill(7, 1, class, &mut first);
        PageContents::fill(7, 1, class, &mut again);
        PageContents::fill(7, 2, class, &mut other);
        assert!(first == again && first != other);
        PageContents::fill(7, 1, SizeClass::Same, &mut first);
        assert!(first.as_chunks::<8>().0.windows(2).all(|pair| pair[0] == pair[1]) && first[..8] != [0; 8]);
        PageContents::fill(7, 1, SizeClass::Zero, &mut first);
        assert_eq!(first, [0; PAGE_BYTES]);
    }

    #[test]
    fn classes_come_as_often_as_they_were_seen() {
        let mut distribution = Compressibility { zero: 10, same: 20, ..Compressibility::default() };
        distribution.sizes[3] = 70;
        let contents = PageContents::new(distribution);
        let classes: Vec<SizeClass> = (0..10_000).map(|page| contents.class(page)).collect();
        for (class, percent) in [(SizeClass::Zero, 10), (SizeClass::Same, 20), (SizeClass::Compressed(3), 70)]
        {
            let found = classes.iter().filter(|&&found| found == class).count();
            assert!(found.abs_diff(percent * 100) < 200, "{class:?}: {found}");
        }
        assert_eq!(PageContents::new(Compressibility::default()).class(1), SizeClass::Zero);
    }
}
