//! Putting mappings in place as requested.

use crate::caller::Caller;
use crate::error::Error;
use crate::file::{File, backing_of, enter_file};
use crate::mapping::Mapping;
use crate::mmap_writer::MmapWriter;
use quire_arch::{PAGE_SIZE, PagingFormat, Platform};
use quire_file::Opening;
use quire_vma::{AnonVmaRef, Backing, VmFlags, Vma, VmaSnapshot};

/// Puts `mapping` in place. `opened` is the open file that it maps, if that is not only a number; the caller
/// holds it.
pub(crate) fn install<P: Platform>(
    caller: Caller<'_, P>,
    mapping: &Mapping,
    opened: Option<&Opening<Vma>>,
) -> Result<(), Error> {
    let range = mapping.range;
    if !range.start().is_page_aligned() || !range.end().is_page_aligned() {
        return Err(Error::Unaligned);
    }
    if range.is_empty() || range.end() > P::Paging::USER_END {
        return Err(Error::OutOfRange);
    }
    if mapping.page_offset.checked_add(range.pages()).is_none() {
        return Err(Error::OffsetOverflow);
    }
    // Dropped when the mmap lock is released.
    let shared;
    let mut section = MmapWriter::begin(caller.spaces, caller.core);
    if section.first_in(range).is_some() {
        return Err(Error::Occupied);
    }
    let Mapping { mut flags, page_offset, .. } = *mapping;
    let _entering = match opened {
        // SAFETY: the opening is one of a file of this machine.
        Some(opening) => unsafe { enter_file(caller.spaces.platform(), opening, &mut flags) }?,
        None => None,
    };
    let backing = match (opened, mapping.file) {
        // SAFETY: the opening is one of a file of this machine.
        (Some(opening), _) => unsafe { backing_of::<P>(opening) },
        (None, Some(id)) => Backing::file(id),
        (None, None) if mapping.flags.contains(VmFlags::SHARED) => {
            let pages = mapping.page_offset + range.pages();
            let size = pages.checked_mul(PAGE_SIZE).ok_or(Error::OffsetOverflow)?;
            let is_promised = !mapping.flags.contains(VmFlags::NORESERVE);
            shared = File::create_unnamed(caller.spaces, size, is_promised)?;
            shared.backing_of()
        }
        (None, None) => Backing::ANONYMOUS,
    };
    section.adopt(VmaSnapshot { range, flags, page_offset, backing, anon: AnonVmaRef::NONE })
}
