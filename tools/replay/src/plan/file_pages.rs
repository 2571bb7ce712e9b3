//! Pages of files whose size is known: they are cached once, whichever spaces map them.
//!
//! A page that came in stays until the replay ends, as far as the plan knows. So of each file all that was
//! ever mapped counts.

use super::Needs;
use super::budget::Budget;
use crate::around::around;
use crate::page_set::PageSet;
use quire_trace::event::{FileChange, FileEvent, IndexRun};
use std::collections::HashMap;
use std::ops::Range;

const PAGE_SHIFT: u32 = 12;
/// What Linux maps around a page at most, as a mask.
const AROUND: u64 = 0xffff;
/// What a replay keeps of a file, and of a run of its pages, in bytes.
const FILE_BYTES: u64 = 1024;
const RUN_BYTES: u64 = 64;
/// Files that a page holds at least, with the nodes of their caches.
const FILES_IN_PAGE: usize = 2;
/// Pages of a file for which a page holds the nodes of its cache, at least.
const PAGES_OF_NODES: u64 = 256;

/// Which page of which file a mapping shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct FileAt {
    /// Its place among the files.
    file: usize,
    /// The page of the file at an address is the number of that page of addresses and this, wrapping.
    shift: u64,
}

impl FileAt {
    fn page(self, addr: u64) -> u64 {
        (addr >> PAGE_SHIFT).wrapping_add(self.shift)
    }

    /// The same pages, of which those at `from` are now at `to`.
    pub(super) fn moved(self, from: u64, to: u64) -> Self {
        let by = (from >> PAGE_SHIFT).wrapping_sub(to >> PAGE_SHIFT);
        Self { shift: self.shift.wrapping_add(by), ..self }
    }

    /// The page at `addr`.
    pub(super) fn one(self, addr: u64) -> Brought {
        let page = self.page(addr);
        Brought { file: self.file, pages: page..page.saturating_add(1), touched: Some(page) }
    }

    /// What is mapped with the page at `addr`, which is in `part`, when it is read. A mapping can be more
    /// than this part.
    pub(super) fn window(self, addr: u64, part: &Range<u64>) -> Brought {
        let page = self.page(addr);
        let start = page.saturating_sub((addr & AROUND) >> PAGE_SHIFT);
        let end = around(addr, part).end.max((addr & !AROUND) + AROUND + 1);
        let end = page.saturating_add((end - (addr & !0xfff)) >> PAGE_SHIFT);
        Brought { file: self.file, pages: start..end, touched: Some(page) }
    }

    /// The same of a page that the file does not have.
    pub(super) fn before_end(self, addr: u64, part: &Range<u64>) -> Brought {
        Brought { touched: None, ..self.window(addr, part) }
    }

    /// The pages at `range`.
    pub(super) fn all(self, range: &Range<u64>) -> Brought {
        let first = self.page(range.start);
        let pages = range.end.saturating_sub(range.start) >> PAGE_SHIFT;
        Brought { file: self.file, pages: first..first.saturating_add(pages), touched: None }
    }
}

/// Pages of a file that come in, as far as it has them.
#[derive(Debug)]
pub(super) struct Brought {
    file: usize,
    pages: Range<u64>,
    /// One that a touch found: it is there, whatever is known of the size.
    touched: Option<u64>,
}

#[derive(Debug, Default)]
struct PlannedFile {
    /// Its size in pages.
    size: u64,
    pages: PageSet,
}

/// All files whose size is known.
#[derive(Debug, Default)]
pub(super) struct PlannedFiles {
    places: HashMap<(u64, u64), usize>,
    files: Vec<PlannedFile>,
    /// Pages of all.
    pages: u64,
}

impl PlannedFiles {
    /// Pages that they need together, with what finds them.
    pub(super) fn pages(&self) -> u64 {
        self.pages + self.pages / PAGES_OF_NODES + self.files.len().div_ceil(FILES_IN_PAGE) as u64
    }

    /// What a mapping at `start` shows that begins with byte `offset` of this file, if its size is known.
    pub(super) fn at(&self, place: (u64, u64), offset: u64, start: u64) -> Option<FileAt> {
        let file = *self.places.get(&place)?;
        Some(FileAt { file, shift: (offset >> PAGE_SHIFT).wrapping_sub(start >> PAGE_SHIFT) })
    }

    /// Whether these pages show that their file has grown.
    fn grows(&self, brought: &Brought) -> bool {
        let size = self.files.get(brought.file).map_or(u64::MAX, |file| file.size);
        brought.touched.is_some_and(|page| page >= size)
    }

    /// Pages come in. `false` if that is too much.
    fn bring_in(&mut self, budget: &mut Budget, brought: &Brought) -> bool {
        let Some(file) = self.files.get_mut(brought.file) else { return true };
        let least = brought.touched.map_or(0, |page| page.saturating_add(1));
        file.size = file.size.max(least);
        let before = file.pages.len();
        file.pages.add(brought.pages.start..brought.pages.end.min(file.size));
        let more = file.pages.len() - before;
        self.pages += more;
        more == 0 || budget.hold(RUN_BYTES)
    }

    /// Something is known of a file from here on, while there are so many mappings. `false` if it is too
    /// much.
    fn change(
        &mut self,
        budget: &mut Budget,
        (place, change): ((u64, u64), &FileChange),
        mappings: u64,
    ) -> bool {
        let Some(&number) = self.places.get(&place) else {
            let FileChange::Size { bytes, .. } = change else { return true };
            let size = bytes.div_ceil(1 << PAGE_SHIFT);
            self.places.insert(place, self.files.len());
            self.files.push(PlannedFile { size, pages: PageSet::default() });
            return budget.hold(FILE_BYTES);
        };
        let file = &mut self.files[number];
        // Pages that are cached are looked for in all mappings of the file.
        let mut unmap = |file: &PlannedFile, pages: Range<u64>| {
            file.pages.counts(pages).all(|pages| pages == 0) || budget.mappings(1 + mappings)
        };
        match change {
            FileChange::Size { bytes, .. } => {
                let size = bytes.div_ceil(1 << PAGE_SHIFT);
                file.size = size;
                unmap(file, size.saturating_sub(1)..u64::MAX)
            }
            FileChange::Punched(bytes) => {
                unmap(file, bytes.start >> PAGE_SHIFT..(bytes.end >> PAGE_SHIFT) + 1)
            }
            FileChange::Cached(runs) => budget.hold(bytes_of(runs)),
            FileChange::Evicted(runs) => {
                runs.iter().all(|run| unmap(file, run.first..run.end())) && budget.hold(bytes_of(runs))
            }
        }
    }
}

impl Needs {
    /// Something is known of a file from here on.
    pub(super) fn file(&mut self, event: &FileEvent) {
        let change = ((event.device, event.inode), &event.change);
        let mappings = self.mappings();
        let ok = self.budget.visit(self.images.len() as u64)
            && self.files.change(&mut self.budget, change, mappings);
        self.check(ok);
        self.grown = true;
    }

    /// Pages come in. `false` if that is too much.
    pub(super) fn bring_in(&mut self, brought: &Brought) -> bool {
        let looks = self.files.grows(brought);
        // What maps the old end is looked at.
        let ok = !looks
            || self.budget.visit(self.images.len() as u64) && self.budget.mappings(1 + self.mappings());
        self.files.bring_in(&mut self.budget, brought) && ok
    }

    /// Mappings of all spaces.
    fn mappings(&self) -> u64 {
        self.images.values().map(|image| image.layout.len() as u64).sum()
    }
}

fn bytes_of(runs: &[IndexRun]) -> u64 {
    runs.len() as u64 * RUN_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_trace::event::SizeCause;

    const AT: u64 = 0x1000_0000_0000;
    const PLACE: (u64, u64) = (3, 4);

    fn size(pages: u64) -> FileChange {
        FileChange::Size { bytes: pages << PAGE_SHIFT, cause: SizeCause::Seen }
    }

    fn small() -> Budget {
        Budget::SMALL
    }

    fn files(pages: u64) -> (PlannedFiles, Budget) {
        let (mut files, mut budget) = (PlannedFiles::default(), small());
        assert!(files.change(&mut budget, (PLACE, &size(pages)), 0));
        (files, budget)
    }

    #[test]
    fn each_page_counts_once_as_far_as_the_file_goes() {
        let (mut files, mut budget) = files(20);
        let offset = 3 << PAGE_SHIFT;
        let (here, there) = (AT, AT + (1 << 40));
        let [first, second] = [here, there].map(|at| files.at(PLACE, offset, at).unwrap());
        assert_eq!(files.at((3, 5), 0, AT), None, "its size is not known");
        let whole = here..here + (40 << PAGE_SHIFT);
        let mut bring = |brought: Brought| {
            assert!(files.bring_in(&mut budget, &brought));
            files.pages
        };
        assert_eq!(bring(first.one(here + 0x123)), 1);
        assert_eq!(bring(first.window(here + 0x1234, &whole)), 16);
        assert_eq!(bring(second.all(&(there..there + (4 << PAGE_SHIFT)))), 16);
        // Moved, it shows the same.
        assert_eq!(bring(second.moved(there, here).one(here)), 16);
        assert_eq!(bring(first.all(&whole)), 17, "as far as it goes");
        assert_eq!(bring(first.one(here + (19 << PAGE_SHIFT))), 18, "it has grown, since the page is there");
    }

    /// What the replay maps lies within what is planned, wherever the mapping begins.
    #[test]
    fn windows_cover_what_is_mapped() {
        let (files, _) = files(1000);
        for start in (0..40).map(|page| AT + (page << PAGE_SHIFT)) {
            let part = start..start + (100 << PAGE_SHIFT);
            let at = files.at(PLACE, 50 << PAGE_SHIFT, start).unwrap();
            for addr in (part.start..part.end).step_by(1 << PAGE_SHIFT) {
                let mapped = around(addr, &part);
                let planned = at.window(addr, &part).pages;
                assert!(planned.start <= at.page(mapped.start) && at.page(mapped.end - 1) < planned.end);
                assert!(planned.end - planned.start <= 32, "{planned:?}");
            }
        }
    }

    #[test]
    fn what_many_mappings_show_costs_a_look_at_each() {
        let (mut files, mut budget) = files(1000);
        let at = files.at(PLACE, 0, AT).unwrap();
        let runs = |first| vec![IndexRun { first, pages: 1 }];
        let mut gone = |files: &mut PlannedFiles, page| {
            files.change(&mut budget, (PLACE, &FileChange::Evicted(runs(page))), 1 << 20)
        };
        assert!((0..100).all(|page| gone(&mut files, page)), "nothing is mapped");
        assert!(files.bring_in(&mut small(), &at.one(AT)));
        assert!(!(0..100).all(|_| gone(&mut files, 0)));
        assert!(files.change(&mut small(), (PLACE, &size(2)), 1 << 30), "what is cut off is not mapped");
    }
}
