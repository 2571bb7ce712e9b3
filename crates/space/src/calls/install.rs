//! Putting mappings in place as requested.

use crate::caller::Caller;
use crate::error::Error;
use crate::mapping::Mapping;
use crate::mmap_writer::MmapWriter;
use quire_arch::{PagingFormat, Platform};
use quire_vma::{AnonVmaRef, Backing, VmFlags, VmaSnapshot};

pub(crate) fn install<P: Platform>(caller: Caller<'_, P>, mapping: &Mapping) -> Result<(), Error> {
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
    let backing = match mapping.file {
        Some(id) => Backing::file(id),
        None if mapping.flags.contains(VmFlags::SHARED) => {
            Backing::shared_anonymous(caller.spaces.new_number())
        }
        None => Backing::ANONYMOUS,
    };
    let Mapping { flags, page_offset, .. } = *mapping;
    section.adopt(VmaSnapshot { range, flags, page_offset, backing, anon: AnonVmaRef::NONE })
}
