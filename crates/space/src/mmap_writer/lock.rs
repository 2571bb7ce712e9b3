//! `mlock`, `munlock` and related calls.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::{Platform, VirtAddr, VirtRange};
use quire_paging::set_mlocked;
use quire_rmap::VmFlags;

/// Mlocked pages in `range`.
pub(crate) fn locked_in<P: Platform>(writer: &MmapWriter<'_, P>, range: VirtRange) -> u64 {
    let mut pages = 0;
    let mut at = range.start();
    while let Some(vma) = writer.first_in(VirtRange::new(at, range.end())) {
        let part = vma.range().intersect(range);
        if vma.flags().contains(VmFlags::LOCKED) {
            pages += part.pages();
        }
        at = part.end();
    }
    pages
}

/// Gives every mapping in `range` from `at` on the lock flags `wanted`, and moves `at` behind those that
/// have them.
pub(crate) fn set_lock<P: Platform>(
    writer: &mut MmapWriter<'_, P>,
    range: VirtRange,
    at: &mut VirtAddr,
    wanted: VmFlags,
) -> Result<(), Error> {
    while *at < range.end() {
        let vma = writer.find(*at).ok_or(Error::NotMapped)?;
        let part = VirtRange::new(*at, vma.range().end().min(range.end()));
        let flags = vma.flags();
        let new = (flags - VmFlags::LOCK_MASK) | wanted;
        if new != flags && !flags.intersects(VmFlags::SPECIAL) {
            writer.modify(vma, part, new)?;
            // Concurrent faults put new pages on the list that the flag demands.
            set_mlocked(&writer.tables(), part, wanted.contains(VmFlags::LOCKED));
        }
        *at = part.end();
    }
    Ok(())
}

/// The same for all mappings; one that can not be changed is left as it is.
pub(crate) fn set_lock_of_all<P: Platform>(writer: &mut MmapWriter<'_, P>, wanted: VmFlags) {
    let mut at = VirtAddr(0);
    while let Some(vma) = writer.first_ending_after(at) {
        // It may have merged with those before it.
        let range = VirtRange::new(vma.range().start().max(at), vma.range().end());
        // A whole mapping is changed, so nothing is split and nothing allocated.
        let _ = set_lock(writer, range, &mut range.start(), wanted);
        at = range.end();
    }
}
