//! One memcg.

use crate::counter::{PageCounter, UNLIMITED};
use crate::deferred::DeferredQueue;
use crate::error::OverLimit;
use crate::event::MemcgEvent;
use crate::id::MemcgId;
use crate::lists::NodeLists;
use crate::name::Name;
use crate::protected::Protected;
use crate::stat::MemcgStat;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU8, AtomicU16};
use quire_arch::{MAX_NODES, NodeId, Platform};
use quire_sync::atomic::raw::AtomicBool;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// In use: can be found, charged, and spaces can come.
const ONLINE: u32 = 1 << 31;
/// Removed, but something still belongs to it.
const ZOMBIE: u32 = 1 << 30;

/// Whether the memcg exists, and its number of spaces, in one word: so that the last check before the removal
/// is the removal itself.
#[derive(Debug)]
pub(crate) struct Life(AtomicU32);

impl Life {
    fn none() -> Self {
        Self(AtomicU32::new(0))
    }

    pub(crate) fn begin(&self) {
        self.0.store(ONLINE, Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_online(&self) -> bool {
        self.0.load(Ordering::Acquire) & ONLINE != 0
    }

    /// Whether it is there, be it removed or not.
    #[inline]
    pub(crate) fn is_there(&self) -> bool {
        self.0.load(Ordering::Acquire) & (ONLINE | ZOMBIE) != 0
    }

    /// Whether it is there and was removed.
    #[inline]
    pub(crate) fn is_removed(&self) -> bool {
        self.0.load(Ordering::Acquire) & ZOMBIE != 0
    }

    pub(crate) fn spaces(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & (ZOMBIE - 1)
    }

    /// One space more, unless the memcg was removed.
    pub(crate) fn hold(&self) -> bool {
        let more = |word| (word & ONLINE != 0 && word & (ZOMBIE - 1) < ZOMBIE - 1).then_some(word + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn release(&self) {
        let fewer = |word| (word & (ZOMBIE - 1) > 0).then(|| word - 1);
        let released = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer);
        debug_assert!(released.is_ok(), "a space leaves a memcg that it is not in");
    }

    /// Removes the memcg if no space belongs to it.
    pub(crate) fn remove(&self) -> bool {
        self.0.compare_exchange(ONLINE, ZOMBIE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// A memcg's links in the tree. Written under the lock of the memcgs; `parent` never changes while anything
/// belongs to the memcg. The root is no child, so its number means none in the other links.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) parent: AtomicU16,
    pub(crate) first_child: AtomicU16,
    pub(crate) next: AtomicU16,
    pub(crate) prev: AtomicU16,
    /// The next one of its chain of names.
    pub(crate) next_named: AtomicU16,
    /// The next one that was removed, or the next free number.
    pub(crate) next_removed: AtomicU16,
    pub(crate) depth: AtomicU8,
}

/// A memcg. Its memory is never freed, but reused for the next memcg: so a stale number leads to some memcg,
/// and nothing worse.
pub(crate) struct Memcg<P: Platform> {
    pub(crate) id: MemcgId,
    pub(crate) life: Life,
    pub(crate) links: Links,
    pub(crate) name: Name,
    pub(crate) memory: PageCounter,
    pub(crate) swap: PageCounter,
    pub(crate) high: AtomicU64,
    /// A charge has exceeded the `high` of this memcg or of an ancestor.
    pub(crate) over_high: AtomicBool,
    pub(crate) swap_high: AtomicU64,
    /// Pages that this memcg charged while it or an ancestor was over its `swap_high`, and no program has
    /// waited for.
    pub(crate) over_swap_high: AtomicU64,
    /// The most that compressed caches keep for it, in pages.
    pub(crate) zswap_max: AtomicU64,
    /// Whether its pages may go from compressed caches to the devices behind.
    pub(crate) zswap_writeback: AtomicBool,
    pub(crate) min: Protected,
    pub(crate) low: Protected,
    /// A program of it that is OOM-killed takes all others along.
    pub(crate) oom_group: AtomicBool,
    /// Of this memcg alone.
    pub(crate) local_events: [AtomicU64; MemcgEvent::COUNT],
    /// Of it and of all that are or were below it.
    pub(crate) events: [AtomicU64; MemcgEvent::COUNT],
    /// The same, without what CPUs hold back.
    pub(crate) stats: [AtomicI64; MemcgStat::COUNT],
    /// Children that were not removed. Changes under the lock of the memcgs.
    online_children: AtomicU16,
    /// How many threads visit it: it does not leave the tree. Changes under the lock of the memcgs.
    visits: AtomicU32,
    /// Its folios that wait to be split.
    pub(crate) deferred: DeferredQueue,
    /// How many memcgs had its number before it.
    pub(crate) lives: AtomicU32,
    /// Killed programs in it and below it that have not exited. Wraps for a moment while one moves.
    pub(crate) killed: AtomicU32,
    /// Where the next round of reclaim under this memcg begins.
    pub(crate) cursor: AtomicU16,
    /// For a removed memcg: the time when no CPU was last seen to hold anything back for it, plus one; zero
    /// for never.
    pub(crate) drained: AtomicU64,
    /// Whether that was the second time, after an epoch.
    pub(crate) drained_again: AtomicBool,
    /// How often its memory had risen from zero then.
    pub(crate) drained_rises: AtomicU64,
    /// Scratch of the auditor.
    pub(crate) recounted: AtomicU64,
    nodes: [AtomicPtr<NodeLists<P>>; MAX_NODES],
}

impl<P: Platform> Memcg<P> {
    /// A memcg that is not there yet.
    ///
    /// # Safety
    ///
    /// What `nodes` leads to stays where it is as long as the memcg does.
    pub(crate) unsafe fn new(id: MemcgId, nodes: &[Option<NonNull<NodeLists<P>>>; MAX_NODES]) -> Self {
        Self {
            id,
            life: Life::none(),
            links: Links::default(),
            name: Name::default(),
            memory: PageCounter::new(),
            swap: PageCounter::new(),
            high: AtomicU64::new(UNLIMITED),
            over_high: AtomicBool::new(false),
            swap_high: AtomicU64::new(UNLIMITED),
            over_swap_high: AtomicU64::new(0),
            zswap_max: AtomicU64::new(UNLIMITED),
            zswap_writeback: AtomicBool::new(true),
            min: Protected::new(),
            low: Protected::new(),
            oom_group: AtomicBool::new(false),
            local_events: core::array::from_fn(|_| AtomicU64::new(0)),
            events: core::array::from_fn(|_| AtomicU64::new(0)),
            stats: core::array::from_fn(|_| AtomicI64::new(0)),
            online_children: AtomicU16::new(0),
            visits: AtomicU32::new(0),
            deferred: DeferredQueue::default(),
            lives: AtomicU32::new(0),
            killed: AtomicU32::new(0),
            cursor: AtomicU16::new(0),
            drained: AtomicU64::new(0),
            drained_again: AtomicBool::new(false),
            drained_rises: AtomicU64::new(0),
            recounted: AtomicU64::new(0),
            nodes: nodes.map(|lists| AtomicPtr::new(lists.map_or(core::ptr::null_mut(), NonNull::as_ptr))),
        }
    }

    /// From now on it has no limits of its own. Under the lock of the memcgs, as limits are set.
    pub(crate) fn lift_limits(&self) {
        self.memory.set_max(UNLIMITED);
        self.swap.set_max(UNLIMITED);
        self.high.store(UNLIMITED, Ordering::Relaxed);
        self.over_high.store(false, Ordering::Relaxed);
        self.swap_high.store(UNLIMITED, Ordering::Relaxed);
        self.over_swap_high.store(0, Ordering::Relaxed);
        self.zswap_max.store(UNLIMITED, Ordering::Relaxed);
        self.zswap_writeback.store(true, Ordering::Relaxed);
    }

    /// Makes the memcg as new, under the lock of the memcgs.
    pub(crate) fn reset(&self) {
        self.lift_limits();
        self.memory.reset();
        self.swap.reset();
        self.min.reset();
        self.low.reset();
        self.oom_group.store(false, Ordering::Relaxed);
        self.local_events.iter().chain(&self.events).for_each(|count| count.store(0, Ordering::Relaxed));
        self.stats.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        self.online_children.store(0, Ordering::Relaxed);
        self.cursor.store(0, Ordering::Relaxed);
        self.lives.fetch_add(1, Ordering::Relaxed);
        self.killed.store(0, Ordering::Relaxed);
        self.drained.store(0, Ordering::Relaxed);
        self.all_lists().for_each(NodeLists::reset);
    }

    /// Whether pages or slots are charged to it. A charge that moves from a slot to memory between the two
    /// reads is missed: then [`PageCounter::rises`] has changed.
    pub(crate) fn is_charged(&self) -> bool {
        if self.memory.usage() != 0 {
            return true;
        }
        // A page that goes the other way is in one of them at each look.
        fence(Ordering::Acquire);
        let swapped = self.swap.usage() != 0;
        // Pairs with the release of the CPU that freed the last slot.
        fence(Ordering::Acquire);
        swapped
    }

    /// One child that is not removed more, or one fewer. The caller has the lock of the memcgs.
    pub(crate) fn change_online_children(&self, more: bool) {
        let children = self.online_children.load(Ordering::Relaxed);
        let now = if more { children.saturating_add(1) } else { children.saturating_sub(1) };
        self.online_children.store(now, Ordering::Relaxed);
    }

    /// Whether it has a child that is not removed. The caller has the lock of the memcgs.
    pub(crate) fn has_online_children(&self) -> bool {
        self.online_children.load(Ordering::Relaxed) != 0
    }

    /// A charge is refused since it would exceed a limit here.
    pub(crate) fn refusal(&self) -> OverLimit {
        OverLimit { memcg: self.id, life: self.lives.load(Ordering::Relaxed) }
    }

    /// One thread more visits it, or one fewer. The caller has the lock of the memcgs.
    pub(crate) fn change_visits(&self, more: bool) {
        let visits = self.visits.load(Ordering::Relaxed);
        let now = if more { visits.saturating_add(1) } else { visits.saturating_sub(1) };
        self.visits.store(now, Ordering::Relaxed);
    }

    /// Whether a thread visits it.
    pub(crate) fn is_visited(&self) -> bool {
        self.visits.load(Ordering::Relaxed) != 0
    }

    #[inline]
    pub(crate) fn parent(&self) -> MemcgId {
        MemcgId::from_bits(self.links.parent.load(Ordering::Relaxed))
    }

    /// Its lists for `node`, if the machine has that.
    #[inline]
    pub(crate) fn lists(&self, node: NodeId) -> Option<&NodeLists<P>> {
        let lists = NonNull::new(self.nodes[node.index()].load(Ordering::Relaxed))?;
        // SAFETY: they were there before the memcg, and stay as long as it does (`new`). Only shared
        // references are made.
        Some(unsafe { lists.as_ref() })
    }

    /// What `new` was given.
    pub(crate) fn node_pointers(&self) -> [Option<NonNull<NodeLists<P>>>; MAX_NODES] {
        core::array::from_fn(|node| NonNull::new(self.nodes[node].load(Ordering::Relaxed)))
    }

    pub(crate) fn all_lists(&self) -> impl Iterator<Item = &NodeLists<P>> {
        (0..MAX_NODES).filter_map(NodeId::new).filter_map(|node| self.lists(node))
    }
}

impl<P: Platform> fmt::Debug for Memcg<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memcg").field("id", &self.id).field("life", &self.life).finish_non_exhaustive()
    }
}
