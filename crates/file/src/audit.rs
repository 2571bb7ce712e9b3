//! The audit of the page cache: everything recounted, on a quiet machine.

use crate::cached_file::{CachedFile, OnlyRead, UNUSED};
use crate::entry::{Entry, Stored};
use crate::file_core::Mapping;
use crate::files::Files;
use crate::shmem::ShmemPromise;
use crate::store::{StoreViolation, Tag};
use core::fmt;
use quire_arch::{Order, PAGE_SIZE, Pfn, Platform};
use quire_frame::{FrameFlags, Frames};
use quire_swap::SlotId;
use quire_sync::atomic::raw::Ordering;

/// What is wrong with the cache of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileViolation {
    /// The store of a file does not fit together.
    #[error("file {file}: {violation}")]
    Store {
        /// The file's number.
        file: u64,
        /// What is wrong.
        violation: StoreViolation,
    },
    /// A word of a store leads to something that is no folio of this file at this page.
    #[error("file {file} has {head:?} at page {page:#x}, and that is another one's, or has another place")]
    Owner {
        /// The file's number.
        file: u64,
        /// The page.
        page: u64,
        /// What is there.
        head: Pfn,
    },
    /// A folio has no reference, is locked, or is not marked as one that others may find.
    #[error("{head:?}, page {page:#x} of file {file}, has no reference, is locked or not marked as shared")]
    Folio {
        /// The file's number.
        file: u64,
        /// The page.
        page: u64,
        /// The folio.
        head: Pfn,
    },
    /// A tag of the store is not what the folio's flags say.
    #[error("the tag {tag:?} of page {page:#x} of file {file} is not what its folio says")]
    Tag {
        /// The file's number.
        file: u64,
        /// The page.
        page: u64,
        /// Which tag.
        tag: Tag,
    },
    /// A folio is cached that is past the end of its file.
    #[error("page {page:#x} of file {file} is past its end, and cached")]
    PastEnd {
        /// The file's number.
        file: u64,
        /// The page.
        page: u64,
    },
    /// More or fewer pages are counted as swapped out than the store of a file says.
    #[error("file {file} counts {counted} pages that are swapped out, and has {found}")]
    Swapped {
        /// The file's number.
        file: u64,
        /// How many are counted.
        counted: u64,
        /// How many there are.
        found: u64,
    },
    /// More or fewer pages are counted as allocated ahead and not used than have the tag.
    #[error("file {file} counts {counted} pages that are not used yet, and has {found}")]
    Unused {
        /// The file's number.
        file: u64,
        /// How many are counted.
        counted: u64,
        /// How many there are.
        found: u64,
    },
    /// More or fewer folios are counted that the file may have only while it is open for writing nowhere than
    /// there are; or it has some, and is open so.
    #[error(
        "file {file} counts {counted} folios that only unwritten files have, and has {found}; or is written"
    )]
    OnlyRead {
        /// The file's number.
        file: u64,
        /// How many are counted.
        counted: u64,
        /// How many there are.
        found: u64,
    },
    /// Other pages of shared memory are counted than there are.
    #[error("{counted:?} pages of shared memory are counted as cached, promised; there are {found:?}")]
    Shmem {
        /// What is counted.
        counted: [u64; 2],
        /// What is there.
        found: [u64; 2],
    },
    /// Other pages of folios of the PMD's order are counted than there are.
    #[error("{counted:?} pages of files, of shared memory are counted as huge; there are {found:?}")]
    Huge {
        /// What is counted.
        counted: [u64; 2],
        /// What is there.
        found: [u64; 2],
    },
    /// PagesOf are other pages than there are: of a file, or of all.
    #[error("{of}: {counted:?} pages are counted as cached, dirty, being written; there are {found:?}")]
    Counts {
        /// Of which file.
        of: PagesOf,
        /// What is counted.
        counted: [u64; 3],
        /// What is there.
        found: [u64; 3],
    },
}

/// Whose pages were counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PagesOf {
    /// Those of the file with this number.
    File(u64),
    /// Those of all files.
    All,
}

impl fmt::Display for PagesOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(number) => write!(f, "file {number}"),
            Self::All => f.write_str("all files"),
        }
    }
}

/// The audit of the files of a machine.
pub struct FileAudit<'m, P: Platform, V> {
    files: &'m Files<P, V>,
    frames: &'m Frames<P>,
}

impl<'m, P: Platform, V: Mapping> FileAudit<'m, P, V> {
    /// Of these files, which are on the machine of `frames`.
    pub const fn new(files: &'m Files<P, V>, frames: &'m Frames<P>) -> Self {
        Self { files, frames }
    }

    /// Reports everything that is wrong. The machine is quiet.
    pub fn validate(&self, report: &mut dyn FnMut(FileViolation)) {
        let (mut all, mut shmem) = ([0; 3], [0; 2]);
        self.files.for_each(self.frames, |file| {
            let found = self.validate_file(file, report);
            let figures = file.figures(self.frames);
            let counted = [figures.cached, figures.dirty, figures.writeback];
            if counted != found {
                report(FileViolation::Counts { of: PagesOf::File(file.number()), counted, found });
            }
            all.iter_mut().zip(found).for_each(|(sum, pages)| *sum += pages);
            if let Some(state) = file.shmem() {
                let each = figures.cached + figures.swapped;
                let promised = match state.promise() {
                    ShmemPromise::Whole(pages) => pages,
                    ShmemPromise::Each => each,
                };
                shmem.iter_mut().zip([figures.cached, promised]).for_each(|(sum, pages)| *sum += pages);
            }
        });
        let totals = self.files.totals();
        let counted = [totals.cached, totals.dirty, totals.writeback];
        if counted != all {
            report(FileViolation::Counts { of: PagesOf::All, counted, found: all });
        }
        let counted = [totals.shmem, totals.promised];
        if counted != shmem {
            report(FileViolation::Shmem { counted, found: shmem });
        }
        let (counted, mut found) = ([totals.huge, totals.shmem_huge], [0; 2]);
        self.for_each_folio(|file, stored| {
            let pages = if stored.order == Order::PMD { stored.order.pages() } else { 0 };
            found[usize::from(file.is_shmem())] += pages;
        });
        if counted != found {
            report(FileViolation::Huge { counted, found });
        }
    }

    /// Calls `visit` with each folio that is cached: the cache has one reference to it.
    pub fn for_each_folio(&self, mut visit: impl FnMut(&CachedFile<P>, &Stored)) {
        self.files.for_each(self.frames, |file| {
            file.with_store(self.frames, |store| {
                store.audit(&mut |_| {}, &mut |stored, _| {
                    if let Entry::Folio(_) = stored.entry {
                        visit(file, stored);
                    }
                });
            });
        });
    }

    /// Calls `visit` with each slot that a file of shared memory names, once.
    pub fn for_each_slot(&self, mut visit: impl FnMut(SlotId)) {
        self.files.for_each(self.frames, |file| {
            file.with_store(self.frames, |store| {
                store.audit(&mut |_| {}, &mut |stored, _| {
                    if let Some(first) = stored.entry.swap_slot() {
                        (0..stored.order.pages()).for_each(|nth| visit(first.plus(nth)));
                    }
                });
            });
        });
    }

    /// The pages that a file has: cached, dirty, being written.
    fn validate_file(&self, file: &CachedFile<P>, report: &mut dyn FnMut(FileViolation)) -> [u64; 3] {
        let (number, size) = (file.number(), file.size.load(Ordering::Relaxed));
        let (mut found, mut swapped, mut unused, mut only_read) = ([0; 3], 0, 0, 0);
        let (mut stores, mut entries) = (None, None);
        file.with_store(self.frames, |store| {
            store.audit(
                &mut |violation| {
                    stores.get_or_insert(violation);
                },
                &mut |stored, tags| {
                    let Entry::Folio(head) = stored.entry else {
                        swapped += if stored.entry.is_shadow() { 0 } else { stored.order.pages() };
                        return;
                    };
                    let has = |tag: Tag| tags[tag as usize];
                    for (sum, counts) in found.iter_mut().zip([true, has(Tag::Dirty), has(Tag::Writeback)]) {
                        *sum += if counts { stored.order.pages() } else { 0 };
                    }
                    if let Some(wrong) = self.wrong_with(file, stored, head, tags) {
                        entries.get_or_insert(wrong);
                    }
                    unused += if file.is_shmem() && has(UNUSED) { stored.order.pages() } else { 0 };
                    only_read += u64::from(OnlyRead::of(file).limits(stored.order));
                    // Shared memory may have some that was allocated there.
                    if !file.is_shmem() && stored.start.get() >= size.div_ceil(PAGE_SIZE) {
                        entries
                            .get_or_insert(FileViolation::PastEnd { file: number, page: stored.start.get() });
                    }
                },
            );
        });
        stores
            .map(|violation| FileViolation::Store { file: number, violation })
            .into_iter()
            .for_each(&mut *report);
        entries.into_iter().for_each(&mut *report);
        let counted = file.swapped.load(Ordering::Relaxed);
        if counted != swapped {
            report(FileViolation::Swapped { file: number, counted, found: swapped });
        }
        let counted = file.access.large();
        if counted != only_read || only_read > 0 && OnlyRead::of(file).is_open_for_writing() {
            report(FileViolation::OnlyRead { file: number, counted, found: only_read });
        }
        let counted = file.unused.load(Ordering::Relaxed);
        if counted != unused {
            report(FileViolation::Unused { file: number, counted, found: unused });
        }
        found
    }

    /// What is wrong with a cached folio.
    fn wrong_with(
        &self,
        file: &CachedFile<P>,
        stored: &Stored,
        head: Pfn,
        tags: [bool; 3],
    ) -> Option<FileViolation> {
        let (number, page) = (file.number(), stored.start.get());
        let owned = self.frames.frame(head).filter(|frame| file.has(frame, stored.start));
        let Some(frame) = owned else { return Some(FileViolation::Owner { file: number, page, head }) };
        let (word, flags) = (frame.word(), frame.word().flags());
        let busy = FrameFlags::LOCKED | FrameFlags::READING | FrameFlags::READ_FAILED;
        let is_right = word.kind() == file.kind()
            && word.order() == stored.order
            && word.refs() > 0
            && flags.contains(FrameFlags::SHARED_BY_NAME)
            && !flags.intersects(busy);
        if !is_right {
            return Some(FileViolation::Folio { file: number, page, head });
        }
        // Shared memory is dirty without a tag.
        let is_dirty = flags.contains(FrameFlags::DIRTY) && !file.is_shmem();
        let of_flags = [
            (Tag::Dirty, is_dirty),
            // Shared memory is written by swap devices.
            (Tag::Writeback, flags.contains(FrameFlags::WRITEBACK) && !file.is_shmem()),
            // What is to be written is dirty. Of shared memory it says what is not used yet.
            (Tag::ToWrite, (is_dirty || file.is_shmem()) && tags[Tag::ToWrite as usize]),
        ];
        let wrong = of_flags.into_iter().find(|&(tag, is_set)| tags[tag as usize] != is_set);
        wrong.map(|(tag, _)| FileViolation::Tag { file: number, page, tag })
    }
}

impl<P: Platform, V> fmt::Debug for FileAudit<'_, P, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileAudit").field("files", self.files).finish()
    }
}
