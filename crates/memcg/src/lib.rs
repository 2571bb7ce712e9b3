//! Memory control groups (memcgs), and the LRU lists.
//!
//! [`Memcgs`] holds those of one machine. It owns the page-frame allocator. docs/memcg.md says how memcgs are
//! charged, created and removed, and which lock guards what.
//!
//! A memcg is named by its number ([`MemcgId`]). A user of one has a space or a charge in it, or is prepared
//! to find it gone: a stale number causes no memory error, but may name a later memcg.
//!
//! # Modules, lowest first
//!
//! - `peak`: the peak of a counter since a reset, for each of those that reset it.
//! - `counter`: a number of pages with a limit, at one memcg.
//! - `id`: numbers of memcgs.
//! - `error`: errors, one for each cause.
//! - `membership`: which memcg a program is in.
//! - `event`: the events of `memory.events` and `memory.swap.events`.
//! - `stat`: the counters of `memory.stat`.
//! - `lists`: the LRU lists of one memcg and node, and what a folio says of its place there.
//! - `deferred`: the deferred split queue of each memcg.
//! - `name`: names of memcgs.
//! - `outcome`: the work that a write to a memcg's file leaves to the caller.
//! - `limit`: limits, and how they and switches are written as text.
//! - `protected`: protection of memory: `memory.min` or `memory.low`.
//! - `memcg`: one memcg.
//! - `table`: from a memcg's number to the memcg.
//! - `names`: memcgs by parent and name.
//! - `tagged`: an amount that belongs to one memcg, in one word: what a CPU holds back of a counter that all
//!   CPUs share.
//! - `tree`: the tree of memcgs, the way through it, keeping and visiting them, and effective protection.
//! - `counters`: what is counted for each memcg.
//! - `charge`: charging pages to memcgs.
//! - `zswap`: what compressed caches keep for memcgs.
//! - `folios`: folios on the LRU lists, and on their way back to the page-frame allocator.
//! - `singles`: single pages that lose their last mapping, many at a time.
//! - `programs`: what a program's new pages are charged to.
//! - `splits`: the folios that wait to be split.
//! - `reparent`: what removed memcgs leave, and who inherits it.
//! - `numa`: `memory.numa_stat`: what a memcg has on each node.
//! - `files`: the files of a memcg, as text in and out.
//! - `lifecycle`: how memcgs are made, removed and freed.
//! - `audit`: the auditor: recounts lists and charges.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod audit;
mod charge;
mod counter;
mod counters;
mod deferred;
mod error;
mod event;
mod files;
mod folios;
mod id;
mod lifecycle;
mod limit;
mod lists;
mod membership;
mod memcg;
#[cfg(all(test, loom))]
mod models;
mod name;
mod names;
mod numa;
mod outcome;
mod peak;
mod programs;
mod protected;
mod reparent;
mod singles;
mod splits;
mod stat;
mod table;
mod tagged;
#[cfg(all(test, not(loom)))]
#[path = "../../frame/tests/common/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of quire-frame, which use more of it")]
mod testing;
mod tree;
mod zswap;

pub use audit::{Belonging, MemcgAudit, MemcgViolation};
pub use charge::MemcgCharges;
pub use counters::MemcgCounters;
pub use error::{MemcgError, OverHigh, OverLimit};
pub use event::MemcgEvent;
pub use files::{MachinePages, MemcgFiles};
pub use folios::{Begin, Isolated, MemcgFolios, Most, UnevictableFolios};
pub use id::MemcgId;
pub use lifecycle::MemcgLifecycle;
pub use limit::Limit;
pub use lists::LruList;
pub use membership::Membership;
pub use name::MAX_NAME;
pub use outcome::WriteOutcome;
pub use peak::MemcgPeak;
pub use programs::MemcgPrograms;
pub use reparent::Reparenting;
pub use singles::{SinglesToChain, SinglesToFree};
pub use splits::{DeferredOf, DeferredSplits};
pub use stat::{MemcgStat, MemcgStats};
pub use tree::{KeptMemcg, MemcgTree, Protection, Visits};
pub use zswap::MemcgZswap;

use core::fmt;
use quire_arch::Platform;
use quire_frame::{AllocError, Frames};

/// The memcgs of one machine.
pub struct Memcgs<P: Platform> {
    tree: MemcgTree<P>,
}

impl<P: Platform> Memcgs<P> {
    /// The memcgs over `frames`: the root.
    ///
    /// # Errors
    ///
    /// As for [`Frames::allocate`].
    // Where it is called: in a frame of its own there is a copy of the machine's frames and memcgs.
    #[inline(always)]
    pub fn new(frames: Frames<P>) -> Result<Self, AllocError> {
        let tree = MemcgTree::new(frames)?;
        MemcgLifecycle::new(&tree).make_root()?;
        Ok(Self { tree })
    }

    /// The page-frame allocator below.
    #[inline]
    pub fn frames(&self) -> &Frames<P> {
        self.tree.frames()
    }

    /// Which memcgs there are.
    #[inline]
    pub fn tree(&self) -> &MemcgTree<P> {
        &self.tree
    }

    /// Their events and statistics.
    #[inline]
    pub fn counters(&self) -> MemcgCounters<'_, P> {
        MemcgCounters::new(&self.tree)
    }

    /// What is charged to them.
    #[inline]
    pub fn charges(&self) -> MemcgCharges<'_, P> {
        MemcgCharges::new(&self.tree)
    }

    /// Their folios.
    #[inline]
    pub fn folios(&self) -> MemcgFolios<'_, P> {
        MemcgFolios::new(&self.tree)
    }

    /// What compressed caches keep for them.
    #[inline]
    pub fn zswap(&self) -> MemcgZswap<'_, P> {
        MemcgZswap::new(&self.tree)
    }

    /// What the new pages of programs are charged to.
    #[inline]
    pub fn programs(&self) -> MemcgPrograms<'_, P> {
        MemcgPrograms::new(&self.tree)
    }

    /// Their deferred split queues.
    #[inline]
    pub fn splits(&self) -> DeferredSplits<'_, P> {
        DeferredSplits::new(&self.tree)
    }

    /// What removed ones leave.
    #[inline]
    pub fn reparenting(&self) -> Reparenting<'_, P> {
        Reparenting::new(&self.tree)
    }

    /// Their files, and the limits that these hold.
    #[inline]
    pub fn files(&self) -> MemcgFiles<'_, P> {
        MemcgFiles::new(&self.tree)
    }

    /// How they are made and removed.
    #[inline]
    pub fn lifecycle(&self) -> MemcgLifecycle<'_, P> {
        MemcgLifecycle::new(&self.tree)
    }

    /// The audit.
    #[inline]
    pub fn audit(&self) -> MemcgAudit<'_, P> {
        MemcgAudit::new(&self.tree)
    }
}

impl<P: Platform> fmt::Debug for Memcgs<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memcgs").finish_non_exhaustive()
    }
}
