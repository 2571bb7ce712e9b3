//! `madvise`.

use super::page_range;
use crate::caller::Caller;
use crate::calls::collapse::{collapse_block, collapse_orders, count_without_folio};
use crate::calls::collapse_file::{collapse_in_file, map_collapsed};
use crate::calls::populate::{PopulateError, populate_all};
use crate::calls::remove::remove;
use crate::calls::swap_in::swap_in_for_collapse;
use crate::calls::will_need::will_need;
use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::{Access, Level, PagingFormat, Pfn, Platform, VirtAddr, VirtRange};
use quire_frame::AllocError;
use quire_pageout::{Ageing, Cold, LazyFree};
use quire_pagetable::{FlushCause, FreeableRange, Guards, Tables, Unmapper, Zap};
use quire_thp::{CollapseError, HugeUse, NewFolio, Presence, huge_borders};
use quire_vma::{Backing, VmFlags, Vma, VmaSnapshot, may_split};

pub(crate) fn madvise<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    len: u64,
    advice: Advice,
) -> Result<(), Error> {
    let Some(range) = page_range(addr, len, Error::BadArgument)? else { return Ok(()) };
    match advice {
        Advice::WillNeed => will_need(caller, range),
        Advice::PopulateRead => {
            populate_all(caller, range, Some(Access::Read)).map_err(PopulateError::as_advice_error)
        }
        Advice::PopulateWrite => {
            populate_all(caller, range, Some(Access::Write)).map_err(PopulateError::as_advice_error)
        }
        Advice::Collapse => collapse(caller, range),
        Advice::Remove => remove(caller, range),
        _ => caller.with_reclaim(|| advise_once(caller, range, advice))?,
    }
}

/// As [`in_turns`](Self::in_turns).
fn advise_once<P: Platform>(
    caller: Caller<'_, P>,
    range: VirtRange,
    advice: Advice,
) -> Result<Result<(), Error>, Error> {
    let mut section = MmapWriter::begin(caller.spaces, caller.core);
    let mut done = Advised::none(range.start());
    caller.in_turns(|| {
        let result = advise(&mut section, range, advice, &mut done);
        (result, done.at.0 - range.start().0)
    })
}

/// As in Linux the folio for a block comes first, and only then its pages are swapped in, with no lock
/// held for writing. A page that does not come, and a marker, end the call. One reclaim is made for each
/// block for which there is no free one, with no lock held, and no program is killed for it.
fn collapse<P: Platform>(caller: Caller<'_, P>, range: VirtRange) -> Result<(), Error> {
    let (mut reached, mut new): (Option<ReachedBlock>, _) = (None, None);
    let mut reclaimed_for = None;
    loop {
        let result = collapse_blocks(
            &mut MmapWriter::begin(caller.spaces, caller.core),
            range,
            &mut reached,
            &mut new,
        );
        let Some((block, lacks)) =
            reached.as_mut().and_then(|block| block.lacks.take().map(|it| (block, it)))
        else {
            return result;
        };
        let killed = caller.core.is_killed();
        match (lacks, result, Tables::<P>::huge_order()) {
            (Lacks::Pages | Lacks::Folio, ..) if killed => return result,
            (Lacks::Folio, ..) => block.in_file = Some(collapse_in_file(caller, block.at)),
            (Lacks::Pages, ..) => {
                if !swap_in_for_collapse(caller, block.at) {
                    return Err(Error::WrongMapping);
                }
            }
            (Lacks::Frames, Err(Error::NoFrames(AllocError::OutOfMemory)), Some(order))
                if !killed
                    && reclaimed_for != Some(block.at)
                    && caller.spaces.direct_reclaim().free_for_wish(order) =>
            {
                reclaimed_for = Some(block.at);
            }
            (Lacks::Frames, ..) => {
                count_without_folio(caller.spaces);
                return result;
            }
        }
    }
}

/// Advice for a range (`MADV_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Advice {
    /// No special treatment.
    Normal,
    /// Expect random reads.
    Random,
    /// Expect sequential reads.
    Sequential,
    /// Will be needed soon.
    WillNeed,
    /// Drop the contents.
    DontNeed,
    /// Drop the contents, also of locked memory.
    DontNeedLocked,
    /// The contents may be dropped under pressure.
    Free,
    /// Make a hole in the file, where a shared mapping maps one that is open for writing.
    Remove,
    /// Not to be copied on fork.
    DontFork,
    /// To be copied on fork.
    DoFork,
    /// Zero-filled in a child.
    WipeOnFork,
    /// Copied to a child.
    KeepOnFork,
    /// May be merged with equal pages.
    Mergeable,
    /// Not to be merged.
    Unmergeable,
    /// Use large folios.
    HugePage,
    /// Use none.
    NoHugePage,
    /// Make each whole aligned block one large folio now.
    Collapse,
    /// Leave out of core dumps.
    DontDump,
    /// Put into core dumps.
    DoDump,
    /// Not needed soon.
    Cold,
    /// Page out now.
    PageOut,
    /// Fault in for reading.
    PopulateRead,
    /// Fault in for writing.
    PopulateWrite,
    /// Drop the contents, and refuse every access.
    GuardInstall,
    /// Allow accesses again.
    GuardRemove,
}

/// What an advice does to one mapping.
enum Effect {
    /// Nothing that can be seen.
    None,
    /// New flags.
    Flags(VmFlags),
    /// The pages are freed.
    Drop,
    /// The pages may be freed when memory runs short.
    Free,
    /// They are deactivated, or reclaimed at once.
    Age(Ageing),
    /// Guard pages take the place of the pages.
    Guard,
    /// Guard pages go.
    Unguard,
}

/// How far a collapse came in a mapping: a block, and what became of those before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReachedBlock {
    pub(crate) at: VirtAddr,
    /// What it takes to go on with it, if the call can.
    pub(crate) lacks: Option<Lacks>,
    /// Why the last one of those before it that are not collapsed is not.
    failed: Option<Error>,
    /// Of shared memory: what became of it in its file.
    in_file: Option<Result<(), CollapseError>>,
}

/// How far advice came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advised {
    /// Everything before this is done.
    pub(crate) at: VirtAddr,
    /// A part before it was not mapped.
    hole: bool,
}

impl Advised {
    /// Nothing from `start` on is done.
    pub(crate) fn none(start: VirtAddr) -> Self {
        Self { at: start, hole: false }
    }
}

/// What a block lacks that is to be collapsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lacks {
    /// Frames for the folio.
    Frames,
    /// Pages of its own, which are swapped out, or markers.
    Pages,
    /// One folio for all of its pages, in the file.
    Folio,
}

/// Advises what lies in `range` from where `done` says on, and notes in it what it has done, also if it
/// fails.
pub(crate) fn advise<P: Platform>(
    writer: &mut MmapWriter<'_, P>,
    range: VirtRange,
    advice: Advice,
    done: &mut Advised,
) -> Result<(), Error> {
    if matches!(advice, Advice::Cold | Advice::PageOut) {
        // Nothing is gathered, and reclaim, which comes below this, needs the stack.
        return advise_mappings(writer, range, done, |writer, vma, part| {
            if let Effect::Age(way) = effect(&vma.snapshot(), advice)? {
                age(writer, part, way);
            }
            Ok(())
        });
    }
    advise_gathering(writer, range, advice, done)
}

#[inline(never)]
fn advise_gathering<P: Platform>(
    writer: &mut MmapWriter<'_, P>,
    range: VirtRange,
    advice: Advice,
    done: &mut Advised,
) -> Result<(), Error> {
    let mut unmapper = Unmapper::new(writer.tables(), FlushCause::Discard);
    let result = advise_mappings(writer, range, done, |writer, vma, part| {
        advise_part(writer, vma, part, advice, &mut unmapper)
    });
    unmapper.finish();
    result
}

fn advise_mappings<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    range: VirtRange,
    done: &mut Advised,
    mut each: impl FnMut(&mut MmapWriter<'s, P>, &'s Vma, VirtRange) -> Result<(), Error>,
) -> Result<(), Error> {
    while done.at < range.end() {
        let rest = VirtRange::new(done.at, range.end());
        let Some(vma) = writer.first_in(rest) else { return Err(Error::NotMapped) };
        done.hole |= vma.range().start() > done.at;
        let part = vma.range().intersect(rest);
        each(writer, vma, part)?;
        done.at = part.end();
    }
    if done.hole { Err(Error::NotMapped) } else { Ok(()) }
}

fn age<P: Platform>(writer: &MmapWriter<'_, P>, part: VirtRange, way: Ageing) {
    let begin = || writer.spaces.begin_reclaim();
    let page_out = |folios: &mut dyn Iterator<Item = Pfn>| {
        writer.spaces.reclaim().page_out(writer.spaces, folios);
    };
    let gives_up = || writer.core.is_killed();
    let spaces = writer.spaces;
    let (thp, shmem, rmap) = (spaces.thp(), spaces.page_cache().shmem(), spaces.rmap());
    Cold { tables: writer.tables(), thp, shmem, rmap, way, begin, page_out, gives_up }.age(part);
}

fn advise_part<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    vma: &'s Vma,
    part: VirtRange,
    advice: Advice,
    unmapper: &mut Unmapper<'s, P>,
) -> Result<(), Error> {
    let snapshot = vma.snapshot();
    let drops = matches!(advice, Advice::DontNeed | Advice::DontNeedLocked);
    if drops && snapshot.flags.contains(VmFlags::HUGETLB) {
        // Nothing to drop; the end is rounded down.
        return if may_split(&snapshot, part.start()) { Ok(()) } else { Err(Error::WrongMapping) };
    }
    match effect(&snapshot, advice)? {
        Effect::None => Ok(()),
        Effect::Flags(flags) => writer.modify(vma, part, flags).map(|_| ()).map_err(|error| match error {
            Error::NoFrames(cause) => Error::TryAgain(cause),
            Error::MapCountLimit => Error::MapCountLimitAgain,
            other => other,
        }),
        Effect::Guard => guard_part(writer, vma, part, unmapper),
        Effect::Unguard => {
            Guards::new(&writer.tables()).remove_guards(part, snapshot.permissions());
            unmapper.free_empty(part, FreeableRange(part));
            Ok(())
        }
        Effect::Free => {
            let lazy = LazyFree { tables: writer.tables(), thp: writer.spaces.thp() };
            lazy.free_lazily(part, unmapper);
            Ok(())
        }
        Effect::Age(way) => {
            age(writer, part, way);
            Ok(())
        }
        Effect::Drop => {
            // Faults may run concurrently: each comes before or after, and the table locks keep each page
            // consistent.
            let locked = vma.flags().contains(VmFlags::LOCKED);
            unmapper.drop_contents(part, if locked { Zap::LockedContents } else { Zap::Contents });
            Ok(())
        }
    }
}

/// Collapses each aligned block of `range`. It fails where one lacks something that is to be had without
/// the lock, and `reached` is that block: the next call goes on from there, with the folio `new` if it
/// has one.
pub(crate) fn collapse_blocks<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    range: VirtRange,
    reached: &mut Option<ReachedBlock>,
    new: &mut Option<NewFolio<'s, P>>,
) -> Result<(), Error> {
    let done = &mut Advised::none(range.start());
    advise_mappings(writer, range, done, |writer, vma, part| collapse_part(writer, vma, part, (reached, new)))
}

/// Collapses each aligned block in `part` of `vma`. As in Linux, it continues after a block that cannot
/// be collapsed, and returns the last failure; but a block without a table ends it.
fn collapse_part<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    vma: &'s Vma,
    part: VirtRange,
    (reached, new): (&mut Option<ReachedBlock>, &mut Option<NewFolio<'s, P>>),
) -> Result<(), Error> {
    let snapshot = vma.snapshot();
    let orders = collapse_orders(writer.spaces, writer.core, &snapshot, HugeUse::Collapse);
    if orders.fitting(snapshot.range).is_empty() {
        return Err(Error::WrongMapping);
    }
    let (start, end) = huge_borders::<P>(part.start(), part.end());
    let block = P::Paging::entry_bytes(Level::PMD);
    // Linux counts blocks even where the end lies before the start, and then misses some.
    let failed = (end < start).then_some(Error::WrongMapping);
    // The mapping may begin and end elsewhere than at the call before, so nothing is counted.
    let mut now = ReachedBlock { at: start, lacks: None, failed, in_file: None };
    match *reached {
        Some(before) if (start..end).contains(&before.at) => now = before,
        // All of it was collapsed.
        Some(before) if start < end && end <= before.at => return Ok(()),
        _ => {}
    }
    while now.at < end {
        let result = match now.in_file.take() {
            _ if !snapshot.backing.is_opened() => collapse_block(writer, vma, now.at, new),
            Some(Err(error)) => Err(error),
            tried => match map_collapsed(writer, vma, now.at, true) {
                Ok(Presence::Partial) if tried.is_none() => {
                    *reached = Some(ReachedBlock { lacks: Some(Lacks::Folio), ..now });
                    return Err(Error::Busy);
                }
                // Another thread has split it, or has it locked.
                Ok(Presence::Partial) => Err(CollapseError::Busy),
                mapped => mapped,
            },
        };
        match result {
            Ok(Presence::Whole) => {}
            Ok(Presence::Partial) => {
                *reached = Some(ReachedBlock { lacks: Some(Lacks::Pages), ..now });
                return Err(Error::Busy);
            }
            Err(CollapseError::Unfit) => now.failed = Some(Error::WrongMapping),
            Err(CollapseError::Busy) => now.failed = Some(Error::Busy),
            Err(CollapseError::NoTable | CollapseError::Refused) => return Err(Error::WrongMapping),
            // A reclaim was made for it.
            Err(CollapseError::OutOfMemory(error)) if snapshot.backing.is_opened() => {
                return Err(error.into());
            }
            Err(CollapseError::OutOfMemory(error)) => {
                *reached = Some(ReachedBlock { lacks: Some(Lacks::Frames), ..now });
                return Err(error.into());
            }
            Err(CollapseError::OverLimit(_)) => return Err(Error::MemcgLimit),
        }
        now = ReachedBlock { at: VirtAddr(now.at.0 + block), ..now };
    }
    now.failed.map_or(Ok(()), Err)
}

/// Puts guard pages in place of all pages of `part`, which lies in `vma`. The VMA is write-locked, so no
/// fault is in it. Everything that can fail comes before pages are dropped. A killed program gets no
/// tables: its memory is wanted back, and this call has the lock that its reaper needs.
fn guard_part<'s, P: Platform>(
    writer: &mut MmapWriter<'s, P>,
    vma: &'s Vma,
    part: VirtRange,
    unmapper: &mut Unmapper<'s, P>,
) -> Result<(), Error> {
    writer.lock_vma(vma);
    if vma.snapshot().backing.is_anonymous() {
        // SAFETY: it was found in this section, which has the mmap lock.
        unsafe { writer.faults().give_anon_vma(vma) }?;
    }
    if let Err(error) = Guards::new(&writer.tables()).make_bottoms(part, || !writer.core.is_killed()) {
        unmapper.free_empty(part, FreeableRange(part));
        return Err(error.into());
    }
    let snapshot = vma.snapshot();
    let flags = snapshot.flags | VmFlags::MAYBE_GUARD;
    // As in Linux, of the whole VMA, and for good: a fork has to copy its tables. No walker of the rmap
    // looks at this, so it takes no root lock.
    vma.set(VmaSnapshot { flags, ..snapshot });
    Guards::new(&writer.tables()).install_guards(part, has_pages_in_tables_only(&snapshot), unmapper);
    Ok(())
}

/// VMAs whose pages are not on LRU lists.
const UNLISTED: VmFlags = VmFlags::LOCKED.union(VmFlags::PFNMAP).union(VmFlags::HUGETLB);

/// VMAs that have no guard pages.
const UNGUARDED: VmFlags = VmFlags::SPECIAL.union(VmFlags::HUGETLB);

/// Whether pages of the mapping outlive advice to drop them, and would be lost: those of a file that is only
/// a number are in the tables alone.
fn has_pages_in_tables_only(vma: &VmaSnapshot) -> bool {
    vma.flags.contains(VmFlags::SHARED) && !vma.backing.is_opened()
}

/// What `advice` does to a mapping, or why it does not fit.
fn effect(vma: &VmaSnapshot, advice: Advice) -> Result<Effect, Error> {
    let flags = vma.flags;
    let reading = VmFlags::SEQ_READ | VmFlags::RAND_READ;
    let refuse_if =
        |refused: bool, effect: Effect| if refused { Err(Error::WrongMapping) } else { Ok(effect) };
    let drop = if has_pages_in_tables_only(vma) { Effect::None } else { Effect::Drop };
    match advice {
        Advice::Normal => Ok(Effect::Flags(flags - reading)),
        Advice::Random => Ok(Effect::Flags((flags - reading) | VmFlags::RAND_READ)),
        Advice::Sequential => Ok(Effect::Flags((flags - reading) | VmFlags::SEQ_READ)),
        // These never get here: they are calls of their own.
        Advice::WillNeed
        | Advice::PopulateRead
        | Advice::PopulateWrite
        | Advice::Collapse
        | Advice::Remove => Ok(Effect::None),
        Advice::DontNeed => refuse_if(flags.intersects(VmFlags::LOCKED | VmFlags::PFNMAP), drop),
        Advice::DontNeedLocked => refuse_if(flags.contains(VmFlags::PFNMAP), drop),
        Advice::Free => refuse_if(
            !vma.backing.is_anonymous() || flags.intersects(VmFlags::LOCKED | VmFlags::PFNMAP),
            Effect::Free,
        ),
        Advice::Cold => refuse_if(flags.intersects(UNLISTED), Effect::Age(Ageing::Cold)),
        Advice::PageOut => refuse_if(flags.intersects(UNLISTED), Effect::Age(Ageing::PageOut)),
        Advice::GuardInstall => refuse_if(flags.intersects(UNGUARDED | VmFlags::LOCKED), Effect::Guard),
        Advice::GuardRemove => refuse_if(flags.intersects(UNGUARDED), Effect::Unguard),
        Advice::DontFork => Ok(Effect::Flags(flags | VmFlags::DONTCOPY)),
        Advice::DoFork => refuse_if(flags.contains(VmFlags::IO), Effect::Flags(flags - VmFlags::DONTCOPY)),
        // Linux looks at the file here, not at what its pages are.
        Advice::WipeOnFork => refuse_if(
            vma.backing != Backing::ANONYMOUS || flags.contains(VmFlags::SHARED),
            Effect::Flags(flags | VmFlags::WIPEONFORK),
        ),
        Advice::KeepOnFork => Ok(Effect::Flags(flags - VmFlags::WIPEONFORK)),
        Advice::DontDump => Ok(Effect::Flags(flags | VmFlags::DONTDUMP)),
        Advice::DoDump => {
            let special = flags.intersects(VmFlags::SPECIAL) && !flags.contains(VmFlags::HUGETLB);
            refuse_if(special, Effect::Flags(flags - VmFlags::DONTDUMP))
        }
        Advice::Mergeable | Advice::Unmergeable => {
            let skipped = VmFlags::SHARED | VmFlags::MAYSHARE | VmFlags::SPECIAL;
            if flags.intersects(skipped) {
                return Ok(Effect::None);
            }
            let merge = advice == Advice::Mergeable;
            Ok(Effect::Flags(if merge { flags | VmFlags::MERGEABLE } else { flags - VmFlags::MERGEABLE }))
        }
        Advice::HugePage => Ok(Effect::Flags((flags - VmFlags::NOHUGEPAGE) | VmFlags::HUGEPAGE)),
        Advice::NoHugePage => Ok(Effect::Flags((flags - VmFlags::HUGEPAGE) | VmFlags::NOHUGEPAGE)),
    }
}
