//! `mincore`.

use super::page_range;
use crate::error::Error;
use crate::space::Space;
use quire_arch::{PAGE_SHIFT, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_pagetable::Walker;

/// Pages that are looked at at once.
const CHUNK: u64 = 1024;

impl<P: Platform> Space<'_, P> {
    /// Calls `tell` for each page that `len` bytes from `addr` touch, in order, with whether it was in memory
    /// a moment ago. The zero page counts. No lock is held then, and none for long: as in Linux a few pages
    /// are looked at at once.
    ///
    /// # Errors
    ///
    /// As Linux's `mincore`; pages before a hole have been reported then.
    pub fn mincore(&self, addr: VirtAddr, len: u64, mut tell: impl FnMut(bool)) -> Result<(), Error> {
        if addr.is_page_aligned() && addr.0.checked_add(len).is_none_or(|end| end > P::Paging::USER_END.0) {
            return Err(Error::OutOfRange);
        }
        let Some(range) = page_range(addr, len, Error::OutOfRange)? else { return Ok(()) };
        let mut at = range.start();
        while at < range.end() {
            let (mut found, mut pages) = ([0_u64; (CHUNK / 64) as usize], 0);
            let most = VirtRange::new(at, range.end()).pages().min(CHUNK);
            self.mincore_of_mapping(at, most, |present| {
                found[pages / 64] |= u64::from(present) << (pages % 64);
                pages += 1;
            })?;
            (0..pages).for_each(|page| tell(found[page / 64] >> (page % 64) & 1 != 0));
            at = VirtAddr(at.0 + ((pages as u64) << PAGE_SHIFT));
        }
        Ok(())
    }

    /// Calls `tell` for at least one and at most `pages` pages from `addr` on: those of the mapping that
    /// `addr` lies in. `addr` is the start of a page in user space. `tell` is called with the lock of a table
    /// held: it takes no lock, and does not access a program's memory.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] if nothing is mapped at `addr`.
    #[doc(hidden)]
    pub fn mincore_of_mapping(
        &self,
        addr: VirtAddr,
        pages: u64,
        mut tell: impl FnMut(bool),
    ) -> Result<(), Error> {
        let core = self.core();
        let mappings = core.read_mappings(self.spaces.platform());
        let vma = mappings.find(addr).ok_or(Error::NotMapped)?;
        let wanted = addr.0.saturating_add(pages.saturating_mul(1 << PAGE_SHIFT));
        let part = VirtRange::new(addr, vma.range().end().min(VirtAddr(wanted)));
        Walker::new(&self.tables()).look_present(part, |run, present| {
            for _ in 0..run.pages() {
                tell(present);
            }
        });
        Ok(())
    }
}
