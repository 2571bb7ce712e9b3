//! `brk`.

use crate::caller::Caller;
use crate::calls::populate::populate;
use crate::calls::unmap::unmap_range;
use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::addr::page_align_up;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_sync::atomic::Ordering;
use quire_vma::{AnonVmaRef, Backing, Proposal, STACK_GUARD_GAP, VmFlags};

pub(crate) fn brk<P: Platform>(caller: Caller<'_, P>, wanted: VirtAddr) -> VirtAddr {
    let mut now = VirtAddr(caller.core.brk.load(Ordering::Relaxed));
    let grown = caller.with_reclaim(|| {
        let mut section = caller.writer();
        let grown = move_break(&mut section, wanted);
        now = VirtAddr(caller.core.brk.load(Ordering::Relaxed));
        grown
    });
    if let Ok(Some(grown)) = grown
        && caller.core.default_flags().contains(VmFlags::LOCKED)
    {
        populate(caller, grown);
    }
    now
}

/// Moves the break and returns the pages that were added, if any.
pub(crate) fn move_break<P: Platform>(
    writer: &mut MmapWriter<'_, P>,
    wanted: VirtAddr,
) -> Result<Option<VirtRange>, Error> {
    let layout = writer.core.layout;
    let old = VirtAddr(writer.core.brk.load(Ordering::Relaxed));
    if wanted < layout.brk_start {
        return Err(Error::OutOfRange);
    }
    let data = (wanted.0 - layout.brk_start.0).saturating_add(layout.data_bytes);
    if data > writer.core.limits.load().data {
        return Err(Error::DataLimit);
    }
    let old_end = VirtAddr(page_align_up(old.0).ok_or(Error::OutOfRange)?);
    let new_end = VirtAddr(page_align_up(wanted.0).ok_or(Error::OutOfRange)?);
    if wanted <= old {
        if new_end != old_end {
            let range = VirtRange::new(new_end, old_end);
            // Another mapping may have replaced part of the heap.
            if writer.first_ending_after(new_end).is_none_or(|vma| vma.range().start() >= old_end) {
                return Err(Error::NotMapped);
            }
            unmap_range(writer, range)?;
        }
        writer.core.brk.store(wanted.0, Ordering::Relaxed);
        return Ok(None);
    }
    let grown = VirtRange::new(old_end, new_end);
    if !grown.is_empty() {
        extend_heap(writer, grown)?;
    }
    writer.core.brk.store(wanted.0, Ordering::Relaxed);
    Ok((!grown.is_empty()).then_some(grown))
}

fn extend_heap<P: Platform>(writer: &mut MmapWriter<'_, P>, grown: VirtRange) -> Result<(), Error> {
    let flags =
        VmFlags::READ | VmFlags::WRITE | VmFlags::MAY_ACCESS | VmFlags::ACCOUNT | writer.core.default_flags();
    if grown.end() > P::Paging::USER_END {
        return Err(Error::OutOfRange);
    }
    if !writer.may_lock_more(flags, grown.pages()) {
        return Err(Error::LockLimitAgain);
    }
    let past = grown.end().0.saturating_add(PAGE_SIZE);
    let near = VirtRange::new(grown.start(), VirtAddr(past.saturating_add(STACK_GUARD_GAP)));
    if writer.first_in(near).is_some_and(|next| past > next.snapshot().start_with_guard().0) {
        return Err(Error::NoRoom);
    }
    writer.may_expand(flags, grown.pages())?;
    if writer.mappings() > writer.core.limits.load().mappings {
        return Err(Error::MapCountLimit);
    }
    writer.spaces.promise(grown.pages())?;
    let proposal = Proposal {
        range: grown,
        flags,
        page_offset: grown.start().0 >> PAGE_SHIFT,
        backing: Backing::ANONYMOUS,
        anon: AnonVmaRef::NONE,
    };
    let neighbours = writer.neighbours_for(&proposal);
    match writer.prepare(neighbours.vmas_needed()) {
        Ok(mut prepared) => {
            let _ = writer.map(&proposal, neighbours, &mut prepared);
            Ok(())
        }
        Err(error) => {
            writer.spaces.commit().release(grown.pages());
            Err(error.into())
        }
    }
}
