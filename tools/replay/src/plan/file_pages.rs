//! Pages of files whose size is known, and of shared memory: they are there once, whichever spaces map them.
//!
//! A page that came in stays until the replay ends, as far as the plan knows. So of each file all that was
//! ever mapped counts. Shared memory without a name ends with its last mapping.

use super::Needs;
use super::budget::Budget;
use crate::around::around;
use crate::page_set::PageSet;
use quire_trace::event::{FileChange, FileEvent, IndexRun, SizeCause, TaskId};
use std::collections::{BTreeMap, HashMap};
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

/// Pages that a page table maps, and what it costs to look through one for those of a file, in pages that are
/// brought in.
const PAGES_OF_TABLE: u64 = 512;
const PAGES_OF_LOOK: u64 = 8;

/// How much of a file a space has mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct OfFile {
    pub(super) mappings: u64,
    pub(super) bytes: u64,
}

/// What maps a file, in all spaces.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Users {
    mappings: u64,
    /// Page tables that they can have.
    tables: u64,
}

impl Users {
    /// So many pages in a row are looked for in all mappings. `false` if that is too much.
    fn unmap(self, budget: &mut Budget, pages: u64) -> bool {
        let tables = self.tables.min(self.mappings.saturating_mul(pages / PAGES_OF_TABLE));
        budget.mappings(1 + self.mappings) && budget.bring_in(tables.saturating_mul(PAGES_OF_LOOK))
    }
}

/// Which page of which file a mapping shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct FileAt {
    /// Its place among the files.
    file: usize,
    /// The page of the file at an address is the number of that page of addresses and this, wrapping.
    shift: u64,
    /// A touch brings in no other page: what is there was brought in by touches.
    alone: bool,
}

impl FileAt {
    /// A page of the file at this place.
    #[cfg(test)]
    pub(super) fn of(file: usize) -> Self {
        Self { file, shift: 0, alone: false }
    }

    /// The place of the file among all.
    pub(super) fn number(self) -> usize {
        self.file
    }

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
        if self.alone {
            return self.one(addr);
        }
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
    /// The blocks of 2 MiB in which these lie.
    blocks: PageSet,
    /// Address spaces that map it.
    spaces: i64,
    /// It ends when none does.
    unnamed: bool,
    /// It is shared memory with a name.
    in_memory: bool,
}

/// All files whose size is known, and shared memory.
#[derive(Debug, Default)]
pub(super) struct PlannedFiles {
    places: HashMap<(u64, u64), usize>,
    files: Vec<PlannedFile>,
    /// Pages of all.
    pages: u64,
    /// Of these, pages of shared memory.
    shared: u64,
    /// The blocks of 2 MiB in which these lie.
    blocks: u64,
    /// Files that have ended.
    ended: usize,
}

impl PlannedFiles {
    /// Pages that they need together, with what finds them.
    pub(super) fn pages(&self) -> u64 {
        let files = (self.files.len() - self.ended).div_ceil(FILES_IN_PAGE) as u64;
        self.pages + self.pages / PAGES_OF_NODES + files
    }

    /// Pages of shared memory.
    pub(super) fn shared(&self) -> u64 {
        self.shared
    }

    /// Pages that they need more where all shared memory comes in folios of 2 MiB.
    pub(super) fn pages_of_large(&self) -> u64 {
        self.blocks.saturating_mul(PAGES_OF_TABLE)
    }

    /// What a mapping at `start` shows that begins with byte `offset` of this file, if its size is known.
    pub(super) fn at(&self, place: (u64, u64), offset: u64, start: u64) -> Option<FileAt> {
        let file = *self.places.get(&place)?;
        let shift = (offset >> PAGE_SHIFT).wrapping_sub(start >> PAGE_SHIFT);
        Some(FileAt { file, shift, alone: false })
    }

    /// New shared memory without a name, of so many pages, is mapped at `start`. `None` if it is too much.
    pub(super) fn unnamed(&mut self, budget: &mut Budget, size: u64, start: u64) -> Option<FileAt> {
        let at =
            FileAt { file: self.files.len(), shift: 0_u64.wrapping_sub(start >> PAGE_SHIFT), alone: true };
        self.files.push(PlannedFile { size, unnamed: true, ..PlannedFile::default() });
        budget.hold(FILE_BYTES).then_some(at)
    }

    /// So many address spaces more map these files.
    pub(super) fn note_mapped(&mut self, changed: &BTreeMap<usize, i64>) {
        for (&number, &spaces) in changed {
            let Some(file) = self.files.get_mut(number) else { continue };
            file.spaces += spaces;
            if file.unnamed && file.spaces == 0 && spaces < 0 {
                self.end(number);
            }
        }
    }

    /// A file of shared memory is no more.
    fn end(&mut self, number: usize) {
        let Some(file) = self.files.get_mut(number) else { return };
        let pages = std::mem::take(&mut file.pages).len();
        self.pages -= pages;
        self.shared -= pages;
        self.blocks -= std::mem::take(&mut file.blocks).len();
        self.ended += 1;
    }

    /// Whether it is known as shared memory with a name.
    fn is_in_memory(&self, place: (u64, u64)) -> bool {
        self.places.get(&place).and_then(|&number| self.files.get(number)).is_some_and(|file| file.in_memory)
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
        let pages = brought.pages.start..brought.pages.end.min(file.size);
        file.pages.add(pages.clone());
        let more = file.pages.len() - before;
        self.pages += more;
        if more > 0 && (file.unnamed || file.in_memory) {
            self.shared += more;
            let before = file.blocks.len();
            file.blocks.add(pages.start / PAGES_OF_TABLE..pages.end.div_ceil(PAGES_OF_TABLE));
            self.blocks += file.blocks.len() - before;
        }
        more == 0 || budget.hold(RUN_BYTES)
    }

    /// Something is known of a file from here on, which these use. `false` if it is too much.
    fn change(
        &mut self,
        budget: &mut Budget,
        (place, change, in_memory): ((u64, u64), &FileChange, bool),
        users: Users,
    ) -> bool {
        let Some(&number) = self.places.get(&place) else {
            let FileChange::Size { bytes, .. } = change else { return true };
            let size = bytes.div_ceil(1 << PAGE_SHIFT);
            self.places.insert(place, self.files.len());
            self.files.push(PlannedFile { size, in_memory, ..PlannedFile::default() });
            return budget.hold(FILE_BYTES);
        };
        let file = &mut self.files[number];
        if file.in_memory != in_memory {
            // It stays for the replay what it was first.
            return true;
        }
        // The mappings are walked, whether they have anything there or not.
        match change {
            FileChange::Size { bytes, .. } => {
                let before = std::mem::replace(&mut file.size, bytes.div_ceil(1 << PAGE_SHIFT));
                // Where it grows, the last page alone is looked for.
                users.unmap(budget, if file.size < before { u64::MAX } else { 1 })
            }
            FileChange::Punched(bytes) => users.unmap(budget, (bytes.end - bytes.start) >> PAGE_SHIFT),
            FileChange::Gone => {
                self.places.remove(&place);
                self.end(number);
                true
            }
            FileChange::Cached(runs) => budget.hold(bytes_of(runs)),
            FileChange::Evicted(runs) => {
                runs.iter().all(|run| users.unmap(budget, run.pages)) && budget.hold(bytes_of(runs))
            }
        }
    }
}

impl Needs {
    /// Something is known of a file from here on.
    pub(super) fn file(&mut self, event: &FileEvent) {
        let place = (event.device, event.inode);
        let in_memory = self.files.is_in_memory(place);
        if event.change == FileChange::Gone {
            if !in_memory {
                return;
            }
            // All need less then.
            self.take_peaks();
        }
        self.change_file(place, &event.change, in_memory);
    }

    /// Shared memory with a name has this size, as it is mapped.
    pub(super) fn memory_file(&mut self, place: (u64, u64), bytes: u64) {
        self.change_file(place, &FileChange::Size { bytes, cause: SizeCause::Seen }, true);
    }

    /// A touch finds that this file ends before, which is cut there.
    pub(super) fn cut(&mut self, file: FileAt) {
        let ok = self.budget.visit(self.images.len() as u64)
            && self.users_of(file.number()).unmap(&mut self.budget, u64::MAX);
        self.check(ok);
    }

    fn change_file(&mut self, place: (u64, u64), change: &FileChange, in_memory: bool) {
        let users = self.files.places.get(&place).map_or(Users::default(), |&file| self.users_of(file));
        let ok = self.budget.visit(self.images.len() as u64)
            && self.files.change(&mut self.budget, (place, change, in_memory), users);
        self.check(ok);
        self.grown = true;
    }

    /// Pages come in. `false` if that is too much.
    pub(super) fn bring_in(&mut self, brought: &Brought) -> bool {
        let looks = self.files.grows(brought);
        // What maps the old end is looked at.
        let ok = !looks
            || self.budget.visit(self.images.len() as u64)
                && self.users_of(brought.file).unmap(&mut self.budget, 1);
        self.files.bring_in(&mut self.budget, brought) && ok
    }

    /// A thread makes holes in the files at `range`, wherever they are mapped.
    pub(super) fn remove(&mut self, task: TaskId, range: &Range<u64>) {
        let Some(image) = self.spaces.get(&task).and_then(|space| self.images.get(space)) else { return };
        let parts = image.layout.within(range.clone());
        let files = parts.filter(|(_, kind)| kind.shared).filter_map(|(part, kind)| Some((part, kind.file?)));
        let files: Vec<_> = files.collect();
        let ok = self.budget.visit(files.len() as u64)
            && files.into_iter().all(|(part, file)| {
                self.budget.visit(self.images.len() as u64) && {
                    let users = self.users_of(file.number());
                    users.unmap(&mut self.budget, (part.end - part.start) >> PAGE_SHIFT)
                }
            });
        self.check(ok);
    }

    /// What uses this file.
    fn users_of(&self, file: usize) -> Users {
        self.images.values().fold(Users::default(), |sum, image| {
            let OfFile { mappings, bytes } = image.layout.of_file(file);
            let tables = image.tables().min(mappings + (bytes >> PAGE_SHIFT) / PAGES_OF_TABLE);
            Users { mappings: sum.mappings + mappings, tables: sum.tables + tables }
        })
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
        assert!(files.change(&mut budget, (PLACE, &size(pages), false), Users::default()));
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
    fn shared_memory_without_a_name_ends_with_its_last_mapping() {
        let (mut files, mut budget) = files(20);
        let at = files.unnamed(&mut budget, 100, AT).unwrap();
        let part = AT..AT + (100 << PAGE_SHIFT);
        let spaces =
            |files: &mut PlannedFiles, more| files.note_mapped(&BTreeMap::from([(at.number(), more)]));
        spaces(&mut files, 1);
        assert!(files.bring_in(&mut budget, &at.window(AT + (9 << PAGE_SHIFT), &part)));
        assert_eq!(files.pages, 1, "nothing is there that no touch brought in");
        assert!(files.bring_in(&mut budget, &at.all(&part)));
        spaces(&mut files, 1);
        spaces(&mut files, -1);
        // Its mapping was replaced by one of the same.
        spaces(&mut files, 0);
        assert_eq!((files.pages, files.ended), (100, 0));
        spaces(&mut files, -1);
        assert_eq!((files.pages, files.ended), (0, 1));
        let named = files.at(PLACE, 0, AT).unwrap();
        assert!(files.bring_in(&mut budget, &named.one(AT)));
        files.note_mapped(&BTreeMap::from([(named.number(), 1)]));
        files.note_mapped(&BTreeMap::from([(named.number(), -1)]));
        assert_eq!(files.pages, 1, "a name keeps it");
    }

    /// A trace can claim of one inode that it is a file in memory, and that it is none.
    #[test]
    fn a_file_stays_what_it_was_first() {
        for in_memory in [false, true] {
            let (mut files, mut budget) = (PlannedFiles::default(), small());
            for (pages, in_memory) in [(20, in_memory), (1, !in_memory)] {
                assert!(files.change(&mut budget, (PLACE, &size(pages), in_memory), Users::default()));
            }
            assert_eq!(files.files[0].size, 20);
        }
    }

    /// Whether anything is known to be there or not: the mappings are walked for each change.
    #[test]
    fn what_many_mappings_show_costs_a_look_at_each() {
        let gone = |_| FileChange::Evicted(vec![IndexRun { first: 0, pages: 1 }]);
        let punched = |_| FileChange::Punched(0..1 << PAGE_SHIFT);
        let resized = |round| size(2 + round % 2);
        let all_gone = |_| FileChange::Evicted(vec![IndexRun { first: 0, pages: 1 << 40 }]);
        let is_too_much = |change: &dyn Fn(u64) -> FileChange, mappings, tables| {
            let ((mut files, mut budget), users) = (files(1000), Users { mappings, tables });
            !(0..100).all(|round| files.change(&mut budget, (PLACE, &change(round), false), users))
        };
        for change in [&gone as &dyn Fn(u64) -> _, &punched, &resized] {
            assert!(is_too_much(change, 1 << 20, 0) && !is_too_much(change, 1 << 10, 0));
        }
        for change in [&resized as &dyn Fn(u64) -> _, &all_gone] {
            assert!(is_too_much(change, 1, 1 << 17) && !is_too_much(change, 1, 1 << 10));
        }
        assert!(!is_too_much(&gone, 1, 1 << 17), "a page lies in one table");
        let (mut files, mut budget) = files(1000);
        let users = Users { mappings: 1 << 20, tables: 0 };
        assert!(
            (0..1000).all(|_| files.change(&mut budget, ((3, 5), &gone(0), false), users)),
            "of another file"
        );
    }
}
