//! Giving folios back.

use crate::chain::FrameChain;
use crate::error::FreeError;
use crate::frames::Frames;
use quire_arch::{Order, Pfn, Platform};

impl<P: Platform> Frames<P> {
    /// Drops a reference to the folio of `order` that starts at `pfn`. If it was the last one, the folio
    /// enters `chain`, and the result is true.
    ///
    /// # Errors
    ///
    /// As for [`gather`](Self::gather): the folio is still mapped, or no such block was given out. The
    /// reference is gone nevertheless.
    pub fn put_folio(&self, chain: &mut FrameChain, pfn: Pfn, order: Order) -> Result<bool, FreeError> {
        // While others hold it, one of them may be splitting it, and keeps counts in its inner frames: those
        // are looked at only when this is the last reference.
        if self.known(pfn).refs() > 1 && !self.known(pfn).put(1) {
            return Ok(false);
        }
        match self.gather(chain, pfn, order) {
            Ok(()) => Ok(true),
            // Another thread took one since the look.
            Err(FreeError::Referenced { .. }) if !self.known(pfn).put(1) => Ok(false),
            Err(FreeError::Referenced { .. }) => self.gather(chain, pfn, order).map(|()| true),
            Err(error) => Err(error),
        }
    }
}
