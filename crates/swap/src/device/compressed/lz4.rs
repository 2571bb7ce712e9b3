//! LZ4 for pages: a compressor, and the decompressor of `lz4_flex`.
//!
//! The compressor of `lz4_flex` makes its table by value, or takes it from an allocator where any crate of a
//! build switches on a feature. The table of this one lies where the caller wants it.
//!
//! A block is a row of sequences: a token, literals, the distance of a match, and the lengths of both as far
//! as the token has no room. The last sequence has literals only.

use super::codec::{CODEC_OUTPUT, Codec, Damaged};
use crate::device::memory::PAGE;
use core::fmt;
use core::mem::{self, MaybeUninit};
use lz4_flex::block::decompress_into;

/// The shortest match.
const MIN_MATCH: usize = 4;
/// The format's rules for the end of a block: the last match begins 12 bytes before it at the latest, and the
/// last 5 bytes are literals.
const LAST_MATCH: usize = PAGE - 12;
const MATCHED_END: usize = PAGE - 5;
/// As many places have an entry as there are bytes in a page: 8 KiB. With half as many, pages become larger.
const ENTRIES: usize = 4096;
/// After so many places without a match every second place is looked at, after twice as many every third.
const PATIENCE: usize = 32;
/// A length of this does not fit in its half of the token.
const TOKEN_MAX: usize = 15;

// The worst case is all literals. Entries and distances have 16 bits.
const _: () = assert!(PAGE + PAGE / 255 + 16 <= CODEC_OUTPUT && PAGE <= 1 << 16);

/// LZ4, in Rust without unsafe code: damaged input does no harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lz4;

/// The workspace of [`Lz4`]: where four bytes were seen last, by a hash of them. All of it may be zeros: that
/// is the page's first byte, and what an entry names is compared.
pub struct Lz4Workspace([u16; ENTRIES]);

impl Codec for Lz4 {
    type Workspace = Lz4Workspace;

    const NAME: &'static str = "lz4";

    fn init<'p>(&self, place: &'p mut MaybeUninit<Lz4Workspace>) -> Option<&'p mut Lz4Workspace> {
        // SAFETY: the place is the caller's, and zeros are a workspace. Not by value: it would go over the
        // stack.
        unsafe {
            place.as_mut_ptr().write_bytes(0, 1);
            Some(place.assume_init_mut())
        }
    }

    fn compress(
        &self,
        workspace: &mut Lz4Workspace,
        page: &[u8; PAGE],
        output: &mut [u8; CODEC_OUTPUT],
    ) -> Option<usize> {
        compress(workspace, page, output)
    }

    fn decompress(
        &self,
        _workspace: &mut Lz4Workspace,
        compressed: &[u8],
        page: &mut [u8; PAGE],
    ) -> Result<(), Damaged> {
        match decompress_into(compressed, page) {
            Ok(PAGE) => Ok(()),
            Ok(_) | Err(_) => Err(Damaged),
        }
    }
}

impl fmt::Debug for Lz4Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lz4Workspace").finish_non_exhaustive()
    }
}

impl Lz4Workspace {
    /// The entry of four bytes: the upper bits of a multiplication by 2^32 through the golden ratio.
    #[inline]
    fn entry(&mut self, four: u32) -> &mut u16 {
        &mut self.0[(four.wrapping_mul(0x9e37_79b1) >> (32 - ENTRIES.ilog2())) as usize]
    }

    /// The next place, from `at` on, where four bytes are the same as at an earlier one, which comes second.
    #[inline]
    fn find(&mut self, page: &[u8; PAGE], mut at: usize) -> Option<(usize, usize)> {
        let mut looks = PATIENCE;
        while at <= LAST_MATCH {
            let four = four_at(page, at)?;
            let before = usize::from(mem::replace(self.entry(four), at as u16));
            if four_at(page, before)? == four {
                return Some((at, before));
            }
            at += looks / PATIENCE;
            looks += 1;
        }
        None
    }
}

/// The bytes at `at`, if all are in the page.
#[inline]
fn four_at(page: &[u8; PAGE], at: usize) -> Option<u32> {
    page.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

/// How many bytes from `at` on are the same as those from `before` on, as far as a match may go.
#[inline]
fn same_after(page: &[u8; PAGE], at: usize, before: usize) -> Option<usize> {
    let (new, old) = (page.get(at..MATCHED_END)?, page.get(before..MATCHED_END)?);
    let mut length = 0;
    for (new, old) in new.as_chunks::<8>().0.iter().zip(old.as_chunks::<8>().0) {
        let differ = u64::from_le_bytes(*new) ^ u64::from_le_bytes(*old);
        if differ != 0 {
            return Some(length + differ.trailing_zeros() as usize / 8);
        }
        length += 8;
    }
    Some(same_at_end(new, old, length))
}

/// The same at the page's end, where fewer than eight bytes are left. `length` are known to be the same.
#[cold]
#[inline(never)]
fn same_at_end(new: &[u8], old: &[u8], length: usize) -> usize {
    length + new.iter().zip(old).skip(length).take_while(|(new, old)| new == old).count()
}

/// How many bytes before `at`, down to `start`, are the same as those before `before`.
#[inline]
fn same_before(page: &[u8; PAGE], start: usize, at: usize, before: usize) -> Option<usize> {
    let (new, old) = (page.get(start..at)?, page.get(..before)?);
    Some(new.iter().rev().zip(old.iter().rev()).take_while(|(new, old)| new == old).count())
}

/// What was written. Each function is `None` where there is no room.
struct Output<'a> {
    bytes: &'a mut [u8; CODEC_OUTPUT],
    length: usize,
}

impl Output<'_> {
    #[inline]
    fn push(&mut self, byte: u8) -> Option<()> {
        *self.bytes.get_mut(self.length)? = byte;
        self.length += 1;
        Some(())
    }

    /// The lengths' halves of a token.
    #[inline]
    fn token(&mut self, literals: usize, matched: usize) -> Option<()> {
        self.push((literals.min(TOKEN_MAX) << 4 | matched.min(TOKEN_MAX)) as u8)
    }

    /// What of a length the token has no room for.
    #[inline]
    fn rest(&mut self, length: usize) -> Option<()> {
        let Some(mut rest) = length.checked_sub(TOKEN_MAX) else { return Some(()) };
        while rest >= 255 {
            self.push(255)?;
            rest -= 255;
        }
        self.push(rest as u8)
    }

    /// Copies `N` bytes, of which some may be too many: what comes next is written over these.
    #[inline]
    fn copy<const N: usize>(&mut self, page: &[u8; PAGE], start: usize) -> Option<()> {
        *self.bytes.get_mut(self.length..)?.first_chunk_mut::<N>()? = *page.get(start..)?.first_chunk()?;
        Some(())
    }

    /// The bytes of the page from `start` to `end`. Most are few, for which a copy of a known size is
    /// quicker.
    #[inline]
    fn literals(&mut self, page: &[u8; PAGE], start: usize, end: usize) -> Option<()> {
        let count = end - start;
        match count {
            0..=8 if start <= PAGE - 8 => self.copy::<8>(page, start)?,
            9..=16 if start <= PAGE - 16 => self.copy::<16>(page, start)?,
            17..=32 if start <= PAGE - 32 => self.copy::<32>(page, start)?,
            _ => self.bytes.get_mut(self.length..)?.get_mut(..count)?.copy_from_slice(page.get(start..end)?),
        }
        self.length += count;
        Some(())
    }
}

/// Compresses a page and returns the length; `None` if it does not fit. The table's contents do not matter.
fn compress(table: &mut Lz4Workspace, page: &[u8; PAGE], output: &mut [u8; CODEC_OUTPUT]) -> Option<usize> {
    table.0.fill(0);
    let mut output = Output { bytes: output, length: 0 };
    // Where the literals begin that are not written yet, and where the search goes on. There is nothing
    // before the first byte that it could be the same as.
    let (mut start, mut from) = (0, 1);
    while let Some((at, before)) = table.find(page, from) {
        let back = same_before(page, start, at, before)?;
        let length = same_after(page, at + MIN_MATCH, before + MIN_MATCH)?;
        let end = at + MIN_MATCH + length;
        // One place within the match is remembered, too.
        *table.entry(four_at(page, end - 2)?) = (end - 2) as u16;
        let (literals, matched) = (at - back - start, back + length);
        output.token(literals, matched)?;
        output.rest(literals)?;
        output.literals(page, start, at - back)?;
        let [low, high] = ((at - before) as u16).to_le_bytes();
        output.push(low)?;
        output.push(high)?;
        output.rest(matched)?;
        (start, from) = (end, end);
    }
    output.token(PAGE - start, 0)?;
    output.rest(PAGE - start)?;
    output.literals(page, start, PAGE)?;
    Some(output.length)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};
    use proptest::prelude::*;
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    use std::boxed::Box;
    use std::vec::Vec;

    /// Compresses the page with a table of any contents, and decompresses it again.
    fn there_and_back(page: &[u8; PAGE]) -> usize {
        let mut table = Box::new(Lz4Workspace([0xffff; ENTRIES]));
        let mut output = Box::new([0x5a; CODEC_OUTPUT]);
        let length = compress(&mut table, page, &mut output).expect("there is room for any page");
        let mut back = Box::new([0; PAGE]);
        assert_eq!(decompress_into(&output[..length], &mut back[..]).expect("a valid block"), PAGE);
        assert!(back[..] == page[..], "the page came back changed");
        length
    }

    fn length_of_other(page: &[u8; PAGE]) -> usize {
        let mut output = [0; CODEC_OUTPUT];
        compress_into_with_table(page, &mut output, &mut CompressTable::small()).expect("room")
    }

    /// Pages of runs: of one byte, of new bytes, and copies of what came before.
    fn pages() -> impl Strategy<Value = Box<[u8; PAGE]>> {
        let run = (0..3_u8, 1..600_usize, any::<u16>(), any::<u64>());
        prop::collection::vec(run, 1..80).prop_map(|runs| {
            let mut bytes: Vec<u8> = Vec::new();
            for (kind, length, from, seed) in runs.into_iter().cycle().take(PAGE) {
                for nth in 0..length as u64 {
                    let byte = match kind {
                        0 => seed as u8,
                        1 => (seed.wrapping_add(nth).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8,
                        _ => {
                            bytes.get(bytes.len().wrapping_sub(1 + usize::from(from))).map_or(7, |&byte| byte)
                        }
                    };
                    bytes.push(byte);
                }
                if bytes.len() >= PAGE {
                    break;
                }
            }
            Box::new(*bytes.first_chunk().expect("a page of bytes"))
        })
    }

    /// The most bytes that a page may have: a sixteenth and 16 bytes more than by the other compressor. A
    /// change of the search may make one page larger; what many have together decides whether it is worth it.
    fn bound(page: &[u8; PAGE]) -> usize {
        let other = length_of_other(page);
        other + other / 16 + 16
    }

    proptest! {
        #[test]
        fn any_page_comes_back_and_is_little_larger_than_by_another_compressor(page in pages()) {
            prop_assert!(there_and_back(&page) <= bound(&page));
        }

        /// The rules for a block's end hold wherever the last match would end.
        #[test]
        fn a_page_whose_end_differs_comes_back(at in PAGE - 24..PAGE, byte: u8, period in 1..20_usize) {
            let mut page = core::array::from_fn(|index| (index % period) as u8);
            page[at] ^= byte;
            prop_assert!(there_and_back(&page) <= bound(&page));
        }
    }

    /// The same pages in each run: together at most 1 % larger than by the other compressor.
    #[test]
    fn many_pages_are_about_as_small_as_by_another_compressor() {
        let mut runner = TestRunner::deterministic();
        let (mut own, mut other) = (0, 0);
        for _ in 0..1000 {
            let page = pages().new_tree(&mut runner).expect("a page").current();
            own += there_and_back(&page);
            other += length_of_other(&page);
        }
        assert!(own * 100 <= other * 101, "{own} bytes for {other} by the other");
    }

    #[test]
    fn a_page_without_a_match_fits_and_one_of_zeros_is_small() {
        // No four bytes twice.
        let mut page = [0; PAGE];
        for (index, four) in page.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *four = (index as u32).wrapping_mul(0x9e37_79b9).to_be_bytes();
        }
        assert!((PAGE..=PAGE + 18).contains(&there_and_back(&page)));
        assert!(there_and_back(&[0; PAGE]) < 32);
    }
}
