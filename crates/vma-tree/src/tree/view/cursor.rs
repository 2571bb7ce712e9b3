//! Iterating over entries in order, from either end, without allocation.

use super::View;
use crate::tree::Entry;
use crate::tree::path::Path;
use core::fmt;
use core::iter::FusedIterator;
use quire_arch::VirtRange;

/// The entries of a [`View`] that share an address with a range. Made by [`View::entries`].
///
/// What is left is always the addresses of `within`; the paths only save looking up each entry from the root.
pub struct Entries<'v, V> {
    view: &'v View<'v, V>,
    within: VirtRange,
    /// The way to the entry that was last taken from the front.
    front: Option<Path<'v, V>>,
    /// The way to the entry that was last taken from the back.
    back: Option<Path<'v, V>>,
}

impl<'v, V> Entries<'v, V> {
    #[inline]
    pub(super) fn new(view: &'v View<'_, V>, within: VirtRange) -> Self {
        Self { view, within, front: None, back: None }
    }

    /// The entry at the leaf of `path`, if it shares an address with what is left.
    #[inline]
    fn entry_at(&self, path: &Path<'v, V>) -> Option<Entry<V>> {
        let (leaf, slot) = (path.node(0), path.slot(0));
        Entry::of(&leaf, slot).filter(|entry| entry.range.overlaps(self.within))
    }
}

impl<V> Iterator for Entries<'_, V> {
    type Item = Entry<V>;

    #[inline]
    fn next(&mut self) -> Option<Entry<V>> {
        if self.within.is_empty() {
            return None;
        }
        match &mut self.front {
            Some(path) => {
                if !path.forward() {
                    return None;
                }
            }
            unset => {
                let root = self.view.root()?;
                unset.insert(Path::new()).go_to_end_after(root, self.within.start().0);
            }
        }
        let entry = self.entry_at(self.front.as_ref()?);
        let rest = entry.map_or(self.within.end(), |entry| entry.range.end());
        self.within = VirtRange::new(rest, self.within.end());
        entry
    }
}

impl<V> DoubleEndedIterator for Entries<'_, V> {
    #[inline]
    fn next_back(&mut self) -> Option<Entry<V>> {
        if self.within.is_empty() {
            return None;
        }
        match &mut self.back {
            Some(path) => {
                if !path.backward() {
                    return None;
                }
            }
            unset => {
                let root = self.view.root()?;
                if !unset.insert(Path::new()).go_to_start_before(root, self.within.end().0) {
                    *unset = None;
                    return None;
                }
            }
        }
        let entry = self.entry_at(self.back.as_ref()?);
        let rest = entry.map_or(self.within.start(), |entry| entry.range.start());
        self.within = VirtRange::new(self.within.start(), rest);
        entry
    }
}

impl<V> FusedIterator for Entries<'_, V> {}

impl<V> Clone for Entries<'_, V> {
    fn clone(&self) -> Self {
        // The paths are found again when they are needed.
        Self { view: self.view, within: self.within, front: None, back: None }
    }
}

impl<V> fmt::Debug for Entries<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}
