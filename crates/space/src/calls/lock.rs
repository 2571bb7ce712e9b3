//! `mlock`, `munlock` and related calls.

use crate::caller::Caller;
use crate::calls::populate::{PopulateError, populate, populate_all};
use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use bitflags::bitflags;
use quire_arch::addr::page_align_up;
use quire_arch::{PAGE_SIZE, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_pageout::set_mlocked;
use quire_sync::atomic::Ordering;
use quire_vma::{Rights, VmFlags};

bitflags! {
    /// What `mlockall` locks (`MCL_*`, with Linux's values).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct LockAll: u32 {
        /// What is mapped now.
        const CURRENT = 1;
        /// What will be mapped.
        const FUTURE = 2;
        /// Only as pages are faulted in.
        const ONFAULT = 4;
    }
}

/// Bytes of the pages that `len` bytes from `addr` touch; `mlock` takes any address. 0 for a length that
/// wraps when it is rounded, as in Linux.
fn touched_bytes(addr: VirtAddr, len: u64) -> u64 {
    page_align_up(len.wrapping_add(addr.page_offset())).unwrap_or(0)
}

/// The pages that `len` bytes from `addr` touch. `None` for none.
fn touched(addr: VirtAddr, len: u64) -> Result<Option<VirtRange>, Error> {
    let range = VirtRange::from_len(addr.page_start(), touched_bytes(addr, len)).ok_or(Error::BadArgument)?;
    Ok((!range.is_empty()).then_some(range))
}

pub(crate) fn mlock<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    len: u64,
    on_fault: bool,
) -> Result<(), Error> {
    may_lock_at_all(caller)?;
    let wanted = if on_fault { VmFlags::LOCK_MASK } else { VmFlags::LOCKED };
    let range = caller.with_reclaim(|| {
        let mut section = caller.writer();
        // The limit is checked for any length; only then whether there are such addresses.
        let range = touched(addr, len);
        let pages = touched_bytes(addr, len) / PAGE_SIZE;
        let allowed = caller.core.limits.load().locked / PAGE_SIZE;
        let locked = caller.core.usage.locked_pages();
        if !caller.rights.contains(Rights::LOCK) && locked.saturating_add(pages) > allowed {
            let to_the_end = VirtRange::new(addr.page_start(), P::Paging::USER_END.max(addr.page_start()));
            let already = range.unwrap_or(Some(to_the_end)).map_or(0, |range| locked_in(&section, range));
            if locked.saturating_add(pages - already.min(pages)) > allowed {
                return Err(Error::LockLimit);
            }
        }
        let Some(range) = range? else { return Ok(Ok(None)) };
        let locked = lock_once(caller, &mut section, range, wanted)?;
        Ok(locked.map(|()| Some(range)))
    })??;
    let Some(range) = range else { return Ok(()) };
    populate_all(caller, range, None).map_err(PopulateError::as_lock_error)
}

pub(crate) fn munlock<P: Platform>(caller: Caller<'_, P>, addr: VirtAddr, len: u64) -> Result<(), Error> {
    let Some(range) = touched(addr, len)? else { return Ok(()) };
    caller.with_reclaim(|| {
        let mut section = MmapWriter::begin(caller.spaces, caller.core);
        lock_once(caller, &mut section, range, VmFlags::empty())
    })?
}

/// Gives every mapping in `range` the lock flags `wanted`, as [`in_turns`](Self::in_turns).
fn lock_once<'s, P: Platform>(
    caller: Caller<'s, P>,
    section: &mut MmapWriter<'s, P>,
    range: VirtRange,
    wanted: VmFlags,
) -> Result<Result<(), Error>, Error> {
    let mut at = range.start();
    caller.in_turns(|| (set_lock(section, range, &mut at, wanted), at.0 - range.start().0))
}

pub(crate) fn mlockall<P: Platform>(caller: Caller<'_, P>, what: LockAll) -> Result<(), Error> {
    if what.is_empty() || what == LockAll::ONFAULT {
        return Err(Error::BadFlags);
    }
    may_lock_at_all(caller)?;
    let wanted = if what.contains(LockAll::ONFAULT) { VmFlags::LOCK_MASK } else { VmFlags::LOCKED };
    {
        let mut section = MmapWriter::begin(caller.spaces, caller.core);
        if what.contains(LockAll::CURRENT)
            && !caller.rights.contains(Rights::LOCK)
            && caller.core.usage.mapped_pages() > caller.core.limits.load().locked / PAGE_SIZE
        {
            return Err(Error::LockLimit);
        }
        let future = if what.contains(LockAll::FUTURE) { wanted } else { VmFlags::empty() };
        caller.core.default_flags.store(future.bits(), Ordering::Relaxed);
        if !what.contains(LockAll::CURRENT) {
            return Ok(());
        }
        set_lock_of_all(&mut section, wanted);
    }
    populate(caller, VirtRange::new(VirtAddr(0), VirtAddr(!(PAGE_SIZE - 1))));
    Ok(())
}

/// Without the right and with a limit of zero, no call may lock.
pub(crate) fn may_lock_at_all<P: Platform>(caller: Caller<'_, P>) -> Result<(), Error> {
    if !caller.rights.contains(Rights::LOCK) && caller.core.limits.load().locked == 0 {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

pub(crate) fn munlockall<P: Platform>(caller: Caller<'_, P>) {
    let mut section = MmapWriter::begin(caller.spaces, caller.core);
    caller.core.default_flags.store(0, Ordering::Relaxed);
    set_lock_of_all(&mut section, VmFlags::empty());
}

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
