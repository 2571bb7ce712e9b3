//! What is known of mapped files: when each is mapped first, and how that changes.
//!
//! The length and the cached pages of a file are looked at before the first call or image that maps it. After
//! that tracepoints tell which pages enter and leave the page cache, also that a write has made the file
//! longer: that needs a page. Where they are not permitted, or tell too much, each file is looked at again
//! from time to time.

use super::file_recorder::event;
use super::{TICK_NS, Tracer};
use crate::files::{FileKey, MappedFile, PageChange, PageSet, cached_pages, cached_within};
use crate::merge::Rule;
use crate::perf::{PerfSample, SampleKind};
use crate::proc::mounts::Served;
use crate::proc::{names, trial};
use crate::summary::PageSource;
use crate::sys::named::{self, From};
use crate::sys::time::{next_look, now};
use crate::sys::{Tid, descriptor};
use quire_trace::event::{
    EventKind, ExecImage, FileChange, FileFacts, FileKind, IndexRun, SizeCause, TaskId,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const PAGE: u64 = 4096;
/// The lengths of so many files are looked at at a tick.
const SIZES_AT_ONCE: usize = 32;
/// A file that is cached whole and is not written is listened to so long after it was mapped first: most
/// programs end before.
const UNWATCHED_NS: u64 = 100_000_000;
/// What is cached is looked at this often at most, where tracepoints do not tell: of as many files as this
/// time allows.
const LOOK_EVERY_NS: u64 = 20_000_000;
const LOOK_NS: u64 = LOOK_EVERY_NS / SHARE;
/// The pause after looks is so many times as long as they took.
const SHARE: u64 = 50;
/// File systems whose files have no pages in the page cache: proc, sysfs, debugfs, tracefs, the two of
/// cgroups, securityfs, bpf, ramfs; and those in memory, tmpfs and hugetlbfs.
const WITHOUT_PAGES: [u64; 11] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x0027_e0eb,
    0x6367_7270,
    0x7363_6673,
    0xcafe_4a11,
    0x8584_58f6,
    0x0102_1994,
    0x9584_58f6,
];

fn seen(bytes: u64) -> FileChange {
    FileChange::Size { bytes, cause: SizeCause::Seen }
}

fn cached(runs: Vec<IndexRun>) -> impl Iterator<Item = FileChange> {
    FileChange::split(runs).into_iter().map(FileChange::Cached)
}

/// A list of changes only if there are any.
fn some(runs: Vec<IndexRun>, change: fn(Vec<IndexRun>) -> FileChange) -> impl Iterator<Item = FileChange> {
    let lists = if runs.is_empty() { Vec::new() } else { FileChange::split(runs) };
    lists.into_iter().map(change)
}

/// What of these pages is in the page cache, though all that they were of is lost: Linux takes a large folio
/// out whole, or leaves it if it cannot be split, as one that is dirty. `found` is this file.
pub(super) fn stayed(file: &mut MappedFile, found: &OwnedFd, pages: Range<u64>) -> Vec<FileChange> {
    let pages = pages.start..pages.end.min(file.pages());
    let Some(set) = file.cached.as_mut().filter(|_| !pages.is_empty()) else { return Vec::new() };
    let runs = named::open_regular(found).and_then(|open| cached_within(&open, pages, file.file_system));
    let new = PageSet::of(&runs.unwrap_or_default()).without(set);
    for run in &new {
        set.insert(*run);
    }
    some(new, FileChange::Cached).collect()
}

/// A file that is about to be mapped first, or was by exec.
struct FirstSight {
    key: FileKey,
    task: TaskId,
    file_system: u64,
    path: PathBuf,
    /// The program may write it, or it is empty, and of no use until another does.
    may_change: bool,
}

impl Tracer<'_> {
    /// A thread that is stopped is about to map this file, which was asked for these facts or was not.
    pub(super) fn see_mapped(&mut self, tid: Tid, fd: i32, facts: &FileFacts, is_asked: bool) {
        if facts.kind != FileKind::Regular || !facts.readable {
            return;
        }
        let key = FileKey { device: facts.device, inode: facts.inode };
        if !is_asked {
            return self.files.leave_out(key, Path::new(OsStr::from_bytes(&facts.name)));
        }
        let time = now();
        if let Some(file) = self.files.table.get_mut(key) {
            if file.size == facts.size {
                file.seen = time;
            } else {
                self.resized(key, facts.size, time);
            }
            return;
        }
        if WITHOUT_PAGES.contains(&facts.file_system) {
            return;
        }
        let Some(task) = self.tasks.get(&tid).map(|task| task.id) else { return };
        let Ok(file) = descriptor::take(tid, fd).map(File::from) else { return };
        let path = PathBuf::from(OsStr::from_bytes(&facts.name));
        if self.files.is_cold() {
            self.make_cold(&file, facts.size, &path);
        }
        let (file_system, may_change) = (facts.file_system, facts.writable || facts.size == 0);
        self.see_first(FirstSight { key, task, file_system, path, may_change }, &file);
    }

    /// A process has this image, whose files exec has mapped.
    pub(super) fn see_image(&mut self, pid: Tid, task: TaskId, image: &ExecImage) {
        for mapping in image.mappings.iter().filter(|mapping| mapping.inode != 0) {
            let key = FileKey { device: mapping.device, inode: mapping.inode };
            if self.files.table.get(key).is_some() || !mapping.name.starts_with(b"/") {
                continue;
            }
            let path = PathBuf::from(OsStr::from_bytes(&mapping.name));
            let (start, end) = (mapping.start, mapping.end);
            if self.files.mounts.of_device(pid, key.device) != Served::Here {
                self.files.leave_out(key, &path);
                continue;
            }
            let is_same = |file: &OwnedFd| {
                named::look_at(file).is_some_and(|facts| {
                    let found = FileKey::of(&facts);
                    // The kernel shows another device of files whose file system has none of its own.
                    let without = libc::major(key.device) == 0 && libc::major(found.device) == 0;
                    facts.is_regular && found.inode == key.inode && (found == key || without)
                })
            };
            // The first needs `CAP_CHECKPOINT_RESTORE`, but finds the file whatever its name is by now.
            let link = format!("/proc/{pid}/map_files/{start:x}-{end:x}");
            let found = named::behind(Path::new(&link)).filter(is_same);
            let below = || names::find(&mut self.files.mounts, pid, libc::AT_FDCWD, &path).filter(is_same);
            let here = || named::find(rustix::fs::CWD, &path, From::Folder).ok().filter(is_same);
            let found = found.or_else(below).or_else(here);
            let Some(file) = found.and_then(|file| named::open_regular(&file)) else { continue };
            let file_system = rustix::fs::fstatfs(&file).map_or(0, |system| system.f_type as u64);
            let in_memory = || libc::major(key.device) == 0 && trial::is_file_in_memory(&file) == Some(true);
            if !WITHOUT_PAGES.contains(&file_system) && !in_memory() {
                let may_change = false;
                self.see_first(FirstSight { key, task, file_system, path, may_change }, &file);
            }
        }
    }

    /// A file is mapped for the first time.
    fn see_first(&mut self, sight: FirstSight, file: &File) {
        let FirstSight { key, task, file_system, path, may_change } = sight;
        let Ok(size) = file.metadata().map(|facts| facts.len()) else { return };
        let time = now();
        let look = || cached_pages(file, size, file_system).map(|runs| PageSet::of(&runs));
        let known = MappedFile { size, seen: time, cached: look(), task, file_system, path };
        let is_known = known.cached.is_some();
        let may_change = may_change || !known.is_all_cached();
        self.files.table.insert(key, known);
        self.files.summary.files += 1;
        self.files.summary.unknown += u64::from(!is_known);
        if is_known {
            self.files.unwatched.push(key);
            self.files.first_unwatched.get_or_insert(time);
        }
        if is_known && may_change && self.files.listens() {
            // From here on pages may come in at any time. What did so before it was listened to is looked at.
            self.watch_new_files();
            if let Some(known) = self.files.table.get_mut(key) {
                known.cached = look();
            }
        }
        let runs = self.files.table.get(key).and_then(|known| known.cached.as_ref()).map(PageSet::runs);
        let changes = std::iter::once(seen(size)).chain(runs.into_iter().flat_map(cached));
        let kinds = changes.filter_map(|change| event(key, change)).collect();
        self.merger.file((time, time), task, Rule::AtEnd, kinds);
    }

    /// Listens to what happens to files that were mapped since this was done last.
    fn watch_new_files(&mut self) {
        let new = std::mem::take(&mut self.files.unwatched);
        self.files.first_unwatched = None;
        if new.is_empty() || !self.files.listens() {
            return;
        }
        let Some(perf) = &mut self.perf else { return };
        if let Err(error) = perf.watch_files(&new) {
            let is_too_much = error.kind() == io::ErrorKind::StorageFull;
            self.listen_no_more(if is_too_much { PageSource::TooMany } else { PageSource::Looks });
        }
    }

    fn listen_no_more(&mut self, instead: PageSource) {
        if let Some(perf) = &mut self.perf {
            perf.forget_files();
        }
        self.files.summary.pages = instead;
    }

    /// A file has another length.
    fn resized(&mut self, key: FileKey, bytes: u64, time: u64) {
        let Some(file) = self.files.table.get_mut(key) else { return };
        // What was before has its place already.
        let since = file.seen.max(time.saturating_sub(2 * TICK_NS)).min(time);
        let (grew, task, old) = (bytes > file.size, file.task, file.pages());
        file.resize(bytes, time);
        let found = file.find(key).filter(|_| grew).map(|(found, _)| found);
        let stayed = found.map_or_else(Vec::new, |found| stayed(file, &found, old..file.pages()));
        let changes = std::iter::once(seen(bytes)).chain(stayed);
        let kinds = changes.filter_map(|change| event(key, change)).collect();
        self.merger.file((since, time), task, Rule::Resized { grew }, kinds);
    }

    /// What is done at each tick.
    pub(super) fn look_at_files(&mut self, time: u64) {
        let waits_since = self.files.first_unwatched;
        if self.files.listens() && waits_since.is_some_and(|since| time >= since + UNWATCHED_NS) {
            let new = self.files.unwatched.clone();
            self.watch_new_files();
            for key in new {
                self.look_at_pages(key);
            }
        }
        for key in self.files.table.next(SIZES_AT_ONCE) {
            let Some(file) = self.files.table.get_mut(key) else { continue };
            match file.look(key) {
                Some(size) if size != file.size => self.resized(key, size, time),
                Some(_) => file.seen = time,
                None => {}
            }
        }
        if !self.files.listens() && time >= self.files.next_look {
            for _ in 0..self.files.table.len() {
                self.files.table.next_to_look_at().into_iter().for_each(|key| self.look_at_pages(key));
                if now().saturating_sub(time) >= LOOK_NS {
                    break;
                }
            }
            self.files.next_look = next_look(time, now(), SHARE, LOOK_EVERY_NS);
        }
    }

    /// Before a process ends: pages that it brought in may be gone at the next tick.
    pub(super) fn look_at_files_before_end(&mut self) {
        if !self.files.listens() {
            self.look_at_files(now());
        }
    }

    /// Looks at what of a file is cached now.
    fn look_at_pages(&mut self, key: FileKey) {
        let Some(known) = self.files.table.get_mut(key) else { return };
        let Some(old) = &known.cached else { return };
        let Some(file) = known.open(key) else { return };
        let Some(runs) = cached_pages(&file, known.size, known.file_system) else { return };
        let new = PageSet::of(&runs);
        let gone = some(old.without(&new), FileChange::Evicted);
        let there = some(new.without(old), FileChange::Cached);
        let kinds: Vec<EventKind> = gone.chain(there).filter_map(|change| event(key, change)).collect();
        known.cached = Some(new);
        if !kinds.is_empty() {
            let (task, time) = (known.task, now());
            self.files.summary.changes += kinds.len() as u64;
            self.merger.file((time, time), task, Rule::AtEnd, kinds);
        }
    }

    /// Tracepoints told that pages came or went.
    pub(super) fn note_pages(&mut self, mut samples: Vec<PerfSample>) {
        samples.sort_by_key(|sample| sample.time);
        let mut open: Vec<PageChange> = Vec::new();
        for sample in samples {
            let SampleKind::Page { added, device, inode, run } = sample.what else { continue };
            self.files.count_sample();
            for key in self.files.table.named(device, inode) {
                let (tid, cpu, time) = (sample.tid as Tid, sample.cpu, sample.time);
                let pages = PageSet::of(&[run]);
                let change = PageChange { key, added, tid, cpu, from: time, until: time, pages };
                if open.iter_mut().any(|before| before.take(&change)) {
                    continue;
                }
                // Those of the same file are over, so that each page changes in its order.
                for before in open.extract_if(.., |before| before.key == key) {
                    self.note_change(before);
                }
                open.push(change);
            }
        }
        for change in open {
            self.note_change(change);
        }
    }

    fn note_change(&mut self, change: PageChange) {
        let PageChange { key, added, tid, cpu: _, from, until: _, pages } = change;
        let Some(file) = self.files.table.get_mut(key) else { return };
        let Some(set) = &mut file.cached else { return };
        let runs = pages.runs();
        // Two sets of events may tell of one change, and a look may have seen it.
        let mut is_new = false;
        for run in &runs {
            is_new |= if added { set.insert(*run) } else { set.remove(*run) };
        }
        if !is_new {
            return;
        }
        let mut kinds = Vec::new();
        let end = runs.last().map_or(0, IndexRun::end);
        if added && end > file.pages() {
            // A write came to a new page. It may have come further by now.
            let most = end.saturating_mul(PAGE).min(FileChange::MOST_BYTES);
            let bytes = file.look(key).map_or(most, |bytes| bytes.min(most));
            if bytes > file.size {
                let old = file.pages();
                (file.size, file.seen) = (bytes, from);
                // Without an event only pages come in that were left there.
                let first = runs.iter().find(|run| run.end() > old).map_or(old, |run| run.first.max(old));
                let found = file.find(key).filter(|_| old < first);
                let between = found.map_or_else(Vec::new, |(found, _)| stayed(file, &found, old..first));
                kinds.extend(event(key, seen(bytes)));
                kinds.extend(between.into_iter().filter_map(|change| event(key, change)));
            }
        }
        let end = file.pages();
        let runs = runs.into_iter().filter(|run| run.first < end);
        let runs = runs.map(|run| IndexRun { pages: run.pages.min(end - run.first), ..run }).collect();
        let change = if added { FileChange::Cached } else { FileChange::Evicted };
        kinds.extend(some(runs, change).filter_map(|change| event(key, change)));
        if kinds.is_empty() {
            return;
        }
        let task = self.merger.task_of(tid, from).unwrap_or(file.task);
        self.merger.file((from, from), task, Rule::AtEnd, kinds);
        if self.files.is_too_much(from) && self.files.listens() {
            self.listen_no_more(PageSource::TooMany);
        }
    }
}
