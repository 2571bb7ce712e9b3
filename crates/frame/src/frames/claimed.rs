//! A platform whose RAM is this manager's.

use crate::error::BootError;
use core::ops::Deref;
use quire_arch::Platform;

/// The platform, with its RAM claimed. Dropping it gives the RAM back, so in every owner it is dropped after
/// everything that lies in the RAM.
pub(super) struct Claimed<P: Platform>(P);

impl<P: Platform> Claimed<P> {
    /// Claims the RAM of `platform`.
    pub(super) fn new(platform: P) -> Result<Self, BootError> {
        if platform.ram_claim().take() { Ok(Self(platform)) } else { Err(BootError::RamTaken) }
    }
}

impl<P: Platform> Deref for Claimed<P> {
    type Target = P;

    #[inline]
    fn deref(&self) -> &P {
        &self.0
    }
}

impl<P: Platform> Drop for Claimed<P> {
    fn drop(&mut self) {
        // SAFETY: `new` took the RAM from the same claim (contract of `Platform`). What lies in the RAM was
        // dropped before, and what was given out of it borrowed its owner.
        unsafe { self.0.ram_claim().release() };
    }
}
