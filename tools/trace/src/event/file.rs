//! What happens to a mapped file.

use std::fmt;
use std::ops::Range;

/// Pages of a file have 4 KiB.
const PAGE_SHIFT: u32 = 12;

/// A mapped file, and what is known of it or changed from here on.
///
/// Of regular files of file systems that keep them elsewhere than in memory; and since version 13 the
/// lengths, holes and ends of files in memory. Not in files of versions 1 to 11.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEvent {
    /// The file system's device number, as in the calls and images that map the file.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
    /// What is known.
    pub change: FileChange,
}

impl FileEvent {
    /// The device of System V segments, which are files in memory: their inodes are their ids (`shmget`).
    pub const SEGMENTS: u64 = u64::MAX;
}

/// What is known of a file from an event on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileChange {
    /// Its length. What is past the end of a file that was longer is lost, and no page of it is cached.
    Size {
        /// Its length in bytes.
        bytes: u64,
        /// How the recorder knows.
        cause: SizeCause,
    },
    /// These bytes became a hole: whole pages of them are no longer cached or mapped.
    Punched(Range<u64>),
    /// These pages are in the page cache. The first such event of a file, which may name none, says which
    /// pages are: all others are not. Without one that is not known.
    Cached(Vec<IndexRun>),
    /// These pages are no longer in the page cache.
    Evicted(Vec<IndexRun>),
    /// It is no more: it had lost its last name and its last descriptor, and no process mapped it. Of a file
    /// in memory. Its numbers may be another one's from here on. Not in files of versions 1 to 12.
    Gone,
}

/// How the recorder knows the length of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SizeCause {
    /// A call of a recorded program set it.
    Call,
    /// It had this length when the recorder looked.
    Seen,
}

/// Pages of a file that lie one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IndexRun {
    /// The first: its offset in the file in pages.
    pub first: u64,
    /// How many pages of 4 KiB, at least 1.
    pub pages: u64,
}

impl IndexRun {
    /// The index after the last page.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.pages)
    }
}

impl FileChange {
    /// The longest that a file can be in Linux, and so the largest place in one.
    pub const MOST_BYTES: u64 = i64::MAX as u64;
    /// The most runs that one event may name: bounds a reader's work for one event.
    pub const MOST_RUNS: usize = 1 << 16;

    /// Checks what a reader relies on: lengths and places are possible; runs are few, ascend, do not touch
    /// and have at least one page.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn check(&self) -> Result<(), FileChangeError> {
        match self {
            Self::Size { bytes, .. } if *bytes > Self::MOST_BYTES => Err(FileChangeError::TooLong),
            Self::Punched(bytes) if bytes.end > Self::MOST_BYTES => Err(FileChangeError::TooLong),
            Self::Punched(bytes) if bytes.is_empty() => Err(FileChangeError::Empty),
            Self::Size { .. } | Self::Punched(_) | Self::Gone => Ok(()),
            Self::Cached(runs) | Self::Evicted(runs) => check_runs(runs),
        }
    }

    /// As few lists as hold these runs, in their order, each short enough for one event; one without a run if
    /// there is none.
    #[must_use]
    pub fn split(runs: Vec<IndexRun>) -> Vec<Vec<IndexRun>> {
        if runs.len() <= Self::MOST_RUNS {
            return vec![runs];
        }
        runs.chunks(Self::MOST_RUNS).map(<[IndexRun]>::to_vec).collect()
    }
}

fn check_runs(runs: &[IndexRun]) -> Result<(), FileChangeError> {
    if runs.len() > FileChange::MOST_RUNS {
        return Err(FileChangeError::TooManyRuns);
    }
    let mut least = 0;
    for run in runs {
        let end = run.first.checked_add(run.pages).ok_or(FileChangeError::PastEnd)?;
        if end > FileChange::MOST_BYTES >> PAGE_SHIFT {
            return Err(FileChangeError::PastEnd);
        }
        if run.pages == 0 {
            return Err(FileChangeError::Empty);
        }
        if run.first < least {
            return Err(FileChangeError::Unordered);
        }
        least = end + 1;
    }
    Ok(())
}

/// Why a [`FileChange`] makes no sense. Displays as a part of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileChangeError {
    /// A length or a place that no file has.
    TooLong,
    /// Nothing became a hole, or a run has no page.
    Empty,
    /// Runs do not ascend, or touch.
    Unordered,
    /// A page past the longest file.
    PastEnd,
    /// More runs than [`FileChange::MOST_RUNS`].
    TooManyRuns,
}

impl FileChangeError {
    /// What is wrong.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::TooLong => "a file is longer than a file can be",
            Self::Empty => "a part of a file is empty",
            Self::Unordered => "pages of a file are not in order",
            Self::PastEnd => "a page lies past the end of the longest file",
            Self::TooManyRuns => "it names more runs of pages than one event may",
        }
    }
}

impl fmt::Display for FileChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_runs_than_one_event_may_name_are_several_events() {
        let runs = |count: usize| -> Vec<IndexRun> {
            (0..count as u64).map(|number| IndexRun { first: number * 2, pages: 1 }).collect()
        };
        assert_eq!(FileChange::split(Vec::new()), [Vec::new()]);
        assert_eq!(FileChange::split(runs(3)), [runs(3)]);
        let many = runs(FileChange::MOST_RUNS + 3);
        assert_eq!(FileChange::Cached(many.clone()).check(), Err(FileChangeError::TooManyRuns));
        let lists = FileChange::split(many.clone());
        assert_eq!((lists.len(), lists[1].len(), lists.concat()), (2, 3, many));
        assert!(lists.into_iter().all(|list| FileChange::Cached(list).check().is_ok()));
    }
}
