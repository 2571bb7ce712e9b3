//! Exact queries, under the layout lock.

mod cursor;
mod gap;
mod validate;

pub use cursor::Entries;
pub use validate::TreeViolation;

use super::held::HeldNode;
use super::{Entry, RangeTree};
use core::fmt;
use quire_arch::{VirtAddr, VirtRange};

/// A tree that does not change while this view of it is in use. Made by [`RangeTree::view`]; a
/// [`Writer`](super::Writer) derefs to one.
pub struct View<'t, V> {
    pub(super) tree: &'t RangeTree<V>,
}

impl<V> View<'_, V> {
    /// The root.
    #[inline]
    pub(super) fn root(&self) -> Option<HeldNode<'_, V>> {
        // SAFETY: no writer changes the tree while the view is borrowed (contract of `view` and `writer`; a
        // writer lends its view only while it is not changing anything).
        unsafe { self.tree.held_root() }
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Whether there are no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// Levels of the tree; 0 when it is empty.
    pub fn height(&self) -> usize {
        self.root().map_or(0, |root| root.level() + 1)
    }

    /// The entry that contains `addr`.
    #[inline]
    pub fn find(&self, addr: VirtAddr) -> Option<Entry<V>> {
        self.first_ending_after(addr).filter(|entry| entry.range.start() <= addr)
    }

    /// The lowest entry that ends after `addr`: the one that contains it, or else the next one up (Linux's
    /// `find_vma`). The entry after a range is the first that ends after the range's end.
    #[inline]
    pub fn first_ending_after(&self, addr: VirtAddr) -> Option<Entry<V>> {
        let mut node = self.root()?;
        while node.level() > 0 {
            node = node.child(node.ends_up_to(addr.0))?;
        }
        Entry::of(&node, node.ends_up_to(addr.0))
    }

    /// The highest entry that starts before `addr`. With an entry's start, the entry before it.
    #[inline]
    pub fn last_starting_before(&self, addr: VirtAddr) -> Option<Entry<V>> {
        let mut node = self.root()?;
        while node.level() > 0 {
            node = node.child(node.starts_below(addr.0).checked_sub(1)?)?;
        }
        Entry::of(&node, node.starts_below(addr.0).checked_sub(1)?)
    }

    /// The highest entry that ends at or before `addr`, and the lowest that ends after it: most often one
    /// search for both.
    #[inline]
    pub fn beside(&self, addr: VirtAddr) -> (Option<Entry<V>>, Option<Entry<V>>) {
        let Some(mut node) = self.root() else { return (None, None) };
        while node.level() > 0 {
            let Some(child) = node.child(node.ends_up_to(addr.0)) else { return (self.last(), None) };
            node = child;
        }
        let slot = node.ends_up_to(addr.0);
        let above = Entry::of(&node, slot);
        let below = match slot.checked_sub(1) {
            Some(below) => Entry::of(&node, below),
            None => above.and_then(|above| self.last_starting_before(above.range.start())),
        };
        (below, above)
    }

    /// The lowest entry.
    #[inline]
    pub fn first(&self) -> Option<Entry<V>> {
        self.first_ending_after(VirtAddr(0))
    }

    /// The highest entry.
    #[inline]
    pub fn last(&self) -> Option<Entry<V>> {
        self.last_starting_before(VirtAddr(u64::MAX))
    }

    /// The entries that share an address with `within`, whole, in order from either end.
    #[inline]
    pub fn entries(&self, within: VirtRange) -> Entries<'_, V> {
        Entries::new(self, within)
    }

    /// All entries, in order from either end.
    #[inline]
    pub fn iter(&self) -> Entries<'_, V> {
        self.entries(VirtRange::new(VirtAddr(0), VirtAddr(u64::MAX)))
    }
}

impl<'v, V> IntoIterator for &'v View<'_, V> {
    type Item = Entry<V>;
    type IntoIter = Entries<'v, V>;

    fn into_iter(self) -> Entries<'v, V> {
        self.iter()
    }
}

impl<V> fmt::Debug for View<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|entry| (entry.range, entry.value))).finish()
    }
}
