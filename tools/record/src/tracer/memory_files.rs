//! Files in memory that were mapped: their lengths, their holes, and their ends.
//!
//! A memfd and a file of a tmpfs have their pages as long as a name, a descriptor or a mapping has them; of a
//! System V segment it is its id. No call tells which was the last: an inotify watch of the inode does.

use super::Tracer;
use crate::files::FileKey;
use crate::merge::Rule;
use crate::sys::Tid;
use crate::sys::ends::Ends;
use quire_trace::event::{EventKind, FileChange, FileEvent, FileFacts, FileKind, SizeCause, TaskId};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A file in memory that was mapped and has not ended.
#[derive(Debug)]
struct MemoryFile {
    size: u64,
    /// The thread that mapped it first.
    task: TaskId,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct MemoryFiles {
    files: HashMap<FileKey, MemoryFile>,
    watches: HashMap<i32, FileKey>,
    ends: Ends,
}

impl MemoryFiles {
    /// Whether it is one of them.
    pub(super) fn has(&self, key: FileKey) -> bool {
        self.files.contains_key(&key)
    }

    /// It is mapped, and this path leads to it now.
    fn see(&mut self, key: FileKey, (size, task): (u64, TaskId), path: &Path) {
        if let Some(file) = self.files.get_mut(&key) {
            file.size = size;
            return;
        }
        self.files.insert(key, MemoryFile { size, task });
        if let Some(watch) = self.ends.watch(path) {
            self.watches.insert(watch, key);
        }
    }

    /// A call gave it this length, after it had made a hole. `None` if it is none of them; whether it is
    /// longer, and the changes.
    pub(super) fn changed(
        &mut self,
        key: FileKey,
        size: u64,
        hole: impl Fn(u64) -> Option<FileChange>,
    ) -> Option<(bool, Vec<FileChange>)> {
        let file = self.files.get_mut(&key)?;
        let old = std::mem::replace(&mut file.size, size);
        let length = (size != old).then_some(FileChange::Size { bytes: size, cause: SizeCause::Call });
        Some((size > old, hole(old).into_iter().chain(length).collect()))
    }

    /// Those that have ended, and whose they were.
    fn ended(&mut self) -> Vec<(FileKey, TaskId)> {
        let keys = self.ends.ended().into_iter().filter_map(|watch| self.watches.remove(&watch));
        keys.filter_map(|key| Some((key, self.files.remove(&key)?.task))).collect()
    }
}

impl Tracer<'_> {
    /// A thread that is stopped is about to map this file.
    pub(super) fn see_memory(&mut self, tid: Tid, fd: i32, facts: &FileFacts) {
        if facts.kind == FileKind::Memory
            && let Some(task) = self.tasks.get(&tid).map(|task| task.id)
        {
            let key = FileKey { device: facts.device, inode: facts.inode };
            let path = PathBuf::from(format!("/proc/{tid}/fd/{fd}"));
            self.files.memory.see(key, (facts.size, task), &path);
        }
    }

    /// A thread that is stopped has attached the System V segment with this id, which is mapped there.
    pub(super) fn see_segment(&mut self, tid: Tid, id: u64, (start, bytes): (u64, u64)) {
        let key = FileKey { device: FileEvent::SEGMENTS, inode: id & 0xffff_ffff };
        if let Some(task) = self.tasks.get(&tid).map(|task| task.id)
            && bytes > 0
        {
            let path = PathBuf::from(format!("/proc/{tid}/map_files/{start:x}-{:x}", start + bytes));
            self.files.memory.see(key, (bytes, task), &path);
        }
    }

    /// Notes which of them have ended by now.
    pub(super) fn note_ended_files(&mut self, time: u64) {
        for (key, task) in self.files.memory.ended() {
            let FileKey { device, inode } = key;
            let kind = EventKind::File(Box::new(FileEvent { device, inode, change: FileChange::Gone }));
            self.merger.file((time, time), task, Rule::AtEnd, vec![kind]);
        }
    }
}
