//! `mmap`.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use bitflags::bitflags;
use quire_arch::{PAGE_SHIFT, Platform, VirtAddr, VirtRange};
use quire_rmap::{AnonVmaRef, Backing, HugePages, Proposal, Protection, Rights, VmFlags};

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
    /// Flags that its mappings get, as a device sets them: WHOLE, IO, DONTEXPAND, DONTCOPY, DONTDUMP. ZEROS
    /// and PLACES_ITSELF say what the file is like. Others are ignored.
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
    fn has(&self, pages: u64) -> bool {
        let bytes = pages << PAGE_SHIFT;
        bytes <= self.max_bytes && self.page_offset <= (self.max_bytes - bytes) >> PAGE_SHIFT
    }
}

/// The flags of [`MappedFile::vm_flags`] that a mapping has.
const OF_FILES: VmFlags = VmFlags::WHOLE
    .union(VmFlags::PLACES_ITSELF)
    .union(VmFlags::IO)
    .union(VmFlags::DONTEXPAND)
    .union(VmFlags::DONTCOPY)
    .union(VmFlags::DONTDUMP);

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
    fn is_shared_zeros(&self) -> bool {
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

/// Refuses a new mapping where there are too many. Linux looks at that before it looks at the address.
pub(crate) fn check_map_count<P: Platform>(writer: &MmapWriter<'_, P>) -> Result<(), Error> {
    if writer.mappings() > writer.core.limits.load().mappings { Err(Error::MapCountLimit) } else { Ok(()) }
}

/// Maps `request` at `range`, which was chosen for it, and returns the flags of the VMA.
pub(crate) fn map_request<P: Platform>(
    writer: &mut MmapWriter<'_, P>,
    request: &MapRequest,
    range: VirtRange,
) -> Result<VmFlags, Error> {
    let mut flags = flags_for(writer, request);
    // Linux maps huge pages as an internal file.
    let huge_file;
    let file = match &request.huge_pages {
        None => request.file.as_ref(),
        Some((_, page_offset)) => {
            huge_file = MappedFile::new(0, *page_offset);
            Some(&huge_file)
        }
    };
    check_map(writer, request, range, (flags, file))?;

    let occupied = writer.first_in(range).is_some();
    let splits = if occupied { writer.vmas_to_unmap(range) } else { 0 };
    if occupied {
        // Once the rest of a mapping is two there would be one too many, and one more for the new one.
        if splits > 0 && writer.mappings() >= writer.core.limits.load().mappings {
            return Err(Error::MapCountLimit);
        }
        writer.may_cut(range)?;
    }
    let replaced = if occupied { replaced_by(writer, range) } else { Replaced::default() };
    writer.may_expand(flags, range.pages() - replaced.pages)?;
    if flags.intersects(VmFlags::SPECIAL) {
        flags -= VmFlags::LOCK_MASK;
    }
    if request.huge_pages.is_some() || request.objection.is_some() {
        call_file_operation(writer, request, range, flags)?;
    }
    let mut charge = 0;
    if flags.is_accountable() {
        charge = range.pages() - replaced.accounted.min(range.pages());
        writer.spaces.promise(charge)?;
        flags |= VmFlags::ACCOUNT;
    }
    let (backing, page_offset) = match &request.file {
        Some(file) if !file.vm_flags.contains(VmFlags::ZEROS) => (Backing::file(file.id), file.page_offset),
        Some(file) if request.is_shared_zeros() => {
            (Backing::shared_anonymous(writer.spaces.new_number()), file.page_offset)
        }
        Some(file) => (Backing::zeros(file.id), file.page_offset),
        None if request.flags.contains(MapFlags::SHARED) || file.is_some() => {
            let offset = file.map_or(0, |file| file.page_offset);
            (Backing::shared_anonymous(writer.spaces.new_number()), offset)
        }
        None => (Backing::ANONYMOUS, range.start().0 >> PAGE_SHIFT),
    };
    let proposal = Proposal { range, flags, page_offset, backing, anon: AnonVmaRef::NONE };
    let mut neighbours = writer.neighbours_for(&proposal);
    let mut prepared = match writer.prepare(neighbours.vmas_needed() + splits) {
        Ok(prepared) => prepared,
        Err(error) => {
            writer.spaces.commit().release(charge);
            return Err(error.into());
        }
    };
    if flags.contains(VmFlags::ACCOUNT) {
        // `unmap` releases the charge of the replaced part, so the new mapping takes that part over.
        writer.spaces.commit().charge_unchecked(range.pages() - charge);
    }
    if occupied {
        writer.unmap(range, &mut prepared);
        // The same choice as before, but what is left of a mapping that was split may be another VMA now.
        neighbours = writer.neighbours_for(&proposal);
    }
    let _ = writer.map(&proposal, neighbours, &mut prepared);
    Ok(flags)
}

/// Refuses a request for what it asks, in Linux's order, before it is looked at what it would replace.
/// `file` is what a mapping with `flags` would map.
fn check_map<P: Platform>(
    writer: &MmapWriter<'_, P>,
    request: &MapRequest,
    range: VirtRange,
    (flags, file): (VmFlags, Option<&MappedFile>),
) -> Result<(), Error> {
    let limits = writer.core.limits.load();
    if request.flags.contains(MapFlags::FIXED_NOREPLACE) && writer.first_in(range).is_some() {
        return Err(Error::Occupied);
    }
    if request.flags.contains(MapFlags::LOCKED) && !writer.rights.contains(Rights::LOCK) && limits.locked == 0
    {
        return Err(Error::NotPermitted);
    }
    if !writer.may_lock_more(flags, range.pages()) {
        return Err(Error::LockLimitAgain);
    }
    if file.is_some_and(|file| !file.has(range.pages())) {
        return Err(Error::OffsetOverflow);
    }
    // The file's own operation is called last.
    if let Some(objection) = &request.objection
        && !objection.is_of_the_operation()
    {
        return Err(*objection);
    }
    if request.flags.contains(MapFlags::GROWSDOWN)
        && (file.is_some() || request.flags.contains(MapFlags::SHARED))
    {
        return Err(Error::BadFlags);
    }
    writer.check_exec_gain(flags, flags)
}

/// The result of the file's own operation, which Linux calls last: by then it has unmapped the replaced
/// mappings.
#[cold]
fn call_file_operation<P: Platform>(
    writer: &mut MmapWriter<'_, P>,
    request: &MapRequest,
    range: VirtRange,
    flags: VmFlags,
) -> Result<(), Error> {
    let refused = match request.huge_pages {
        Some((size, page_offset)) => MmapWriter::<P>::reserve_huge(size, page_offset, flags),
        None => request.objection.map_or(Ok(()), Err),
    };
    if refused.is_err() {
        writer.unmap_checked(range)?;
    }
    refused
}

fn flags_for<P: Platform>(writer: &MmapWriter<'_, P>, request: &MapRequest) -> VmFlags {
    let asked = request.flags;
    let mut flags =
        VmFlags::from_protection(request.protection) | VmFlags::MAY_ACCESS | writer.core.default_flags();
    flags.set(VmFlags::GROWSDOWN, asked.contains(MapFlags::GROWSDOWN));
    flags.set(VmFlags::NOHUGEPAGE, asked.contains(MapFlags::STACK));
    if asked.contains(MapFlags::LOCKED) {
        flags |= VmFlags::LOCKED;
    }
    if let Some(file) = &request.file {
        flags.set(VmFlags::MAYWRITE, file.may.contains(Protection::WRITE));
        flags.set(VmFlags::MAYEXEC, file.may.contains(Protection::EXECUTE));
    }
    if asked.contains(MapFlags::SHARED) {
        flags |= VmFlags::SHARED | VmFlags::MAYSHARE;
        if request.file.as_ref().is_some_and(|file| !file.writable) {
            flags -= VmFlags::SHARED | VmFlags::MAYWRITE;
        }
    }
    if let Some(file) = &request.file {
        flags.set(VmFlags::HUGE_ALIGNED, request.huge_aligned_file().is_some());
        if !request.is_shared_zeros() {
            flags |= file.vm_flags & OF_FILES;
        }
    }
    let honoured = request.huge_pages.is_some() || writer.spaces.commit().honours_noreserve();
    flags.set(VmFlags::NORESERVE, asked.contains(MapFlags::NORESERVE) && honoured);
    if let Some((size, _)) = request.huge_pages {
        flags |= size.flags();
    }
    flags
}

/// What a mapping at `range` would replace.
fn replaced_by<P: Platform>(writer: &MmapWriter<'_, P>, range: VirtRange) -> Replaced {
    let mut replaced = Replaced::default();
    let mut at = range.start();
    while let Some(vma) = writer.first_in(VirtRange::new(at, range.end())) {
        let part = vma.range().intersect(range);
        replaced.pages += part.pages();
        if vma.flags().contains(VmFlags::ACCOUNT) {
            replaced.accounted += part.pages();
        }
        at = part.end();
    }
    replaced
}

/// Pages that are unmapped when a mapping takes their place.
#[derive(Default)]
struct Replaced {
    pages: u64,
    accounted: u64,
}
