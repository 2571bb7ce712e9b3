//! Contents for pages, as compressible as those of the recorded program.

use quire_trace::event::{Compressibility, ContentSample, PageContents};
use quire_trace::mix::mix;
use std::sync::LazyLock;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Pieces that a page is made of at most: each costs LZ4 some bytes, so that small sizes have space for few.
const MOST_PIECES: usize = 16;
/// The fewest bytes of noise in a piece, and of what follows it.
const LEAST_NOISE: usize = 16;
const LEAST_FILLER: usize = 2 * LEAST_NOISE;

/// Fills `into` with what version `version` of page `page` holds if that is to be `contents`. The same page
/// in the same version is always the same.
pub(crate) fn fill(contents: PageContents, page: u64, version: u64, into: &mut [u8; PAGE_BYTES]) {
    let mut noise = Noise(mix(page ^ mix(version)));
    match contents {
        PageContents::Zero => into.fill(0),
        PageContents::Same => {
            // A page of zeros is of another kind.
            let word = (noise.next() | 1).to_le_bytes();
            into.as_chunks_mut().0.fill(word);
        }
        PageContents::Compressed(size) => {
            let layout = LAYOUTS[usize::from(size).min(PAGE_BYTES)];
            let step = PAGE_BYTES / layout.pieces;
            for (number, piece) in into.chunks_exact_mut(step).enumerate() {
                let (start, rest) = piece.split_at_mut(layout.noise_of(number));
                for chunk in start.chunks_mut(8) {
                    // Odd, so that no page is all zeros.
                    let word = (noise.next() | 1).to_le_bytes();
                    chunk.copy_from_slice(&word[..chunk.len()]);
                }
                // Another byte in each piece: else LZ4 finds the one before, whose end cuts its match short.
                rest.fill(number as u8);
            }
        }
    }
}

/// The frequency of each kind of page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Distribution {
    sizes: Compressibility,
    /// Bytes by which pages are larger than the middle of their class, on average.
    shift: i32,
}

/// The size in the middle of a class.
fn middle(class: usize) -> usize {
    class * Compressibility::CLASS_BYTES + Compressibility::CLASS_BYTES / 2
}

impl Distribution {
    /// Pages have the size in the middle of their classes.
    pub(crate) fn of(sizes: Compressibility) -> Self {
        Self { sizes, shift: 0 }
    }

    /// Pages have `compressed` bytes together.
    pub(crate) fn of_sum(sizes: Compressibility, compressed: u64) -> Self {
        let counts = sizes.sizes.iter().map(|count| u64::from(*count));
        let pages: u64 = counts.clone().sum();
        let middles: u64 = counts.enumerate().map(|(class, count)| count * middle(class) as u64).sum();
        // Whatever a file claims, no page counts as more than a whole one, and a class has no larger sizes.
        let compressed = compressed.min(pages * PAGE_BYTES as u64);
        let off = compressed as i64 - middles as i64;
        let half = Compressibility::CLASS_BYTES as i64 / 2;
        let shift = off.checked_div(pages as i64).map_or(0, |shift| shift.clamp(-half, half));
        Self { sizes, shift: shift as i32 }
    }

    /// Pages have as many bytes together as those of the sample.
    pub(crate) fn of_sample(sample: &ContentSample) -> Self {
        Self::of_sum(sample.sizes, sample.compressed)
    }

    /// The kind of a page, which is fixed for one distribution.
    pub(crate) fn contents(&self, page: u64) -> PageContents {
        let pages = self.sizes.pages();
        if pages == 0 {
            return PageContents::Zero;
        }
        let mut place = mix(page) % pages;
        let sized = |class| (middle(class) as i32 + self.shift).clamp(1, PAGE_BYTES as i32) as u16;
        let classes = (0..).map(|class| PageContents::Compressed(sized(class))).zip(self.sizes.sizes);
        let all = [(PageContents::Zero, self.sizes.zero), (PageContents::Same, self.sizes.same)];
        for (kind, count) in all.into_iter().chain(classes) {
            let count = u64::from(count);
            if place < count {
                return kind;
            }
            place -= count;
        }
        PageContents::Zero
    }

    /// The compressed size of a page, on average.
    pub(crate) fn mean(&self) -> u64 {
        let sizes = self.sizes.sizes.iter().enumerate();
        let bytes: i64 = sizes
            .map(|(class, count)| i64::from(*count) * (middle(class) as i64 + i64::from(self.shift)))
            .sum();
        bytes.max(0) as u64 / self.sizes.pages().max(1)
    }
}

/// How a page is made that LZ4 compresses to a size: in pieces, each of which begins with noise and continues
/// with one repeated byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pieces {
    /// A power of two.
    pieces: usize,
    /// Bytes of noise in all pieces.
    noise: usize,
}

/// For each size.
static LAYOUTS: LazyLock<Vec<Pieces>> = LazyLock::new(|| (0..=PAGE_BYTES).map(Pieces::of).collect());

impl Pieces {
    /// As many pieces as the size has space for, and as much noise.
    fn of(size: usize) -> Self {
        if size >= PAGE_BYTES {
            return Self { pieces: 1, noise: PAGE_BYTES };
        }
        let mut pieces = MOST_PIECES;
        loop {
            // The most with which the page is not larger than it is to be.
            let most = PAGE_BYTES - pieces * LEAST_FILLER;
            let (mut noise, mut too_much) = (1, most + 1);
            while noise + 1 < too_much {
                let between = noise.midpoint(too_much);
                let fits = Self { pieces, noise: between }.compressed() <= size;
                *if fits { &mut noise } else { &mut too_much } = between;
            }
            if pieces == 1 || (noise / pieces >= LEAST_NOISE && noise < most) {
                return Self { pieces, noise };
            }
            pieces /= 2;
        }
    }

    /// Bytes of noise in one of the pieces. The remainder goes to the first pieces, a byte each.
    fn noise_of(self, piece: usize) -> usize {
        self.noise / self.pieces + usize::from(piece < self.noise % self.pieces)
    }

    /// The size that LZ4 compresses the page to.
    fn compressed(self) -> usize {
        /// Bytes at the end that are never part of a match; they have a token of their own.
        const LAST: usize = 6;
        let step = PAGE_BYTES / self.pieces;
        let of_piece = |piece| {
            let noise = self.noise_of(piece);
            // Of the bytes that are all the same so many are no match yet. The first byte of all is not
            // looked up.
            let literals = noise + stride(noise, usize::from(piece == 0));
            let end = if piece + 1 == self.pieces { LAST } else { 0 };
            let matched = step.saturating_sub(literals + end);
            // A token, the literals, the distance.
            1 + literals + 2 + more_length(literals) + more_length(matched.saturating_sub(4))
        };
        (0..self.pieces).map(of_piece).sum::<usize>() + 1 + LAST
    }
}

/// Bytes that a length takes beside its four bits in the token.
fn more_length(length: usize) -> usize {
    if length < 15 { 0 } else { 1 + (length - 15) / 255 }
}

/// How far LZ4 goes on after the first place that it looks up beyond so many bytes of noise, when it began at
/// `start`: each time that it found nothing 32 times it takes longer steps.
fn stride(noise: usize, start: usize) -> usize {
    let mut at = start;
    let mut stride = 1;
    while at + 31 * stride < noise {
        at += 32 * stride;
        stride += 1;
    }
    stride
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

    /// Within a hundredth of what was asked for, or a byte: of each class some sizes, and those at which
    /// pages are made in another way than the next smaller one.
    #[test]
    fn pages_compress_to_their_size() {
        let mut bytes = [0; PAGE_BYTES];
        let pieces = |size| Pieces::of(size).pieces;
        let turns = (65..PAGE_BYTES).filter(|&size| pieces(size) != pieces(size - 1));
        let turns = turns.flat_map(|size| [size - 1, size]);
        for wanted in (64..=PAGE_BYTES).step_by(7).chain(turns).chain([PAGE_BYTES]) {
            let sum: usize = (0..8)
                .map(|page| {
                    fill(PageContents::Compressed(wanted as u16), page, page % 3, &mut bytes);
                    lz4_flex::block::compress(&bytes).len().min(PAGE_BYTES)
                })
                .sum();
            let off = sum.abs_diff(8 * wanted);
            assert!(off * 100 <= 8 * wanted.max(100), "{} bytes, not {wanted}", sum as f64 / 8.0);
        }
    }

    /// LZ4 needs some bytes for anything at all.
    #[test]
    fn the_smallest_sizes_are_as_small_as_can_be() {
        let mut bytes = [0; PAGE_BYTES];
        for wanted in 0..64 {
            fill(PageContents::Compressed(wanted), 3, 1, &mut bytes);
            let found = lz4_flex::block::compress(&bytes).len();
            assert!(found.abs_diff(wanted.max(28).into()) <= 2, "{found} bytes, not {wanted}");
        }
    }

    #[test]
    fn a_page_is_the_same_again_and_another_version_is_not() {
        let kind = PageContents::Compressed(1100);
        let [mut first, mut again, mut other] = [[0; PAGE_BYTES]; 3];
        fill(kind, 7, 1, &mut first);
        fill(kind, 7, 1, &mut again);
        fill(kind, 7, 2, &mut other);
        assert!(first == again && first != other);
        fill(PageContents::Same, 7, 1, &mut first);
        assert!(first.as_chunks::<8>().0.windows(2).all(|pair| pair[0] == pair[1]) && first[..8] != [0; 8]);
        fill(PageContents::Zero, 7, 1, &mut first);
        assert_eq!(first, [0; PAGE_BYTES]);
    }

    #[test]
    fn kinds_come_as_often_as_they_were_seen() {
        let mut sizes = Compressibility { zero: 10, same: 20, ..Compressibility::default() };
        sizes.sizes[3] = 70;
        let distribution = Distribution::of(sizes);
        let kinds: Vec<PageContents> = (0..10_000).map(|page| distribution.contents(page)).collect();
        let expected =
            [(PageContents::Zero, 10), (PageContents::Same, 20), (PageContents::Compressed(896), 70)];
        for (kind, percent) in expected {
            let found = kinds.iter().filter(|&&found| found == kind).count();
            assert!(found.abs_diff(percent * 100) < 200, "{kind:?}: {found}");
        }
        assert_eq!(Distribution::of(Compressibility::default()).contents(1), PageContents::Zero);
    }

    #[test]
    fn pages_come_to_what_the_sample_came_to() {
        let mut sizes = Compressibility { zero: 10, ..Compressibility::default() };
        sizes.sizes[3] = 10;
        let of = |compressed| {
            Distribution::of_sample(&ContentSample { sizes, compressed, ..ContentSample::default() })
        };
        assert_eq!((of(8000).mean(), of(10_000).mean()), (400, 500));
        assert!((0..100).any(|page| of(8000).contents(page) == PageContents::Compressed(800)));
        // Claims beyond the classes are ignored.
        for all in [1 << 40, u64::MAX / 4, 1 << 63, u64::MAX] {
            assert_eq!((of(0).mean(), of(all).mean()), (384, 512), "{all}");
        }
        assert_eq!(Distribution::of_sample(&ContentSample::default()).contents(3), PageContents::Zero);
    }
}
