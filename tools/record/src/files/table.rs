//! What is known of each file that was mapped.

use super::runs::PageSet;
use crate::sys::Tid;
use crate::sys::named::{self, From, Looked};
use quire_trace::event::{FileChange, IndexRun, TaskId};
use rustix::fs::CWD;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

const PAGE: u64 = 4096;

/// Which file: its device and inode, as calls and images name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl FileKey {
    /// Of a file that was looked at.
    pub(crate) fn of(file: &Looked) -> Self {
        Self { device: file.device, inode: file.inode }
    }
}

/// A file that was mapped.
#[derive(Debug)]
pub(crate) struct MappedFile {
    /// Its length, and when it was last seen to have it.
    pub(crate) size: u64,
    pub(crate) seen: u64,
    /// What of it is in the page cache; `None` if that cannot be known.
    pub(crate) cached: Option<PageSet>,
    /// The thread that mapped it first.
    pub(crate) task: TaskId,
    /// `statfs`'s type of its file system.
    pub(crate) file_system: u64,
    /// Its name, by which it is looked at again.
    pub(crate) path: PathBuf,
}

impl MappedFile {
    /// How many pages it has that an event can name.
    pub(crate) fn pages(&self) -> u64 {
        self.size.div_ceil(PAGE).min(FileChange::MOST_BYTES / PAGE)
    }

    /// Whether nothing but a change of its length can bring in a page.
    pub(crate) fn is_all_cached(&self) -> bool {
        let all = IndexRun { first: 0, pages: self.pages() };
        self.size == 0 || self.cached.as_ref().is_some_and(|cached| cached.runs() == [all])
    }

    /// What its name stands for now, if that is still this file. The kernel knows the name of one that is
    /// mapped.
    pub(crate) fn find(&self, key: FileKey) -> Option<(OwnedFd, Looked)> {
        let file = named::find(CWD, &self.path, From::Folder).ok()?;
        let facts = named::look_at(&file).filter(|facts| FileKey::of(facts) == key)?;
        Some((file, facts))
    }

    /// Its length, if its name still stands for it.
    pub(crate) fn look(&self, key: FileKey) -> Option<u64> {
        self.find(key).map(|(_, facts)| facts.bytes)
    }

    /// Opens it by its name, if that still stands for it.
    pub(crate) fn open(&self, key: FileKey) -> Option<File> {
        named::open_regular(&self.find(key)?.0)
    }

    /// It has this length from now on. Nothing past it is cached.
    pub(crate) fn resize(&mut self, bytes: u64, time: u64) {
        (self.size, self.seen) = (bytes, time);
        let first = self.pages();
        if let Some(cached) = &mut self.cached {
            cached.remove(IndexRun { first, pages: u64::MAX - first });
        }
    }
}

/// Pages that came into the page cache or left it, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageChange {
    pub(crate) key: FileKey,
    pub(crate) added: bool,
    pub(crate) tid: Tid,
    pub(crate) cpu: u32,
    /// When the first and the last one did.
    pub(crate) from: u64,
    pub(crate) until: u64,
    pub(crate) pages: PageSet,
}

impl PageChange {
    /// Two that are further apart are two changes.
    const APART_NS: u64 = 50_000;
    const LONGEST_NS: u64 = 1_000_000;

    /// Takes another change in that is a part of this one. Whether it is.
    pub(crate) fn take(&mut self, other: &Self) -> bool {
        let is_same = (self.key, self.added, self.tid) == (other.key, other.added, other.tid);
        let is_near = other.from.saturating_sub(self.until) <= Self::APART_NS
            && other.until.saturating_sub(self.from) <= Self::LONGEST_NS;
        if is_same && is_near {
            for run in other.pages.runs() {
                self.pages.insert(run);
            }
            self.until = other.until;
        }
        is_same && is_near
    }
}

/// All files that were mapped.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    files: HashMap<FileKey, MappedFile>,
    /// In the order in which they were mapped first.
    order: Vec<FileKey>,
    by_inode: HashMap<u64, Vec<FileKey>>,
    /// Whose turn it is: to have its length looked at, and its pages.
    turn: usize,
    pages_turn: usize,
}

impl FileTable {
    pub(crate) fn get(&self, key: FileKey) -> Option<&MappedFile> {
        self.files.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: FileKey) -> Option<&mut MappedFile> {
        self.files.get_mut(&key)
    }

    pub(crate) fn insert(&mut self, key: FileKey, file: MappedFile) {
        if self.files.insert(key, file).is_none() {
            self.order.push(key);
            self.by_inode.entry(key.inode).or_default().push(key);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The one whose turn it is to have its pages looked at.
    pub(crate) fn next_to_look_at(&mut self) -> Option<FileKey> {
        self.pages_turn = (self.pages_turn + 1).checked_rem(self.order.len())?;
        self.order.get(self.pages_turn).copied()
    }

    /// So many at most, each in its turn to have its length looked at.
    pub(crate) fn next(&mut self, most: usize) -> Vec<FileKey> {
        let count = most.min(self.order.len());
        let some = (0..count).map(|place| self.order[(self.turn + place) % self.order.len()]).collect();
        self.turn = (self.turn + count).checked_rem(self.order.len()).unwrap_or(0);
        some
    }

    /// The files that the kernel means by an inode of a file system's device. What programs are told as the
    /// device of a file may be another number where the file system has no device of its own.
    pub(crate) fn named(&self, device: u64, inode: u64) -> Vec<FileKey> {
        let without = |device: u64| libc::major(device) == 0;
        let known = self.by_inode.get(&inode).into_iter().flatten();
        let same = known.filter(|key| key.device == device || without(key.device));
        same.copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: u64, runs: &[IndexRun]) -> MappedFile {
        MappedFile {
            size,
            seen: 0,
            cached: Some(PageSet::of(runs)),
            task: TaskId(0),
            file_system: 0,
            path: PathBuf::new(),
        }
    }

    #[test]
    fn what_is_past_the_end_is_not_cached() {
        let mut file = file(5 * PAGE, &[IndexRun { first: 0, pages: 5 }]);
        assert!(file.is_all_cached());
        file.resize(2 * PAGE + 1, 7);
        assert_eq!((file.pages(), file.is_all_cached(), file.seen), (3, true, 7));
        file.resize(5 * PAGE, 8);
        assert!(!file.is_all_cached());
    }

    /// The longest file has a page more than events can name.
    #[test]
    fn the_last_page_of_the_longest_file_is_left_out() {
        let longest = file(FileChange::MOST_BYTES, &[]);
        let all = IndexRun { first: 0, pages: longest.pages() };
        assert_eq!((all.pages, FileChange::Cached(vec![all]).check()), ((1 << 51) - 1, Ok(())));
    }

    #[test]
    fn each_file_has_its_turn() {
        let mut table = FileTable::default();
        let key = |inode| FileKey { device: libc::makedev(8, 1), inode };
        assert!(table.next(2).is_empty());
        for inode in 0..3 {
            table.insert(key(inode), file(0, &[]));
        }
        assert_eq!(table.next(2), [key(0), key(1)]);
        assert_eq!(table.next(2), [key(2), key(0)]);
        assert_eq!(table.next(9), [key(1), key(2), key(0)]);
        let looked_at: Vec<_> = (0..4).filter_map(|_| table.next_to_look_at()).collect();
        assert_eq!(looked_at, [key(1), key(2), key(0), key(1)]);
    }

    #[test]
    fn a_file_without_a_device_of_its_own_is_found_by_its_inode() {
        let mut table = FileTable::default();
        let key = |major, inode| FileKey { device: libc::makedev(major, 1), inode };
        for known in [key(8, 5), key(0, 5), key(8, 6)] {
            table.insert(known, file(0, &[]));
        }
        assert_eq!(table.named(key(8, 5).device, 5), [key(8, 5), key(0, 5)]);
        assert_eq!(table.named(key(9, 5).device, 5), [key(0, 5)]);
        assert_eq!(table.named(key(9, 6).device, 6), []);
    }

    #[test]
    fn pages_that_come_one_after_the_other_are_one_change() {
        let change = |tid, first, from| PageChange {
            key: FileKey { device: 1, inode: 2 },
            added: true,
            tid,
            cpu: 0,
            from,
            until: from,
            pages: PageSet::of(&[IndexRun { first, pages: 1 }]),
        };
        let mut all = change(1, 0, 1000);
        assert!(all.take(&change(1, 1, 2000)) && all.take(&change(1, 5, 3000)));
        assert!(!all.take(&change(2, 6, 3000)), "another thread");
        assert!(!all.take(&PageChange { added: false, ..change(1, 0, 3000) }), "one that leaves");
        assert!(!all.take(&change(1, 6, 3001 + PageChange::APART_NS)), "later");
        assert_eq!((all.from, all.until, all.pages.runs().len()), (1000, 3000, 2));
    }
}
