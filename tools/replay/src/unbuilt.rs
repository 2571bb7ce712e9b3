//! Calls that are not built. Their effect on the layout is known from the recording, and is made here, so
//! that they cause no later differences.

use super::args::MAP_NONBLOCK;
use super::files::FileIds;
use crate::space::HostSpace;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, VirtAddr};
use quire_mm::space::{MapFlags, MapRequest, MappedFile, Mapping, Protection, VmFlags};
use quire_trace::event::{Call, CallDetail, SYS_MAP_SHADOW_STACK};

/// Makes the known effect of a call that succeeded on Linux. Best effort: the call counts as a gap, and
/// the consequences of a failure here are counted too.
pub(super) fn apply(space: &HostSpace<'_>, call: &Call, files: &mut FileIds<'_>) {
    let [first, second, third, ..] = call.args;
    match (i64::from(call.number), &call.detail) {
        (libc::SYS_io_setup, &CallDetail::Mapped { start, bytes }) => {
            let may = Protection::READ | Protection::WRITE;
            map_shared(
                space,
                start,
                bytes,
                may,
                MappedFile { may, vm_flags: VmFlags::DONTEXPAND, ..MappedFile::new(files.ring(), 0) },
            );
        }
        (libc::SYS_io_destroy, _) => {
            let ring = find(space, |mapping| {
                mapping.range.start().0 == first && mapping.file.is_some_and(|file| files.is_ring(file))
            });
            for ring in ring {
                let _ = space.munmap(ring.range.start(), ring.range.pages() << PAGE_SHIFT);
            }
        }
        (libc::SYS_remap_file_pages, _) => remap_file_pages(space, &call.args, files),
        (libc::SYS_pkey_mprotect, _) => {
            let protection = Protection::from_bits_truncate(third as u32);
            let _ = space.mprotect(VirtAddr(first), second, protection, false);
        }
        (SYS_MAP_SHADOW_STACK, _) => map_private(space, call.result as u64, second, Protection::READ),
        _ => {}
    }
}

/// Maps private memory where Linux mapped something.
pub(super) fn map_private(space: &HostSpace<'_>, start: u64, bytes: u64, protection: Protection) {
    let request = MapRequest::anonymous(bytes, protection).at(VirtAddr(start), MapFlags::FIXED);
    let _ = space.mmap(&request);
}

/// What the mapping at `addr` permits. That of one that is not known permits most.
pub(super) fn protection_at(space: &HostSpace<'_>, addr: u64) -> Protection {
    let at = VirtAddr(addr);
    let there = find(space, |mapping| mapping.range.start() <= at && at < mapping.range.end());
    there.first().map_or(Protection::READ | Protection::WRITE, protection_of)
}

/// What a mapping permits.
fn protection_of(mapping: &Mapping) -> Protection {
    let mut protection = Protection::empty();
    let access = [
        (VmFlags::READ, Protection::READ),
        (VmFlags::WRITE, Protection::WRITE),
        (VmFlags::EXEC, Protection::EXECUTE),
    ];
    for (flag, allowed) in access {
        protection.set(allowed, mapping.flags.contains(flag));
    }
    protection
}

fn map_shared(space: &HostSpace<'_>, start: u64, bytes: u64, protection: Protection, file: MappedFile) {
    let flags = MapFlags::FIXED | MapFlags::SHARED;
    let request = MapRequest::anonymous(bytes, protection).at(VirtAddr(start), flags);
    let _ = space.mmap(&MapRequest { file: Some(file), ..request });
}

/// The mappings for which `is` is true.
fn find(space: &HostSpace<'_>, is: impl Fn(&Mapping) -> bool) -> Vec<Mapping> {
    let mut found = Vec::new();
    space.mappings().for_each(|mapping| {
        if is(&mapping) {
            found.push(mapping);
        }
    });
    found
}

/// `remap_file_pages`, which Linux does by mapping the same file again.
fn remap_file_pages(space: &HostSpace<'_>, args: &[u64; 6], files: &FileIds<'_>) {
    let [start, bytes, _, page_offset, flags, _] = *args;
    let (start, bytes) = (start & !(PAGE_SIZE - 1), bytes & !(PAGE_SIZE - 1));
    let at = VirtAddr(start);
    // Linux refuses private mappings, and shared ones of files that are not open for writing.
    let is_there = |mapping: &Mapping| mapping.range.start() <= at && at < mapping.range.end();
    let there = find(space, |mapping| is_there(mapping) && mapping.flags.contains(VmFlags::SHARED));
    // Shared memory without a file has pages of its own, of which none can be named by an offset here.
    let Some((mapping, file)) = there.first().and_then(|mapping| Some((mapping, mapping.file?))) else {
        return;
    };
    // Linux refuses it where not all of the range maps that file.
    let Some(end) = start.checked_add(bytes) else { return };
    let part_of = |other: &Mapping| {
        let (first, last) = (other.range.start().0.max(start), other.range.end().0.min(end));
        last.saturating_sub(first)
    };
    let of_file = find(space, |other| other.file == Some(file));
    if of_file.iter().map(part_of).sum::<u64>() < bytes {
        return;
    }
    let protection = protection_of(mapping);
    let mut how = MapFlags::FIXED | MapFlags::SHARED | MapFlags::POPULATE;
    how.set(MapFlags::NONBLOCK, flags & MAP_NONBLOCK != 0);
    how.set(MapFlags::LOCKED, mapping.flags.contains(VmFlags::LOCKED));
    let mut may = Protection::all();
    may.set(Protection::EXECUTE, mapping.flags.contains(VmFlags::MAYEXEC));
    may.set(Protection::WRITE, mapping.flags.contains(VmFlags::MAYWRITE));
    let opening = files.opening(file);
    let file = MappedFile {
        writable: true,
        may,
        huge_alignment: mapping.flags.contains(VmFlags::HUGE_ALIGNED),
        ..MappedFile::new(file, page_offset)
    };
    let request = MapRequest { file: Some(file), ..MapRequest::anonymous(bytes, protection).at(at, how) };
    let _ = match opening {
        Some(opening) => space.mmap_file(&request, opening),
        None => space.mmap(&request),
    };
}
