//! Calls that change the length of mapped files, or what of them is cached.

use super::Tracer;
use super::file_recorder::event;
use super::files::stayed;
use super::state::{Entry, InCall, State};
use crate::files::FileKey;
use crate::merge::Rule;
use crate::proc::names;
use crate::sys::named::{self, Looked};
use crate::sys::time::now;
use crate::sys::{Tid, memory};
use quire_trace::event::{EventKind, FileChange, IndexRun, SizeCause, is_error};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PAGE: u64 = 4096;
/// Longest path that a call takes.
const PATH_LIMIT: usize = 4096;

impl Tracer<'_> {
    /// A thread is about to make such a call. Its end matters if the file was mapped.
    pub(super) fn enter_file_call(&mut self, tid: Tid, entry: Entry) {
        let file = if self.begun { self.changed(tid, &entry) } else { None };
        let is_known = |key: &FileKey| self.files.table.get(*key).is_some() || self.files.memory.has(*key);
        let file = file.map(|facts| FileKey::of(&facts)).filter(is_known);
        if file.is_none() {
            return self.ignore(tid);
        }
        self.cpu(tid);
        // What writes have done to the file is known before this call changes it.
        self.drain(now());
        let start = now();
        self.merger.begin(tid, start);
        self.set_state(tid, State::InCall(InCall { file, ..InCall::new(entry, start) }));
        self.resume(tid, 0);
    }

    /// The file that a stopped thread is about to change, if there is one.
    fn changed(&mut self, tid: Tid, entry: &Entry) -> Option<Looked> {
        let args = entry.args;
        match entry.number as i64 {
            libc::SYS_ftruncate | libc::SYS_fallocate => {
                names::behind(&mut self.files.mounts, tid, args[0] as i32)
            }
            libc::SYS_truncate | libc::SYS_creat => self.named(tid, libc::AT_FDCWD, args[0]),
            libc::SYS_open if truncates(args[1]) => self.named(tid, libc::AT_FDCWD, args[0]),
            libc::SYS_openat if truncates(args[2]) => self.named(tid, args[0] as i32, args[1]),
            // The first word of its argument block.
            libc::SYS_openat2 if memory::read_u64(tid, args[2]).is_some_and(truncates) => {
                self.named(tid, args[0] as i32, args[1])
            }
            _ => None,
        }
    }

    /// The file that a stopped thread gives a path of, which may begin in the folder of a descriptor.
    fn named(&mut self, tid: Tid, folder: i32, path: u64) -> Option<Looked> {
        let path = memory::read_string(tid, path, PATH_LIMIT)?;
        let path = Path::new(OsStr::from_bytes(&path));
        named::look_at(names::find(&mut self.files.mounts, tid, folder, path)?)
    }

    /// It has made the call.
    pub(super) fn note_file_call(&mut self, tid: Tid, call: &InCall, result: i64, time: u64) {
        let changes = if is_error(result) { None } else { self.changed_by(tid, call, result, time) };
        let Some((grew, kinds)) = changes.filter(|(_, kinds)| !kinds.is_empty()) else {
            return self.merger.cancel(tid, call.start);
        };
        self.record(tid, (call.start, time), Rule::Resized { grew }, kinds);
    }

    /// What a call changed, and whether it made the file longer.
    fn changed_by(
        &mut self,
        tid: Tid,
        call: &InCall,
        result: i64,
        time: u64,
    ) -> Option<(bool, Vec<EventKind>)> {
        let (Entry { number, args, .. }, key) = (call.entry, call.file?);
        if self.files.memory.has(key) {
            return self.memory_changed_by(tid, call.entry, key, result);
        }
        let file = self.files.table.get_mut(key)?;
        let behind = |fd: i32| {
            let found = named::behind(&names::descriptor(tid, fd))?;
            let facts = named::look_at(&found).filter(|facts| FileKey::of(facts) == key)?;
            Some((found, facts))
        };
        // By now other threads can have put another file behind the descriptor, or under the name.
        let found = match number as i64 {
            libc::SYS_ftruncate | libc::SYS_fallocate => behind(args[0] as i32),
            libc::SYS_truncate => None,
            _ => behind(result as i32),
        };
        let is_there = found.is_some();
        let found = found.or_else(|| file.find(key));
        let size = match number as i64 {
            libc::SYS_ftruncate | libc::SYS_truncate => args[1],
            libc::SYS_fallocate => found.as_ref()?.1.bytes,
            _ if is_there => 0,
            // The name stood for another file when that was opened.
            _ => found.as_ref()?.1.bytes,
        };
        let mut changes = Vec::new();
        let (old, old_pages) = (file.size, file.pages());
        let mut again = if size > old { old_pages..u64::MAX } else { 0..0 };
        if let Some(hole) = hole(number, &args, old) {
            let pages = hole.start.div_ceil(PAGE)..hole.end / PAGE;
            if let Some(cached) = &mut file.cached {
                cached.remove(IndexRun { first: pages.start, pages: pages.end.saturating_sub(pages.start) });
            }
            again = pages;
            changes.push(FileChange::Punched(hole));
        }
        let length = |bytes| FileChange::Size { bytes, cause: SizeCause::Call };
        if let Some(start) = moved(number, &args).filter(|start| *start < old) {
            // What is behind is lost with the copies of it, and read anew.
            file.resize(start, time);
            changes.push(length(start));
            again = start / PAGE..u64::MAX;
        }
        if size != file.size {
            changes.push(length(size));
        }
        file.resize(size, time);
        if let Some((found, _)) = found {
            changes.extend(stayed(file, &found, again));
        }
        Some((size > old, changes.into_iter().filter_map(|change| event(key, change)).collect()))
    }
}

impl Tracer<'_> {
    /// The same of a file in memory.
    fn memory_changed_by(
        &mut self,
        tid: Tid,
        Entry { number, args, .. }: Entry,
        key: FileKey,
        result: i64,
    ) -> Option<(bool, Vec<EventKind>)> {
        let behind =
            |fd| named::look_behind(&names::descriptor(tid, fd)).filter(|facts| FileKey::of(facts) == key);
        let size = match number as i64 {
            libc::SYS_ftruncate | libc::SYS_truncate => args[1],
            libc::SYS_fallocate => behind(args[0] as i32)?.bytes,
            // It was opened, and emptied.
            _ => behind(result as i32).map(|_| 0)?,
        };
        let hole = |old| hole(number, &args, old).map(FileChange::Punched);
        let (grew, changes) = self.files.memory.changed(key, size, hole)?;
        Some((grew, changes.into_iter().filter_map(|change| event(key, change)).collect()))
    }
}

/// From where on a call moved the bytes of a file.
fn moved(number: u64, args: &[u64; 6]) -> Option<u64> {
    const MOVES: i32 = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
    (number as i64 == libc::SYS_fallocate && args[1] as i32 & MOVES != 0).then_some(args[2])
}

/// The bytes that a call made a hole; none if they are past the end.
fn hole(number: u64, args: &[u64; 6], size: u64) -> Option<std::ops::Range<u64>> {
    /// The last one writes zeros (Linux 6.17).
    const ZEROS: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE | 0x80;
    let [_, mode, offset, bytes, ..] = *args;
    let mode = mode as i32;
    let end = match number as i64 {
        libc::SYS_fallocate if mode & ZEROS != 0 => {
            offset.saturating_add(bytes).min(size.next_multiple_of(PAGE))
        }
        _ => return None,
    };
    // The longest file ends within a page.
    let end = end.min(FileChange::MOST_BYTES);
    (offset < end).then_some(offset..end)
}

/// Whether an open with these flags empties a regular file that is there.
fn truncates(flags: u64) -> bool {
    flags as i32 & (libc::O_TRUNC | libc::O_PATH) == libc::O_TRUNC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_is_within_the_file() {
        let number = libc::SYS_fallocate as u64;
        let args = |mode: i32, offset, bytes| [3, mode as u64, offset, bytes, 0, 0];
        let keeps = libc::FALLOC_FL_KEEP_SIZE;
        let punch = libc::FALLOC_FL_PUNCH_HOLE | keeps;
        for (mode, offset, bytes, found) in [
            (punch, 5000, 8000, Some(5000..13_000)),
            (punch, 0, u64::MAX, Some(0..5 * PAGE)),
            (punch, 5 * PAGE, 1, None),
            (libc::FALLOC_FL_ZERO_RANGE, PAGE, PAGE, Some(PAGE..2 * PAGE)),
            (0x80, PAGE, PAGE, Some(PAGE..2 * PAGE)),
            (libc::FALLOC_FL_COLLAPSE_RANGE, PAGE, PAGE, None),
            (keeps, 0, 9 * PAGE, None),
            (0, 0, 9 * PAGE, None),
        ] {
            assert_eq!(hole(number, &args(mode, offset, bytes), 4 * PAGE + 1), found, "{mode:#x}");
        }
        let longest = FileChange::MOST_BYTES;
        let found = hole(number, &args(punch, PAGE, u64::MAX), longest);
        assert_eq!(found, Some(PAGE..longest));
        assert_eq!(FileChange::Punched(found.unwrap()).check(), Ok(()));
        assert_eq!(hole(libc::SYS_ftruncate as u64, &args(punch, 0, 5), 9 * PAGE), None);
    }
}
