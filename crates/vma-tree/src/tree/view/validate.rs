//! Checking the tree's invariants.

use super::View;
use crate::tree::held::HeldNode;
use crate::tree::node::{Extent, MIN_FILL, SLOTS, is_mappable};
use quire_arch::{VirtAddr, VirtRange};

/// A broken invariant of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TreeViolation {
    /// A node has too few or too many slots in use.
    #[error("a node at level {level} has {count} slots in use")]
    Fill {
        /// The node's level.
        level: usize,
        /// Its slots in use.
        count: usize,
    },
    /// A node's level does not match its place.
    #[error("a node of level {expected} says it has level {found}")]
    Level {
        /// The level by its place.
        expected: usize,
        /// The level that it says.
        found: usize,
    },
    /// A slot's range is empty or not page-aligned.
    #[error("the range {0:?} is empty or not page-aligned")]
    BadRange(VirtRange),
    /// A slot starts before the one before it ends.
    #[error("a slot starts at {start:#x}, before the end of the one before it, {previous_end:#x}")]
    Order {
        /// Where the slot starts.
        start: VirtAddr,
        /// Where the slot before it ends.
        previous_end: VirtAddr,
    },
    /// A slot in use links nothing.
    #[error("the slot for {0:?} links nothing")]
    NoLink(VirtRange),
    /// A slot that is not in use is not wiped.
    #[error("unused slot {slot} at level {level} is not wiped")]
    NotWiped {
        /// The node's level.
        level: usize,
        /// The slot.
        slot: usize,
    },
    /// A parent's bounds of a child are wrong.
    #[error("a child at {real:?} is cached as {cached:?}")]
    CachedRange {
        /// The bounds in the parent.
        cached: VirtRange,
        /// The bounds of the child.
        real: VirtRange,
    },
    /// A parent's largest gap inside a child is wrong.
    #[error("a largest gap of {real:#x} is cached as {cached:#x}")]
    CachedGap {
        /// The gap in the parent.
        cached: u64,
        /// The gap in the child.
        real: u64,
    },
    /// The tree's count of entries is wrong.
    #[error("{found} entries, while the tree counts {expected}")]
    Count {
        /// What it says.
        expected: usize,
        /// What there are.
        found: usize,
    },
}

impl<V> View<'_, V> {
    /// Checks the order, alignment and disjointness of the entries, the fill and level of every node,
    /// everything that is cached above the leaves, and the count.
    pub fn validate(&self) -> Result<(), TreeViolation> {
        let mut found = 0;
        if let Some(root) = self.root() {
            let fewest = if root.level() > 0 { 2 } else { 0 };
            check(root, root.level(), fewest, &mut found)?;
        }
        let expected = self.len();
        if found == expected { Ok(()) } else { Err(TreeViolation::Count { expected, found }) }
    }
}

/// Checks the subtree at `node`, adds its entries to `entries` and returns its true extent.
fn check<V>(
    node: HeldNode<'_, V>,
    level: usize,
    fewest: usize,
    entries: &mut usize,
) -> Result<Extent, TreeViolation> {
    let count = node.count();
    if node.level() != level {
        return Err(TreeViolation::Level { expected: level, found: node.level() });
    }
    if !(fewest..=SLOTS).contains(&count) {
        return Err(TreeViolation::Fill { level, count });
    }
    if let Some(slot) = (count..SLOTS).find(|&slot| !node.is_wiped(slot)) {
        return Err(TreeViolation::NotWiped { level, slot });
    }
    let mut whole = Extent { start: node.start(0), end: node.start(0), gap: 0 };
    for slot in 0..count {
        let range = node.range(slot);
        // Raw bounds: a `VirtRange` hides an end before the start.
        if !is_mappable(range) || node.end(slot) != range.end().0 {
            return Err(TreeViolation::BadRange(range));
        }
        if range.start().0 < whole.end {
            let previous_end = VirtAddr(whole.end);
            return Err(TreeViolation::Order { start: range.start(), previous_end });
        }
        if node.link_at(slot).is_none() {
            return Err(TreeViolation::NoLink(range));
        }
        let real = match node.child(slot) {
            Some(child) => check(child, level - 1, MIN_FILL, entries)?,
            None => {
                *entries += 1;
                Extent::of(range)
            }
        };
        let cached = node.extent_of(slot);
        if (cached.start, cached.end) != (real.start, real.end) {
            let real = VirtRange::new(VirtAddr(real.start), VirtAddr(real.end));
            return Err(TreeViolation::CachedRange { cached: range, real });
        }
        if cached.gap != real.gap {
            return Err(TreeViolation::CachedGap { cached: cached.gap, real: real.gap });
        }
        whole.gap = whole.gap.max(real.gap).max(range.start().0 - whole.end);
        whole.end = range.end().0;
    }
    Ok(whole)
}
