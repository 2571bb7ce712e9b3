//! `madvise` with `MADV_REMOVE`: a hole in a file that is mapped.

use crate::caller::Caller;
use crate::error::{Errno, Error};
use crate::spaces::HeldOpening;
use core::ops::Range;
use quire_arch::{PAGE_SHIFT, Platform, VirtRange};
use quire_vma::{Backing, VmFlags, VmaSnapshot};

/// Makes holes where the range maps files. As in Linux, nothing is locked while a file is changed, and the
/// mapping may go meanwhile.
pub(crate) fn remove<P: Platform>(caller: Caller<'_, P>, range: VirtRange) -> Result<(), Error> {
    let (mut at, mut hole) = (range.start(), false);
    while at < range.end() {
        let (held, bytes) = {
            let mappings = caller.core.read_mappings(caller.spaces.platform());
            let vma = mappings.first_ending_after(at).ok_or(Error::NotMapped)?;
            let part = vma.range().intersect(VirtRange::new(at, range.end()));
            hole |= vma.range().start() > at;
            if part.is_empty() {
                return Err(Error::NotMapped);
            }
            at = part.end();
            let snapshot = vma.snapshot();
            check(&snapshot)?;
            // SAFETY: the VMA holds its opening, and stays while the mmap lock is held.
            let opening = unsafe { snapshot.backing.opening() };
            // A file that is only a number has its pages in the tables alone.
            let opening = opening.ok_or(Error::NotSupported)?;
            let bytes = bytes_of(snapshot.page_offset_at(part.start()) << PAGE_SHIFT, part.len())?;
            (HeldOpening::new(caller.spaces, opening), bytes)
        };
        held.remove(bytes)?;
    }
    if hole { Err(Error::NotMapped) } else { Ok(()) }
}

/// The bytes of a hole. Linux's offsets have a sign, and files end below 2^63.
fn bytes_of(start: u64, len: u64) -> Result<Range<u64>, Error> {
    const MOST: u64 = i64::MAX.cast_unsigned();
    match start.checked_add(len) {
        _ if start > MOST => Err(Error::WrongMapping),
        Some(end) if end <= MOST => Ok(start..end),
        _ => Err(Error::RefusedByFile(Errno::EFBIG)),
    }
}

/// Whether a hole may be made by the mapping. The order is Linux's.
fn check(vma: &VmaSnapshot) -> Result<(), Error> {
    let flags = vma.flags;
    let is_private = !flags.contains(VmFlags::SHARED);
    // Linux looks at the file here, not at what its pages are.
    let has_no_file = vma.backing == Backing::ANONYMOUS && is_private && !flags.contains(VmFlags::HUGETLB);
    if flags.contains(VmFlags::LOCKED) || has_no_file {
        return Err(Error::WrongMapping);
    }
    if is_private || !flags.contains(VmFlags::MAYWRITE) {
        return Err(Error::AccessDenied);
    }
    Ok(())
}
