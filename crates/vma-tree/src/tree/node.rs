//! The node: up to [`SLOTS`] slots, each a range and a link.
//!
//! In a leaf (level 0) a slot is one entry and its link is the value. In a node above, a slot describes a
//! child: its first start, its last end, the largest gap *inside* it and its address. Gaps between two
//! children follow from the end of one and the start of the next, so a change below touches only the slots on
//! its path.
//!
//! Slots past the count hold [`NOWHERE`] as start and end and a null link. The lock-free reader therefore
//! needs no count, and no link outlives what it points to.

use core::array;
use core::fmt;
use core::marker::PhantomData;
#[cfg(not(loom))]
use core::mem;
use core::ptr::{self, NonNull};
use quire_arch::{VirtAddr, VirtRange};
use quire_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Bytes at the end of a [`Node`] that the tree never looks at: a store may queue retired nodes through them.
pub const NODE_TAIL: usize = 16;

/// Slots of a node: with 15 a node has 512 bytes. Models use small nodes, so that few steps reach a split.
pub(super) const SLOTS: usize = if cfg!(loom) { 4 } else { 15 };
/// Step of the first stage of a search: the square root of the slots and one.
const GROUP: usize = 4;
/// The fewest slots in use in any node but the root. A third: a split may leave most of the slots on the side
/// that no longer grows, which is what ascending and descending insertions want.
pub(super) const MIN_FILL: usize = SLOTS.div_ceil(3);
/// Neighbours are merged when they have no more slots in use than this together: the merged node has room
/// left, so that the next insertion does not split it again.
pub(super) const MERGE_LIMIT: usize = SLOTS * 4 / 5;
/// The most levels: the root has at least two children and every other node `MIN_FILL`, and there are no more
/// than 2^52 pages to map, so `2 * 5^(levels - 1) <= 2^52`. (Models have small trees.)
pub(super) const MAX_HEIGHT: usize = 22;
/// Start and end of an unused slot: above every real bound, since those are multiples of the page size.
pub(super) const NOWHERE: u64 = u64::MAX;

/// Whether an entry may have this range.
#[inline]
pub(super) const fn is_mappable(range: VirtRange) -> bool {
    !range.is_empty() && range.start().is_page_aligned() && range.end().is_page_aligned()
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Node<u8>>() == 512);
    assert!(mem::offset_of!(Node<u8>, gaps) + size_of::<[AtomicU64; SLOTS]>() + NODE_TAIL <= 512);
};

/// What a parent caches of a child, or the bounds of one entry (whose gap is 0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// First address.
    pub(super) start: u64,
    /// First address past the last entry.
    pub(super) end: u64,
    /// The largest gap between two neighbouring entries inside.
    pub(super) gap: u64,
}

impl Extent {
    /// The extent of one entry.
    #[inline]
    pub(super) const fn of(range: VirtRange) -> Self {
        Self { start: range.start().0, end: range.end().0, gap: 0 }
    }
}

/// The contents of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NodeSlot {
    /// Where it lies.
    pub(super) extent: Extent,
    /// The address of the value or of the child.
    pub(super) link: usize,
}

impl NodeSlot {
    /// What a slot holds that is not in use.
    const UNUSED: Self = Self { extent: Extent { start: NOWHERE, end: NOWHERE, gap: 0 }, link: 0 };
}

/// A node of a [`RangeTree`](super::RangeTree): what a [`NodeStore`](super::NodeStore) provides memory for.
///
/// All that lock-free readers look at is atomic. The writer changes nodes in place; the [module](super) says
/// why readers bear that. Links publish what they point to. Everything else is relaxed: the layout lock
/// orders it for the writer and for views, and lock-free readers may see any mixture. `level` is set before a
/// node is published and never changes after that.
#[repr(C, align(64))]
pub struct Node<V> {
    level: AtomicU32,
    count: AtomicU32,
    /// First, next to the level: the search reads these and then one link.
    ends: [AtomicU64; SLOTS],
    links: [AtomicUsize; SLOTS],
    starts: [AtomicU64; SLOTS],
    gaps: [AtomicU64; SLOTS],
    value: PhantomData<fn() -> NonNull<V>>,
}

impl<V> Node<V> {
    /// An empty node.
    pub(super) fn empty() -> Self {
        Self {
            level: AtomicU32::new(0),
            count: AtomicU32::new(0),
            ends: array::from_fn(|_| AtomicU64::new(NOWHERE)),
            links: array::from_fn(|_| AtomicUsize::new(0)),
            starts: array::from_fn(|_| AtomicU64::new(NOWHERE)),
            gaps: array::from_fn(|_| AtomicU64::new(0)),
            value: PhantomData,
        }
    }

    /// The node that a link points to.
    ///
    /// # Safety
    ///
    /// `link` is the link to a node, and the node is neither given back to its store during `'n`, nor is it
    /// past the epoch of the caller's section.
    #[inline]
    pub(super) unsafe fn at<'n>(link: usize) -> &'n Self {
        // SAFETY: nodes are exposed when they are allocated, and this one is alive (caller). Everything in it
        // is atomic, so a shared reference is all that any code ever has.
        unsafe { &*ptr::with_exposed_provenance::<Self>(link) }
    }

    /// The link to this node.
    #[inline]
    pub(super) fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// The level, 0 for a leaf.
    #[inline]
    pub(super) fn level(&self) -> usize {
        self.level.load(Ordering::Relaxed) as usize
    }

    /// Sets the level of a node that is not published yet.
    #[inline]
    pub(super) fn set_level(&self, level: usize) {
        self.level.store(level as u32, Ordering::Relaxed);
    }

    /// Slots in use.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed) as usize
    }

    #[inline]
    fn set_count(&self, count: usize) {
        self.count.store(count as u32, Ordering::Relaxed);
    }

    /// Whether every slot is in use.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.count() == SLOTS
    }

    /// The next node in the list of spare ones, which lies in the first link.
    #[inline]
    pub(super) fn next_spare(&self) -> usize {
        self.link(0)
    }

    /// Sets the next spare node; 0 leaves the node empty.
    #[inline]
    pub(super) fn set_next_spare(&self, link: usize) {
        self.set_link(0, link);
    }

    /// Number of slots that end at or before `addr`: the index of the first one that ends after it.
    #[inline]
    pub(super) fn ends_up_to(&self, addr: u64) -> usize {
        rank(&self.ends, |end| end <= addr)
    }

    /// Number of slots that start below `addr`.
    #[inline]
    pub(super) fn starts_below(&self, addr: u64) -> usize {
        rank(&self.starts, |start| start < addr)
    }

    /// Where slot `index` starts.
    #[inline]
    pub(super) fn start(&self, index: usize) -> u64 {
        self.starts[index].load(Ordering::Relaxed)
    }

    /// Where slot `index` ends.
    #[inline]
    pub(super) fn end(&self, index: usize) -> u64 {
        self.ends[index].load(Ordering::Relaxed)
    }

    /// The largest gap inside the child at `index`.
    #[inline]
    pub(super) fn gap(&self, index: usize) -> u64 {
        self.gaps[index].load(Ordering::Relaxed)
    }

    /// The link of slot `index`. Acquire: pairs with the release in [`set_link`](Self::set_link), so that
    /// what a node or value was filled with is seen by each reader that finds it.
    #[inline]
    pub(super) fn link(&self, index: usize) -> usize {
        self.links[index].load(Ordering::Acquire)
    }

    /// The link of slot `index`, or `None` where there is none: past the last slot or in an unused one.
    /// Acquire as in [`link`](Self::link).
    #[inline]
    pub(super) fn link_at(&self, index: usize) -> Option<usize> {
        let link = self.links.get(index)?.load(Ordering::Acquire);
        (link != 0).then_some(link)
    }

    /// Release: pairs with the acquire in [`link`](Self::link). Every copy of a link publishes, since a
    /// reader may find the node through any of them.
    #[inline]
    fn set_link(&self, index: usize, link: usize) {
        self.links[index].store(link, Ordering::Release);
    }

    /// The cached extent of slot `index`.
    #[inline]
    pub(super) fn extent_of(&self, index: usize) -> Extent {
        Extent { start: self.start(index), end: self.end(index), gap: self.gap(index) }
    }

    /// Changes the extent of slot `index`.
    #[inline]
    pub(super) fn set_extent(&self, index: usize, extent: Extent) {
        self.starts[index].store(extent.start, Ordering::Relaxed);
        self.ends[index].store(extent.end, Ordering::Relaxed);
        self.gaps[index].store(extent.gap, Ordering::Relaxed);
    }

    /// The range of slot `index`.
    #[inline]
    pub(super) fn range(&self, index: usize) -> VirtRange {
        VirtRange::new(VirtAddr(self.start(index)), VirtAddr(self.end(index)))
    }

    /// All of slot `index`.
    #[inline]
    pub(super) fn slot(&self, index: usize) -> NodeSlot {
        NodeSlot { extent: self.extent_of(index), link: self.link(index) }
    }

    #[inline]
    fn put(&self, index: usize, slot: NodeSlot) {
        self.set_extent(index, slot.extent);
        self.set_link(index, slot.link);
    }

    /// Whether slot `index` holds nothing.
    pub(super) fn is_wiped(&self, index: usize) -> bool {
        self.slot(index) == NodeSlot::UNUSED
    }

    /// What the parent caches of this node, which is not empty: only the root ever is.
    #[inline]
    pub(super) fn extent(&self) -> Extent {
        let last = self.count() - 1;
        let mut gap = if self.level() > 0 { self.gap(0) } else { 0 };
        let mut end = self.end(0);
        for index in 1..=last {
            // A leaf's gaps are all 0, so they do not disturb.
            gap = gap.max(self.start(index) - end).max(self.gap(index));
            end = self.end(index);
        }
        Extent { start: self.start(0), end, gap }
    }

    /// The slot that describes this node in its parent.
    #[inline]
    pub(super) fn as_slot(&self) -> NodeSlot {
        NodeSlot { extent: self.extent(), link: self.address() }
    }

    /// Puts `slot` at `index` and moves the slots from there on up by one. The node is not full.
    #[inline]
    pub(super) fn insert(&self, index: usize, slot: NodeSlot) {
        let count = self.count();
        self.set_count(count + 1);
        // From the top, so that a link is in the node at every moment.
        for from in (index..count).rev() {
            self.put(from + 1, self.slot(from));
        }
        self.put(index, slot);
    }

    /// Takes out slot `index` and moves the slots above it down by one.
    #[inline]
    pub(super) fn remove(&self, index: usize) {
        let last = self.count() - 1;
        for to in index..last {
            self.put(to, self.slot(to + 1));
        }
        self.put(last, NodeSlot::UNUSED);
        self.set_count(last);
    }

    /// Adds `slot` at the top. The node is not full.
    #[inline]
    pub(super) fn push(&self, slot: NodeSlot) {
        let count = self.count();
        self.put(count, slot);
        self.set_count(count + 1);
    }

    /// Moves the slots from `from` on to the top of `to`, the neighbour above or an empty node.
    pub(super) fn move_tail(&self, from: usize, to: &Self) {
        let count = self.count();
        for index in from..count {
            to.push(self.slot(index));
        }
        for index in from..count {
            self.put(index, NodeSlot::UNUSED);
        }
        self.set_count(from);
    }

    /// Evens out this node and its neighbour above, `right`.
    pub(super) fn balance(&self, right: &Self) {
        let (mine, theirs) = (self.count(), right.count());
        let half = (mine + theirs) / 2;
        for _ in half..mine {
            let last = self.count() - 1;
            right.insert(0, self.slot(last));
            self.remove(last);
        }
        for _ in mine..half {
            self.push(right.slot(0));
            right.remove(0);
        }
    }
}

/// Number of leading words for which `below` holds, in two steps of up to `GROUP - 1` comparisons that do not
/// depend on each other. There is no branch to mispredict. Words that change meanwhile may give any number up
/// to `SLOTS`, but no more.
#[inline]
fn rank(words: &[AtomicU64; SLOTS], below: impl Fn(u64) -> bool) -> usize {
    let is_below = |index: usize| {
        words.get(index).is_some_and(|word: &AtomicU64| below(word.load(Ordering::Relaxed))).into()
    };
    let group: usize = (1..GROUP).map(|group| -> usize { is_below(group * GROUP - 1) }).sum();
    let first = group * GROUP;
    first + (first..first + GROUP - 1).map(is_below).sum::<usize>()
}

impl<V> fmt::Debug for Node<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node at level {} with {:?}", self.level(), Slots(self))
    }
}

/// The slots of a node, for people.
struct Slots<'n, V>(&'n Node<V>);

impl<V> fmt::Debug for Slots<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = (0..SLOTS.min(self.0.count())).map(|index| self.0.range(index));
        f.debug_list().entries(used).finish()
    }
}
