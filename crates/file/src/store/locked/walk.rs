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

    /// Those of at most 32 pages that have folios, as bits from the first one on: one descent for each node.
    pub(crate) fn folio_bits(&self, pages: IndexRange) -> u32 {
        let (mut bits, mut page) = (0, pages.start());
        let ones = |word: Word, from: u64, to: u64| {
            let ones = if word.is_folio() { ((1_u64 << (to - from)) - 1) as u32 } else { 0 };
            ones << (from - pages.start())
        };
        let Some(root) = self.root_node() else {
            let end = self.root().stored(0).map_or(0, |root| root.range().end()).min(pages.end());
            return if page < end { ones(self.root(), page, end) } else { 0 };
        };
        while page < pages.end() && root.holds(page) {
            let mut node = root;
            while let Some(child) = node.child(node.slot(page)) {
                node = child;
            }
            let level = node.level();
            let end = ((page | (level.node_pages() - 1)) + 1).min(pages.end());
            if level.shift() == 0 {
                // Nodes with a word for each page have no links.
                let first = level.slot(page);
                for nth in 0..(end - page) as usize {
                    let is_folio = node.word(first + nth).is_folio();
                    bits |= u32::from(is_folio) << ((page - pages.start()) as usize + nth);
                }
                page = end;
                continue;
            }
            while page < end {
                let word = node.word(level.slot(page));
                if word.node().is_some() {
                    break;
                }
                let next = ((page | (level.word_pages() - 1)) + 1).min(end);
                bits |= ones(word, page, next);
                page = next;
            }
        }
        bits
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
