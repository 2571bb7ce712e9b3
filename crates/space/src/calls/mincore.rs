//! `mincore`.

use super::page_range;
use crate::error::Error;
use crate::space::Space;
use quire_arch::{PAGE_SHIFT, PagingFormat, Platform, VirtAddr, VirtRange};

impl<P: Platform> Space<'_, P> {
    /// Calls `tell` for each page that `len` bytes from `addr` touch, in order, with whether it is in memory. The
    /// zero page counts.
    ///
    /// # Errors
    ///
    /// As Linux's `mincore`; pages before a hole have been told then.
    pub fn mincore(&self, addr: VirtAddr, len: u64, mut tell: impl FnMut(bool)) -> Result<(), Error> {
        let Some(range) = page_range(addr, len, Error::OutOfRange)? else { return Ok(()) };
        if addr.0.checked_add(len).is_none_or(|end| end > P::Paging::USER_END.0) {
            return Err(Error::OutOfRange);
        }
        let core = self.core();
        let _guard = core.mmap_lock.read(self.spaces.platform());
        let mut at = range.start();
        while at < range.end() {
            // SAFETY: the mmap lock is held.
            let entry = unsafe { core.vmas.view() }.find(at).ok_or(Error::NotMapped)?;
            let part = VirtRange::new(at, entry.range.end().min(range.end()));
            self.tables().look_present(part, |pages, present| {
                for _ in 0..pages.len() >> PAGE_SHIFT {
                    tell(present);
                }
            });
            at = part.end();
        }
        Ok(())
    }
}
