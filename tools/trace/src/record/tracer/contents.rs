//! How well a program's pages compress.

use crate::event::{Compressibility, PageRun};
use crate::record::sys::{Tid, memory};

const PAGE: u64 = 4096;

/// Pages that were compressed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Compressed {
    /// How many there are of which size.
    pub(super) sizes: Compressibility,
    /// The bytes of those that are neither zeros nor one word again and again; at most a page each.
    pub(super) bytes: u64,
}

/// Compresses one in `step` of the anonymous pages among these, beginning with the one after `skip`. No page is brought
/// in for that: those that are gone by now are left out.
pub(super) fn sample(tid: Tid, present: &[PageRun], step: u64, mut skip: u64) -> Compressed {
    let mut found = Compressed::default();
    let mut page = vec![0; PAGE as usize];
    let mut room = vec![0; lz4_flex::block::get_maximum_output_size(page.len())];
    // Places of the wanted pages, counted over all runs.
    for run in present.iter().filter(|run| !run.file) {
        while skip < run.pages {
            if memory::read(tid, run.start + skip * PAGE, &mut page) == page.len() {
                found.add(&page, &mut room);
            }
            skip += step;
        }
        skip -= run.pages;
    }
    found
}

impl Compressed {
    fn add(&mut self, page: &[u8], room: &mut [u8]) {
        let (words, _) = page.as_chunks::<8>();
        if words.windows(2).all(|pair| pair[0] == pair[1]) {
            let is_zero = words.first() == Some(&[0; 8]);
            *if is_zero { &mut self.sizes.zero } else { &mut self.sizes.same } += 1;
            return;
        }
        // There is room for whatever comes out.
        let size = lz4_flex::block::compress_into(page, room).unwrap_or(page.len());
        self.sizes.sizes[Compressibility::class(size)] += 1;
        self.bytes += size.min(page.len()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::mix;

    #[test]
    fn pages_are_told_by_how_they_compress() {
        let mut found = Compressed::default();
        let mut room = vec![0; 8192];
        let mut page = vec![0; 4096];
        found.add(&page, &mut room);
        page.fill(7);
        found.add(&page, &mut room);
        page[100] = 8;
        found.add(&page, &mut room);
        for (place, byte) in page.iter_mut().enumerate() {
            *byte = mix(place as u64) as u8;
        }
        found.add(&page, &mut room);
        let mut expected = Compressibility { zero: 1, same: 1, ..Compressibility::default() };
        (expected.sizes[0], expected.sizes[15]) = (1, 1);
        assert_eq!(found.sizes, expected);
        assert!(found.bytes > 4096 && found.bytes < 4096 + 256, "{}", found.bytes);
    }

    #[test]
    fn one_page_in_so_many_is_looked_at_over_all_runs() {
        let pages = vec![1_u8; 9 * 4096];
        let start = (pages.as_ptr().addr() as u64).next_multiple_of(PAGE);
        let run = |page: u64, pages, file| PageRun { start: start + page * PAGE, pages, file };
        let present = [run(0, 3, false), run(3, 2, true), run(5, 3, false)];
        let me = std::process::id() as Tid;
        let count = |step, skip| sample(me, &present, step, skip).sizes.same;
        assert_eq!([count(1, 0), count(2, 0), count(2, 1), count(4, 3), count(9, 6)], [6, 3, 3, 1, 0]);
    }
}
