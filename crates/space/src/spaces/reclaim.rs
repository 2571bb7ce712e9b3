//! The call upwards: a thread that finds no memory calls the reclaim crate above.

use super::Spaces;
use quire_arch::{Pfn, Platform};
use quire_fault::Need;
use quire_memcg::MemcgId;

/// Frees memory. The reclaim crate implements it; it is passed down when a machine is built.
///
/// Called without a pin and without locks of class Rmap or later. The caller may hold locks of mappings, so
/// implementations only try to take such. Before it returns each method lets the spaces exit whose last
/// handle it had ([`finish_exits`](crate::finish_exits)).
pub trait Reclaim<P: Platform>: Sync {
    /// Tries to free the needed pages, and returns how many were freed.
    fn make_room(&self, spaces: &Spaces<P>, need: Need) -> u64;

    /// Called when nothing more can be freed, by one thread at a time. Kills a process, unless there is
    /// memory again or one that was killed before still has some to free. Not for ever: it ends when each was
    /// killed once.
    fn out_of_memory(&self, spaces: &Spaces<P>, need: Need) -> OomOutcome;

    /// Pages out isolated `folios`, whether referenced or not. The callee takes over a reference to each.
    /// Returns the number of pages freed.
    fn page_out(&self, spaces: &Spaces<P>, folios: &mut dyn Iterator<Item = Pfn>) -> u64;

    /// A program in `memcg` continues, and is throttled if it uses too much: called at the
    /// beginning of a fault, when nothing is held, if the memcg may be over a high limit.
    fn throttle(&self, spaces: &Spaces<P>, memcg: MemcgId);
}

/// What came of looking for a process to kill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OomOutcome {
    /// One was killed, or there is memory: the caller looks for it again.
    Freed,
    /// One that was killed still has memory, which is not free yet: the caller waits a little.
    Expected,
    /// There is none to kill.
    Nothing,
}

/// Never reclaims: memory is limited to RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NoReclaim;

impl<P: Platform> Reclaim<P> for NoReclaim {
    fn make_room(&self, _: &Spaces<P>, _: Need) -> u64 {
        0
    }

    fn out_of_memory(&self, _: &Spaces<P>, _: Need) -> OomOutcome {
        OomOutcome::Nothing
    }

    fn page_out(&self, spaces: &Spaces<P>, folios: &mut dyn Iterator<Item = Pfn>) -> u64 {
        folios.for_each(|head| spaces.memcgs().folios().release_folio(head));
        0
    }

    fn throttle(&self, _: &Spaces<P>, _: MemcgId) {}
}
