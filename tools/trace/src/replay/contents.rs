//! Contents for pages: as compressible as the recorded program's were.

use crate::event::{Compressibility, ContentSample};
use crate::mix::mix;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Pieces that a page is made of at most: each costs LZ4 some bytes, so that small sizes have room for few.
const MOST_PIECES: usize = 16;
/// The fewest bytes of noise in a piece: from here on LZ4 needs exactly one more byte for the length.
const LEAST_NOISE: usize = 16;

/// What a page is to be filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageKind {
    /// Zeros.
    Zero,
    /// One word again and again.
    Same,
    /// What LZ4 brings to so many bytes.
    Compressed(u16),
}

impl PageKind {
    /// Fills `into` with what version `version` of page `page` holds if it is of this kind. The same page in the same
    /// version is always the same.
    pub(crate) fn fill(self, page: u64, version: u64, into: &mut [u8; PAGE_BYTES]) {
        let mut noise = Noise(mix(page ^ mix(version)));
        match self {
            Self::Zero => into.fill(0),
            Self::Same => {
                // A page of zeros is of another kind.
                let word = (noise.next() | 1).to_le_bytes();
                into.as_chunks_mut().0.fill(word);
            }
            Self::Compressed(size) => {
                into.fill(0);
                let (pieces, bytes) = layout(size.into());
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

/// How often pages are of which kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Distribution {
    sizes: Compressibility,
    /// Bytes by which pages come to more than the middle of their class, on average.
    shift: i32,
}

/// The size in the middle of a class.
fn middle(class: usize) -> usize {
    class * Compressibility::CLASS_BYTES + Compressibility::CLASS_BYTES / 2
}

impl Distribution {
    /// Pages come to the middle of their classes.
    pub(crate) fn of(sizes: Compressibility) -> Self {
        Self { sizes, shift: 0 }
    }

    /// Pages come to as many bytes together as those of the sample did.
    pub(crate) fn of_sample(sample: &ContentSample) -> Self {
        let counts = sample.sizes.sizes.iter().map(|count| u64::from(*count));
        let pages: u64 = counts.clone().sum();
        let middles: u64 = counts.enumerate().map(|(class, count)| count * middle(class) as u64).sum();
        let off = sample.compressed as i64 - middles as i64;
        let half = Compressibility::CLASS_BYTES as i64 / 2;
        // A class has no larger sizes, whatever a file claims.
        let shift = off.checked_div(pages as i64).map_or(0, |shift| shift.clamp(-half, half));
        Self { sizes: sample.sizes, shift: shift as i32 }
    }

    /// The kind of a page: it keeps it as long as the distribution stays.
    pub(crate) fn kind(&self, page: u64) -> PageKind {
        let pages = self.sizes.pages();
        if pages == 0 {
            return PageKind::Zero;
        }
        let mut place = mix(page) % pages;
        let sized = |class| (middle(class) as i32 + self.shift).clamp(1, PAGE_BYTES as i32) as u16;
        let classes = (0..).map(|class| PageKind::Compressed(sized(class))).zip(self.sizes.sizes);
        let all = [(PageKind::Zero, self.sizes.zero), (PageKind::Same, self.sizes.same)];
        for (kind, count) in all.into_iter().chain(classes) {
            let count = u64::from(count);
            if place < count {
                return kind;
            }
            place -= count;
        }
        PageKind::Zero
    }

    /// The bytes that a page comes to, on average.
    pub(crate) fn mean(&self) -> u64 {
        let sizes = self.sizes.sizes.iter().enumerate();
        let bytes: i64 = sizes
            .map(|(class, count)| i64::from(*count) * (middle(class) as i64 + i64::from(self.shift)))
            .sum();
        bytes.max(0) as u64 / self.sizes.pages().max(1)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Within a tenth of what was asked for, or within the few bytes that LZ4 needs for anything at all.
    #[test]
    fn pages_compress_to_their_class() {
        let mut bytes = [0; PAGE_BYTES];
        for class in 0..Compressibility::CLASSES {
            let wanted = middle(class);
            for page in 0..64 {
                PageKind::Compressed(wanted as u16).fill(page, page % 3, &mut bytes);
                let found = lz4_flex::block::compress(&bytes).len();
                let off = found.abs_diff(wanted);
                assert!(off * 10 <= wanted, "class {class}: {found} bytes, not {wanted}");
                assert_eq!(Compressibility::class(found), class, "{found}");
            }
        }
    }

    #[test]
    fn a_page_is_the_same_again_and_another_version_is_not() {
        let kind = PageKind::Compressed(1100);
        let [mut first, mut again, mut other] = [[0; PAGE_BYTES]; 3];
        kind.fill(7, 1, &mut first);
        kind.fill(7, 1, &mut again);
        kind.fill(7, 2, &mut other);
        assert!(first == again && first != other);
        PageKind::Same.fill(7, 1, &mut first);
        assert!(first.as_chunks::<8>().0.windows(2).all(|pair| pair[0] == pair[1]) && first[..8] != [0; 8]);
        PageKind::Zero.fill(7, 1, &mut first);
        assert_eq!(first, [0; PAGE_BYTES]);
    }

    #[test]
    fn kinds_come_as_often_as_they_were_seen() {
        let mut sizes = Compressibility { zero: 10, same: 20, ..Compressibility::default() };
        sizes.sizes[3] = 70;
        let distribution = Distribution::of(sizes);
        let kinds: Vec<PageKind> = (0..10_000).map(|page| distribution.kind(page)).collect();
        let expected = [(PageKind::Zero, 10), (PageKind::Same, 20), (PageKind::Compressed(896), 70)];
        for (kind, percent) in expected {
            let found = kinds.iter().filter(|&&found| found == kind).count();
            assert!(found.abs_diff(percent * 100) < 200, "{kind:?}: {found}");
        }
        assert_eq!(Distribution::of(Compressibility::default()).kind(1), PageKind::Zero);
    }

    #[test]
    fn pages_come_to_what_the_sample_came_to() {
        let mut sizes = Compressibility { zero: 10, ..Compressibility::default() };
        sizes.sizes[3] = 10;
        let of = |compressed| {
            Distribution::of_sample(&ContentSample { sizes, compressed, ..ContentSample::default() })
        };
        assert_eq!((of(8000).mean(), of(10_000).mean()), (400, 500));
        assert!((0..100).any(|page| of(8000).kind(page) == PageKind::Compressed(800)));
        // Claims beyond what the classes say are not believed.
        assert_eq!((of(0).mean(), of(u64::MAX / 4).mean()), (384, 512));
        assert_eq!(Distribution::of_sample(&ContentSample::default()).kind(3), PageKind::Zero);
    }
}
