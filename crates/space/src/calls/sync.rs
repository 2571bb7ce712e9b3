//! `msync`.

use super::page_range;
use crate::caller::Caller;
use crate::error::Error;
use crate::spaces::HeldOpening;
use bitflags::bitflags;
use quire_arch::addr::page_align_up;
use quire_arch::{PAGE_SHIFT, Platform, VirtAddr, VirtRange};
use quire_vma::VmFlags;

bitflags! {
    /// Flags of `msync` (`MS_*`, with Linux's values).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SyncFlags: u32 {
        /// Write back later.
        const ASYNC = 1;
        /// Invalidate other mappings of the file.
        const INVALIDATE = 2;
        /// Write back now.
        const SYNC = 4;
    }
}

pub(crate) fn msync<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    len: u64,
    flags: SyncFlags,
) -> Result<(), Error> {
    if flags.contains(SyncFlags::ASYNC | SyncFlags::SYNC) {
        return Err(Error::BadFlags);
    }
    // A length that wraps when it is rounded is none, as in Linux.
    let len = page_align_up(len).unwrap_or(0);
    let Some(range) = page_range(addr, len, Error::OutOfRange)? else { return Ok(()) };
    let core = caller.core;
    let mut mappings = core.read_mappings(caller.spaces.platform());
    let mut at = range.start();
    let mut hole = false;
    while at < range.end() {
        let Some(vma) = mappings.first_ending_after(at) else { return Err(Error::NotMapped) };
        if vma.range().start() > at {
            // The rest is still done.
            hole = true;
            if vma.range().start() >= range.end() {
                break;
            }
        }
        let locked = vma.flags().contains(VmFlags::LOCKED);
        if flags.contains(SyncFlags::INVALIDATE) && locked {
            return Err(Error::Locked);
        }
        let part = vma.range().intersect(VirtRange::new(at, range.end()));
        at = part.end();
        let snapshot = vma.snapshot();
        // SAFETY: the VMA holds its opening, and stays while the mmap lock is held.
        let opening = unsafe { snapshot.backing.opening() };
        if let Some(opening) =
            opening.filter(|_| flags.contains(SyncFlags::SYNC) && snapshot.notices_writes())
        {
            let held = HeldOpening::new(caller.spaces, opening);
            // As in Linux, nothing is locked while the file is written, and the mapping may go meanwhile.
            drop(mappings);
            let start = snapshot.page_offset_at(part.start()) << PAGE_SHIFT;
            let synced = held.sync(start..start.saturating_add(part.len()));
            drop(held);
            synced.map_err(Error::File)?;
            mappings = core.read_mappings(caller.spaces.platform());
        }
    }
    if hole { Err(Error::NotMapped) } else { Ok(()) }
}
