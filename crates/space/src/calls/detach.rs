//! `shmdt`.

use crate::caller::Caller;
use crate::calls::unmap::unmap_range;
use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use core::ptr::NonNull;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, Platform, VirtAddr};
use quire_file::OpenFile;
use quire_vma::{Backing, Vma};

/// Unmaps an attachment of a segment of SysV shared memory that began at `addr`: as in Linux the first VMA
/// from there on that is where it was attached, and those of the same attachment as far as the segment goes.
pub(crate) fn shmdt<P: Platform>(caller: Caller<'_, P>, addr: VirtAddr) -> Result<(), Error> {
    if !addr.is_page_aligned() {
        return Err(Error::Unaligned);
    }
    caller.with_reclaim(|| detach_once(&mut caller.writer(), addr))
}

fn detach_once<P: Platform>(writer: &mut MmapWriter<'_, P>, addr: VirtAddr) -> Result<(), Error> {
    let mut found: Option<(Backing, VirtAddr)> = None;
    let mut at = addr;
    while let Some(vma) = writer.first_ending_after(at) {
        let (range, snapshot) = (vma.range(), vma.snapshot());
        at = range.end();
        if found.is_some_and(|(_, end)| range.end() > end) {
            break;
        }
        // SAFETY: the VMA holds its opening, and stays while the mmap lock is held.
        let opening = unsafe { snapshot.backing.opening() };
        let segment = opening.and_then(|opening| {
            // SAFETY: VMAs name openings of this machine's files only.
            let file = unsafe { OpenFile::<P, Vma>::of(NonNull::from(opening)) }.file();
            file.shmem().filter(|shmem| shmem.is_segment()).map(|_| file.size())
        });
        let Some(size) = segment else { continue };
        // Below `addr` that is more pages than a segment has.
        let is_in_place = range.start().0.wrapping_sub(addr.0) >> PAGE_SHIFT == snapshot.page_offset;
        if !is_in_place || found.is_some_and(|(backing, _)| backing != snapshot.backing) {
            continue;
        }
        unmap_range(writer, range)?;
        let end = VirtAddr(addr.0.saturating_add(size.next_multiple_of(PAGE_SIZE)));
        found.get_or_insert((snapshot.backing, end));
    }
    if found.is_some() { Ok(()) } else { Err(Error::NotAttached) }
}
