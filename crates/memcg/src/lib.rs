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
//! - `counter`: a number of pages with a limit, at one memcg.
//! - `id`: numbers of memcgs.
//! - `error`: errors, one for each cause.
//! - `event`: events of memcgs, as in `memory.events` and `memory.swap.events`.
//! - `lists`: the LRU lists.
//! - `deferred`: the deferred split queue of each memcg.
//! - `name`: names of memcgs.
//! - `outcome`: the work that a write to a memcg's file leaves to the caller.
//! - `limit`: limits, and how they are written as text.
//! - `protected`: protection of memory: `memory.min` or `memory.low`.
//! - `stat`: statistics of each memcg.
//! - `put`: freeing folios: off the LRU lists, uncharged from their memcg, to the page-frame allocator.
//! - `unlisted`: listing folios that are on no list.
//! - `files`: the files of a memcg, as text in and out.
//! - `memcg`: one memcg.
//! - `charge`: charging pages to memcgs.
//! - `table`: from a memcg's number to the memcg.
//! - `names`: memcgs by parent and name.
//! - `tagged`: an amount that belongs to one memcg, in one word: what a CPU holds back of a counter that all
//!   CPUs share.
//! - `audit`: the auditor: recounts lists and charges.
//! - `spare`: a memcg that is allocated before the lock of the memcgs is taken.
//! - `tree`: the tree of memcgs: how they are created, found and removed.
//! - `visits`: visiting memcgs one after the other, for as long as it takes.
//! - `kept`: keeping a memcg for a thread that works for it for long, and counting its killed programs.
//! - `protection`: effective protection: what reclaim has to leave to a memcg.
//! - `sweep`: freeing removed memcgs.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod audit;
mod charge;
mod counter;
mod deferred;
mod error;
mod event;
mod files;
mod id;
mod kept;
mod limit;
mod lists;
mod memcg;
#[cfg(all(test, loom))]
mod models;
mod name;
mod names;
mod outcome;
mod protected;
mod protection;
mod put;
mod spare;
mod stat;
mod sweep;
mod table;
mod tagged;
#[cfg(all(test, not(loom)))]
#[path = "../../frame/tests/common/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of quire-frame, which use more of it")]
mod testing;
mod tree;
mod unlisted;
mod visits;

pub use audit::{Belonging, MemcgViolation};
pub use deferred::DeferredQueue;
pub use error::{MemcgError, OverHigh, OverLimit};
pub use event::MemcgEvent;
pub use id::MemcgId;
pub use kept::KeptMemcg;
pub use limit::Limit;
pub use lists::{Begin, Isolated, LruList, Most};
pub use name::MAX_NAME;
pub use outcome::WriteOutcome;
pub use protection::Protection;
pub use stat::{MemcgStat, MemcgStats};
pub use visits::Visits;

use crate::lists::{Incoming, NodeLists};
use crate::memcg::Memcg;
use crate::table::MemcgTable;
use crate::tagged::TaggedAmount;
use crate::tree::Registry;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;
use quire_arch::{CpuId, LockClass, Order, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, FaultSite, Frames, Kind};
use quire_slab::SlabCache;
use quire_sync::{PerCpu, SpinLock};

/// The site of what this crate allocates in whole frames.
pub(crate) const SITE: FaultSite = FaultSite::new("memcg");

/// A CPU's batched updates to memcg counters.
#[derive(Debug)]
pub(crate) struct CpuCells {
    /// Pages that are charged already and not used yet.
    stock: TaggedAmount,
    stats: [TaggedAmount; MemcgStat::COUNT],
}

/// The memcgs of one machine.
pub struct Memcgs<P: Platform> {
    frames: Frames<P>,
    table: MemcgTable<P>,
    memcgs: SlabCache<Memcg<P>, P>,
    lists: SlabCache<NodeLists<P>, P>,
    registry: SpinLock<Registry, P>,
    cpus: PerCpu<CpuCells>,
    incoming: PerCpu<SpinLock<Incoming, P>>,
    listing: AtomicBool,
}

/// Memory for one `T` a CPU.
fn per_cpu<T, P: Platform>(
    frames: &Frames<P>,
    pin: &Pin<'_, P>,
    make: impl FnMut(CpuId) -> T,
) -> Result<PerCpu<T>, AllocError> {
    let cpus = frames.platform().cpu_count();
    let order = Order::for_bytes(PerCpu::<T>::bytes(cpus) as u64).ok_or(AllocError::OutOfMemory)?;
    let pfn = frames.allocate(pin, AllocRequest::new(order, SITE).kind(Kind::Memcg))?;
    let memory: NonNull<u8> = frames.platform().direct_map(pfn);
    // SAFETY: the block was just allocated, is large enough and aligned to a page, and is never freed.
    Ok(unsafe { PerCpu::init(memory, cpus, make) })
}

impl<P: Platform> Memcgs<P> {
    /// The memcgs over `frames`: the root.
    ///
    /// # Errors
    ///
    /// As for [`Frames::allocate`].
    pub fn new(frames: Frames<P>) -> Result<Self, AllocError> {
        let pin = frames.platform().pin();
        let cells = |_| CpuCells {
            stock: TaggedAmount::default(),
            stats: core::array::from_fn(|_| TaggedAmount::default()),
        };
        let cpus = per_cpu(&frames, &pin, cells)?;
        let incoming = |_| SpinLock::new(LockClass::LruIncoming, Incoming::default());
        let incoming = per_cpu(&frames, &pin, incoming)?;
        let memcgs = SlabCache::new(&frames, &pin, "memcg")?;
        let lists = SlabCache::new(&frames, &pin, "memcg_lists")?;
        let root = frames.allocate(&pin, AllocRequest::new(Order::ZERO, SITE).kind(Kind::Memcg).zeroed())?;
        // SAFETY: a zeroed page that was just allocated, and is never freed.
        let table = unsafe { MemcgTable::new(frames.platform().direct_map(root)) };
        drop(pin);
        let registry = SpinLock::new(LockClass::Memcgs, Registry::default());
        let listing = AtomicBool::new(false);
        let all = Self { frames, table, memcgs, lists, registry, cpus, incoming, listing };
        all.make_root()?;
        Ok(all)
    }

    /// The page-frame allocator below.
    #[inline]
    pub fn frames(&self) -> &Frames<P> {
        &self.frames
    }
}

impl<P: Platform> fmt::Debug for Memcgs<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memcgs").finish_non_exhaustive()
    }
}
