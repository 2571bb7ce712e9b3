//! The files of a replay: their numbers, and what a recorded descriptor allows.

use super::known_file::{HostFile, KnownFile, NoBytes};
use super::shared_file::SharedFile;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, VirtAddr};
use quire_host::HostPlatform;
use quire_mm::Memory;
use quire_mm::abi::{Files, OpenFile};
use quire_mm::file::{File, FileError, ShmemEnabled, ShmemOwner};
use quire_mm::space::{Errno, MappedFile, Mapping, VmFlags};
use quire_trace::event::{
    Call, CallDetail, FileChange, FileEvent, FileFacts, FileKind, HeldInMemory, TmpfsHuge,
};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

/// File systems whose large mappings Linux aligns for huge pages (magic numbers of ext4, xfs and btrfs).
const HUGE_ALIGNED: [u64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// The file system of overlays (magic number). No device tells which of its files are in memory.
const OVERLAY: u64 = 0x794c_7630;

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

/// The first number of a file that is only a number: below are those of files of the machine.
const FIRST_NUMBER: u64 = 1 << 48;

/// Numbers for the files of a trace, and files of the machine for those whose size is known before they are
/// mapped, and for shared memory.
#[derive(Debug, Default)]
pub(super) struct FileIds<'m> {
    known: HashMap<Key, u64>,
    /// In order: they are closed in turn, and each replay is to find the same.
    files: BTreeMap<u64, KnownFile<'m>>,
    /// Likewise.
    shared: BTreeMap<u64, SharedFile<'m>>,
    /// Names of those that have one, as Linux shows them.
    names: HashMap<u64, Box<[u8]>>,
    next: u64,
    segments: HashSet<u64>,
    /// Shared memory that has ended on Linux, and is mapped here still.
    gone: Vec<u64>,
    /// Shared memory that recorders do not page out.
    stay: HashSet<u64>,
    rings: HashSet<u64>,
    /// The machine has other settings of shared memory than the recorded host had, by which Linux chooses
    /// where it is mapped.
    other_places: bool,
    /// What was found at the event of this number.
    beside: Cell<(u64, BesideTouches)>,
}

/// Files that are looked at for an event, on average: a recording may have any number of them.
const LOOKS_OF_EVENT: u64 = 64;

/// Shared memory with a name, in bytes, that is not in RAM because of a touch of who maps it.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct BesideTouches {
    /// What Linux had, and no touch brought in.
    pub(super) unplaced: u64,
    /// What nothing maps: whether it still exists is not recorded.
    pub(super) unmapped: u64,
}

impl<'m> FileIds<'m> {
    /// None yet. `other_places`: the machine has other settings of shared memory than the recorded host had.
    pub(super) fn new(other_places: bool) -> Self {
        Self { other_places, ..Self::default() }
    }

    /// Whether Linux chose other places for shared memory than are chosen here.
    pub(super) fn has_other_places(&self) -> bool {
        self.other_places
    }

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
        FIRST_NUMBER + self.next - 1
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

    /// Something is known of a file of the machine of `memory` from here on. A file that is only a number
    /// stays one: its mappings are not followed.
    pub(super) fn change(&mut self, memory: &'m Memory<HostPlatform>, event: &FileEvent) {
        let key = match event.device {
            FileEvent::SEGMENTS => Key::Segment(event.inode),
            device => Key::Inode(device, event.inode),
        };
        if let Some(&number) = self.known.get(&key) {
            if let Some(file) = self.files.get_mut(&number) {
                file.change(&event.change);
            } else if let Some(file) = self.shared.get_mut(&number) {
                match &event.change {
                    FileChange::Gone => {
                        // Another file may have its numbers, and another segment its id.
                        self.known.remove(&key);
                        self.gone.push(number);
                    }
                    change => file.change(change),
                }
            }
        } else if let Key::Segment(_) = key {
            // It was never attached here.
        } else if let FileChange::Size { bytes, .. } = event.change
            && let Ok(file) = memory.create_file(NoBytes, bytes)
        {
            let number = file.number();
            self.known.insert(key, number);
            self.files.insert(number, KnownFile::new(file, (event.device, event.inode)));
        }
        self.drop_gone();
    }

    /// Drops shared memory that Linux has no more, once nothing maps it here.
    fn drop_gone(&mut self) {
        if self.gone.is_empty() {
            return;
        }
        let shared = &mut self.shared;
        self.gone.retain(|number| {
            let is_mapped = shared.get(number).is_some_and(|file| file.opening().is_mapped());
            if !is_mapped {
                shared.remove(number);
            }
            is_mapped
        });
    }

    /// `call`, which succeeded, is about to be made: what it maps of shared memory with a name is that of the
    /// machine of `memory`. A file that is only a number, as that of an image, stays one.
    pub(super) fn share(&mut self, memory: &'m Memory<HostPlatform>, call: &Call) {
        self.drop_gone();
        let (key, name, bytes, held) = match &call.detail {
            CallDetail::File(_) => match call.file().filter(|facts| facts.kind == FileKind::Memory) {
                Some(facts) => (Key::Inode(facts.device, facts.inode), &*facts.name, facts.size, facts.held),
                None => return,
            },
            &CallDetail::Mapped { bytes, .. } if i64::from(call.number) == libc::SYS_shmat => {
                // Nothing but touches brings in pages of a segment.
                let held = Some(HeldInMemory { bytes: 0, changed: true });
                (Key::Segment(call.args[0] & 0xffff_ffff), &b""[..], bytes, held)
            }
            _ => return,
        };
        let number = match self.known.get(&key) {
            Some(&number) => number,
            None => {
                let Ok(file) = memory.create_shmem(InMount(mount_of(call)), bytes) else { return };
                let number = file.number();
                self.known.insert(key, number);
                self.shared.insert(number, SharedFile::new(file));
                if let Key::Segment(_) = key {
                    self.segments.insert(number);
                }
                number
            }
        };
        if !name.is_empty() && !self.names.contains_key(&number) {
            self.names.insert(number, name.into());
        }
        if let Some(file) = self.shared.get_mut(&number) {
            if call.file().is_some_and(|facts| facts.file_system == OVERLAY) {
                self.stay.insert(number);
            }
            file.note_mapped(bytes, held);
        }
    }

    /// Whether there is shared memory with a name.
    #[inline]
    pub(super) fn any_shared(&self) -> bool {
        !self.shared.is_empty()
    }

    /// The shared memory of this number.
    pub(super) fn shared(&mut self, number: u64) -> Option<&mut SharedFile<'m>> {
        self.shared.get_mut(&number)
    }

    /// Whether this is the number of shared memory.
    pub(super) fn is_shared(&self, number: u64) -> bool {
        self.shared.contains_key(&number)
    }

    /// Whether this is the number of shared memory that recorders do not page out, of which they know no
    /// later uses.
    pub(super) fn stays(&self, number: u64) -> bool {
        self.stay.contains(&number)
    }

    /// What of it touches did not bring in, about at event number `event`: of many files it is as it was some
    /// events before.
    pub(super) fn beside_touches(&self, event: u64) -> BesideTouches {
        let (at, found) = self.beside.get();
        let files = self.shared.len() as u64;
        if files > LOOKS_OF_EVENT && event.saturating_sub(at) < files / LOOKS_OF_EVENT {
            return found;
        }
        let bytes_of = |pages: fn(&SharedFile<'m>) -> u64| {
            self.shared
                .values()
                .fold(0_u64, |sum, file| sum.saturating_add(pages(file)))
                .saturating_mul(PAGE_SIZE)
        };
        let found = BesideTouches {
            unplaced: bytes_of(SharedFile::unplaced_of_programs),
            unmapped: bytes_of(SharedFile::pages_that_may_be_gone),
        };
        self.beside.set((event, found));
        found
    }

    /// Whether there is a file whose size is known.
    #[inline]
    pub(super) fn any_known(&self) -> bool {
        !self.files.is_empty()
    }

    /// How many files have a size that is known.
    pub(super) fn known_count(&self) -> u64 {
        self.files.len() as u64
    }

    /// Those whose size is known.
    pub(super) fn all_known(&mut self) -> impl Iterator<Item = &mut KnownFile<'m>> {
        self.files.values_mut()
    }

    /// Pages of those that are in the machine's cache.
    pub(super) fn cached(&self) -> u64 {
        self.files.values().map(KnownFile::cached).sum()
    }

    /// The file of this number, if its size is known.
    pub(super) fn known(&mut self, number: u64) -> Option<&mut KnownFile<'m>> {
        self.files.get_mut(&number)
    }

    /// The open file of this number, if it is one of the machine.
    pub(super) fn opening(&self, number: u64) -> Option<&Rc<HostFile<'m>>> {
        let known = self.files.get(&number).map(KnownFile::opening);
        known.or_else(|| self.shared.get(&number).map(SharedFile::opening))
    }

    /// Whether the size of a file that is mapped by a call is known.
    pub(super) fn knows(&self, facts: &FileFacts) -> bool {
        let number = self.known.get(&Key::Inode(facts.device, facts.inode));
        is_cached(facts) && number.is_some_and(|&number| self.opening(number).is_some())
    }

    /// Whether the file of `mapping` is known to end before what is mapped of it before `end`.
    pub(super) fn is_past_end(&self, mapping: &Mapping, end: VirtAddr) -> bool {
        let pages = (mapping.range.end().0.min(end.0) - mapping.range.start().0) >> PAGE_SHIFT;
        let size = mapping.file.and_then(|number| {
            let known = self.files.get(&number).map(KnownFile::pages);
            known.or_else(|| self.shared.get(&number).map(SharedFile::pages))
        });
        size.is_some_and(|size| mapping.page_offset.saturating_add(pages) > size)
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

/// Who has shared memory: the option `huge` of the file system in memory that it is in, if it is in one.
struct InMount(Option<ShmemEnabled>);

impl ShmemOwner for InMount {
    fn take_pages(&self, _pages: u64) -> Result<(), FileError> {
        Ok(())
    }

    fn give_back_pages(&self, _pages: u64) {}

    fn huge(&self) -> Option<ShmemEnabled> {
        self.0
    }
}

/// The option of the mount whose file a call maps. Of an overlay it is not known what lies below.
fn mount_of(call: &Call) -> Option<ShmemEnabled> {
    let facts = call.file()?;
    match facts.mount_huge {
        Some(TmpfsHuge::Never) => Some(ShmemEnabled::Never),
        Some(TmpfsHuge::Always) => Some(ShmemEnabled::Always),
        Some(TmpfsHuge::WithinSize) => Some(ShmemEnabled::WithinSize),
        Some(TmpfsHuge::Advise) => Some(ShmemEnabled::Advise),
        None => (facts.file_system == OVERLAY).then_some(ShmemEnabled::Never),
    }
}

/// Whether mappings of the file show pages of the page cache.
fn is_cached(facts: &FileFacts) -> bool {
    matches!(facts.kind, FileKind::Regular | FileKind::Memory)
}

/// The one file that a call maps.
pub(super) struct RecordedFile<'c, 'm> {
    facts: Option<&'c FileFacts>,
    id: u64,
    opening: Option<Rc<HostFile<'m>>>,
}

impl<'c, 'm> RecordedFile<'c, 'm> {
    pub(super) fn of(call: &'c Call, files: &mut FileIds<'m>) -> Self {
        let facts = call.file();
        let id = facts.map_or(0, |facts| files.id(facts.device, facts.inode, &facts.name));
        let opening = facts.filter(|facts| is_cached(facts)).and_then(|_| files.opening(id)).map(Rc::clone);
        Self { facts, id, opening }
    }
}

impl Files<HostPlatform> for RecordedFile<'_, '_> {
    fn opening(&self, _descriptor: i32) -> Option<&File<'_, HostPlatform>> {
        self.opening.as_deref()
    }

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
