//! What a program gave up for good.

use super::Space;
use crate::error::Error;
use quire_arch::Platform;
use quire_rmap::ExecGain;

impl<P: Platform> Space<'_, P> {
    /// Whether memory may become executable.
    pub fn exec_gain(&self) -> ExecGain {
        self.core().exec_gain.load()
    }

    /// Says whether memory may become executable. What is mapped stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error::NotPermitted`] if something else was said before that refuses it: this is not taken back.
    pub fn set_exec_gain(&self, gain: ExecGain) -> Result<(), Error> {
        if self.core().exec_gain.refuse(gain) { Ok(()) } else { Err(Error::NotPermitted) }
    }
}
