//! Finding out what of a file is in the page cache.

use crate::proc::Keyed;
use crate::sys::page_cache::{count, each};
use quire_trace::event::{FileChange, IndexRun};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

const PAGE: u64 = 4096;
/// Each of so many pages is asked for at once.
const AT_ONCE: u64 = 1024;
/// A range of which a part is there is looked at in so many parts.
const PARTS: u64 = 16;
/// The most pages of a file that are asked for one by one, where Linux does not count them: 1 GiB.
const MOST_ASKED: u64 = 1 << 18;
/// A file in so many pieces is not known: what it takes to note them.
const MOST_RUNS: usize = 1 << 20;

/// `statfs`'s type of an overlay, whose own inodes have no pages.
const OVERLAYFS: u64 = 0x794c_7630;

/// The pages of the first `bytes` of a file that are in the page cache; `None` if that cannot be known.
/// `file_system` is its type.
pub(crate) fn cached_pages(file: &File, bytes: u64, file_system: u64) -> Option<Vec<IndexRun>> {
    cached_within(file, 0..bytes.div_ceil(PAGE).min(FileChange::MOST_BYTES / PAGE), file_system)
}

/// The same of these pages.
pub(crate) fn cached_within(file: &File, pages: Range<u64>, file_system: u64) -> Option<Vec<IndexRun>> {
    let mut looks = Look { file, runs: Vec::new(), counts: file_system != OVERLAYFS, may_know: None };
    if !pages.is_empty() {
        looks.range(pages.start, pages.end - pages.start)?;
    }
    Some(looks.runs)
}

/// A look at a file.
struct Look<'f> {
    file: &'f File,
    runs: Vec<IndexRun>,
    /// Linux counts pages of this file.
    counts: bool,
    /// Whether it tells of each page, once that was asked.
    may_know: Option<bool>,
}

impl Look<'_> {
    fn range(&mut self, first: u64, pages: u64) -> Option<()> {
        if self.counts {
            match count(self.file, first, pages) {
                Ok(counted) if counted.cached == 0 => return Some(()),
                Ok(counted) if counted.cached >= pages => return self.add(first, pages),
                Ok(_) if pages > AT_ONCE => {
                    // Whole pages of page tables, as far as that goes.
                    let part = pages.div_ceil(PARTS).next_multiple_of(AT_ONCE.min(512));
                    let mut at = first;
                    while at < first + pages {
                        self.range(at, part.min(first + pages - at))?;
                        at += part;
                    }
                    return Some(());
                }
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => return None,
                // Linux before 6.5.
                Err(_) => self.counts = false,
            }
        }
        if pages > MOST_ASKED || !*self.may_know.get_or_insert_with(|| may_know(self.file)) {
            return None;
        }
        let mut at = first;
        while at < first + pages {
            let some = AT_ONCE.min(first + pages - at);
            for (page, there) in (at..).zip(each(self.file, at, some as usize).ok()?) {
                if there {
                    self.add(page, 1)?;
                }
            }
            at += some;
        }
        Some(())
    }

    /// Adds pages after all others.
    fn add(&mut self, first: u64, pages: u64) -> Option<()> {
        match self.runs.last_mut().filter(|run| run.end() == first) {
            Some(last) => last.pages += pages,
            None => self.runs.push(IndexRun { first, pages }),
        }
        (self.runs.len() <= MOST_RUNS).then_some(())
    }
}

/// Whether Linux tells this process which pages of a file are there (`can_do_mincore`). Of others it says
/// that all are.
fn may_know(file: &File) -> bool {
    let is_own = file.metadata().is_ok_and(|facts| facts.uid() == rustix::process::geteuid().as_raw());
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    is_own || acts_for_owners() || accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

/// Whether this process has `CAP_FOWNER`.
fn acts_for_owners() -> bool {
    const CAP_FOWNER: u32 = 3;
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let status = Keyed(std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        let effective = status.word("CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        effective.is_some_and(|set| set >> CAP_FOWNER & 1 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::page_cache::evict;
    use std::io::{Read, Seek, SeekFrom, Write};

    /// A file of so many pages that lie on a disk, none of which is cached. `None` where that cannot be.
    fn file(pages: u64) -> Option<(File, u64)> {
        let mut file = tempfile::tempfile().unwrap();
        let kind = rustix::fs::fstatfs(&file).unwrap().f_type as u64;
        file.write_all(&vec![1; (pages * PAGE) as usize]).unwrap();
        file.sync_all().unwrap();
        evict(&file).unwrap();
        let is_evicted = cached_pages(&file, pages * PAGE, kind) == Some(Vec::new());
        if !is_evicted {
            eprintln!("skipped: temporary files cannot be taken out of the page cache");
        }
        is_evicted.then_some((file, kind))
    }

    fn asked_one_by_one(file: &File, pages: u64) -> Vec<u64> {
        let there = each(file, 0, pages as usize).unwrap();
        (0..pages).filter(|&page| there[page as usize]).collect()
    }

    #[test]
    fn what_is_cached_is_what_each_page_says() {
        const PAGES: u64 = 40_000;
        let Some((mut file, kind)) = file(PAGES) else { return };
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let mut byte = [0];
        for page in [0, 1, 2, 1023, 1024, 5000, 5002, 39_999] {
            file.seek(SeekFrom::Start(page * PAGE)).unwrap();
            file.read_exact(&mut byte).unwrap();
        }
        let expected = asked_one_by_one(&file, PAGES);
        assert!((8..100).contains(&expected.len()), "{expected:?}");
        let pages_of = |runs: Vec<IndexRun>| Vec::from_iter(runs.iter().flat_map(|run| run.first..run.end()));
        for bytes in [PAGES * PAGE, PAGES * PAGE - 1] {
            let found = cached_pages(&file, bytes, kind).unwrap();
            assert!(found.windows(2).all(|pair| pair[0].end() < pair[1].first), "{found:?}");
            assert_eq!(pages_of(found), expected);
            // As where Linux does not count.
            assert_eq!(pages_of(cached_pages(&file, bytes, OVERLAYFS).unwrap()), expected);
        }
        assert_eq!(cached_pages(&file, 0, kind), Some(Vec::new()));
    }
}
