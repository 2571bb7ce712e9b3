//! `madvise`.

use super::page_range;
use crate::error::Error;
use crate::faults::PopulateError;
use crate::mmap_writer::Advice;
use crate::mmap_writer::MmapWriter;
use crate::space::Space;
use quire_arch::{Access, Platform, VirtAddr};

impl<P: Platform> Space<'_, P> {
    /// Gives advice on the pages that `len` bytes from `addr` touch.
    ///
    /// # Errors
    ///
    /// As Linux's `madvise`: a hole is reported after the rest was done; any other failure ends the call.
    pub fn madvise(&self, addr: VirtAddr, len: u64, advice: Advice) -> Result<(), Error> {
        let Some(range) = page_range(addr, len, Error::BadArgument)? else { return Ok(()) };
        match advice {
            Advice::WillNeed => self.will_need(range),
            Advice::PopulateRead => {
                self.populate_all(range, Some(Access::Read)).map_err(PopulateError::as_advice_error)
            }
            Advice::PopulateWrite => {
                self.populate_all(range, Some(Access::Write)).map_err(PopulateError::as_advice_error)
            }
            Advice::Collapse => {
                self.swap_in_for_collapse(range);
                self.with_reclaim(|| MmapWriter::begin(self.spaces, self.core()).advise(range, advice))
            }
            // Advice may be given twice.
            _ => self.with_reclaim(|| MmapWriter::begin(self.spaces, self.core()).advise(range, advice)),
        }
    }
}
