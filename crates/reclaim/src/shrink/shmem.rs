//! Paging out folios of shared memory.
//!
//! One that a program has written to goes to its slot, and is in its file until it is flushed. One that was
//! only read is dropped, and its file has a hole there. Without a slot it is unmapped, and stays in its file.

use super::{
    Fate, Pressure, Ready, Refusal, ask_for_slots, check_referenced, count_fallback, is_to_be_split,
    leave_if_unnamed,
};
use quire_arch::{Pfn, Platform};
use quire_file::{CachedFile, KeptFolio};
use quire_frame::{FrameFlags, HeldParts, VmEvent};
use quire_memcg::{LruList, MemcgStat};
use quire_pageout::{UnmapBatch, Unmapped, unmap_cached};
use quire_space::Spaces;

/// The first half for a folio of shared memory. It is in the swap cache and in that of its file together
/// until the second half.
// As for `write_and_free_all`.
#[inline(never)]
pub(super) fn unmap_shmem<'s, P: Platform>(
    spaces: &'s Spaces<P>,
    folio: Ready<'s, P>,
    (pressure, may_wait): (Pressure, bool),
    batch: &mut UnmapBatch<'s, P>,
    parts: &mut HeldParts,
) -> Result<Ready<'s, P>, Refusal> {
    let head = folio.head;
    let frame = spaces.frames().known(head);
    // No other thread puts a locked folio there.
    let mut is_in_swap_cache = frame.word().flags().contains(FrameFlags::SWAP_CACHE);
    if is_in_swap_cache && spaces.swap().cache().remove_unnamed(head) {
        // Nothing names its slot: its file has it, or has lost it. The caller has a reference.
        spaces.memcgs().folios().release_folio(head);
        is_in_swap_cache = false;
    }
    if !spaces.frames().folio(head).is_in_file_cache() {
        // The file has its slot; or it is being freed by its last user, who takes it off its list.
        return if is_in_swap_cache { Ok(folio) } else { Err(Fate::Keep.into()) };
    }
    if is_in_swap_cache {
        return Err(Fate::Keep.into());
    }
    // SAFETY: the folio is locked.
    let file = unsafe { CachedFile::<P>::of_folio(spaces.frames(), head) };
    if let Some(kept) = file.map(|file| KeptFolio::new(file, head)).filter(KeptFolio::is_kept) {
        let pin = spaces.platform().pin();
        // As in Linux, which activates it first.
        spaces.swap().io().count_pages(head, VmEvent::Pgactivate, MemcgStat::Pgactivate);
        spaces.memcgs().folios().put_back(&pin, head, LruList::InactiveAnon, true);
        // While the folio is locked, so that it is the file's.
        kept.cull(spaces.memcgs(), &pin);
        return Err(Fate::Listed.into());
    }
    if pressure != Pressure::Madvise && frame.as_folio().maps() > 0 {
        check_referenced(spaces, head, &folio.guard)?;
    }
    let mut is_unmapped = false;
    if !frame.word().flags().contains(FrameFlags::DIRTY) {
        if let Some(fate) = unmap_or_stay(batch, head) {
            batch.flush();
            return Err(fate.into());
        }
        is_unmapped = true;
        if is_hole(spaces, head) {
            return Ok(folio);
        }
        frame.set_flags(FrameFlags::DIRTY);
    }
    loop {
        // What lies past the end gets no slots.
        let ends_within =
            spaces.swap().devices().is_any_on() && spaces.page_cache().shmem().ends_within(head);
        let mut is_split = ends_within;
        if !ends_within {
            let asked = ask_for_slots(spaces, head, may_wait).inspect_err(|_| batch.flush())?;
            let Err(why) = asked else { break };
            is_split = is_to_be_split(spaces, head, why);
        }
        if is_split && !may_wait {
            batch.flush();
            return Err(Refusal::NotYet);
        }
        if is_split && !ends_within {
            count_fallback(spaces, head);
        }
        let fate = if is_unmapped { None } else { unmap_or_stay(batch, head) };
        // A split is of what no TLB has.
        batch.flush();
        is_unmapped = true;
        if let Some(fate) = fate {
            return Err(fate.into());
        }
        if !is_split {
            // As in Linux it is unmapped all the same.
            return Err(Fate::Activate.into());
        }
        if !spaces.page_cache().shmem().split(head, Some(parts)) {
            return Err(Fate::Activate.into());
        }
    }
    match if is_unmapped { None } else { unmap_or_stay(batch, head) } {
        None => Ok(folio),
        Some(fate) => {
            batch.flush();
            drop(folio);
            leave_if_unnamed(spaces, head);
            Err(fate.into())
        }
    }
}

/// Whether a folio of shared memory is what a hole would be, as far as can be seen: no call and no fault has
/// written to it, nor a program through an entry that was met when it was unmapped; and it is zeros.
fn is_hole<P: Platform>(spaces: &Spaces<P>, head: Pfn) -> bool {
    let word = spaces.frames().known(head).word();
    !word.flags().contains(FrameFlags::DIRTY) && spaces.frames().is_zero(head, word.order())
}

/// The second half for what is in the cache of a file of shared memory: it leaves that for its slot, or for a
/// hole. Returns false, and changes nothing, where another thread uses it.
pub(super) fn leave_file<P: Platform>(spaces: &Spaces<P>, head: Pfn) -> bool {
    let frame = spaces.frames().known(head);
    let shmem = spaces.page_cache().shmem();
    if frame.word().flags().contains(FrameFlags::SWAP_CACHE) {
        return shmem.page_out(head);
    }
    // Once more: until the flush a TLB may have had it.
    if !is_hole(spaces, head) {
        frame.set_flags(FrameFlags::DIRTY);
        return false;
    }
    shmem.leave_hole(head)
}

/// Unmaps a folio of shared memory, or returns what becomes of it.
fn unmap_or_stay<P: Platform>(batch: &mut UnmapBatch<'_, P>, head: Pfn) -> Option<Fate> {
    match unmap_cached(batch, head) {
        Unmapped::All => None,
        Unmapped::Locked => Some(Fate::Keep),
        Unmapped::Pinned | Unmapped::Busy | Unmapped::Dirty => Some(Fate::Activate),
    }
}
