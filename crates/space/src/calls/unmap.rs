//! `munmap`.

use crate::cpus::FlushCause;
use crate::error::Error;
use crate::gather::Gather;
use crate::mmap_writer::MmapWriter;
use crate::space::Space;
use crate::vma::Vma;
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
        self.with_reclaim(|| Ok(MmapWriter::begin(self.spaces, self.core()).unmap_checked(range)?))
    }
}

impl<'s, P: Platform> MmapWriter<'s, P> {
    /// Unmaps `range` with everything that can fail first.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn unmap_checked(&mut self, range: VirtRange) -> Result<(), Error> {
        let mut gather = Gather::new(self.spaces, self.core, FlushCause::Unmap);
        let result = self.unmap_checked_into(range, &mut gather);
        gather.finish();
        result
    }

    /// As [`unmap_checked`](Self::unmap_checked); what is unmapped is in `gather` and still in the TLBs.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn unmap_checked_into(
        &mut self,
        range: VirtRange,
        gather: &mut Gather<'s, P>,
    ) -> Result<(), Error> {
        let Some(first) = self.first_in(range).map(Vma::range) else { return Ok(()) };
        let splits = usize::from(first.start() < range.start() && range.end() < first.end());
        if splits > 0 && self.mappings() >= self.core.limits.load().mappings {
            return Err(Error::MapCountLimit);
        }
        self.may_cut(range)?;
        let mut prepared = self.prepare(splits)?;
        self.unmap_into(range, &mut prepared, gather);
        Ok(())
    }
}
