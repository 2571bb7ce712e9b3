//! Putting mappings in place as requested.

use crate::caller::Caller;
use crate::error::Error;
use crate::mapping::Mapping;
use crate::mmap_writer::MmapWriter;
use quire_arch::{PagingFormat, Platform};
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
    let mut section = MmapWriter::begin(caller.spaces, caller.core);
    if section.first_in(range).is_some() {
        return Err(Error::Occupied);
    }
    let backing = match (opened, mapping.file) {
        (Some(opening), _) => Backing::opened(opening),
        (None, Some(id)) => Backing::file(id),
        (None, None) if mapping.flags.contains(VmFlags::SHARED) => {
            Backing::shared_anonymous(caller.spaces.new_number())
        }
        (None, None) => Backing::ANONYMOUS,
    };
    let Mapping { flags, page_offset, .. } = *mapping;
    section.adopt(VmaSnapshot { range, flags, page_offset, backing, anon: AnonVmaRef::NONE })
}
