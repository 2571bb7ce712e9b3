//! What Linux maps of shared memory, without a touch of each page.
//!
//! What is written to a file in memory by `write`, or was there before, comes in by no touch. Linux maps the
//! pages around a page that is read, as far as they are there, so that one touch in 16 is recorded: all 16
//! count. That is too much by at most what is a hole. A private mapping of such a file has its pages, too,
//! until they are written to, and they stay like all others of the file. Of large folios Linux maps more, and
//! of a file that is locked all: what the file had when it was mapped is the most.

use super::{Objects, SharedMemory, bytes_of};
use quire_arch::PAGE_SHIFT;
use std::iter;
use std::ops::Range;

impl Objects {
    /// Page number `page` was read, and those that Linux maps around it are `around`: what is there of these
    /// exists. Anonymous memory has nothing that did not come by a touch.
    pub(super) fn read(&mut self, number: u64, page: u64, around: Range<u64>) {
        let Some(object) = self.by_number.get(&number) else { return };
        let pages = match object.size {
            _ if object.anonymous => page..page + 1,
            // It grew since.
            size if page >= size => around,
            size => around.start..around.end.min(size),
        };
        self.add(number, pages);
    }
}

impl SharedMemory {
    /// The shared memory that address space number `number` can have mapped, in bytes, and how many parts and
    /// runs were looked at for it. If there are more of them than `most`, it is not known.
    pub(crate) fn mapped_bytes(&self, number: usize, most: u64) -> (Option<u64>, u64) {
        let (mut sum, mut looks) = (0, 0);
        for (start, part) in self.spaces.get(number).into_iter().flatten() {
            let all = (part.end - start) >> PAGE_SHIFT;
            let object = self.objects.by_number.get(&part.object);
            let held = object.and_then(|object| object.held).map_or(0, |held| held.bytes >> PAGE_SHIFT);
            let runs = object.into_iter().flat_map(|object| object.pages.counts(part.page..part.page + all));
            let mut touched = 0;
            // Each part may have all runs of an object.
            for found in iter::once(0).chain(runs) {
                looks += 1;
                if looks > most {
                    return (None, looks);
                }
                touched += found;
            }
            sum += u128::from(touched.max(held.min(all)));
        }
        (Some(bytes_of(sum)), looks)
    }
}
