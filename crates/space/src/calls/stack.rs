//! Stacks that grow on a fault.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::{PAGE_SIZE, Platform, VirtAddr};
use quire_vma::{STACK_GUARD_GAP, VmFlags, Vma};

/// Grows the stack above `addr` down over it, if there is one and its limits and its neighbour allow
/// that.
pub(crate) fn grow_stack<P: Platform>(writer: &mut MmapWriter<'_, P>, addr: VirtAddr) -> Result<(), Error> {
    let vma = writer.first_ending_after(addr).ok_or(Error::NotMapped)?;
    let snapshot = vma.snapshot();
    if snapshot.range.contains(addr) {
        // Another thread grew it first.
        return Ok(());
    }
    let start = addr.page_start();
    if !snapshot.flags.is_stack() || start < writer.core.layout.mmap_min {
        return Err(Error::NotMapped);
    }
    if let Some(below) = writer.last_starting_before(start).map(Vma::snapshot)
        && !below.flags.is_stack()
        && below.flags.intersects(VmFlags::ACCESS)
        && start.0 - below.range.end().0 < STACK_GUARD_GAP
    {
        return Err(Error::NoRoom);
    }
    // A stack that grows has an anon_vma, as in Linux, also if it is only read.
    // SAFETY: it was found in this section, which has the mmap lock.
    unsafe { writer.faults().give_anon_vma(vma) }?;
    let grow = (snapshot.range.start().0 - start.0) / PAGE_SIZE;
    if grow > snapshot.page_offset {
        return Err(Error::NoRoom);
    }
    writer.may_expand(snapshot.flags, grow)?;
    if snapshot.range.end().0 - start.0 > writer.core.limits.load().stack {
        return Err(Error::NoRoom);
    }
    if !writer.may_lock_more(snapshot.flags, grow) {
        return Err(Error::LockLimit);
    }
    // A stack that is not accounted must fit too; only the commit charge is dropped.
    writer.spaces.promise(grow)?;
    if !snapshot.flags.contains(VmFlags::ACCOUNT) {
        writer.spaces.commit().release(grow);
    }
    writer.extend_down(vma, start);
    Ok(())
}
