//! `munmap`.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use crate::space::Space;
use quire_arch::addr::page_align_up;
use quire_arch::{PagingFormat, Platform, VirtAddr, VirtRange};

impl<P: Platform> Space<'_, P> {
    /// Unmaps every page that `len` bytes from `addr` touch. A hole is no error.
    ///
    /// # Errors
    ///
    /// As Linux's `munmap`; nothing is changed then.
    pub fn munmap(&self, addr: VirtAddr, len: u64) -> Result<(), Error> {
        let user_end = P::Paging::USER_END.0;
        if !addr.is_page_aligned() {
            return Err(Error::Unaligned);
        }
        if addr.0 > user_end || len > user_end - addr.0 {
            return Err(Error::BadArgument);
        }
        let range =
            page_align_up(len).and_then(|len| VirtRange::from_len(addr, len)).ok_or(Error::BadArgument)?;
        if range.is_empty() {
            return Err(Error::ZeroLength);
        }
        self.with_reclaim(|| MmapWriter::begin(self.spaces, self.core()).unmap_checked(range))
    }
}
