//! How well a program's pages compress.

use crate::event::{Compressibility, PageRun};
use crate::record::sys::{Tid, memory};
use std::fmt;
use zstd::bulk::Compressor;

const PAGE: usize = 4096;
/// One page in so many is compressed by zstd besides, which takes some four times as long as LZ4.
const ZSTD_EACH: u64 = 8;
/// zstd's level: Linux's default for zram and zswap.
const ZSTD_LEVEL: i32 = 3;

/// Pages that were compressed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Compressed {
    /// How many there are of which size.
    pub(super) sizes: Compressibility,
    /// The bytes of those that are neither zeros nor one word again and again; at most a page each.
    pub(super) bytes: u64,
    /// Of those that zstd compressed, too: the bytes by LZ4 and by zstd.
    pub(super) lz4_of_both: u64,
    pub(super) zstd: u64,
}

/// Compresses pages.
pub(super) struct Press {
    /// zstd, for those who want to know how it compares.
    zstd: Option<Compressor<'static>>,
    page: Vec<u8>,
    /// Larger than anything that comes out.
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
        Self { zstd: None, page: vec![0; PAGE], room: vec![0; most], count: 0 }
    }

    /// Some pages by zstd, too. Without memory for that it compares nothing.
    pub(super) fn with_zstd() -> Self {
        Self { zstd: Compressor::new(ZSTD_LEVEL).ok(), ..Self::lz4() }
    }

    /// Compresses one in `step` of the anonymous pages among these, beginning with the one after `skip`. No page is
    /// brought in for that: those that are gone by now are left out.
    pub(super) fn sample(&mut self, tid: Tid, present: &[PageRun], step: u64, mut skip: u64) -> Compressed {
        let mut found = Compressed::default();
        // Places of the wanted pages, counted over all runs.
        for run in present.iter().filter(|run| !run.file) {
            while skip < run.pages {
                if memory::read(tid, run.start + skip * PAGE as u64, &mut self.page) == PAGE {
                    self.add_page(&mut found);
                }
                skip += step;
            }
            skip -= run.pages;
        }
        found
    }

    /// Adds the page in hand.
    fn add_page(&mut self, found: &mut Compressed) {
        let (words, _) = self.page.as_chunks::<8>();
        if words.windows(2).all(|pair| pair[0] == pair[1]) {
            let is_zero = words.first() == Some(&[0; 8]);
            *if is_zero { &mut found.sizes.zero } else { &mut found.sizes.same } += 1;
            return;
        }
        let lz4 = lz4_flex::block::compress_into(&self.page, &mut self.room).unwrap_or(PAGE);
        found.sizes.sizes[Compressibility::class(lz4)] += 1;
        found.bytes += lz4.min(PAGE) as u64;
        self.count += 1;
        if self.count.is_multiple_of(ZSTD_EACH)
            && let Some(zstd) = &mut self.zstd
        {
            let size = zstd.compress_to_buffer(&self.page, &mut self.room[..]).unwrap_or(PAGE);
            found.lz4_of_both += lz4.min(PAGE) as u64;
            found.zstd += size.min(PAGE) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::mix;

    #[test]
    fn pages_are_told_by_how_they_compress() {
        let mut found = Compressed::default();
        let mut press = Press::lz4();
        press.add_page(&mut found);
        press.page.fill(7);
        press.add_page(&mut found);
        press.page[100] = 8;
        press.add_page(&mut found);
        for (place, byte) in press.page.iter_mut().enumerate() {
            *byte = mix(place as u64) as u8;
        }
        press.add_page(&mut found);
        let mut expected = Compressibility { zero: 1, same: 1, ..Compressibility::default() };
        (expected.sizes[0], expected.sizes[15]) = (1, 1);
        assert_eq!(found.sizes, expected);
        assert!(found.bytes > 4096 && found.bytes < 4096 + 256, "{}", found.bytes);
        assert_eq!((found.lz4_of_both, found.zstd), (0, 0));
    }

    /// Half of each page is bytes of which each is one of sixteen: LZ4 leaves them as they are, zstd needs half of that.
    #[test]
    fn some_pages_are_compressed_by_zstd_too() {
        let mut found = Compressed::default();
        let mut press = Press::with_zstd();
        for page in 0..40 {
            for (place, byte) in press.page[..PAGE / 2].iter_mut().enumerate() {
                *byte = mix(page << 12 | place as u64) as u8 & 15;
            }
            press.add_page(&mut found);
        }
        assert_eq!(found.sizes.sizes[8], 40, "{found:?}");
        assert!((found.lz4_of_both * 8).abs_diff(found.bytes) < 4096, "one in eight: {found:?}");
        assert!((found.zstd * 10 / found.lz4_of_both).abs_diff(5) <= 1, "{found:?}");
    }

    #[test]
    fn one_page_in_so_many_is_looked_at_over_all_runs() {
        let pages = vec![1_u8; 9 * PAGE];
        let start = (pages.as_ptr().addr() as u64).next_multiple_of(PAGE as u64);
        let run = |page: u64, pages, file| PageRun { start: start + page * PAGE as u64, pages, file };
        let present = [run(0, 3, false), run(3, 2, true), run(5, 3, false)];
        let me = std::process::id() as Tid;
        let count = |step, skip| Press::lz4().sample(me, &present, step, skip).sizes.same;
        assert_eq!([count(1, 0), count(2, 0), count(2, 1), count(4, 3), count(9, 6)], [6, 3, 3, 1, 0]);
    }
}
