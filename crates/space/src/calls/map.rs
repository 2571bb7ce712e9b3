//! `mmap`.

use crate::caller::Caller;
use crate::calls::map_request::{MapFlags, MapRequest, MappedFile};
use crate::calls::placement::{place, shmem_alignment};
use crate::calls::populate::populate;
use crate::calls::unmap::unmap_range;
use crate::error::Error;
use crate::file::{File, backing_of, enter_file};
use crate::mmap_writer::MmapWriter;
use quire_arch::addr::page_align_up;
use quire_arch::{PAGE_SHIFT, Platform, VirtAddr, VirtRange};
use quire_file::Opening;
use quire_pagetable::{FlushCause, Unmapper};
use quire_vma::{AnonVmaRef, Backing, Proposal, Protection, Rights, VmFlags, Vma};

/// The flags of [`MappedFile::vm_flags`] that a mapping has.
const OF_FILES: VmFlags = VmFlags::WHOLE
    .union(VmFlags::PLACES_ITSELF)
    .union(VmFlags::COUNTED)
    .union(VmFlags::HIDES_CACHE)
    .union(VmFlags::IO)
    .union(VmFlags::DONTEXPAND)
    .union(VmFlags::DONTCOPY)
    .union(VmFlags::DONTDUMP);

/// `mmap`. `opened` is the open file behind the request's, if that is not only a number; the caller holds it.
pub(crate) fn mmap<P: Platform>(
    caller: Caller<'_, P>,
    request: &MapRequest,
    opened: Option<&Opening<Vma>>,
) -> Result<VirtAddr, Error> {
    let len = request.huge_pages.map_or(request.len, |(size, _)| size.align_up(request.len));
    if len == 0 {
        return Err(Error::ZeroLength);
    }
    let len = page_align_up(len).filter(|&len| len != 0).ok_or(Error::OutOfRange)?;
    let layout = &caller.core.layout;
    let hint = match request.addr {
        None if request.flags.is_fixed() => return Err(Error::BadFlags),
        Some(addr) if request.flags.is_fixed() => addr,
        None => VirtAddr(0),
        Some(addr) => match addr.page_start() {
            VirtAddr(0) => VirtAddr(0),
            start => start.max(layout.mmap_min),
        },
    };
    let (range, flags) = caller.with_reclaim(|| map_once(caller, (request, opened), hint, len))?;
    let populates = request.flags & (MapFlags::POPULATE | MapFlags::NONBLOCK) == MapFlags::POPULATE;
    if populates || flags.contains(VmFlags::LOCKED) {
        populate(caller, range);
    }
    Ok(range.start())
}

/// One attempt, without reclaim: returns where the mapping is, and its flags.
#[inline(never)]
fn map_once<P: Platform>(
    caller: Caller<'_, P>,
    (request, opened): (&MapRequest, Option<&Opening<Vma>>),
    hint: VirtAddr,
    len: u64,
) -> Result<(VirtRange, VmFlags), Error> {
    // Dropped when the mmap lock is released.
    let mut shared = None;
    let mut section = caller.writer();
    check_map_count(&section)?;
    let shmem = shmem_alignment(&section, request, opened);
    let addr = place(&section, request, (hint, len), shmem)?;
    let range = VirtRange::new(addr, VirtAddr(addr.0 + len));
    Ok((range, map_request(&mut section, request, (opened, &mut shared), range)?))
}

/// Refuses a new mapping where there are too many. Linux looks at that before it looks at the address.
pub(crate) fn check_map_count<P: Platform>(writer: &MmapWriter<'_, P>) -> Result<(), Error> {
    if writer.mappings() > writer.core.limits.load().mappings { Err(Error::MapCountLimit) } else { Ok(()) }
}

/// Maps `request` at `range`, which was chosen for it, and returns the flags of the VMA. `opened` is as for
/// [`mmap`]; new shared memory goes to `shared`, to be dropped without the mmap lock.
fn map_request<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    request: &MapRequest,
    (opened, shared): (Option<&Opening<Vma>>, &mut Option<File<'s, P>>),
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
    // Until the mapping is there no seal is set against it.
    let _entering = match opened {
        // SAFETY: the opening is one of a file of this machine.
        Some(opened) => unsafe { enter_file(writer.spaces.platform(), opened, &mut flags) }?,
        None => None,
    };
    writer.check_exec_gain(flags, flags)?;

    let beside = writer.beside(range.start());
    let occupied = beside.1.is_some_and(|vma| vma.range().start() < range.end());
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
        Some(file) if !file.vm_flags.contains(VmFlags::ZEROS) => {
            // SAFETY: the opening is one of a file of this machine.
            let backing = opened.map(|opened| unsafe { backing_of::<P>(opened) });
            (backing.unwrap_or(Backing::file(file.id)), file.page_offset)
        }
        Some(file) if !request.is_shared_zeros() => (Backing::zeros(file.id), file.page_offset),
        None if !request.flags.contains(MapFlags::SHARED) && file.is_none() => {
            (Backing::ANONYMOUS, range.start().0 >> PAGE_SHIFT)
        }
        _ => {
            // Only programs that may overcommit do not have all of it promised.
            let is_promised = request.huge_pages.is_none() && !flags.contains(VmFlags::NORESERVE);
            let made = File::create_unnamed(writer.spaces, range.len(), is_promised);
            let made = made.inspect_err(|_| writer.spaces.commit().release(charge))?;
            (shared.insert(made).backing_of(), file.map_or(0, |file| file.page_offset))
        }
    };
    let proposal = Proposal { range, flags, page_offset, backing, anon: AnonVmaRef::NONE };
    let mut neighbours = match occupied {
        true => writer.neighbours_for(&proposal),
        false => MmapWriter::<P>::neighbours_of(&proposal, beside),
    };
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
        let mut unmapper = Unmapper::new(writer.tables(), FlushCause::Unmap);
        writer.unmap(range, &mut prepared, &mut unmapper);
        unmapper.finish();
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
    Ok(())
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
        unmap_range(writer, range)?;
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
