//! Memory groups, and the lists of folios by age.
//!
//! [`Groups`] is the room of one machine. It owns the frame room, as every room owns the one above it. docs/group.md says
//! how groups are charged, come and go, and which lock guards what.
//!
//! A group is named by its number ([`GroupId`]). Whoever uses one has a space or a charge in it, or is prepared to find it
//! gone: a number that is out of date leads to no memory error, but may lead to a later group.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod audit;
mod charge;
mod counter;
mod error;
mod event;
mod files;
mod group;
mod id;
mod limit;
mod lists;
#[cfg(all(test, loom))]
mod models;
mod name;
mod protection;
mod put;
mod stat;
mod sweep;
mod table;
mod tagged;
mod tree;

pub use audit::{Belonging, GroupViolation};
pub use error::{GroupError, OverHigh, OverLimit};
pub use event::GroupEvent;
pub use files::{Swappiness, WriteOutcome};
pub use id::GroupId;
pub use limit::Limit;
pub use lists::{Begin, Isolated, LruList};
pub use name::MAX_NAME;
pub use protection::Protection;
pub use stat::{GroupStat, GroupStats};

use crate::group::Group;
use crate::lists::{Incoming, NodeLists};
use crate::table::GroupTable;
use crate::tagged::TaggedAmount;
use crate::tree::Registry;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;
use quire_arch::{CpuId, LockClass, Order, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, FaultSite, Frames, Kind, SlabCache};
use quire_sync::{PerCpu, SpinLock};

/// The site of what this room allocates in whole frames.
pub(crate) const SITE: FaultSite = FaultSite::new("memory_group");

/// What a CPU holds back of the counters of groups.
#[derive(Debug)]
pub(crate) struct CpuCells {
    /// Pages that are charged already and that nobody uses yet.
    stock: TaggedAmount,
    stats: [TaggedAmount; GroupStat::COUNT],
}

/// The memory groups of one machine.
pub struct Groups<P: Platform> {
    frames: Frames<P>,
    table: GroupTable<P>,
    groups: SlabCache<Group<P>, P>,
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
    let fits = |order: &Order| order.bytes() >= PerCpu::<T>::bytes(cpus) as u64;
    let order = Order::ALL.into_iter().find(fits).ok_or(AllocError::OutOfMemory)?;
    let pfn = frames.allocate(pin, AllocRequest::new(order, SITE).kind(Kind::MemoryGroup))?;
    let memory: NonNull<u8> = frames.platform().direct_map(pfn);
    // SAFETY: the block was just given out, is large enough and aligned to a page, and is never given back.
    Ok(unsafe { PerCpu::init(memory, cpus, make) })
}

impl<P: Platform> Groups<P> {
    /// The room over `frames`, with the root group.
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
        let groups = SlabCache::new(&frames, &pin, "memory_group")?;
        let lists = SlabCache::new(&frames, &pin, "memory_group_lists")?;
        drop(pin);
        let registry = SpinLock::new(LockClass::MemoryGroups, Registry::default());
        let listing = AtomicBool::new(false);
        let table = GroupTable::new();
        let room = Self { frames, table, groups, lists, registry, cpus, incoming, listing };
        room.make_group(&room.frames.platform().pin(), GroupId::ROOT)?.life.begin();
        Ok(room)
    }

    /// The frames under this room.
    #[inline]
    pub fn frames(&self) -> &Frames<P> {
        &self.frames
    }
}

impl<P: Platform> fmt::Debug for Groups<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").finish_non_exhaustive()
    }
}
