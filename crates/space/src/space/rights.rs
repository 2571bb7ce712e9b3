//! Rights that a program gave up for good.

use super::Space;
use crate::error::Error;
use quire_arch::Platform;
use quire_rmap::ExecGain;

impl<P: Platform> Space<'_, P> {
    /// Whether memory may become executable.
    pub fn exec_gain(&self) -> ExecGain {
        self.core().exec_gain.load()
    }

    /// Sets whether memory may become executable. Existing mappings stay as they are.
    ///
    /// # Errors
    ///
    /// [`Error::NotPermitted`] if an earlier setting refuses it: that cannot be undone.
    pub fn set_exec_gain(&self, gain: ExecGain) -> Result<(), Error> {
        if self.core().exec_gain.refuse(gain) { Ok(()) } else { Err(Error::NotPermitted) }
    }
}
