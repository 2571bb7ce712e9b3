//! The entries of a range, in order.

use super::LockedStore;
use crate::entry::Stored;
use crate::index::{IndexRange, PageIndex};
use crate::source::NodeSource;
use crate::store::tag::Filter;
use crate::word::{Holds, Word};
use arrayvec::ArrayVec;
use quire_arch::Execution;

impl<E: Execution, S: NodeSource> LockedStore<'_, E, S> {
    /// The first entry with a page in `range`. It may begin before that.
    pub fn next(&self, range: IndexRange, filter: Filter) -> Option<Stored> {
        let mut page = range.start();
        if range.is_empty() {
            return None;
        }
        let Some(root) = self.root_node() else {
            let tagged = match filter {
                Filter::All => true,
                Filter::Tagged(tag) => self.guarded.root_tags[tag.index()],
            };
            let root = self.root().stored(0)?;
            return (tagged && root.range().contains(PageIndex::known(page))).then_some(root);
        };
        if !root.holds(page) {
            return None;
        }
        let mut node = root;
        loop {
            let (level, tags) = (node.level(), node.counts().tags);
            let first = level.slot(page);
            let slot = match filter {
                Filter::All => (first..level.words()).find(|&slot| node.word(slot) != Word::NONE),
                Filter::Tagged(tag) => {
                    let rest = tags[tag.index()] >> first;
                    (rest != 0).then(|| first + rest.trailing_zeros() as usize)
                }
            };
            let node_start = page & !(level.node_pages() - 1);
            let Some(slot) = slot else {
                // On behind this node.
                page = node_start + level.node_pages();
                if page >= range.end() {
                    return None;
                }
                loop {
                    let slot = usize::from(node.counts().slot) + 1;
                    node = node.parent()?;
                    if slot < node.level().words() {
                        break;
                    }
                }
                continue;
            };
            if slot > first {
                page = node_start + slot as u64 * level.word_pages();
            }
            if page >= range.end() {
                return None;
            }
            match (node.word(slot).holds(), node.child(slot)) {
                (Holds::Node(_), Some(child)) => node = child,
                _ => return node.word(slot).stored(page),
            }
        }
    }

    /// The first entries with a page in `range`, as many as there is room for.
    pub fn batch<const N: usize>(&self, range: IndexRange, filter: Filter) -> ArrayVec<Stored, N> {
        let mut found = ArrayVec::new();
        let mut rest = range;
        while found.remaining_capacity() > 0
            && let Some(stored) = self.next(rest, filter)
        {
            rest = IndexRange::new(stored.range().end(), range.end());
            found.push(stored);
        }
        found
    }
}
