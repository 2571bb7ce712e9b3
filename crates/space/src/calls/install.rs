//! Putting mappings in place as requested.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use crate::space::{Mapping, Space};
use crate::vma::{AnonVmaRef, Backing, VmFlags, VmaSnapshot};
use quire_arch::{PagingFormat, Platform};

impl<P: Platform> Space<'_, P> {
    /// Puts `mapping` in place exactly as it is described, without merging it. For program loaders and for
    /// restoring a layout; programs call [`mmap`](Self::mmap).
    ///
    /// # Errors
    ///
    /// [`Error::Unaligned`], [`Error::OutOfRange`], [`Error::Occupied`], [`Error::CommitLimit`] or
    /// [`Error::NoFrames`]; nothing is changed then.
    pub fn install(&self, mapping: &Mapping) -> Result<(), Error> {
        let range = mapping.range;
        if !range.start().is_page_aligned() || !range.end().is_page_aligned() {
            return Err(Error::Unaligned);
        }
        if range.is_empty() || range.end() > P::Paging::USER_END {
            return Err(Error::OutOfRange);
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

impl<P: Platform> MmapWriter<'_, P> {
    /// Puts a mapping into a free range as it is, and counts and charges it.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn adopt(&mut self, facts: VmaSnapshot) -> Result<(), Error> {
        let charge = if facts.flags.contains(VmFlags::ACCOUNT) { facts.range.pages() } else { 0 };
        self.spaces.commit().charge(charge)?;
        match self.prepare(1) {
            Ok(mut prepared) => {
                self.core.usage.map(facts.flags, facts.range.pages());
                let root_lock = self.lock_anon_vmas([facts.anon]);
                self.insert_vma(facts, &mut prepared, &root_lock);
                Ok(())
            }
            Err(error) => {
                self.spaces.commit().release(charge);
                Err(error.into())
            }
        }
    }
}
