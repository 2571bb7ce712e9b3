//! `mprotect`.

use super::page_range;
use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use crate::space::Space;
use quire_arch::{Platform, VirtAddr, VirtRange};
use quire_pagetable::{FlushCause, Gather};
use quire_rmap::Protection;

impl<P: Platform> Space<'_, P> {
    /// Changes what the program may do with the pages that `len` bytes from `addr` touch. With `grows_down`
    /// the change reaches down to the start of the stack that `addr` lies in.
    ///
    /// # Errors
    ///
    /// As Linux's `mprotect`. Mappings before the one that made it fail have changed.
    pub fn mprotect(
        &self,
        addr: VirtAddr,
        len: u64,
        protection: Protection,
        grows_down: bool,
    ) -> Result<(), Error> {
        let Some(range) = page_range(addr, len, Error::OutOfRange)? else { return Ok(()) };
        // After a shortage, mappings already changed are set to the same again.
        self.with_reclaim(|| self.protect_once(range, protection, grows_down))
    }

    fn protect_once(
        &self,
        mut range: VirtRange,
        protection: Protection,
        grows_down: bool,
    ) -> Result<(), Error> {
        let mut section = MmapWriter::begin(self.spaces, self.core());
        let first = section.first_in(range).ok_or(Error::NotMapped)?;
        if grows_down {
            range = VirtRange::new(first.range().start(), range.end());
            if !first.flags().is_stack() {
                return Err(Error::BadFlags);
            }
        } else if first.range().start() > range.start() {
            return Err(Error::NotMapped);
        }
        let mut gather = Gather::new(self.spaces.memory(), &self.core().tables, FlushCause::Protect);
        let result = section.protect_range(range, protection, &mut gather);
        // Also after a failure: what has changed until then must not be in any TLB.
        self.tables().finish(&mut gather);
        result
    }
}
