//! Stacks that grow on a fault.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::{PAGE_SIZE, Platform, VirtAddr};
use quire_rmap::Vma;
use quire_rmap::{STACK_GUARD_GAP, VmFlags};

impl<P: Platform> MmapWriter<'_, P> {
    /// Grows the stack above `addr` down over it, if there is one and its limits and its neighbour allow
    /// that.
    pub(crate) fn grow_stack(&mut self, addr: VirtAddr) -> Result<(), Error> {
        let vma = self.first_ending_after(addr).ok_or(Error::NotMapped)?;
        let snapshot = vma.snapshot();
        if snapshot.range.contains(addr) {
            // Another thread grew it first.
            return Ok(());
        }
        let start = addr.page_start();
        if !snapshot.flags.is_stack() || start < self.core.layout.mmap_min {
            return Err(Error::NotMapped);
        }
        if let Some(below) = self.last_starting_before(start).map(Vma::snapshot)
            && !below.flags.is_stack()
            && below.flags.intersects(VmFlags::ACCESS)
            && start.0 - below.range.end().0 < STACK_GUARD_GAP
        {
            return Err(Error::NoRoom);
        }
        // A stack that grows has an anon_vma, as in Linux, also if it is only read.
        self.faults().give_anon_vma(vma)?;
        let grow = (snapshot.range.start().0 - start.0) / PAGE_SIZE;
        if grow > snapshot.page_offset {
            return Err(Error::NoRoom);
        }
        self.may_expand(snapshot.flags, grow)?;
        if snapshot.range.end().0 - start.0 > self.core.limits.load().stack {
            return Err(Error::NoRoom);
        }
        if !self.may_lock_more(snapshot.flags, grow) {
            return Err(Error::LockLimit);
        }
        // A stack that is not accounted must fit too; only the commit charge is dropped.
        self.spaces.promise(grow)?;
        if !snapshot.flags.contains(VmFlags::ACCOUNT) {
            self.spaces.commit().release(grow);
        }
        self.extend_down(vma, start);
        Ok(())
    }
}
