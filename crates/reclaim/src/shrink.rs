//! Paging out a batch of folios.
//!
//! First all are unmapped, then the TLBs are flushed once for all of them, then they are written and freed.
//! Each is under its folio lock from the first step to the last. A failed folio stays in memory: in the swap
//! cache, mapped or not, and on an LRU list.

mod shmem;

use arrayvec::ArrayVec;
use quire_arch::{NodeId, Order, Pfn, Platform};
use quire_frame::{
    FolioCounter, FolioGuard, Frame, FrameChain, FrameFlags, FrameState, HeldParts, Kind, VmEvent,
};
use quire_memcg::{LruList, MemcgId, MemcgStat, UnevictableFolios};
use quire_pageout::{LockFound, UnmapBatch, Unmapped, referenced, unmap_to_discard, unmap_to_swap};
use quire_space::Spaces;
use quire_swap::{IoState, NoSlots, Shadow};

/// Folios that are paged out together.
pub(crate) const BATCH: usize = 32;

/// Isolated folios, each with a reference.
pub(crate) type Isolated = ArrayVec<Pfn, BATCH>;

/// Which folios stay in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pressure {
    /// Folios that were referenced since the last check stay, and folios under writeback.
    Usual,
    /// Referenced folios stay. A full round found nothing that could be freed at once: wait for writeback.
    Starved,
    /// A program asked to page it out (`MADV_PAGEOUT`), referenced or not. As in Linux the accessed bits are
    /// not checked, and it is not counted as scanned or freed.
    Madvise,
}

/// The outcome for a folio.
enum Fate {
    /// It was referenced: to the active list.
    Activate,
    /// To the front of the inactive list.
    Keep,
    /// It can be freed as soon as it is written: then to the end of the inactive list.
    Write,
    /// A program mlocked it.
    Lock,
    /// It is on its list already.
    Listed,
}

/// Why a folio is not unmapped.
enum Refusal {
    /// It stays in memory.
    Stays(Fate),
    /// The next step may wait: for a device, or for slots or a lock. It is as it was, and is tried again when
    /// no folios are in hand for which others wait.
    NotYet,
}

impl From<Fate> for Refusal {
    fn from(fate: Fate) -> Self {
        Self::Stays(fate)
    }
}

/// A folio that is unmapped and under its folio lock. If its contents are needed it is in the swap cache.
struct Ready<'s, P: Platform> {
    head: Pfn,
    guard: FolioGuard<'s, P>,
}

/// Pages out those of `folios` that it can, and puts the others back on their lists. Returns the pages freed.
pub(crate) fn shrink<P: Platform>(spaces: &Spaces<P>, folios: &mut Isolated, pressure: Pressure) -> u64 {
    let mut ready: ArrayVec<Ready<'_, P>, BATCH> = ArrayVec::new();
    let mut batch = UnmapBatch::new(spaces.rmap());
    let mut parts = HeldParts::new();
    let mut freed = 0;
    for head in folios.drain(..) {
        let mut next = Some(head);
        // The parts of a folio that is split follow it at once: the last of them first, as in Linux.
        while let Some(head) = next {
            if ready.is_full() {
                batch.flush();
                freed += write_and_free_all(spaces, &mut ready);
            }
            let how = (pressure, ready.is_empty());
            match unmap(spaces, head, how, &mut batch, (&mut freed, &mut parts)) {
                Ok(unmapped) => {
                    spaces.swap().io().prefetch_folio(head);
                    ready.push(unmapped);
                }
                Err(Refusal::Stays(fate)) => {
                    // Its slots may be named no more. If they are all that there are no other folio is looked at.
                    if spaces.frames().known(head).word().flags().contains(FrameFlags::SWAP_CACHE) {
                        leave_if_unnamed(spaces, head);
                    }
                    put_back(spaces, head, &fate);
                }
                Err(Refusal::NotYet) => {
                    batch.flush();
                    freed += write_and_free_all(spaces, &mut ready);
                    continue;
                }
            }
            next = parts.pop();
        }
    }
    batch.flush();
    freed + write_and_free_all(spaces, &mut ready)
}

/// The second half for all of `ready`, after the flush.
// A frame of its own: that of `shrink` holds the batch, below all that a page-out calls.
#[inline(never)]
fn write_and_free_all<'s, P: Platform>(
    spaces: &'s Spaces<P>,
    ready: &mut ArrayVec<Ready<'s, P>, BATCH>,
) -> u64 {
    let mut chain = FrameChain::new();
    let freed = ready.drain(..).map(|folio| write_and_free(spaces, folio, &mut chain)).sum();
    spaces.frames().free_chain(&spaces.platform().pin(), chain);
    freed
}

/// Pages out isolated folios, each with a reference, at a program's request.
pub(crate) fn page_out<P: Platform>(spaces: &Spaces<P>, folios: &mut dyn Iterator<Item = Pfn>) -> u64 {
    let _reclaiming = spaces.begin_reclaim();
    let mut freed = 0;
    loop {
        let mut some: Isolated = (&mut *folios).take(BATCH).collect();
        if some.is_empty() {
            return freed;
        }
        let now = shrink(spaces, &mut some, Pressure::Madvise);
        spaces.note_reclaimed(now);
        freed += now;
    }
}

/// The first half: from the reference check to the removal of the last mapping. It waits only if the caller
/// `may_wait`: then it has no folio in hand. Adds to `freed` the pages that are freed already. If the folio
/// is split its other parts enter `parts`, which has none yet: they are isolated, each with a reference.
// As for `write_and_free_all`.
#[inline(never)]
fn unmap<'s, P: Platform>(
    spaces: &'s Spaces<P>,
    head: Pfn,
    (pressure, may_wait): (Pressure, bool),
    batch: &mut UnmapBatch<'s, P>,
    (freed, parts): (&mut u64, &mut HeldParts),
) -> Result<Ready<'s, P>, Refusal> {
    let frame = spaces.frames().known(head);
    let guard = lock_at_rest(spaces, head, (pressure, may_wait))?;
    match frame.kind() {
        Kind::Anonymous => {}
        Kind::Shmem => {
            return shmem::unmap_shmem(spaces, Ready { head, guard }, (pressure, may_wait), batch, parts);
        }
        _ => return Err(Fate::Keep.into()),
    }
    if pressure != Pressure::Madvise
        && is_partly_mapped(frame.word().flags())
        && !spaces.thp().is_held_elsewhere(head)
    {
        if !may_wait {
            return Err(Refusal::NotYet);
        }
        *freed += spaces.thp().split_isolated(head, true, parts).unwrap_or(0);
    }
    let flags = frame.word().flags();
    if pressure != Pressure::Madvise && frame.as_folio().maps() > 0 {
        check_referenced(spaces, head, &guard)?;
    }
    let unmapped = frame.as_folio().maps() == 0;
    if unmapped && flags.contains(FrameFlags::SWAP_CACHE) && spaces.swap().cache().remove_unnamed(head) {
        // No lookup can find it any more. The cache's reference is dropped here; a thread that uses it now
        // has its own.
        spaces.memcgs().folios().release_folio(head);
        return Ok(Ready { head, guard });
    }
    if unmapped && !flags.contains(FrameFlags::SWAP_CACHE) {
        // The last owner is freeing it, and takes it off its list. In the cache it would have no owner.
        return Err(Fate::Keep.into());
    }
    let discarded = flags & (FrameFlags::LAZY_FREE | FrameFlags::SWAP_CACHE) == FrameFlags::LAZY_FREE
        && !flags.contains(FrameFlags::DIRTY);
    let unmapped = if discarded {
        unmap_to_discard(batch, head)
    } else {
        if !flags.contains(FrameFlags::SWAP_CACHE) {
            give_slots(spaces, head, may_wait, (freed, parts))?;
        }
        unmap_to_swap(batch, head)
    };
    let fate = match unmapped {
        Unmapped::All => return Ok(Ready { head, guard }),
        // Mlocked since its mappings were checked: the next check finds how much of it.
        Unmapped::Locked => Fate::Keep,
        Unmapped::Pinned | Unmapped::Busy | Unmapped::Dirty => Fate::Activate,
    };
    // TLBs may hold translations of what was unmapped of it, and the next holder of the lock may map it
    // again.
    batch.flush();
    drop(guard);
    leave_if_unnamed(spaces, head);
    Err(fate.into())
}

/// Whether pages of a large folio are needed by no program. They are freed first, referenced or not, and
/// without being written; what is left is reclaimed page by page. Its slots are one block as long as it is
/// one folio, so one that is in the swap cache stays whole.
fn is_partly_mapped(flags: FrameFlags) -> bool {
    flags & (FrameFlags::PARTLY_MAPPED | FrameFlags::SWAP_CACHE) == FrameFlags::PARTLY_MAPPED
}

/// Takes the folio lock if it is free and no device is writing the folio. Starved reclaim waits for the
/// device, if the caller `may_wait`.
fn lock_at_rest<P: Platform>(
    spaces: &Spaces<P>,
    head: Pfn,
    (pressure, may_wait): (Pressure, bool),
) -> Result<FolioGuard<'_, P>, Refusal> {
    let frame = spaces.frames().known(head);
    let is_busy = |with| pressure == Pressure::Starved && frame.word().flags().contains(with);
    if is_busy(FrameFlags::READING) {
        if !may_wait {
            return Err(Refusal::NotYet);
        }
        // A folio read by readahead may have no waiter.
        let _ = spaces.swap().io().wait_read(head);
    }
    let guard = spaces.frames().folios().try_lock_folio(head).ok_or(Fate::Keep)?;
    if is_busy(FrameFlags::WRITEBACK) {
        if !may_wait {
            return Err(Refusal::NotYet);
        }
        spaces.swap().io().wait_writeback(head);
    }
    if free_when_written(frame) {
        return Err(Fate::Write.into());
    }
    Ok(guard)
}

/// The end of the write finds this, and rotates the folio to the end of its list. False if no device is writing
/// it any more: then the mark would stay until the next write, and rotate it once too often.
fn free_when_written(frame: &Frame) -> bool {
    let is_written = |word: FrameState| word.flags().contains(FrameFlags::WRITEBACK);
    frame.change_flags_if(FrameFlags::RECLAIM, FrameFlags::empty(), is_written)
}

/// Refuses a folio that is mlocked, or was referenced since the last check.
fn check_referenced<P: Platform>(
    spaces: &Spaces<P>,
    head: Pfn,
    guard: &FolioGuard<'_, P>,
) -> Result<(), Fate> {
    let used = referenced(spaces.rmap(), head, Some(guard)).ok_or(Fate::Keep)?;
    match used.lock {
        LockFound::None => {}
        LockFound::Part => return Err(Fate::Activate),
        // Where folios are not listed for the locks on them, a call that unlocks one does not look for marks.
        LockFound::Whole if !spaces.memcgs().folios().lists_anonymous() => return Err(Fate::Keep),
        LockFound::Whole => return Err(Fate::Lock),
    }
    if used.mappings == 0 {
        return Ok(());
    }
    let before = spaces.frames().known(head).set_flags(FrameFlags::REFERENCED);
    let again = before.is_some_and(|before| before.contains(FrameFlags::REFERENCED));
    Err(if again || used.mappings > 1 { Fate::Activate } else { Fate::Keep })
}

/// Adds a folio of private memory to the swap cache. A large one without enough contiguous slots, or of a
/// memcg that may have a few more only, is split: the first part continues, and the others enter `parts`. A
/// split waits for a lock of mappings.
fn give_slots<P: Platform>(
    spaces: &Spaces<P>,
    head: Pfn,
    may_wait: bool,
    (freed, parts): (&mut u64, &mut HeldParts),
) -> Result<(), Refusal> {
    match ask_for_slots(spaces, head, may_wait)? {
        Ok(()) => return Ok(()),
        Err(why) if !is_to_be_split(spaces, head, why) => return Err(Fate::Activate.into()),
        // The limit has changed since it was looked at. A split waits for the mappings.
        Err(_) if !may_wait => return Err(Refusal::NotYet),
        Err(_) => {}
    }
    count_fallback(spaces, head);
    // Pages of zeros are free at once.
    *freed += spaces.thp().split_isolated(head, false, parts).map_err(|_| Fate::Activate)?;
    if spaces.frames().known(head).as_folio().maps() == 0 {
        // The first of them: it is freed with the caller's reference.
        return Err(Fate::Keep.into());
    }
    ask_for_slots(spaces, head, may_wait)?.map_err(|_| Fate::Activate.into())
}

/// Adds a folio to the swap cache, or says why it has no slots.
fn ask_for_slots<P: Platform>(
    spaces: &Spaces<P>,
    head: Pfn,
    may_wait: bool,
) -> Result<Result<(), NoSlots>, Refusal> {
    let memcg = spaces.frames().known(head).as_folio().memcg();
    let order = spaces.frames().folio(head).order();
    if may_wait {
        // Folios that only the cache needed may make room for it.
        let left = &mut |head| spaces.memcgs().splits().left_swap_cache(head);
        return Ok(spaces.swap().allocator().add_folio_for(head, memcg, left).map(|_| ()));
    }
    if order > Order::ZERO && (1..order.pages()).contains(&slots_left(spaces, memcg)) {
        // It is to be split.
        return Err(Refusal::NotYet);
    }
    match spaces.swap().allocator().add_folio_at_once(head, memcg) {
        Err(NoSlots::Full | NoSlots::WrongOrder | NoSlots::NoMemory) => Err(Refusal::NotYet),
        found => Ok(found.map(|_| ())),
    }
}

/// Whether a folio that has no slots for this reason is large, and its pages may have some.
fn is_to_be_split<P: Platform>(spaces: &Spaces<P>, head: Pfn, why: NoSlots) -> bool {
    let memcg = spaces.frames().known(head).as_folio().memcg();
    spaces.frames().folio(head).order() > Order::ZERO
        && match why {
            NoSlots::WrongOrder => true,
            NoSlots::Limit => slots_left(spaces, memcg) > 0,
            _ => false,
        }
}

/// How many slots the memcg that a descriptor names may have yet.
fn slots_left<P: Platform>(spaces: &Spaces<P>, memcg: u16) -> u64 {
    spaces.memcgs().charges().swap_left(MemcgId::from_bits(memcg))
}

/// Counts that a large folio is split because it has no slots.
fn count_fallback<P: Platform>(spaces: &Spaces<P>, head: Pfn) {
    let order = spaces.frames().folio(head).order();
    let pin = spaces.platform().pin();
    spaces.frames().events().count_folio(&pin, order, FolioCounter::SwpoutFallback, 1);
    if order == Order::PMD {
        // Memcgs count folios as large as a PMD entry's only.
        let memcg = MemcgId::from_bits(spaces.frames().known(head).as_folio().memcg());
        spaces.memcgs().counters().add_stat(&pin, memcg, MemcgStat::ThpSwpoutFallback, 1);
    }
}

/// The second half, after the flush: the folio is written to the device, and its frames are freed.
fn write_and_free<P: Platform>(spaces: &Spaces<P>, folio: Ready<'_, P>, chain: &mut FrameChain) -> u64 {
    let Ready { head, guard } = folio;
    let frame = spaces.frames().known(head);
    let pages = spaces.frames().folio(head).order().pages();
    if frame.kind() == Kind::Shmem
        && spaces.frames().folio(head).is_in_file_cache()
        && !shmem::leave_file(spaces, head)
    {
        // Another thread uses it.
        drop(guard);
        if frame.word().flags().contains(FrameFlags::SWAP_CACHE) {
            leave_if_unnamed(spaces, head);
        }
        put_back(spaces, head, &Fate::Activate);
        return 0;
    }
    if !frame.word().flags().contains(FrameFlags::SWAP_CACHE) {
        let lazy = frame.word().flags().contains(FrameFlags::LAZY_FREE);
        let memcg = MemcgId::from_bits(frame.as_folio().memcg());
        drop(guard);
        // The memcg may go with its last charge, but not before this section ends.
        let pin = spaces.platform().pin();
        let _section = spaces.frames().epoch().enter(&pin);
        // This is the last reference, unless a speculative reference was taken just now: then the folio is
        // freed with that.
        if !spaces.memcgs().folios().put_folio(chain, head, frame.word().order()) {
            return 0;
        }
        if lazy {
            spaces.frames().events().add(&pin, VmEvent::Pglazyfreed, pages);
            spaces.memcgs().counters().add_stat(&pin, memcg, MemcgStat::Pglazyfreed, pages as i64);
        }
        return pages;
    }
    let (mut memcg, node) = (MemcgId::ROOT, frame.zone().node());
    let shadow = || {
        memcg = MemcgId::from_bits(frame.as_folio().memcg());
        shadow(spaces, head, (memcg, node))
    };
    // The cache's reference and that of the isolation.
    let fate = match spaces.swap().io().page_out(head, 2, shadow) {
        Ok(true) => None,
        Ok(false) => Some(Fate::Keep),
        Err(IoState::Begun) => {
            free_when_written(frame);
            Some(Fate::Write)
        }
        // It stays in memory, and is written again when its turn comes.
        Err(IoState::Done(_)) => Some(Fate::Activate),
    };
    drop(guard);
    if let Some(fate) = fate {
        // The thread that dropped its last slot meanwhile found it locked.
        leave_if_unnamed(spaces, head);
        put_back(spaces, head, &fate);
        return 0;
    }
    spaces.memcgs().folios().advance(memcg, node, pages);
    spaces.memcgs().folios().free_frozen(head, chain);
    pages
}

/// Takes the folio out of the swap cache if nothing names its slots. Pages of it may be mapped.
#[cold]
fn leave_if_unnamed<P: Platform>(spaces: &Spaces<P>, head: Pfn) {
    if spaces.swap().cache().leave_if_unnamed(head) {
        spaces.memcgs().splits().left_swap_cache(head);
    }
}

/// The shadow for the slots of a folio.
fn shadow<P: Platform>(spaces: &Spaces<P>, head: Pfn, (memcg, node): (MemcgId, NodeId)) -> Shadow {
    let workingset = spaces.frames().known(head).word().flags().contains(FrameFlags::WORKINGSET);
    spaces.swap().ages().shadow(node, memcg.get(), workingset, spaces.memcgs().folios().age(memcg, node))
}

/// Whether no program locks all of a folio any more, as far as its mappings can be looked at.
fn is_locked_no_more<P: Platform>(spaces: &Spaces<P>, head: Pfn) -> bool {
    referenced(spaces.rmap(), head, None).is_none_or(|used| used.lock != LockFound::Whole)
}

/// Puts a folio back on the list that its outcome demands, and drops its reference.
fn put_back<P: Platform>(spaces: &Spaces<P>, head: Pfn, fate: &Fate) {
    let frame = spaces.frames().known(head);
    let memcgs = spaces.memcgs();
    // The file lists, if it was freed lazily.
    let (inactive, active) = (LruList::InactiveAnon, LruList::ActiveAnon);
    let events = spaces.frames().events();
    let pages = spaces.frames().folio(head).order().pages();
    let mut locked = frame.word().flags().contains(FrameFlags::MLOCKED);
    if frame.kind() == Kind::Shmem && !memcgs.folios().lists_anonymous() {
        // It was on no list. Who begins to list finds it. What was freed lazily is listed always.
        if matches!(fate, Fate::Activate) {
            spaces.swap().io().count_pages(head, VmEvent::Pgactivate, MemcgStat::Pgactivate);
        }
        memcgs.folios().release_folio(head);
        return;
    }
    {
        let pin = spaces.platform().pin();
        match fate {
            Fate::Listed => {
                if locked {
                    UnevictableFolios::of(memcgs.folios()).cull(&pin, head);
                    locked = false;
                }
            }
            // It was mlocked while it was isolated.
            _ if locked => {}
            Fate::Activate => {
                spaces.swap().io().count_pages(head, VmEvent::Pgactivate, MemcgStat::Pgactivate);
                memcgs.folios().put_back(&pin, head, active, true);
            }
            Fate::Keep => memcgs.folios().put_back(&pin, head, inactive, true),
            // It should not be scanned again before the others.
            Fate::Write => {
                let under_way = frame.word().flags().contains(FrameFlags::WRITEBACK);
                memcgs.folios().put_back(&pin, head, inactive, under_way);
            }
            Fate::Lock => {
                frame.set_flags(FrameFlags::MLOCKED);
                events.add(&pin, VmEvent::UnevictablePgsMlocked, pages);
                locked = true;
            }
        }
        if locked {
            events.add(&pin, VmEvent::UnevictablePgsCulled, pages);
            memcgs.folios().put_back(&pin, head, LruList::Unevictable, true);
        }
    }
    if locked {
        let unlocked = matches!(fate, Fate::Lock) && is_locked_no_more(spaces, head);
        let pin = spaces.platform().pin();
        // A thread that unlocks it holds its head lock, and from now on finds it on its list.
        let _lock = spaces.frames().folios().lock_head(head);
        if unlocked
            && frame.clear_flags(FrameFlags::MLOCKED).is_some_and(|was| was.contains(FrameFlags::MLOCKED))
        {
            events.add(&pin, VmEvent::UnevictablePgsMunlocked, pages);
        }
        if !frame.word().flags().contains(FrameFlags::MLOCKED)
            && memcgs.folios().move_to(&pin, head, inactive, true)
        {
            events.add(&pin, VmEvent::UnevictablePgsRescued, pages);
        }
    }
    spaces.memcgs().folios().release_folio(head);
}
