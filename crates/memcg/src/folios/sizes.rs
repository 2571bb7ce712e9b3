//! The sizes of the lists, and the clock of departures from them.

use super::MemcgFolios;
use crate::id::MemcgId;
use crate::lists::{LruList, NodeLists};
use quire_arch::{NodeId, Platform};
use quire_sync::atomic::Ordering;

impl<P: Platform> MemcgFolios<'_, P> {
    /// Pages on each list of a memcg and node. Excludes the CPUs' batches until they are taken in
    /// ([`take_in`](Self::take_in)).
    pub fn sizes(self, id: MemcgId, node: NodeId) -> [u64; LruList::COUNT] {
        let lists = self.tree.table.get(id).and_then(|memcg| memcg.lists(node));
        lists.map_or([0; LruList::COUNT], NodeLists::sizes)
    }

    /// As [`sizes`](Self::sizes), of the memcg and all below it, on all nodes.
    pub fn subtree_sizes(self, id: MemcgId) -> [u64; LruList::COUNT] {
        let mut sums = [0; LruList::COUNT];
        self.tree.for_each_in_subtree(id, |below| {
            let Some(memcg) = self.tree.table.get(below) else { return };
            for lists in memcg.all_lists() {
                for (sum, pages) in sums.iter_mut().zip(lists.sizes()) {
                    *sum += pages;
                }
            }
        });
        sums
    }

    /// Advances the clock of the memcg and all its ancestors, the root included, by `pages`: so many left its
    /// inactive lists on the node, by eviction or activation.
    pub fn advance(self, id: MemcgId, node: NodeId, pages: u64) {
        for lists in self.tree.up_to_root(id).filter_map(|memcg| memcg.lists(node)) {
            lists.age().fetch_add(pages, Ordering::Relaxed);
        }
    }

    /// The [sizes](Self::sizes) and the [clock](Self::age) of a memcg and node.
    #[inline]
    pub fn sizes_and_age(self, id: MemcgId, node: NodeId) -> ([u64; LruList::COUNT], u64) {
        let lists = self.tree.table.get(id).and_then(|memcg| memcg.lists(node));
        lists.map_or(([0; LruList::COUNT], 0), |lists| (lists.sizes(), lists.age().load(Ordering::Relaxed)))
    }

    /// The clock of the memcg and node. It restarts when the number is reused for another memcg.
    pub fn age(self, id: MemcgId, node: NodeId) -> u64 {
        let lists = self.tree.table.get(id).and_then(|memcg| memcg.lists(node));
        lists.map_or(0, |lists| lists.age().load(Ordering::Relaxed))
    }
}
