//! System V segments: `shmat` and `shmdt`, of what the recording has of them.

use super::files::FileIds;
use crate::space::HostSpace;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, VirtAddr};
use quire_mm::space::{MapFlags, MapRequest, MappedFile, Protection};
use quire_trace::event::{Call, CallDetail};

const SHM_RDONLY: u64 = libc::SHM_RDONLY as u64;
const SHM_RND: u64 = libc::SHM_RND as u64;
const SHM_REMAP: u64 = libc::SHM_REMAP as u64;
const SHM_EXEC: u64 = libc::SHM_EXEC as u64;

/// Linux's result, or what was found in its place.
pub(super) type Found = Result<(), String>;

/// Makes a call that succeeded on Linux, and compares; `None` of other calls, and where the segment is not
/// known.
pub(super) fn replay(space: &HostSpace<'_>, call: &Call, files: &mut FileIds<'_>) -> Option<Found> {
    match (i64::from(call.number), &call.detail) {
        (libc::SYS_shmat, &CallDetail::Mapped { start, bytes }) => attach(space, call, (start, bytes), files),
        (libc::SYS_shmdt, _) => Some(detach(space, call.args[0], files)),
        _ => None,
    }
}

/// `shmat`, which mapped `bytes` at `start` on Linux.
fn attach(
    space: &HostSpace<'_>,
    call: &Call,
    (start, bytes): (u64, u64),
    files: &mut FileIds<'_>,
) -> Option<Found> {
    let [id, addr, how, ..] = call.args;
    let segment = files.segment(id & 0xffff_ffff);
    let opening = files.opening(segment)?;
    let read_only = how & SHM_RDONLY != 0;
    let mut protection = Protection::READ;
    protection.set(Protection::WRITE, !read_only);
    protection.set(Protection::EXECUTE, how & SHM_EXEC != 0);
    let addr = if how & SHM_RND != 0 { addr & !(PAGE_SIZE - 1) } else { addr };
    let file = MappedFile { writable: !read_only, ..MappedFile::new(segment, 0) };
    let request = |addr: u64, fixed| {
        let flags = if addr == 0 { MapFlags::SHARED } else { MapFlags::SHARED | fixed };
        let request = MapRequest::anonymous(bytes, protection).at(VirtAddr(addr), flags);
        MapRequest { file: Some(file), ..request }
    };
    let fixed = if how & SHM_REMAP != 0 { MapFlags::FIXED } else { MapFlags::FIXED_NOREPLACE };
    let found = space.mmap_file(&request(addr, fixed), opening);
    if found == Ok(VirtAddr(start)) {
        return Some(Ok(()));
    }
    if let Ok(ours) = found {
        let _ = space.munmap(ours, bytes);
    }
    let _ = space.mmap_file(&request(start, MapFlags::FIXED), opening);
    if files.has_other_places() && addr == 0 && found.is_ok() {
        return Some(Ok(()));
    }
    Some(Err(found.map_or_else(|error| error.to_string(), |ours| format!("{:#x}", ours.0))))
}

/// `shmdt`: unmaps what remains of the segment that was attached at `addr`. Parts of it may have been
/// unmapped, and others changed.
fn detach(space: &HostSpace<'_>, addr: u64, files: &FileIds<'_>) -> Found {
    let mut parts = Vec::new();
    space.mappings().for_each(|mapping| {
        let offset = mapping.range.start().0.checked_sub(addr).map(|bytes| bytes >> PAGE_SHIFT);
        if offset == Some(mapping.page_offset) && mapping.file.is_some_and(|file| files.is_segment(file)) {
            parts.push(mapping);
        }
    });
    let file = parts.first().and_then(|first| first.file);
    for part in parts.iter().filter(|part| part.file == file) {
        let _ = space.munmap(part.range.start(), part.range.pages() << PAGE_SHIFT);
    }
    if parts.is_empty() { Err("EINVAL".to_owned()) } else { Ok(()) }
}
