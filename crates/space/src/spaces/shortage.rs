//! Handling of memory shortage by a thread that holds at most the mmap lock.

use super::oom_turns::SeenTurns;
use super::reclaims::SeenReclaims;
use super::{OomAction, OomOutcome, Spaces};
use core::ptr::NonNull;
use quire_arch::{Order, OrderSet, Platform, part_of};
use quire_fault::{FaultError, FilePage, Need, Refusal, SwapIn, SwapInError, Swapped, SwappedIn};
use quire_file::{CachedFile, FileError, HeldFile, OpenFile, Opening, PageError, SwappedPage};
use quire_frame::{AllocError, AllocRequest, VmEvent};
use quire_memcg::{Membership, MemcgEvent, MemcgStat};
use quire_pageout::FileMappers;
use quire_vma::{SpaceCore, Vma};

/// Frames that a thread tries to free when it finds no memory.
const FREED_AT_ONCE: u64 = 512;

/// Pages that a call reclaims before its second attempt; each further attempt doubles it. What a failed call
/// undoes is free again, so each attempt gets further.
const FIRST_RECLAIM: u64 = 32;

/// Attempts of a call. The last one follows a reclaim of 32 times 2^14 pages, 2 GiB.
pub(crate) const CALL_ATTEMPTS: u32 = 16;

/// Looks at a killed program whose memory is not free yet before memory is looked for again, and the time
/// between two: a tick.
const LOOKS: u32 = 10;
const BETWEEN_LOOKS_NS: u64 = 10_000_000;

/// Ticks for which memory is looked for while other threads reclaim. The first, as many as Linux has retries,
/// end with anything that they free, and each time that so many have passed this thread reclaims again.
const TICKS: u32 = 160;
const EAGER_TICKS: u32 = 16;

/// Where no other thread reclaims any more it reclaims as soon as so many have passed, but only as often as
/// Linux retries: a reclaim in vain may take long.
const REST_TICKS: u32 = 4;
const RETRIES: u32 = 16;

/// How often a fault lets the folio go that it has swapped in, for programs that other threads kill: there
/// may be no end of those.
const LETS_GO: u32 = 16;

/// Pages in the largest folio for which a charge that fails is an `oom` event: a larger one is a wish only.
const COSTLY: u64 = 8;

/// What a fault that was refused has for its next attempt.
#[derive(Debug)]
pub(crate) struct Attempts<'s, P: Platform> {
    /// The folio that it has swapped in, which is locked.
    pub(crate) swapped: Option<SwappedIn<'s, P>>,
    /// What others had freed before that attempt begins. Not known of the first one.
    seen: Option<SeenReclaims>,
    /// How often the folio was let go for the sake of a program that another thread has killed.
    let_go: u32,
}

impl<P: Platform> Attempts<'_, P> {
    pub(crate) const fn new() -> Self {
        Self { swapped: None, seen: None, let_go: 0 }
    }
}

/// What an attempt lacked.
#[derive(Clone, Copy)]
struct Shortage<'a> {
    cause: AllocError,
    need: Need,
    /// What others had freed before the attempt. `None`, at most once for a fault or a call, where it is not
    /// known: then there may be room already. Not each time: frames that are free may be none for this need.
    since: Option<SeenReclaims>,
    /// Whether the program has been killed, and needs none.
    gives_up: &'a dyn Fn() -> bool,
}

/// Why a thread releases what it holds, which others may wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LetGo {
    /// A program is to be killed.
    Kill,
    /// One was, by another thread, or one has exited.
    Turn,
}

part_of! {
    /// Memory for a thread that finds none.
    pub struct DirectReclaim { pub(super) spaces: Spaces }
}

impl<'s, P: Platform> DirectReclaim<'s, P> {
    /// Frees memory for a call of a program, after `failed` attempts before that which failed now, unless it
    /// `gives_up`. Returns whether any was freed. Its time is counted. `since` is what others had freed
    /// before the attempt, and then before the next one.
    #[cold]
    pub(crate) fn reclaim_for_call(
        self,
        failed: u32,
        since: &mut Option<SeenReclaims>,
        gives_up: &dyn Fn() -> bool,
    ) -> bool {
        let (wanted, cause, need) =
            (FIRST_RECLAIM << failed, AllocError::OutOfMemory, Need::Frames(Order::ZERO));
        let made = self.stalled(|| {
            if !self.make_room(&Shortage { cause, need, since: *since, gives_up }) {
                return false;
            }
            let mut freed = FIRST_RECLAIM;
            while freed < wanted && !gives_up() {
                match self.spaces.reclaim().make_room(self.spaces, need) {
                    0 => break,
                    more => freed += more,
                }
            }
            true
        });
        *since = Some(self.spaces.reclaims().seen());
        made
    }

    /// Frees memory for a folio of `order` that a program can do without: no program is killed for it. It
    /// reclaims whatever else is free at once, which seldom is a block. Returns whether a retry is
    /// worthwhile.
    #[cold]
    pub(crate) fn free_for_wish(self, order: Order) -> bool {
        let (cause, need) = (AllocError::OutOfMemory, Need::Frames(order));
        self.stalled(|| {
            self.free_unneeded(cause, need) + self.spaces.reclaim().make_room(self.spaces, need) > 0
        })
    }

    /// Makes a retry worthwhile for the program in `core`, perhaps with a swapped-in folio, or returns its
    /// error. The time is counted as a memory stall.
    ///
    /// A folio that is swapped in stays locked while memory is reclaimed for other needs, perhaps a copy of
    /// it: otherwise it might be the only reclaimable folio, and be swapped in and out forever. It is let go
    /// before a program is killed: that one may wait for it, with its mmap lock held. So may one that another
    /// thread has killed; but that is a reason only some times, since there is no end of those.
    pub(crate) fn resolve_refusal(
        self,
        core: &SpaceCore,
        refusal: Refusal,
        attempts: &mut Attempts<'s, P>,
    ) -> Result<(), FaultError> {
        let (cause, need) = match refusal {
            Refusal::Swapped(wanted) => {
                // Its lock must not be held while another is waited for.
                drop(attempts.swapped.take());
                attempts.swapped = self.stalled(|| self.swap_in(core, wanted))?;
                return Ok(());
            }
            Refusal::Fault(FaultError::OutOfMemory(cause)) => (cause, Need::Frames(Order::ZERO)),
            Refusal::OverLimit(over) => (AllocError::OutOfMemory, Need::Memcg(over, 1)),
            Refusal::Fault(error) => return Err(error),
            // The slow path makes one before it looks, and callers bring pages of files in themselves.
            Refusal::NeedsAnonVma | Refusal::File(_) => return Ok(()),
        };
        let gives_up = || core.is_killed();
        let shortage = Shortage { cause, need, since: attempts.seen, gives_up: &gives_up };
        let let_go = &mut |why| {
            if attempts.swapped.is_some() && (why == LetGo::Kill || attempts.let_go < LETS_GO) {
                attempts.let_go += u32::from(why == LetGo::Turn);
                drop(attempts.swapped.take());
            }
        };
        // Others may be faster to take what that freed.
        let made = self.stalled(|| self.make_room_or_kill(&shortage, let_go));
        attempts.seen = Some(self.spaces.reclaims().seen());
        if made { Ok(()) } else { Err(FaultError::OutOfMemory(cause)) }
    }

    /// Brings a page of an open file into its cache for the program in `core`, and marks it dirty if the
    /// program is about to write to it. Frees memory for it if memory is short.
    pub(crate) fn bring_page(
        self,
        core: &SpaceCore,
        opening: &Opening<Vma>,
        page: FilePage,
    ) -> Result<(), FaultError> {
        let gives_up = || core.is_killed();
        let mut since = None;
        loop {
            let (cause, need) = match self.fault_page_in(core, opening, page) {
                Ok(()) => return Ok(()),
                Err(_) if core.is_killed() => return Err(FaultError::Killed),
                Err(PageError::PastEnd) => return Err(FaultError::PastEnd),
                Err(PageError::Swapped(page)) => {
                    // SAFETY: VMAs name openings of this machine's files only, and the caller has a holder.
                    let file = unsafe { OpenFile::<P, Vma>::of(NonNull::from(opening)) }.file();
                    match self.swap_in_shmem(&core.tables.membership, file, page) {
                        Ok(()) => continue,
                        Err(SwapInError::Short(cause, need)) => (cause, need),
                        Err(SwapInError::Unreadable) => return Err(FaultError::Bus),
                    }
                }
                Err(PageError::NoMemory(cause)) => (cause, Need::Frames(Order::ZERO)),
                Err(PageError::OverLimit(over)) => (AllocError::OutOfMemory, Need::Memcg(over, 1)),
                Err(PageError::File(FileError::NoSpace)) => {
                    // SAFETY: as above.
                    let file = unsafe { OpenFile::<P, Vma>::of(NonNull::from(opening)) }.file();
                    if self.free_ends(file) == 0 {
                        return Err(FaultError::Bus);
                    }
                    continue;
                }
                Err(_) => return Err(FaultError::Bus),
            };
            let shortage = Shortage { cause, need, since, gives_up: &gives_up };
            if !self.stalled(|| self.make_room(&shortage)) {
                return Err(FaultError::OutOfMemory(cause));
            }
            since = Some(self.spaces.reclaims().seen());
        }
    }

    /// Frees what large folios have past the end of files of the file system that `file` is in, which has no
    /// room for a page. Returns how many pages.
    #[cold]
    pub(crate) fn free_ends(self, file: &CachedFile<P>) -> u64 {
        let Some(shmem) = file.shmem() else { return 0 };
        let users = FileMappers::new(self.spaces.rmap());
        HeldFile::free_ends(self.spaces.page_cache(), Some(shmem.file_system()), 1, &users)
    }

    /// Brings a page of shared memory from its swap device back into the cache of its file, for a program.
    /// Without an error the caller looks it up again.
    pub(crate) fn swap_in_shmem(
        self,
        program: &Membership,
        file: &CachedFile<P>,
        page: SwappedPage,
    ) -> Result<(), SwapInError> {
        let swap_in = SwapIn::new(self.spaces.memory(), program);
        let Some(came) = swap_in.swap_in(Swapped::of_shmem(page))? else { return Ok(()) };
        let given = came.give_to(file, page);
        match given.map_err(|cause| SwapInError::Short(cause, Need::Frames(Order::ZERO)))? {
            Some(_) => {}
            None => {
                swap_in.give_copy(&came, file, page)?;
            }
        }
        Ok(())
    }

    /// One attempt at that.
    fn fault_page_in(
        self,
        core: &SpaceCore,
        opening: &Opening<Vma>,
        page: FilePage,
    ) -> Result<(), PageError> {
        let (cache, program) = (self.spaces.page_cache(), &core.tables.membership);
        // SAFETY: VMAs name openings of this machine's files only, and the caller has a holder.
        let file = unsafe { OpenFile::<P, Vma>::of(NonNull::from(opening)) }.file();
        let came = if page.dirties {
            cache.page_in_to_write(file, (page.index, page.large), page.around, program)?
        } else {
            cache.page_in(file, (page.index, page.large), page.around, program)?
        };
        if came.was_read {
            let pin = self.spaces.platform().pin();
            self.spaces.frames().events().add(&pin, VmEvent::Pgmajfault, 1);
            self.spaces.memcgs().programs().count(&pin, program, MemcgStat::Pgmajfault);
        }
        Ok(())
    }

    /// Brings what `wanted` names into the cache for the program in `core`, and frees memory for it if memory
    /// is short.
    fn swap_in(self, core: &SpaceCore, wanted: Swapped) -> Result<Option<SwappedIn<'s, P>>, FaultError> {
        self.swap_in_with(core, wanted, |shortage| self.make_room(shortage))
    }

    /// The same for a caller that can give up, a swapoff or a collapse: where no frame can be freed it fails,
    /// and no program is killed. One may be where a memcg has no room for a page.
    pub(crate) fn swap_in_or_fail(
        self,
        core: &SpaceCore,
        wanted: Swapped,
    ) -> Result<Option<SwappedIn<'s, P>>, FaultError> {
        self.swap_in_with(core, wanted, |shortage| self.make_room_or_fail_with(shortage))
    }

    /// Frees memory for a page of shared memory that such a caller swaps in, as that does.
    pub(crate) fn make_room_or_fail(self, cause: AllocError, need: Need) -> bool {
        self.make_room_or_fail_with(&Shortage { cause, need, since: None, gives_up: &|| false })
    }

    fn make_room_or_fail_with(self, shortage: &Shortage<'_>) -> bool {
        match shortage.need {
            Need::Frames(_) => self.free_some(shortage.cause, shortage.need),
            Need::Memcg(..) => self.make_room(shortage),
        }
    }

    fn swap_in_with(
        self,
        core: &SpaceCore,
        mut wanted: Swapped,
        make_room: impl Fn(&Shortage<'_>) -> bool,
    ) -> Result<Option<SwappedIn<'s, P>>, FaultError> {
        let gives_up = || core.is_killed();
        let mut since = None;
        loop {
            match SwapIn::new(self.spaces.memory(), &core.tables.membership).swap_in(wanted) {
                Ok(came) => return Ok(came),
                Err(SwapInError::Unreadable) => return Err(FaultError::Bus),
                // The caller may hold the mmap lock, which the OOM killer needs to free what the program has.
                Err(SwapInError::Short(..)) if core.is_killed() => return Err(FaultError::Killed),
                Err(SwapInError::Short(cause, need)) => {
                    if !make_room(&Shortage { cause, need, since, gives_up: &gives_up }) {
                        return Err(FaultError::OutOfMemory(cause));
                    }
                    since = Some(self.spaces.reclaims().seen());
                    // No large folio was available.
                    wanted.orders = OrderSet::EMPTY;
                }
            }
        }
    }

    /// Does `work`, and counts the time that it takes.
    fn stalled<R>(self, work: impl FnOnce() -> R) -> R {
        let began = self.spaces.platform().now();
        let result = work();
        let took = self.spaces.platform().now().saturating_sub(began);
        self.spaces.frames().events().add(&self.spaces.platform().pin(), VmEvent::MemstallNs, took);
        result
    }

    /// Frees memory, or kills a program to free its memory, if the machine is configured so. Returns whether
    /// a retry is worthwhile. The caller is not pinned.
    #[cold]
    fn make_room(self, shortage: &Shortage<'_>) -> bool {
        self.make_room_or_kill(shortage, &mut |_| ())
    }

    /// The same; `let_go` is called before a program is killed, or where one was. Not before: what is let go
    /// could be all that there is to free.
    fn make_room_or_kill(self, shortage: &Shortage<'_>, let_go: &mut dyn FnMut(LetGo)) -> bool {
        let Shortage { cause, need, since, gives_up } = *shortage;
        if gives_up() {
            return true;
        }
        let (mut turns, now) = (self.spaces.oom_turns().seen(), self.spaces.reclaims().seen());
        let (mut others, discards) =
            (self.spaces.reclaims().is_any(), self.spaces.swap().discard().discards_ended());
        if self.free_some(cause, need) {
            return true;
        }
        // What a discard has freed meanwhile may be all that is missing.
        others |= self.spaces.swap().discard().discards_ended() != discards;
        if cause != AllocError::OutOfMemory {
            return false;
        }
        if since.is_none() && self.has_room(need) {
            return true;
        }
        if self.look_beside_others(shortage, (&mut turns, since.unwrap_or(now), others), let_go) {
            return true;
        }
        let_go(LetGo::Kill);
        if gives_up() {
            return true;
        }
        self.count_oom(need);
        self.spaces.oom_action() == OomAction::Kill && self.out_of_memory(turns, need)
    }

    /// Looks for memory again as long as other threads reclaim, or if they have freed something since
    /// `first`, before this thread has tried in vain: what they have isolated it could not find. So it does
    /// where a program was killed, or one that was has exited: whose memory that is is not known, so it goes
    /// on if there is no room. Each look is cheap, but for one in some ticks that reclaims: they may have put
    /// back what can be freed now, as what is being written. `others`: some reclaimed when this thread began
    /// to. A discard that takes long counts as they do: its slots may be all that is missing. Returns whether
    /// there is room.
    fn look_beside_others(
        self,
        &Shortage { cause, need, gives_up, .. }: &Shortage<'_>,
        (turns, first, others): (&mut SeenTurns, SeenReclaims, bool),
        let_go: &mut dyn FnMut(LetGo),
    ) -> bool {
        let reclaims = self.spaces.reclaims();
        let is_any = || reclaims.is_any() || self.spaces.swap().discard().has_late_discard();
        let mut seen = first;
        // Whether others were at it since this thread last reclaimed: not all that they free is noted.
        let mut beside = others || self.spaces.swap().discard().has_late_discard();
        // The tick of that, and how often it has reclaimed since no other did any more.
        let (mut last, mut overs) = (0, 0);
        for tick in 0..TICKS {
            let has_turned = self.has_turned(turns);
            if gives_up() || !has_turned && !beside && reclaims.is_in_vain(seen) {
                break;
            }
            let now = reclaims.seen();
            // It may also have left what this thread can free: slots, tables, folios mapped in part.
            beside |= has_turned;
            if has_turned {
                let_go(LetGo::Turn);
            }
            if (beside || now != first) && self.has_room(need) {
                return true;
            }
            let is_rested = overs == 0 || overs < RETRIES && tick - last >= REST_TICKS;
            let is_over = is_rested && (beside || tick > 0) && !is_any();
            if is_over || tick - last >= EAGER_TICKS {
                overs += u32::from(is_over);
                // Those that are at it now may put back what they have before this thread has tried.
                let were_beside = beside;
                (seen, beside, last) = (now, is_any(), tick);
                let discards = self.spaces.swap().discard().discards_ended();
                // Those that were may have freed something between the look for room and their end.
                if self.free_some(cause, need) || were_beside && self.has_room(need) {
                    return true;
                }
                beside |= self.spaces.swap().discard().discards_ended() != discards;
            }
            beside |= is_any();
            // Others may free for themselves, without an end: each time of that is looked at only at first.
            let still = || {
                if tick < EAGER_TICKS {
                    is_any() && reclaims.seen() == now
                } else if overs > 0 {
                    beside || !reclaims.is_in_vain(seen)
                } else {
                    is_any()
                }
            };
            reclaims.wait(self.spaces.platform(), BETWEEN_LOOKS_NS, still);
        }
        // Since the last reclaim others were at it all the time, or a program has exited.
        beside |= self.has_turned(turns);
        if beside && !gives_up() && (self.has_room(need) || self.free_some(cause, need)) {
            return true;
        }
        self.has_turned(turns) && self.has_room(need)
    }

    /// Whether a program was killed since `turns`, or one that was has exited; once for each time.
    fn has_turned(self, turns: &mut SeenTurns) -> bool {
        let has_turned = self.spaces.oom_turns().has_turned(*turns);
        if has_turned {
            *turns = self.spaces.oom_turns().seen();
        }
        has_turned
    }

    /// Whether the need would be met now: others have freed some.
    fn has_room(self, need: Need) -> bool {
        match need {
            Need::Memcg(over, pages) => {
                // If it is gone, a new attempt charges another one.
                let Some(kept) = self.spaces.memcgs().tree().keep(over) else { return true };
                self.spaces.memcgs().charges().drain_stocks(&self.spaces.platform().pin());
                self.spaces.memcgs().charges().pages_left(kept.id()) >= pages
            }
            Need::Frames(order) => {
                // Where those that are done with them have left them; then on the lists of their CPUs.
                self.spaces.frames().limbo().reap_all_in_portions();
                self.spaces.frames().pcp().drain_all_in_portions();
                let request = AllocRequest::anonymous().uninitialised().order(order).without_drain();
                let pin = self.spaces.platform().pin();
                let Ok(pfn) = self.spaces.frames().allocate(&pin, request) else { return false };
                let freed = self.spaces.frames().free(&pin, pfn, order);
                debug_assert!(freed.is_ok(), "{pfn:?} was just allocated");
                true
            }
        }
    }

    /// Kills a program, or waits for the memory of one that was killed: for so long only that the caller soon
    /// finds it if that is its own. Returns whether a retry is worthwhile.
    fn out_of_memory(self, seen: SeenTurns, need: Need) -> bool {
        for _ in 0..LOOKS {
            let choose = || self.spaces.reclaim().out_of_memory(self.spaces, need);
            match self.spaces.oom_turns().take(self.spaces.platform(), seen, choose) {
                OomOutcome::Freed => return true,
                OomOutcome::Nothing => return false,
                OomOutcome::Expected => {
                    self.spaces.oom_turns().wait(self.spaces.platform(), seen, BETWEEN_LOOKS_NS);
                }
            }
        }
        true
    }

    /// Counts that a memcg is out of memory, once for each charge that cannot be had, as in Linux.
    fn count_oom(self, need: Need) {
        if let Need::Memcg(over, pages) = need
            && pages <= COSTLY
            && let Some(memcg) = self.spaces.memcgs().tree().keep(over)
        {
            self.spaces.memcgs().counters().count(memcg.id(), MemcgEvent::Oom, 1);
        }
    }

    /// Frees memory: first what is not needed, then by reclaim. Returns whether any was freed. The caller is
    /// not pinned.
    pub(crate) fn free_some(self, cause: AllocError, need: Need) -> bool {
        let _reclaiming = self.spaces.begin_reclaim();
        let freed = self.free_unneeded(cause, need);
        self.spaces.note_reclaimed(freed);
        if freed > 0 || cause != AllocError::OutOfMemory {
            return freed > 0;
        }
        self.spaces.reclaim().make_room(self.spaces, need) > 0
    }

    /// Frees what is not needed: frames that waited for this fault to leave the epoch, an unmapped huge zero
    /// page, unmapped parts of folios on the deferred split list. Returns the number of frames.
    fn free_unneeded(self, cause: AllocError, need: Need) -> u64 {
        let mut freed = 0;
        if let Need::Frames(_) = need {
            if cause == AllocError::OutOfMemory {
                freed += self.spaces.frames().limbo().reap_all_in_portions();
            }
            freed += self.spaces.thp().shrink_huge_zero();
            freed += self.spaces.thp().split_deferred(FREED_AT_ONCE.saturating_sub(freed));
        }
        freed
    }
}
