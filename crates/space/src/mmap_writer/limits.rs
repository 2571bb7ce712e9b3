//! Checks of a program's limits and of the rights that it gave up.

use super::MmapWriter;
use crate::error::Error;
use quire_arch::{PAGE_SIZE, Platform};
use quire_vma::{ExecGain, Rights, VmFlags};

impl<P: Platform> MmapWriter<'_, P> {
    /// Whether `pages` more may be locked, where `flags` say that they will be.
    pub(crate) fn may_lock_more(&self, flags: VmFlags, pages: u64) -> bool {
        !flags.contains(VmFlags::LOCKED)
            || self.rights.contains(Rights::LOCK)
            || self.core.usage.locked_pages().saturating_add(pages)
                <= self.core.limits.load().locked / PAGE_SIZE
    }

    /// Checks that memory with the flags `old` may get the flags `new`.
    pub(crate) fn check_exec_gain(&self, old: VmFlags, new: VmFlags) -> Result<(), Error> {
        let gains =
            new.contains(VmFlags::EXEC) && (new.contains(VmFlags::WRITE) || !old.contains(VmFlags::EXEC));
        if gains && self.core.exec_gain.load() != ExecGain::Allowed {
            return Err(Error::AccessDenied);
        }
        Ok(())
    }
}
