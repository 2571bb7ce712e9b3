//! What a program has set for itself by `prctl`.

use super::Space;
use crate::error::Error;
use quire_arch::{Platform, part_of};
use quire_vma::{ExecGain, HugeDisable};

part_of! {
    /// What the program in a space has set for itself (`prctl`).
    pub struct SpacePrctl { pub(super) space: Space<'w> }
}

impl<P: Platform> SpacePrctl<'_, P> {
    /// Whether the process disabled large folios.
    #[doc(hidden)]
    pub fn huge_disable(self) -> HugeDisable {
        self.space.core().huge_disable.load()
    }

    /// Disables or enables large folios (`prctl(PR_SET_THP_DISABLE)`). Existing mappings stay.
    pub fn set_huge_disable(self, disable: HugeDisable) {
        self.space.core().huge_disable.store(disable);
    }

    /// Whether memory may become executable.
    #[doc(hidden)]
    pub fn exec_gain(self) -> ExecGain {
        self.space.core().exec_gain.load()
    }

    /// Sets whether memory may become executable. Existing mappings stay as they are.
    ///
    /// # Errors
    ///
    /// [`Error::NotPermitted`] if an earlier setting refuses it: that cannot be undone.
    pub fn set_exec_gain(self, gain: ExecGain) -> Result<(), Error> {
        if self.space.core().exec_gain.refuse(gain) { Ok(()) } else { Err(Error::NotPermitted) }
    }
}
