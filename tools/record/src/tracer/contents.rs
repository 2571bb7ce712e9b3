//! How well a program's pages compress.

use crate::sys::Tid;
use crate::sys::memory::Memory;
use quire_trace::event::{Compressibility, PageContents, PageRun};
use std::fmt;
use zstd::bulk::Compressor;

const PAGE: usize = 4096;
/// Neighbouring pages that are read at once.
const READ_AT_ONCE: usize = 16;
/// One page in so many is also compressed by zstd, which takes some four times as long as LZ4.
const ZSTD_EACH: u64 = 32;
/// zstd's level: Linux's default for zram and zswap.
const ZSTD_LEVEL: i32 = 3;

/// Pages that were compressed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Compressed {
    /// Each with its address.
    pub(super) pages: Vec<(u64, PageContents)>,
    /// How many there are of each size.
    pub(super) sizes: Compressibility,
    /// The bytes of those that are neither zeros nor one repeated word; at most a page each.
    pub(super) bytes: u64,
    /// For those that zstd also compressed: the bytes by LZ4 and by zstd.
    pub(super) lz4_of_both: u64,
    pub(super) zstd: u64,
}

impl Compressed {
    fn add(&mut self, addr: u64, contents: PageContents) {
        self.pages.push((addr, contents));
        self.sizes.count(contents);
        self.bytes += contents.bytes();
    }
}

/// Compresses pages.
pub(super) struct Press {
    /// zstd, for comparison.
    zstd: Option<Compressor<'static>>,
    /// Pages that were read.
    pages: Vec<u8>,
    /// Larger than anything that a page is compressed to.
    room: Vec<u8>,
    /// Pages that were compressed so far.
    count: u64,
}

impl fmt::Debug for Press {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Press").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Press {
    /// By LZ4 alone.
    pub(super) fn lz4() -> Self {
        let most = lz4_flex::block::get_maximum_output_size(PAGE).max(zstd::zstd_safe::compress_bound(PAGE));
        Self { zstd: None, pages: vec![0; READ_AT_ONCE * PAGE], room: vec![0; most], count: 0 }
    }

    /// Some pages by zstd, too. Without memory for that there is no comparison.
    pub(super) fn with_zstd() -> Self {
        Self { zstd: Compressor::new(ZSTD_LEVEL).ok(), ..Self::lz4() }
    }

    /// Compresses one in `step` of the anonymous pages among these, beginning with the one after `skip`.
    pub(super) fn one_in(&mut self, tid: Tid, present: &[PageRun], step: u64, skip: u64) -> Compressed {
        let mut place = 0;
        self.those(tid, present, |_| {
            place += 1;
            place > skip && (place - 1 - skip).is_multiple_of(step)
        })
    }

    /// Compresses the anonymous pages among these whose addresses are `wanted`; each at most once, in their
    /// order. No page is swapped in for that: those that are no longer present are left out.
    pub(super) fn those(
        &mut self,
        tid: Tid,
        present: &[PageRun],
        mut wanted: impl FnMut(u64) -> bool,
    ) -> Compressed {
        let mut found = Compressed::default();
        let Some(memory) = Memory::open(tid) else { return found };
        let mut pages = std::mem::take(&mut self.pages);
        for run in present.iter().filter(|run| !run.file) {
            let all = (0..run.pages).map(|page| run.start + page * PAGE as u64);
            let mut addrs = all.filter(|addr| wanted(*addr)).peekable();
            while let Some(start) = addrs.next() {
                let mut bytes = PAGE;
                while bytes < pages.len() && addrs.next_if_eq(&(start + bytes as u64)).is_some() {
                    bytes += PAGE;
                }
                let mut at = 0;
                while at < bytes {
                    let read = memory.read(start + at as u64, &mut pages[at..bytes]);
                    for page in pages[at..at + read].chunks_exact(PAGE) {
                        self.add_page(start + at as u64, page, &mut found);
                        at += PAGE;
                    }
                    // If it did not get to the end, the next one is not present.
                    at += PAGE;
                }
            }
        }
        self.pages = pages;
        found
    }

    /// Adds a page.
    fn add_page(&mut self, addr: u64, page: &[u8], found: &mut Compressed) {
        let (words, _) = page.as_chunks::<8>();
        if words.windows(2).all(|pair| pair[0] == pair[1]) {
            let is_zero = words.first() == Some(&[0; 8]);
            return found.add(addr, if is_zero { PageContents::Zero } else { PageContents::Same });
        }
        let lz4 = lz4_flex::block::compress_into(page, &mut self.room).unwrap_or(PAGE).min(PAGE);
        found.add(addr, PageContents::Compressed(lz4 as u16));
        self.count += 1;
        if self.count.is_multiple_of(ZSTD_EACH)
            && let Some(zstd) = &mut self.zstd
        {
            let size = zstd.compress_to_buffer(page, &mut self.room[..]).unwrap_or(PAGE);
            found.lz4_of_both += lz4 as u64;
            found.zstd += size.min(PAGE) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_trace::mix::mix;

    #[test]
    fn pages_are_told_by_how_they_compress() {
        let mut found = Compressed::default();
        let mut press = Press::lz4();
        let mut page = vec![0; PAGE];
        press.add_page(5, &page, &mut found);
        page.fill(7);
        press.add_page(6, &page, &mut found);
        page[100] = 8;
        press.add_page(7, &page, &mut found);
        for (place, byte) in page.iter_mut().enumerate() {
            *byte = mix(place as u64) as u8;
        }
        press.add_page(9, &page, &mut found);
        let mut expected = Compressibility { zero: 1, same: 1, ..Compressibility::default() };
        (expected.sizes[0], expected.sizes[15]) = (1, 1);
        assert_eq!(found.sizes, expected);
        assert!(found.bytes > 4096 && found.bytes < 4096 + 256, "{}", found.bytes);
        assert_eq!((found.lz4_of_both, found.zstd), (0, 0));
        let (little, all) =
            (PageContents::Compressed(found.bytes as u16 - 4096), PageContents::Compressed(4096));
        let expected = [(5, PageContents::Zero), (6, PageContents::Same), (7, little), (9, all)];
        assert_eq!(found.pages, expected);
    }

    /// Half of each page is bytes of which each is one of sixteen: LZ4 leaves them as they are, zstd needs
    /// half of that.
    #[test]
    fn some_pages_are_compressed_by_zstd_too() {
        let mut found = Compressed::default();
        let mut press = Press::with_zstd();
        let mut page = vec![0; PAGE];
        for number in 0..160 {
            for (place, byte) in page[..PAGE / 2].iter_mut().enumerate() {
                *byte = mix(number << 12 | place as u64) as u8 & 15;
            }
            press.add_page(number, &page, &mut found);
        }
        assert_eq!(found.sizes.sizes[8], 160, "{found:?}");
        assert!((found.lz4_of_both * ZSTD_EACH).abs_diff(found.bytes) < 4096, "one in 32: {found:?}");
        assert!((found.zstd * 10 / found.lz4_of_both).abs_diff(5) <= 1, "{found:?}");
    }

    #[test]
    fn one_page_in_so_many_is_looked_at_over_all_runs() {
        let pages = vec![1_u8; 9 * PAGE];
        let start = (pages.as_ptr().addr() as u64).next_multiple_of(PAGE as u64);
        let run = |page: u64, pages, file| PageRun { start: start + page * PAGE as u64, pages, file };
        let present = [run(0, 3, false), run(3, 2, true), run(5, 3, false)];
        let me = std::process::id() as Tid;
        let count = |step, skip| Press::lz4().one_in(me, &present, step, skip).sizes.same;
        assert_eq!([count(1, 0), count(2, 0), count(2, 1), count(4, 3), count(9, 6)], [6, 3, 3, 1, 0]);
    }

    /// Neighbours are read together, in several pieces if they are many, up to the first page that
    /// is not present.
    #[test]
    fn those_that_are_wanted_are_looked_at_and_those_that_are_gone_left_out() {
        const PAGES: u64 = 3 * READ_AT_ONCE as u64;
        let size = PAGE as u64;
        let pages: Vec<u64> = (0..(PAGES + 1) * size / 8).map(|word| word * 8 / size + 1).collect();
        let start = (pages.as_ptr().addr() as u64).next_multiple_of(size);
        let present = [PageRun { start, pages: PAGES, file: false }];
        let me = std::process::id() as Tid;
        let wanted = |page: u64| page % 20 != 3 && page != 1;
        let found = Press::lz4().those(me, &present, |addr| wanted((addr - start) / size));
        let expected: Vec<u64> =
            (0..PAGES).filter(|page| wanted(*page)).map(|page| start + page * size).collect();
        assert_eq!(found.pages.iter().map(|(addr, _)| *addr).collect::<Vec<_>>(), expected);
        // Nothing is mapped at the first addresses.
        let present = [PageRun { start: 0, pages: 5, file: false }, present[0]];
        let with_gone =
            Press::lz4().those(me, &present, |addr| addr < start || wanted((addr - start) / size));
        assert_eq!(with_gone, found);
    }
}
