//! The tree of memcgs, and the way through it.

mod kept;
mod protection;
mod visits;

pub use kept::KeptMemcg;
pub use protection::Protection;
pub use visits::Visits;

use crate::deferred::{DeferredQueue, DeferredTurn};
use crate::error::MemcgError;
use crate::id::MemcgId;
use crate::lists::{Incoming, NodeLists};
use crate::memcg::Memcg;
use crate::name::Name;
use crate::names::Names;
use crate::stat::MemcgStat;
use crate::table::MemcgTable;
use crate::tagged::TaggedAmount;
use arrayvec::ArrayVec;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU16};
use quire_arch::{CpuId, LockClass, Order, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, FailSite, Frames, Kind};
use quire_slab::SlabCache;
use quire_sync::atomic::Ordering;
use quire_sync::{PerCpu, SpinLock};

/// Memcgs from the root to the deepest one.
pub(crate) const MAX_DEPTH: usize = 64;

/// Which memcgs there are.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// The first number that no memcg ever had, less one: the root has 0.
    pub(crate) used: u16,
    /// Numbers whose memcg is gone, linked.
    pub(crate) free: MemcgId,
    /// Memcgs that were removed and not freed yet, linked.
    pub(crate) removed: Option<(MemcgId, MemcgId)>,
    /// How many these are.
    pub(crate) removals_kept: u16,
    /// Removals since all that belonged to removed memcgs was last moved away.
    pub(crate) removals: u32,
    /// All that are in the tree but the root.
    pub(crate) names: Names,
}

/// A link to a memcg, or none for the root's number.
pub(crate) fn linked(link: &AtomicU16) -> Option<MemcgId> {
    let id = MemcgId::from_bits(link.load(Ordering::Relaxed));
    (!id.is_root()).then_some(id)
}

pub(crate) fn set_link(link: &AtomicU16, to: Option<MemcgId>) {
    link.store(to.map_or(0, MemcgId::get), Ordering::Relaxed);
}

/// The site of what this crate allocates in whole frames.
pub(crate) const SITE: FailSite = FailSite::new("memcg");

/// A CPU's batched updates to memcg counters.
#[derive(Debug)]
pub(crate) struct CpuCells {
    /// Pages that are charged already and not used yet.
    pub(crate) stock: TaggedAmount,
    pub(crate) stats: [TaggedAmount; MemcgStat::COUNT],
}

/// Which memcgs there are, and what all that works on them shares.
pub struct MemcgTree<P: Platform> {
    pub(crate) frames: Frames<P>,
    pub(crate) table: MemcgTable<P>,
    pub(crate) memcgs: SlabCache<Memcg<P>, P>,
    pub(crate) lists: SlabCache<NodeLists<P>, P>,
    pub(crate) registry: SpinLock<Registry, P>,
    pub(crate) deferred: SpinLock<DeferredTurn, P>,
    pub(crate) cpus: PerCpu<CpuCells>,
    pub(crate) incoming: PerCpu<SpinLock<Incoming, P>>,
    pub(crate) listing: AtomicBool,
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

impl<P: Platform> MemcgTree<P> {
    /// The tree over `frames`, still without the root.
    ///
    /// # Errors
    ///
    /// As for [`Frames::allocate`].
    pub(crate) fn new(frames: Frames<P>) -> Result<Self, AllocError> {
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
        let deferred = SpinLock::new(LockClass::DeferredSplit, DeferredTurn::default());
        let listing = AtomicBool::new(false);
        Ok(Self { frames, table, memcgs, lists, registry, deferred, cpus, incoming, listing })
    }

    /// The page-frame allocator below.
    #[inline]
    pub fn frames(&self) -> &Frames<P> {
        &self.frames
    }

    /// The memcg, unless it was removed.
    pub(crate) fn online(&self, id: MemcgId) -> Result<&Memcg<P>, MemcgError> {
        self.table.get(id).filter(|memcg| memcg.life.is_online()).ok_or(MemcgError::NoMemcg)
    }

    /// The children of a memcg, under the lock of the memcgs.
    pub(crate) fn children<'g>(&'g self, memcg: &'g Memcg<P>) -> impl Iterator<Item = &'g Memcg<P>> {
        let mut next = linked(&memcg.links.first_child);
        core::iter::from_fn(move || {
            let child = self.table.get(next?)?;
            next = linked(&child.links.next);
            Some(child)
        })
    }

    /// The memcg at `path`: names from the root down with slashes between, and one in front or not.
    pub fn find(&self, path: &str) -> Option<MemcgId> {
        // The path is of any length. Only what can be a memcg's is looked for under the lock.
        let mut names: ArrayVec<&str, MAX_DEPTH> = ArrayVec::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            Name::check(name).ok()?;
            names.try_push(name).ok()?;
        }
        let _pin = self.frames.platform().pin();
        let registry = self.registry.lock();
        let find = |memcg, name: &str| Some(registry.names.find(&self.table, memcg, name)?.id);
        names.into_iter().try_fold(MemcgId::ROOT, find)
    }

    /// The parent, or `None` for the root and for what is no memcg.
    #[inline]
    pub fn parent(&self, id: MemcgId) -> Option<MemcgId> {
        if id.is_root() { None } else { self.table.get(id).map(Memcg::parent) }
    }

    /// The memcg and those above it, without the root, for which nothing is counted.
    #[inline]
    pub(crate) fn up(&self, id: MemcgId) -> impl Iterator<Item = &Memcg<P>> {
        let mut next = id;
        core::iter::from_fn(move || {
            if next.is_root() {
                return None;
            }
            let memcg = self.table.get(next)?;
            next = memcg.parent();
            Some(memcg)
        })
        .take(MAX_DEPTH)
    }

    /// The memcg and those above it, and the root.
    pub(crate) fn up_to_root(&self, id: MemcgId) -> impl Iterator<Item = &Memcg<P>> {
        self.up(id).chain(self.table.get(MemcgId::ROOT))
    }

    /// Whether the memcg is `above` or below it.
    #[inline]
    pub fn is_below(&self, id: MemcgId, above: MemcgId) -> bool {
        above.is_root() || self.up(id).any(|memcg| memcg.id == above)
    }

    /// The memcg after `memcg` under `root`, under the lock of the memcgs: children before siblings.
    pub(crate) fn next_locked(&self, root: &Memcg<P>, memcg: &Memcg<P>) -> Option<MemcgId> {
        if let Some(child) = linked(&memcg.links.first_child) {
            return Some(child);
        }
        let mut memcg = memcg;
        while memcg.id != root.id {
            if let Some(next) = linked(&memcg.links.next) {
                return Some(next);
            }
            memcg = self.table.get(memcg.parent())?;
        }
        None
    }

    /// The memcg after `after` in the subtree of `root`, parents before children, removed memcgs that are not
    /// gone included; the first one is `root`. If `after` is gone the walk restarts.
    pub fn next_in_subtree(&self, root: MemcgId, after: Option<MemcgId>) -> Option<MemcgId> {
        let _pin = self.frames.platform().pin();
        let _registry = self.registry.lock();
        let top = self.table.get(root).filter(|memcg| memcg.life.is_there())?;
        let Some(after) = after else { return Some(root) };
        match self.table.get(after).filter(|memcg| memcg.life.is_there() && self.is_below(after, root)) {
            Some(after) => self.next_locked(top, after),
            None => Some(root),
        }
    }

    /// Calls `visit` with every memcg in the subtree of `root`, parents before children, without a lock.
    /// Others may leave the tree meanwhile; new ones may be missed.
    pub fn for_each_in_subtree(&self, root: MemcgId, visit: impl FnMut(MemcgId)) {
        self.visit(root).for_each(visit);
    }

    /// Whether the memcg was removed. It is in the tree until its last charge is gone.
    pub fn is_removed(&self, id: MemcgId) -> bool {
        self.online(id).is_err()
    }

    /// Adds a space to the memcg, which then cannot be removed.
    ///
    /// # Errors
    ///
    /// [`MemcgError::NoMemcg`] if it was removed.
    pub fn hold(&self, id: MemcgId) -> Result<(), MemcgError> {
        if id.is_root() || self.online(id)?.life.hold() { Ok(()) } else { Err(MemcgError::NoMemcg) }
    }

    /// Undoes one [`hold`](Self::hold).
    pub fn release(&self, id: MemcgId) {
        if !id.is_root()
            && let Some(memcg) = self.table.get(id)
        {
            memcg.life.release();
        }
    }

    /// Spaces that belong to the memcg.
    pub fn spaces(&self, id: MemcgId) -> u32 {
        self.table.get(id).map_or(0, |memcg| memcg.life.spaces())
    }

    /// Puts a removed memcg at the end of the list of those that are to be checked.
    pub(crate) fn push_removed(&self, registry: &mut Registry, memcg: &Memcg<P>) {
        set_link(&memcg.links.next_removed, None);
        registry.removals_kept += 1;
        registry.removed = match registry.removed {
            None => Some((memcg.id, memcg.id)),
            Some((first, last)) => {
                if let Some(last) = self.table.get(last) {
                    set_link(&last.links.next_removed, Some(memcg.id));
                }
                Some((first, memcg.id))
            }
        };
    }

    /// Takes the first one off that list.
    pub(crate) fn pop_removed(&self, registry: &mut Registry) -> Option<&Memcg<P>> {
        let (first, last) = registry.removed?;
        let memcg = self.table.get(first)?;
        registry.removed = linked(&memcg.links.next_removed).map(|next| (next, last));
        registry.removals_kept -= 1;
        Some(memcg)
    }

    /// Takes a dead memcg out of the tree, and its number is free.
    pub(crate) fn unlink(&self, registry: &mut Registry, memcg: &Memcg<P>) {
        if let Some(parent) = self.table.get(memcg.parent()) {
            memcg.min.end(&parent.min);
            memcg.low.end(&parent.low);
        }
        let (prev, next) = (linked(&memcg.links.prev), linked(&memcg.links.next));
        let before = match prev {
            Some(prev) => self.table.get(prev).map(|prev| &prev.links.next),
            None => self.table.get(memcg.parent()).map(|parent| &parent.links.first_child),
        };
        if let Some(before) = before {
            set_link(before, next);
        }
        if let Some(next) = next.and_then(|next| self.table.get(next)) {
            set_link(&next.links.prev, prev);
        }
        memcg.life.end();
        registry.names.remove(&self.table, memcg);
        memcg.links.next_removed.store(registry.free.get(), Ordering::Relaxed);
        registry.free = memcg.id;
    }

    /// The queue of a memcg, the root's included, if there ever was one with this number. What is queued is
    /// charged, so a memcg with folios in its queue is there.
    pub(crate) fn deferred_queue(&self, id: MemcgId) -> Option<&DeferredQueue> {
        self.table.get(id).map(|memcg| &memcg.deferred)
    }
}

impl<P: Platform> fmt::Debug for MemcgTree<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemcgTree").finish_non_exhaustive()
    }
}
