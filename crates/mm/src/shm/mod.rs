//! SysV shared memory: segments with keys, which processes attach.
//!
//! [`Memory::create_shm`](crate::Memory::create_shm) makes a name space of segments. A segment is shared
//! memory of its own, whose attachments are VMAs; it has as many attachments as VMAs map it. The calls have
//! Linux's results. Who calls, and the time, is the embedder's to say ([`ShmCaller`]). docs/shmem.md says
//! more.
//!
//! Lowest first: `caller`, `segment`, `table`, `control`.

mod caller;
mod control;
mod segment;
mod table;

pub use caller::ShmCaller;
pub use control::{ShmChange, ShmQuery, ShmTotals};
pub use segment::ShmStatus;

use crate::file::File;
use crate::space::{Error, MapFlags, MapRequest, MappedFile, Protection, Space, VmFlags};
use core::fmt;
use quire_arch::{LockClass, PAGE_SIZE, Platform, VirtAddr};
use quire_frame::KernelFrames;
use quire_space::Spaces;
use quire_sync::SpinLock;
use segment::{ALL_MODES, Attaching, Segment};
use table::{Table, TableError};

const IPC_PRIVATE: i32 = 0;
const IPC_CREAT: u32 = 0o1000;
const IPC_EXCL: u32 = 0o2000;
const SHM_HUGETLB: u32 = 0o4000;
const SHM_NORESERVE: u32 = 0o10000;
/// The binary logarithm of the size of huge pages lies from this bit on; 0 is the default size.
const SHM_HUGE_SHIFT: u32 = 26;

const SHM_RDONLY: u32 = 0o10000;
const SHM_RND: u32 = 0o20000;
const SHM_REMAP: u32 = 0o40000;
const SHM_EXEC: u32 = 0o100_000;

/// The most bytes of a segment (`SHMMAX`).
const MOST_BYTES: u64 = u64::MAX - (1 << 24);

/// The most bytes of any file.
const MOST_FILE_BYTES: u64 = i64::MAX as u64;

/// What the mappings of segments are like: as in Linux one is moved alone, and none goes in a merge.
const OF_SEGMENTS: VmFlags = VmFlags::PLACES_ITSELF.union(VmFlags::COUNTED);

/// A name space of segments of SysV shared memory.
///
/// When it is dropped its segments go as if each was removed (`IPC_RMID`): those that are attached with their
/// last attachment.
pub struct ShmNamespace<'m, P: Platform> {
    spaces: &'m Spaces<P>,
    table: SpinLock<Table<'m, P>, P>,
}

impl<'m, P: Platform> ShmNamespace<'m, P> {
    /// Without segments.
    pub(crate) fn new(spaces: &'m Spaces<P>) -> Result<Self, Error> {
        let table = Table::new(KernelFrames::new(spaces.frames()))?;
        Ok(Self { spaces, table: SpinLock::new(LockClass::Segments, table) })
    }

    /// The number of the segment with `key`, or of a new one (`shmget`). `flags` are Linux's.
    ///
    /// # Errors
    ///
    /// As Linux's: [`Error::NoKey`], [`Error::KeyInUse`], [`Error::SegmentSize`], [`Error::AccessDenied`],
    /// [`Error::TooManySegments`], [`Error::CommitLimit`], [`Error::NoFrames`]; for huge pages, of which
    /// there is no pool, [`Error::NoHugePages`] or [`Error::BadFlags`].
    pub fn get(&self, key: i32, size: u64, flags: u32, caller: &ShmCaller<'_>) -> Result<i32, Error> {
        let mut made = None;
        loop {
            let found = if key == IPC_PRIVATE { None } else { self.find_key(key, size, flags, caller)? };
            if let Some(id) = found {
                // Another thread was faster than this one with its own.
                return Ok(id);
            }
            let file = match made.take() {
                Some(file) => file,
                None => self.new_memory(size, flags)?,
            };
            let mut segment = Some(Segment::new(file, (key, size, flags & ALL_MODES), caller));
            let inserted = {
                let _pin = self.spaces.platform().pin();
                self.table.lock().insert(&mut segment)
            };
            match inserted {
                Ok(id) => return Ok(id),
                Err(TableError::Full) => return Err(Error::TooManySegments),
                Err(TableError::KeyInUse) => {}
                Err(TableError::NeedsPage) => {
                    let page = Table::<P>::allocate_page(KernelFrames::new(self.spaces.frames()))?;
                    let _pin = self.spaces.platform().pin();
                    self.table.lock().give_page(page);
                }
            }
            made = segment.and_then(Segment::into_file);
        }
    }

    fn find_key(
        &self,
        key: i32,
        size: u64,
        flags: u32,
        caller: &ShmCaller<'_>,
    ) -> Result<Option<i32>, Error> {
        self.with_table(|table| {
            let Some(segment) = table.find_key(key) else {
                return if flags & IPC_CREAT == 0 { Err(Error::NoKey) } else { Ok(None) };
            };
            if flags & (IPC_CREAT | IPC_EXCL) == IPC_CREAT | IPC_EXCL {
                return Err(Error::KeyInUse);
            }
            if size > segment.size() {
                return Err(Error::SegmentSize);
            }
            segment.check(caller, flags)?;
            Ok(Some(segment.id()))
        })
    }

    /// The memory of a new segment.
    fn new_memory(&self, size: u64, flags: u32) -> Result<File<'m, P>, Error> {
        if size == 0 || size > MOST_BYTES {
            return Err(Error::SegmentSize);
        }
        if flags & SHM_HUGETLB != 0 {
            return Err(match flags >> SHM_HUGE_SHIFT & 0x3f {
                0 | 21 | 30 => Error::NoHugePages,
                _ => Error::BadFlags,
            });
        }
        if size > MOST_FILE_BYTES {
            return Err(Error::SegmentSize);
        }
        let is_promised = flags & SHM_NORESERVE == 0;
        match File::create_segment(self.spaces, size, is_promised) {
            Err(Error::OffsetOverflow) => Err(Error::SegmentSize),
            result => result,
        }
    }

    /// Maps a segment (`shmat`), and returns where. `flags` are Linux's, and so is the address: 0 is any.
    ///
    /// # Errors
    ///
    /// As Linux's: [`Error::Unaligned`], [`Error::NoSegment`], [`Error::AccessDenied`],
    /// [`Error::BadArgument`] where something is mapped there already, and those of
    /// [`mmap`](Space::mmap).
    pub fn attach(
        &self,
        space: &Space<'_, P>,
        id: i32,
        addr: VirtAddr,
        flags: u32,
        caller: &ShmCaller<'_>,
    ) -> Result<VirtAddr, Error> {
        let wanted = AttachAt::new(addr, flags)?;
        let has = |flag: u32| flags & flag != 0;
        let mut protection = Protection::READ;
        protection.set(Protection::WRITE, !has(SHM_RDONLY));
        protection.set(Protection::EXECUTE, has(SHM_EXEC));
        let asked = 0o444 | if has(SHM_RDONLY) { 0 } else { 0o222 } | if has(SHM_EXEC) { 0o111 } else { 0 };
        let (held, size) = self.with_table(|table| {
            let segment = table.find(id)?;
            segment.check(caller, asked)?;
            Ok((segment.begin_to_attach()?, segment.size()))
        })?;
        let attached = self.map(space, &held, (size, protection), (wanted, !has(SHM_RDONLY)));
        self.with_table(|table| {
            // It is there: this thread attaches it.
            if let Ok(segment) = table.find(id) {
                segment.end_attaching(attached.is_ok().then_some(caller));
            }
            Ok(())
        })?;
        attached
    }

    fn map(
        &self,
        space: &Space<'_, P>,
        held: &Attaching<'m, P>,
        (size, protection): (u64, Protection),
        (wanted, writable): (AttachAt, bool),
    ) -> Result<VirtAddr, Error> {
        let request = MapRequest {
            flags: MapFlags::SHARED | wanted.flags(size)?,
            addr: wanted.addr(),
            file: Some(MappedFile { writable, vm_flags: OF_SEGMENTS, ..MappedFile::new(0, 0) }),
            ..MapRequest::anonymous(size, protection)
        };
        if request.flags.contains(MapFlags::FIXED_NOREPLACE) {
            // Linux looks for that before the limits and the rights of the program.
            let mut is_occupied = false;
            space.mappings().for_each_in(wanted.addr, VirtAddr(wanted.addr.0 + size), |_| is_occupied = true);
            if is_occupied {
                return Err(Error::BadArgument);
            }
        }
        // An opening of its own: two attachments never become one mapping.
        let file = File::open_held(self.spaces, held)?;
        space.mmap_file(&request, &file).map_err(|error| match error {
            Error::Occupied => Error::BadArgument,
            error => error,
        })
    }

    /// Unmaps what is left of the attachment at `addr` (`shmdt`).
    ///
    /// # Errors
    ///
    /// [`Error::Unaligned`]; [`Error::NotAttached`] if none begins there.
    pub fn detach(&self, space: &Space<'_, P>, addr: VirtAddr, caller: &ShmCaller<'_>) -> Result<(), Error> {
        space.files().detach(addr)?;
        self.settle(caller);
        Ok(())
    }

    /// Notes which segments have lost attachments since the last call, and that `caller` detached them. An
    /// embedder calls it after a call that may unmap memory (`munmap`, `mmap`, `mremap`, `mprotect`) and
    /// after the exit of a process, if there are segments: Linux has process and time of each in the segment.
    pub fn settle(&self, caller: &ShmCaller<'_>) {
        let mut next = Some(0);
        while let Some(from) = next {
            let gone;
            (next, gone) = {
                let _pin = self.spaces.platform().pin();
                self.table.lock().settle_from(from, caller)
            };
            drop(gone);
        }
    }

    /// Does `work` with the table locked, after what has gone has left it.
    fn with_table<R>(&self, work: impl FnOnce(&mut Table<'m, P>) -> Result<R, Error>) -> Result<R, Error> {
        while let Some(gone) = self.take_gone() {
            drop(gone);
        }
        let _pin = self.spaces.platform().pin();
        work(&mut self.table.lock())
    }

    /// A segment that was removed and has lost its last attachment. It is dropped with nothing locked.
    fn take_gone(&self) -> Option<Segment<'m, P>> {
        let _pin = self.spaces.platform().pin();
        self.table.lock().take_gone()
    }
}

/// Where a segment is to be attached.
#[derive(Clone, Copy)]
struct AttachAt {
    addr: VirtAddr,
    is_fixed: bool,
    replaces: bool,
}

impl AttachAt {
    fn new(addr: VirtAddr, flags: u32) -> Result<Self, Error> {
        let replaces = flags & SHM_REMAP != 0;
        let start = VirtAddr(addr.0 & !(PAGE_SIZE - 1));
        if start != addr && flags & SHM_RND == 0 {
            return Err(Error::Unaligned);
        }
        if start.0 == 0 && replaces {
            return Err(Error::BadArgument);
        }
        Ok(Self { addr: start, is_fixed: addr.0 != 0, replaces })
    }

    fn addr(self) -> Option<VirtAddr> {
        self.is_fixed.then_some(self.addr)
    }

    fn flags(self, size: u64) -> Result<MapFlags, Error> {
        // As Linux, which does not look at what is at address 0.
        Ok(match (self.is_fixed, self.replaces || self.addr.0 == 0) {
            (false, _) => MapFlags::empty(),
            (true, true) => MapFlags::FIXED,
            (true, false) => {
                self.addr.checked_add(size).ok_or(Error::BadArgument)?;
                MapFlags::FIXED_NOREPLACE
            }
        })
    }
}

impl<P: Platform> Drop for ShmNamespace<'_, P> {
    fn drop(&mut self) {
        loop {
            let last = {
                let _pin = self.spaces.platform().pin();
                self.table.lock().take_any()
            };
            // With nothing locked: its memory may go with it.
            if last.is_none() {
                return;
            }
        }
    }
}

impl<P: Platform> fmt::Debug for ShmNamespace<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmNamespace").finish_non_exhaustive()
    }
}
