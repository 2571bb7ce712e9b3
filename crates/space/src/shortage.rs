//! What a fault or a call does about a shortage of memory, when it holds nothing but perhaps the mmap lock.

use crate::error::{Error, FaultError};
use crate::fault::Refusal;
use crate::space::Space;
use crate::spaces::{Need, OomAction, Spaces};
use crate::swap_in::SwappedIn;
use crate::table::Tables;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::{AllocError, FolioCounter, VmEvent};
use quire_memcg::{MemcgId, MemcgStat, OverLimit};
use quire_sync::atomic::raw::Ordering;

/// Frames that a thread tries to free when it finds no memory.
const FREED_AT_ONCE: u64 = 512;

/// Pages that a call wants reclaimed before its second attempt. Each further attempt wants twice as many:
/// what a call undoes when it fails is free again, so it gets further each time.
const FIRST_RECLAIM: u64 = 32;
/// Attempts of a call. The last one follows a reclaim of [`FIRST_RECLAIM`] times 2^14 pages, 2 GiB.
const CALL_ATTEMPTS: u32 = 16;

/// Why an attempt of a call failed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It may be made again: nothing was done, or what was done may be done twice.
    Repeatable(Error),
    /// A part was done that must not be done twice.
    Final(Error),
}

impl<E: Into<Error>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Repeatable(error.into())
    }
}

impl<P: Platform> Space<'_, P> {
    /// Makes a call, and makes it again after a reclaim while it fails for want of frames and reclaim finds
    /// some.
    ///
    /// `call` takes and drops its locks, and undoes what it did when it fails: the caller holds no lock and
    /// is not pinned, and each attempt looks at the space anew. A failure that the fault plan injects is not
    /// a shortage.
    pub(crate) fn with_reclaim<R>(&self, mut call: impl FnMut() -> Result<R, Refused>) -> Result<R, Error> {
        let mut attempt = 1;
        loop {
            let error = match call() {
                Ok(result) => return Ok(result),
                Err(Refused::Final(error)) => return Err(error),
                Err(Refused::Repeatable(error)) => error,
            };
            let is_shortage = error == Error::NoFrames(AllocError::OutOfMemory);
            let wanted = FIRST_RECLAIM << (attempt - 1);
            if !is_shortage || attempt == CALL_ATTEMPTS || !self.spaces.reclaim_for_call(wanted) {
                return Err(error);
            }
            attempt += 1;
        }
    }
}

impl<'s, P: Platform> Spaces<P> {
    /// Frees about `wanted` pages, and returns whether any came free. The time that it takes is counted.
    #[cold]
    fn reclaim_for_call(&self, wanted: u64) -> bool {
        let need = Need::Frames(Order::ZERO);
        self.stalled(|| {
            if !self.make_room(AllocError::OutOfMemory, need) {
                return false;
            }
            let mut freed = FIRST_RECLAIM;
            while freed < wanted {
                match self.reclaim().make_room(self, need) {
                    0 => break,
                    more => freed += more,
                }
            }
            true
        })
    }

    /// Makes it worth trying again, perhaps with a folio that was swapped in, or returns the error that the
    /// program gets. How long that takes is counted: the program is stalled for want of memory.
    pub(crate) fn resolve_refusal(
        &'s self,
        refusal: Refusal,
    ) -> Result<Option<SwappedIn<'s, P>>, FaultError> {
        let (cause, need) = match refusal {
            Refusal::Swapped(wanted) => return self.stalled(|| self.swap_in(wanted)),
            Refusal::Fault(FaultError::OutOfMemory(cause)) => (cause, Need::Frames(Order::ZERO)),
            Refusal::OverLimit(over) => (AllocError::OutOfMemory, Need::Memcg(over.memcg, 1)),
            Refusal::Fault(error) => return Err(error),
            // The slow path makes one before it looks.
            Refusal::NeedsAnonVma => return Ok(None),
        };
        // Others may be faster to take what that freed.
        let made = self.stalled(|| self.make_room(cause, need));
        if made { Ok(None) } else { Err(FaultError::OutOfMemory(cause)) }
    }

    /// Does `work`, and counts the time that it takes.
    fn stalled<R>(&self, work: impl FnOnce() -> R) -> R {
        let began = self.platform().now();
        let result = work();
        let took = self.platform().now().saturating_sub(began);
        self.frames().events().add(&self.platform().pin(), VmEvent::MemstallNs, took);
        result
    }

    /// Frees memory, or kills a program to free its memory, if that is what the machine does. Returns whether
    /// it is worth trying again. The caller is not pinned.
    #[cold]
    pub(crate) fn make_room(&self, cause: AllocError, need: Need) -> bool {
        self.free_some(cause, need)
            || cause == AllocError::OutOfMemory
                && self.oom_action() == OomAction::Kill
                && self.reclaim().out_of_memory(self, need)
    }

    /// Frees memory: first what is not needed (what waited for this fault to leave the epoch, the huge page
    /// of zeros if it is not mapped, parts of folios that wait to be split), then by reclaim. Returns whether
    /// there was any. The caller is not pinned.
    pub(crate) fn free_some(&self, cause: AllocError, need: Need) -> bool {
        let mut freed = 0;
        if let Need::Frames(_) = need {
            if cause == AllocError::OutOfMemory {
                freed += self.frames().reap_all(&self.platform().pin());
            }
            freed += self.shrink_huge_zero();
            freed += self.split_deferred(FREED_AT_ONCE.saturating_sub(freed));
        }
        if freed > 0 || cause != AllocError::OutOfMemory {
            return freed > 0;
        }
        self.reclaim().make_room(self, need) > 0
    }
}

impl<P: Platform> Tables<'_, P> {
    /// Charges a new folio to the memcg of the space. If that is at its limit the folio is freed.
    #[inline]
    pub(crate) fn charge_new(&self, pin: &Pin<'_, P>, head: Pfn, order: Order) -> Result<(), OverLimit> {
        if self.core.memcg().is_root() { Ok(()) } else { self.charge_memcg(pin, head, order) }
    }

    #[cold]
    fn charge_memcg(&self, pin: &Pin<'_, P>, head: Pfn, order: Order) -> Result<(), OverLimit> {
        let charged = self.with_memcg(pin, |group| {
            self.spaces.memcgs().try_charge(pin, group, order.pages()).map(|()| group)
        });
        match charged {
            Ok(group) => {
                self.spaces.frames().known(head).memcg().store(group.get(), Ordering::Relaxed);
                Ok(())
            }
            Err(over) => {
                self.spaces.memcgs().release_unused(pin, head, order);
                if order > Order::ZERO {
                    let events = self.spaces.frames().events();
                    events.count_folio(pin, order, FolioCounter::AnonFaultFallbackCharge, 1);
                }
                Err(over)
            }
        }
    }

    /// Calls `work` with the memcg of the space. The space may leave it meanwhile, and the memcg may be
    /// removed: its number is not used again before this section ends.
    #[inline]
    fn with_memcg<R>(&self, pin: &Pin<'_, P>, work: impl FnOnce(MemcgId) -> R) -> R {
        let _section = self.spaces.frames().epoch().enter(pin);
        work(self.core.memcg())
    }

    /// Counts one more of something for the program's memcg.
    pub(crate) fn count_for_memcg(&self, pin: &Pin<'_, P>, stat: MemcgStat) {
        self.with_memcg(pin, |group| self.spaces.memcgs().add_stat(pin, group, stat, 1));
    }

    /// The same for a caller that cannot wait for reclaim: the memcg may be a little over its limit.
    pub(crate) fn charge_anyway(&self, pin: &Pin<'_, P>, head: Pfn, order: Order) {
        self.with_memcg(pin, |group| {
            if !group.is_root() {
                self.spaces.memcgs().charge_anyway(pin, group, order.pages());
                self.spaces.frames().known(head).memcg().store(group.get(), Ordering::Relaxed);
            }
        });
    }
}
