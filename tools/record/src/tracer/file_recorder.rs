//! The state of what is noted of mapped files.

use super::memory_files::MemoryFiles;
use crate::files::{FileKey, FileTable};
use crate::proc::mounts::Mounts;
use crate::summary::{FilesSummary, PageSource};
use quire_trace::event::{EventKind, FileChange, FileEvent};
use std::collections::HashSet;
use std::path::Path;

/// Within a second there are at most so many events of pages, and samples of these; with more, tracepoints
/// are no longer listened to.
const MOST_EVENTS: u64 = 5000;
const MOST_SAMPLES: u64 = 50_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Notes what happens to mapped files.
#[derive(Debug, Default)]
pub(super) struct FileRecorder {
    pub(super) table: FileTable,
    /// Those in memory.
    pub(super) memory: MemoryFiles,
    pub(super) mounts: Mounts,
    /// Files that are served elsewhere.
    left_out: HashSet<FileKey>,
    /// Files whose pages tracepoints do not tell of yet.
    pub(super) unwatched: Vec<FileKey>,
    /// When the first of these was mapped.
    pub(super) first_unwatched: Option<u64>,
    /// Take the pages of files out of the page cache before they are mapped.
    cold: bool,
    /// When all files are looked at again.
    pub(super) next_look: u64,
    /// The second that is counted, and events and samples in it.
    second: u64,
    events: u64,
    samples: u64,
    pub(super) summary: FilesSummary,
}

impl FileRecorder {
    pub(super) fn new(cold: bool, perf: bool) -> Self {
        let pages = if perf { PageSource::Tracepoints } else { PageSource::Looks };
        Self { cold, summary: FilesSummary { pages, cold, ..FilesSummary::default() }, ..Self::default() }
    }

    pub(super) fn is_cold(&self) -> bool {
        self.cold
    }

    /// A file has pages in the page cache that could not be taken out.
    pub(super) fn stays_warm(&mut self, path: &Path, pages: u64) {
        self.summary.warm += 1;
        self.summary.warm_pages += pages;
        self.summary.first_warm.get_or_insert_with(|| path.to_path_buf());
    }

    /// A file is mapped that another process or machine serves.
    pub(super) fn leave_out(&mut self, key: FileKey, path: &Path) {
        if self.left_out.insert(key) {
            self.summary.left_out += 1;
            self.summary.first_left_out.get_or_insert_with(|| path.to_path_buf());
        }
    }

    /// Tracepoints tell of pages.
    pub(super) fn listens(&self) -> bool {
        self.summary.pages == PageSource::Tracepoints
    }

    /// A sample told of a page.
    pub(super) fn count_sample(&mut self) {
        self.samples += 1;
    }

    /// Pages changed at this time. Whether that is told too often.
    pub(super) fn is_too_much(&mut self, time: u64) -> bool {
        self.summary.changes += 1;
        let second = time / SECOND_NS;
        if second != self.second {
            (self.second, self.events, self.samples) = (second, 0, 0);
        }
        self.events += 1;
        self.events > MOST_EVENTS || self.samples > MOST_SAMPLES
    }
}

/// What happened to a file, as an event; `None` if a recording cannot have it, which would end with it.
pub(super) fn event(key: FileKey, change: FileChange) -> Option<EventKind> {
    let FileKey { device, inode } = key;
    change.check().is_ok().then(|| EventKind::File(Box::new(FileEvent { device, inode, change })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_trace::event::SizeCause;

    #[test]
    fn what_a_recording_cannot_have_is_no_event() {
        let key = FileKey { device: 1, inode: 2 };
        let size = |bytes| FileChange::Size { bytes, cause: SizeCause::Seen };
        assert!(event(key, size(FileChange::MOST_BYTES)).is_some());
        assert_eq!(event(key, size(1 << 63)), None);
        assert_eq!(event(key, FileChange::Punched(0..1 << 63)), None);
    }
}
