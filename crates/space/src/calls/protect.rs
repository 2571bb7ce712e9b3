//! `mprotect`.

use super::page_range;
use crate::cpus::FlushCause;
use crate::error::Error;
use crate::gather::Gather;
use crate::mmap_writer::MmapWriter;
use crate::space::Space;
use crate::vma::{Protection, VmFlags, Vma};
use quire_arch::{Platform, VirtAddr, VirtRange};

impl<P: Platform> Space<'_, P> {
    /// Changes what the program may do with the pages that `len` bytes from `addr` touch. With `grows_down`
    /// the change reaches down to the start of the stack that `addr` lies in.
    ///
    /// # Errors
    ///
    /// As Linux's `mprotect`. Mappings before the one that made it fail have changed.
    pub fn mprotect(
        &self,
        addr: VirtAddr,
        len: u64,
        protection: Protection,
        grows_down: bool,
    ) -> Result<(), Error> {
        let Some(range) = page_range(addr, len, Error::OutOfRange)? else { return Ok(()) };
        // What has changed before a shortage changes once more, to the same.
        self.with_reclaim(|| Ok(self.protect_once(range, protection, grows_down)?))
    }

    fn protect_once(
        &self,
        mut range: VirtRange,
        protection: Protection,
        grows_down: bool,
    ) -> Result<(), Error> {
        let mut section = MmapWriter::begin(self.spaces, self.core());
        let first = section.first_in(range).ok_or(Error::NotMapped)?;
        if grows_down {
            range = VirtRange::new(first.range().start(), range.end());
            if !first.flags().is_stack() {
                return Err(Error::BadFlags);
            }
        } else if first.range().start() > range.start() {
            return Err(Error::NotMapped);
        }
        let mut gather = Gather::new(self.spaces, self.core(), FlushCause::Protect);
        let result = section.protect_range(self, range, protection, &mut gather);
        // Also after a failure: what has changed until then must not be in any TLB.
        gather.finish();
        result
    }
}

impl<'s, P: Platform> MmapWriter<'s, P> {
    fn protect_range(
        &mut self,
        space: &Space<'_, P>,
        range: VirtRange,
        protection: Protection,
        gather: &mut Gather<'s, P>,
    ) -> Result<(), Error> {
        let mut at = range.start();
        while at < range.end() {
            let vma = self.find(at).ok_or(Error::NotMapped)?;
            let part = VirtRange::new(at, vma.range().end().min(range.end()));
            at = part.end();
            self.protect_part(space, vma, part, protection, gather)?;
        }
        Ok(())
    }

    fn protect_part(
        &mut self,
        space: &Space<'_, P>,
        vma: &'s Vma,
        part: VirtRange,
        protection: Protection,
        gather: &mut Gather<'s, P>,
    ) -> Result<(), Error> {
        let facts = vma.facts();
        let old = facts.flags;
        let mut new = (old - VmFlags::ACCESS) | VmFlags::from_protection(protection);
        // Each access must have its MAY flag, four bits up.
        let may = VmFlags::from_bits_truncate((old & VmFlags::MAY_ACCESS).bits() >> 4);
        if !may.contains(new & VmFlags::ACCESS) {
            return Err(Error::AccessDenied);
        }
        self.check_exec_gain(old, new)?;
        if new == old {
            return Ok(());
        }
        let pages = part.pages();
        let mut charged = 0;
        let mut released = 0;
        if new.contains(VmFlags::WRITE) {
            if let Err(error) = self.may_expand(new, pages)
                && self.may_expand(old, pages).is_ok()
            {
                return Err(error);
            }
            let counted = VmFlags::ACCOUNT | VmFlags::WRITE | VmFlags::SHARED | VmFlags::NORESERVE;
            if !old.intersects(counted) {
                self.spaces.commit().charge(pages)?;
                charged = pages;
                new |= VmFlags::ACCOUNT;
            }
        } else if old.contains(VmFlags::ACCOUNT) && facts.backing.is_anonymous() && !facts.anon.is_some() {
            // Nothing was ever written there and now nothing can be.
            released = pages;
            new -= VmFlags::ACCOUNT;
        }
        let vma = match self.modify(vma, part, new) {
            Ok(vma) => vma,
            Err(error) => {
                self.spaces.commit().release(charged);
                return Err(error);
            }
        };
        self.spaces.commit().release(released);
        self.tables().protect(part, new, gather);
        let locked = VmFlags::WRITE | VmFlags::SHARED | VmFlags::LOCKED;
        if old & locked == VmFlags::LOCKED && new.contains(VmFlags::WRITE) {
            // Locked memory that becomes writable gets its own pages now. As in Linux, it may also fail to.
            let _ = space.populate_part(vma, part, None);
        }
        Ok(())
    }
}
