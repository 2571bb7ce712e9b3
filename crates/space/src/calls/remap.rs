//! `mremap`.

use crate::caller::Caller;
use crate::calls::map_request::{MapFlags, MapRequest, MappedFile};
use crate::calls::placement::{place, shmem_alignment};
use crate::calls::populate::populate;
use crate::calls::remap_request::{Remap, RemapFlags};
use crate::error::Error;
use crate::mmap_writer::{MmapWriter, Prepared};
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_pageout::set_mlocked;
use quire_pagetable::{FlushCause, FreeableRange, Mover, Relocation, Unmapper};
use quire_vma::{AnonVmaRef, HugePages, Proposal, Protection, VmFlags, Vma, VmaSnapshot};

pub(crate) fn mremap<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    old_len: u64,
    new_len: u64,
    flags: RemapFlags,
    target: impl Into<Option<VirtAddr>>,
) -> Result<VirtAddr, Error> {
    let target = target.into();
    let remapped = caller.with_reclaim(|| {
        let remap = Remap::new::<P>(addr, old_len, new_len, flags, target)?;
        let mut section = caller.writer();
        let mut progress = Progress::default();
        caller.in_turns(|| {
            let result = remap_turn(caller, &mut section, remap, &mut progress);
            (result, progress.steps)
        })
    })??;
    if let Some(range) = remapped.populate {
        populate(caller, range);
    }
    Ok(remapped.addr)
}

/// A turn of a call, with a frame of its own: reclaim, which comes between two turns, needs the stack.
#[inline(never)]
fn remap_turn<'s, P: Platform>(
    caller: Caller<'s, P>,
    section: &mut MmapWriter<'s, P>,
    remap: Remap,
    progress: &mut Progress,
) -> Result<Remapped, Error> {
    // One flush for all that the turn moves and unmaps.
    let mut unmapper = Unmapper::new(caller.tables(), FlushCause::Move);
    let remapped = remap_once(section, remap, &mut unmapper, progress);
    unmapper.finish();
    caller.core.tables.cpus.end_moves();
    remapped
}

/// The work left once the locks are released.
pub(crate) struct Remapped {
    pub(crate) addr: VirtAddr,
    /// New pages of a locked mapping.
    pub(crate) populate: Option<VirtRange>,
}

/// What a call has done when memory is short: from here the next turn goes on, in the same section.
#[derive(Default)]
pub(crate) struct Progress {
    /// How often it has unmapped or moved something.
    pub(crate) steps: u64,
    /// Of several mappings: the result of the first, and where those begin that have not moved.
    moved: Option<Remapped>,
    at: Option<VirtAddr>,
}

/// One turn of a call: notes in `progress` what it has done, also if it fails. The next turn, in the same
/// section, goes on from there.
pub(crate) fn remap_once<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    mut remap: Remap,
    unmapper: &mut Unmapper<'s, P>,
    progress: &mut Progress,
) -> Result<Remapped, Error> {
    if remap.names_target() {
        let limit = writer.core.limits.load().mappings;
        if progress.steps == 0 && writer.mappings() + 2 >= limit.saturating_sub(3) {
            return Err(Error::MapCountLimit);
        }
        if remap.flags.contains(RemapFlags::FIXED) && remap.old.len() == remap.new_len {
            return move_several(writer, remap, unmapper, progress);
        }
    }
    if writer.core.had_hugetlb()
        && let Some(size) = writer.find(remap.addr()).and_then(|vma| HugePages::of(vma.flags()))
    {
        remap.round_to(size)?;
    }
    let vma = writer.find(remap.addr()).ok_or(Error::BadAddress)?;
    check_remap(writer, vma, &remap)?;
    if remap.names_target() {
        return remap_to(writer, vma, remap, unmapper, progress);
    }
    if remap.grown() > 0 {
        return expand(writer, vma, remap, unmapper);
    }
    let kept = VirtAddr(remap.addr().0 + remap.new_len);
    if kept < remap.old.end() {
        unmap_tail(writer, VirtRange::new(kept, remap.old.end()), unmapper)?;
    }
    Ok(Remapped { addr: remap.addr(), populate: None })
}

/// Checks what does not depend on where the mapping moves, which has the first address.
fn check_remap<P: Platform>(writer: &MmapWriter<'_, P>, vma: &Vma, remap: &Remap) -> Result<(), Error> {
    let snapshot = vma.snapshot();
    let shared = snapshot.flags.intersects(VmFlags::SHARED | VmFlags::MAYSHARE);
    if remap.old.is_empty() && !shared {
        return Err(Error::BadArgument);
    }
    let rigid = snapshot.flags.intersects(VmFlags::DONTEXPAND | VmFlags::PFNMAP);
    if remap.flags.contains(RemapFlags::DONTUNMAP) && rigid {
        return Err(Error::WrongMapping);
    }
    if remap.grown() == 0 && !remap.names_target() {
        return Ok(());
    }
    // A range that is only truncated may reach into other mappings.
    let kept = remap.old.len().min(remap.new_len);
    if kept > snapshot.range.end().0 - remap.addr().0 {
        return Err(Error::BadAddress);
    }
    if remap.grown() == 0 {
        return Ok(());
    }
    if snapshot.page_offset_at(remap.addr()).checked_add(remap.new_len >> PAGE_SHIFT).is_none() {
        return Err(Error::BadArgument);
    }
    if rigid {
        return Err(Error::BadAddress);
    }
    let grown = remap.grown() >> PAGE_SHIFT;
    if !writer.may_lock_more(snapshot.flags, grown) {
        return Err(Error::LockLimitAgain);
    }
    writer.may_expand(snapshot.flags, grown)
}

fn unmap_tail<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    range: VirtRange,
    unmapper: &mut Unmapper<'s, P>,
) -> Result<(), Error> {
    if range.end() > P::Paging::USER_END {
        return Err(Error::BadArgument);
    }
    writer.unmap_checked(range, unmapper)
}

/// Moves every mapping in the old range, with the gaps between them, without changing sizes.
fn move_several<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    remap: Remap,
    unmapper: &mut Unmapper<'s, P>,
    progress: &mut Progress,
) -> Result<Remapped, Error> {
    let mut at = progress.at.unwrap_or(remap.addr());
    while at < remap.old.end() {
        let Some(vma) = writer.first_in(VirtRange::new(at, remap.old.end())) else { break };
        let part = vma.range().intersect(remap.old);
        let is_first = progress.moved.is_none();
        if is_first && part.start() > remap.addr() {
            break;
        }
        // Its file could choose another place, so that the distances would not be kept.
        let alone = is_first && vma.range().end() >= remap.old.end();
        if vma.flags().contains(VmFlags::PLACES_ITSELF) && !alone {
            return Err(Error::BadAddress);
        }
        at = part.end();
        let target = VirtAddr(remap.target.0 + (part.start().0 - remap.addr().0));
        let mut one = Remap { old: part, new_len: part.len(), target, ..remap };
        if let Some(size) = HugePages::of(vma.flags()) {
            one.round_to(size)?;
        }
        check_remap(writer, vma, &one)?;
        let result = remap_to(writer, vma, one, unmapper, progress)?;
        progress.moved.get_or_insert(result);
        progress.at = Some(at);
    }
    progress.moved.take().ok_or(Error::BadAddress)
}

/// Moves `vma`, which has the first address, to the target that the call names. What an earlier turn has
/// unmapped is not found any more.
fn remap_to<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    mut vma: &'s Vma,
    remap: Remap,
    unmapper: &mut Unmapper<'s, P>,
    progress: &mut Progress,
) -> Result<Remapped, Error> {
    let target = VirtRange::new(remap.target, VirtAddr(remap.target.0 + remap.new_len));
    let fixed = remap.flags.contains(RemapFlags::FIXED);
    if fixed && writer.first_in(target).is_some() {
        // Moved pages can be used at once. No thread may still use the old pages here once another uses
        // the new ones.
        let aside = unmapper.set_aside();
        let unmapped = writer.unmap_checked(target, unmapper);
        unmapper.settle_since(aside);
        unmapped?;
        progress.steps += 1;
        // An old range that wraps is not detected as overlapping, and may have lost its mapping here.
        vma = writer.find(remap.addr()).ok_or(Error::BadAddress)?;
    }
    let mut old = remap.old;
    if old.len() > remap.new_len {
        let kept = VirtAddr(old.start().0 + remap.new_len);
        let tail = VirtRange::new(kept, old.end());
        // A turn that finds nothing there, as after a turn that has cut it off, has not come further.
        let cuts = kept < vma.range().end() || writer.first_in(tail).is_some();
        unmap_tail(writer, tail, unmapper)?;
        progress.steps += u64::from(cuts);
        old = VirtRange::new(old.start(), kept);
        vma = writer.find(old.start()).ok_or(Error::BadAddress)?;
    }
    if remap.flags.contains(RemapFlags::DONTUNMAP) {
        writer.may_expand(vma.flags(), old.pages())?;
    }
    let remapped = relocate(writer, vma, Remap { old, ..remap }, unmapper)?;
    progress.steps += 1;
    Ok(remapped)
}

/// Grows a mapping where it is if that is possible, else elsewhere.
fn expand<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    vma: &'s Vma,
    remap: Remap,
    unmapper: &mut Unmapper<'s, P>,
) -> Result<Remapped, Error> {
    let snapshot = vma.snapshot();
    let end = VirtAddr(remap.addr().0.saturating_add(remap.new_len));
    let grown = VirtRange::new(remap.old.end(), end);
    let in_place = remap.old.end() == snapshot.range.end()
        && end <= P::Paging::USER_END
        && !remap.old.is_empty()
        && writer.first_in(grown).is_none();
    if !in_place {
        if !remap.flags.contains(RemapFlags::MAYMOVE) {
            return Err(Error::CannotGrow);
        }
        return relocate(writer, vma, remap, unmapper);
    }
    if snapshot.flags.contains(VmFlags::ACCOUNT) {
        writer.spaces.promise(grown.pages())?;
    }
    writer.extend_up(vma, end);
    let populate = snapshot.flags.contains(VmFlags::LOCKED).then_some(grown);
    Ok(Remapped { addr: remap.addr(), populate })
}

/// The place for a mapping like `snapshot` that is to be moved.
fn place_moved<P: Platform>(
    writer: &MmapWriter<'_, P>,
    snapshot: &VmaSnapshot,
    remap: &Remap,
) -> Result<VirtAddr, Error> {
    let mut flags = MapFlags::empty();
    flags.set(MapFlags::FIXED, remap.flags.contains(RemapFlags::FIXED));
    flags.set(MapFlags::SHARED, snapshot.flags.contains(VmFlags::MAYSHARE));
    let hint = if remap.names_target() { remap.target } else { VirtAddr(0) };
    // Where it goes does not depend on which file it is.
    let file = snapshot.backing.is_file().then(|| MappedFile {
        huge_alignment: snapshot.flags.contains(VmFlags::HUGE_ALIGNED),
        ..MappedFile::new(0, snapshot.page_offset_at(remap.addr()))
    });
    let request = MapRequest { flags, file, ..MapRequest::anonymous(remap.new_len, Protection::empty()) };
    // SAFETY: the mmap lock keeps the VMA, which holds its opening.
    let shmem = shmem_alignment(writer, &request, unsafe { snapshot.backing.opening() });
    place(writer, &request, (hint, remap.new_len), shmem)
}

/// What `snapshot` becomes at `target`.
fn moved(snapshot: &VmaSnapshot, remap: &Remap, target: VirtRange) -> Proposal {
    let VmaSnapshot { flags, backing, anon, .. } = *snapshot;
    let unfaulted = backing.is_anonymous() && !anon.is_some();
    let page_offset = match unfaulted {
        true => target.start().0 >> PAGE_SHIFT,
        false => snapshot.page_offset_at(remap.addr()),
    };
    Proposal { range: target, flags, page_offset, backing, anon }
}

/// Moves pages and mapping. The target is free. On failure nothing has moved.
fn relocate<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    vma: &'s Vma,
    remap: Remap,
    unmapper: &mut Unmapper<'s, P>,
) -> Result<Remapped, Error> {
    let peak = writer.core.usage.peak_mapped();
    let snapshot = vma.snapshot();
    let old = remap.old;
    let to = place_moved(writer, &snapshot, &remap)?;
    if writer.mappings() >= writer.core.limits.load().mappings.saturating_sub(3) {
        return Err(Error::MapCountLimit);
    }
    if snapshot.flags.contains(VmFlags::WHOLE) && snapshot.range != old {
        return Err(Error::BadArgument);
    }
    let target = VirtRange::new(to, VirtAddr(to.0 + remap.new_len));
    let keep = remap.flags.contains(RemapFlags::DONTUNMAP);
    let accounted = snapshot.flags.contains(VmFlags::ACCOUNT);
    let charge = match (accounted, keep) {
        (false, _) => 0,
        (true, true) => target.pages(),
        (true, false) => remap.grown() / PAGE_SIZE,
    };
    writer.spaces.promise(charge)?;

    let proposal = moved(&snapshot, &remap, target);
    // No fault gets into either range from here until the section ends: what the move finds is what it
    // was prepared for.
    writer.lock_range(old);
    if unmapper.gather().is_unsettled() {
        // They are in tables that may move.
        unmapper.settle();
    }
    let job = Relocation {
        from: old,
        to,
        room: gap_of_move(writer, vma, old, target),
        target_room: writer.gap_around(target),
    };
    // Otherwise a kept empty table would move too, and no call would find it again.
    unmapper.free_kept(old);
    let mut prepared = prepare_relocation(writer, &job, target, unmapper).inspect_err(|_| {
        writer.spaces.commit().release(charge);
    })?;
    let neighbours = writer.neighbours_for(&proposal);
    // Held until the pages are at the new place: a walker of the rmap finds each page at one place, never
    // at none. If it unmaps the page there before this call flushes, it flushes every address
    // (`begin_moves`).
    let rmap_locks = writer.map(&proposal, neighbours, &mut prepared);
    writer.core.tables.cpus.begin_moves();
    Mover::new(&writer.tables()).relocate(&job, unmapper.gather());
    drop(rmap_locks);
    if keep {
        keep_source(writer, old, unmapper);
    } else if !old.is_empty() {
        if accounted {
            // Unmapping gives the charge of the old range back; the new one has taken it over.
            writer.spaces.commit().charge_unchecked(old.pages());
        }
        writer.unmap(old, &mut prepared, unmapper);
    }
    // Of several mappings the next one may remove something at its target first.
    writer.core.usage.end_move(peak);
    let locked = snapshot.flags.contains(VmFlags::LOCKED) && remap.grown() > 0;
    let populate = locked.then(|| VirtRange::new(VirtAddr(to.0 + old.len()), target.end()));
    Ok(Remapped { addr: to, populate })
}

/// Allocates what the move `job` to `target` needs; on failure it frees the tables that it has made.
fn prepare_relocation<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    job: &Relocation,
    target: VirtRange,
    unmapper: &mut Unmapper<'s, P>,
) -> Result<Prepared<'s, P>, Error> {
    // One VMA for the target, and one in case that the source is in the middle of a mapping, which a
    // merge with the target may bring about.
    let ready = writer.prepare(2).map_err(Error::from).and_then(|prepared| {
        Mover::new(&writer.tables()).prepare_move(job)?;
        Ok(prepared)
    });
    ready.inspect_err(|_| {
        unmapper.unmap(target, FreeableRange(writer.gap_around(target)));
    })
}

/// The source of a move stays mapped without its pages: it is not locked any more, and if all of it has
/// moved it has no anon_vma. As in Linux it stays a mapping of its own, whatever it could merge with now.
/// Tables that the move left empty are freed.
fn keep_source<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    old: VirtRange,
    unmapper: &mut Unmapper<'s, P>,
) {
    unmapper.free_empty(old, FreeableRange(old));
    let Some(vma) = writer.find(old.start()) else { return };
    let snapshot = vma.snapshot();
    let flags = snapshot.flags - VmFlags::LOCK_MASK;
    let anon = if snapshot.range == old { AnonVmaRef::NONE } else { snapshot.anon };
    writer.core.usage.reclass(snapshot.flags, flags, snapshot.range.pages());
    let rmap_locks = writer.lock_rmap(snapshot.backing, [snapshot.anon]);
    writer.set_vma(vma, VmaSnapshot { flags, anon, ..snapshot }, &rmap_locks);
    drop(rmap_locks);
    if snapshot.flags.contains(VmFlags::LOCKED) {
        // The whole mapping, of which a part may have moved.
        set_mlocked(&writer.tables(), snapshot.range, false);
    }
}

/// The range around `old`, a part of `vma`, in which nothing else is mapped, without `target`, where it
/// moves to.
fn gap_of_move<P: Platform>(
    writer: &MmapWriter<'_, P>,
    vma: &Vma,
    old: VirtRange,
    target: VirtRange,
) -> VirtRange {
    let whole = vma.range();
    let below = writer.last_starting_before(whole.start()).map_or(VirtAddr(0), |vma| vma.range().end());
    let above = writer.first_ending_after(whole.end()).map_or(P::Paging::USER_END, |vma| vma.range().start());
    let below = if whole.start() < old.start() { old.start() } else { below };
    let above = if whole.end() > old.end() { old.end() } else { above };
    if target.start() < old.start() {
        VirtRange::new(below.max(target.end()), above)
    } else {
        VirtRange::new(below, above.min(target.start()))
    }
}
