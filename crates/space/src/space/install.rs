//! Putting mappings in place as requested.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use crate::space::{Mapping, Space};
use quire_arch::{PagingFormat, Platform};
use quire_rmap::{AnonVmaRef, Backing, VmFlags, VmaSnapshot};

impl<P: Platform> Space<'_, P> {
    /// Puts `mapping` in place exactly as it is described, without merging it. For program loaders and for
    /// restoring a layout; programs call [`mmap`](Self::mmap).
    ///
    /// # Errors
    ///
    /// [`Error::Unaligned`], [`Error::OutOfRange`], [`Error::OffsetOverflow`], [`Error::Occupied`],
    /// [`Error::CommitLimit`] or [`Error::NoFrames`]; nothing is changed then.
    #[doc(hidden)]
    pub fn install(&self, mapping: &Mapping) -> Result<(), Error> {
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
        let mut section = MmapWriter::begin(self.spaces, self.core());
        if section.first_in(range).is_some() {
            return Err(Error::Occupied);
        }
        let backing = match mapping.file {
            Some(id) => Backing::file(id),
            None if mapping.flags.contains(VmFlags::SHARED) => {
                Backing::shared_anonymous(self.spaces.new_number())
            }
            None => Backing::ANONYMOUS,
        };
        let Mapping { flags, page_offset, .. } = *mapping;
        section.adopt(VmaSnapshot { range, flags, page_offset, backing, anon: AnonVmaRef::NONE })
    }
}
