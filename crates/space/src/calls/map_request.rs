//! The arguments of `mmap`.

use crate::error::Error;
use bitflags::bitflags;
use quire_arch::{PAGE_SHIFT, VirtAddr};
use quire_vma::{HugePages, Protection, VmFlags};

bitflags! {
    /// How a mapping is made.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct MapFlags: u32 {
        /// Changes are shared with others (`MAP_SHARED`); without it the mapping is private.
        const SHARED = 1 << 0;
        /// Exactly at the address, replacing what is there (`MAP_FIXED`).
        const FIXED = 1 << 1;
        /// Exactly at the address, if nothing is there (`MAP_FIXED_NOREPLACE`).
        const FIXED_NOREPLACE = 1 << 2;
        /// A stack that grows downwards (`MAP_GROWSDOWN`).
        const GROWSDOWN = 1 << 3;
        /// Pages are faulted in and stay (`MAP_LOCKED`).
        const LOCKED = 1 << 4;
        /// Not counted against the commit limit (`MAP_NORESERVE`).
        const NORESERVE = 1 << 5;
        /// Pages are faulted in at once (`MAP_POPULATE`).
        const POPULATE = 1 << 6;
        /// With POPULATE: do not (`MAP_NONBLOCK`).
        const NONBLOCK = 1 << 7;
        /// In the first 2 GiB of addresses (`MAP_32BIT`).
        const BELOW_2G = 1 << 8;
        /// A thread's stack: no large folios (`MAP_STACK`).
        const STACK = 1 << 9;
    }
}

impl MapFlags {
    /// The address is not a hint.
    #[doc(hidden)]
    pub const fn is_fixed(self) -> bool {
        self.intersects(Self::FIXED.union(Self::FIXED_NOREPLACE))
    }
}

/// The file that a mapping maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedFile {
    /// The embedder's number for the file; equal numbers are the same file.
    pub id: u64,
    /// First page of the file that is mapped.
    pub page_offset: u64,
    /// The descriptor allows writing.
    pub writable: bool,
    /// What `mprotect` may allow later. A file system that is mounted without execution takes EXECUTE away, a
    /// seal WRITE of what is shared.
    pub may: Protection,
    /// The offsets that a byte of the file can have lie below this: 2^63 for regular files, 2^64 - 1 for
    /// devices.
    pub max_bytes: u64,
    /// The file system wants large mappings aligned for huge pages (ext4, xfs, btrfs).
    pub huge_alignment: bool,
    /// Flags that its mappings get, as a device sets them: WHOLE, IO, DONTEXPAND, DONTCOPY, DONTDUMP. ZEROS,
    /// PLACES_ITSELF and COUNTED say what the file is like, HIDES_CACHE that it is not the program's. Others
    /// are ignored.
    pub vm_flags: VmFlags,
}

impl MappedFile {
    /// `max_bytes` of regular files, block devices and sockets.
    pub const REGULAR_BYTES: u64 = i64::MAX as u64;
    /// `max_bytes` of all others.
    pub const DEVICE_BYTES: u64 = u64::MAX;

    /// File `id` from its page `page_offset` on, with everything allowed.
    pub const fn new(id: u64, page_offset: u64) -> Self {
        let max_bytes = Self::REGULAR_BYTES;
        let vm_flags = VmFlags::empty();
        Self {
            id,
            page_offset,
            writable: true,
            may: Protection::all(),
            max_bytes,
            huge_alignment: false,
            vm_flags,
        }
    }

    /// Whether `pages` pages from `page_offset` on have offsets that the file can have.
    pub(crate) fn has(&self, pages: u64) -> bool {
        let bytes = pages << PAGE_SHIFT;
        bytes <= self.max_bytes && self.page_offset <= (self.max_bytes - bytes) >> PAGE_SHIFT
    }
}

/// The arguments of `mmap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRequest {
    /// The address: a hint, or exact with a FIXED flag. A hint of 0 is none, as in Linux.
    pub addr: Option<VirtAddr>,
    /// Bytes; rounded up to whole pages.
    pub len: u64,
    /// The protection.
    pub protection: Protection,
    /// How.
    pub flags: MapFlags,
    /// The file, or anonymous memory.
    pub file: Option<MappedFile>,
    /// Huge pages, and the first of the mapping in their own file. Only without a file.
    pub huge_pages: Option<(HugePages, u64)>,
    /// The embedder's error for the file or the kind of mapping. Linux checks that after it has chosen an
    /// address, so it is reported only then.
    pub objection: Option<Error>,
}

impl MapRequest {
    /// Private anonymous memory anywhere.
    pub const fn anonymous(len: u64, protection: Protection) -> Self {
        Self {
            addr: None,
            len,
            protection,
            flags: MapFlags::empty(),
            file: None,
            huge_pages: None,
            objection: None,
        }
    }

    /// Whether it maps new shared memory, by mapping a file of zeros.
    pub(crate) fn is_shared_zeros(&self) -> bool {
        self.flags.contains(MapFlags::SHARED)
            && self.file.as_ref().is_some_and(|file| file.vm_flags.contains(VmFlags::ZEROS))
    }

    /// The file, if it wants the mapping aligned for huge pages.
    pub(crate) fn huge_aligned_file(&self) -> Option<&MappedFile> {
        self.file.as_ref().filter(|file| file.huge_alignment && !self.is_shared_zeros())
    }

    /// The same at `addr`, with `flags`.
    pub const fn at(self, addr: VirtAddr, flags: MapFlags) -> Self {
        Self { addr: Some(addr), flags: self.flags.union(flags), ..self }
    }
}
