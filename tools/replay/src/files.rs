//! The files of a replay: their numbers, and what a recorded descriptor allows.

use quire_arch::Platform;
use quire_mm::abi::{Files, OpenFile};
use quire_mm::space::{Errno, MappedFile, VmFlags};
use quire_trace::event::{Call, FileFacts, FileKind};
use std::collections::{HashMap, HashSet};

/// File systems whose large mappings Linux aligns for huge pages (magic numbers of ext4, xfs and btrfs).
const HUGE_ALIGNED: [u64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// The name of a file of perf events, whose mappings are rings.
const PERF_EVENTS: &[u8] = b"anon_inode:[perf_event]";

/// What Linux sets on such a mapping: it is neither divided nor enlarged, and children do not get it.
const RING: VmFlags =
    VmFlags::WHOLE.union(VmFlags::DONTEXPAND).union(VmFlags::DONTCOPY).union(VmFlags::DONTDUMP);

/// What a number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// A file by its device and inode.
    Inode(u64, u64),
    /// A System V segment by its id.
    Segment(u64),
}

/// Numbers for the files of a trace.
#[derive(Debug, Default)]
pub(super) struct FileIds {
    known: HashMap<Key, u64>,
    /// Names of those that have one, as Linux shows them.
    names: HashMap<u64, Box<[u8]>>,
    next: u64,
    segments: HashSet<u64>,
    rings: HashSet<u64>,
}

impl FileIds {
    /// The number of the file with this device and inode, which has this name now.
    pub(super) fn id(&mut self, device: u64, inode: u64, name: &[u8]) -> u64 {
        let number = self.of(Key::Inode(device, inode));
        if !name.is_empty() && !self.names.contains_key(&number) {
            self.names.insert(number, name.into());
        }
        number
    }

    /// The last part of the file's name, if it has one.
    pub(super) fn name(&self, number: u64) -> Option<String> {
        let name = self.names.get(&number)?;
        let last = name.rsplit(|&byte| byte == b'/').next()?;
        Some(String::from_utf8_lossy(last).into_owned())
    }

    /// A number that no other file has.
    pub(super) fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// The number of the System V segment with this id (`shmget`).
    pub(super) fn segment(&mut self, id: u64) -> u64 {
        let number = self.of(Key::Segment(id));
        self.segments.insert(number);
        number
    }

    /// A number for a ring of asynchronous I/O (`io_setup`).
    pub(super) fn ring(&mut self) -> u64 {
        let number = self.fresh();
        self.rings.insert(number);
        number
    }

    /// Whether the file is a System V segment.
    pub(super) fn is_segment(&self, number: u64) -> bool {
        self.segments.contains(&number)
    }

    /// Whether the file is a ring of asynchronous I/O.
    pub(super) fn is_ring(&self, number: u64) -> bool {
        self.rings.contains(&number)
    }

    fn of(&mut self, key: Key) -> u64 {
        if let Some(&number) = self.known.get(&key) {
            return number;
        }
        let number = self.fresh();
        self.known.insert(key, number);
        number
    }
}

/// The one file that a call maps.
#[derive(Clone, Copy)]
pub(super) struct RecordedFile<'c> {
    facts: Option<&'c FileFacts>,
    id: u64,
}

impl<'c> RecordedFile<'c> {
    pub(super) fn of(call: &'c Call, files: &mut FileIds) -> Self {
        let facts = call.file();
        let id = facts.map_or(0, |facts| files.id(facts.device, facts.inode, &facts.name));
        Self { facts, id }
    }
}

impl<P: Platform> Files<P> for RecordedFile<'_> {
    fn open_file(&self, _descriptor: i32) -> Option<OpenFile> {
        let facts = self.facts?;
        let refused = |errno: Option<u16>| errno.map(|errno| Errno(errno.into()));
        let no_exec = facts.no_exec.then_some(Errno::EPERM);
        let (refused, write_refused, exec_refused) = match facts.trial {
            _ if facts.kind == FileKind::BadDescriptor => return None,
            // Opened with O_PATH: good for naming the file and for nothing else.
            Some(trial) if refused(trial.refused) == Some(Errno::EBADF) => return None,
            Some(trial) => (
                refused(trial.refused),
                refused(trial.write_refused),
                refused(trial.exec_refused).or(no_exec),
            ),
            None => match facts.kind {
                FileKind::Regular | FileKind::Directory | FileKind::Memory
                    if !facts.readable && !facts.writable =>
                {
                    return None;
                }
                FileKind::Directory | FileKind::Other => (Some(Errno::ENODEV), None, no_exec),
                _ => (None, None, no_exec),
            },
        };
        let max_bytes = match facts.kind {
            FileKind::Directory | FileKind::CharDevice | FileKind::Zero => MappedFile::DEVICE_BYTES,
            _ => MappedFile::REGULAR_BYTES,
        };
        let zeros = facts.kind == FileKind::Zero;
        let mut vm_flags = VmFlags::empty();
        vm_flags.set(VmFlags::ZEROS | VmFlags::PLACES_ITSELF, zeros);
        vm_flags.set(RING, &*facts.name == PERF_EVENTS);
        Some(OpenFile {
            id: self.id,
            readable: facts.readable,
            writable: facts.writable,
            refused,
            write_refused,
            exec_refused,
            max_bytes,
            huge_alignment: zeros || HUGE_ALIGNED.contains(&facts.file_system),
            vm_flags,
        })
    }
}
