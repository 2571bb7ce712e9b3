//! Splits: an entry becomes several of a smaller order, which keep its tags.

use super::LockedStore;
use crate::entry::Stored;
use crate::index::PageIndex;
use crate::level::Level;
use crate::node::{HeldNode, TAGS};
use crate::source::{Needs, NodeSource, Reserve};
use crate::store::error::InsertError;
use quire_arch::{Execution, Order};

impl<'s, E: Execution, S: NodeSource> LockedStore<'s, E, S> {
    /// Splits the entry at `index` into entries of `order`, for the frames or slots in their order. Returns
    /// what was there, and changes nothing if that is not larger.
    ///
    /// Its words change one after the other, so a look-up may find the whole or a part. The caller keeps
    /// others from taking references to a folio until it is one no more (a frozen count).
    ///
    /// # Errors
    ///
    /// [`InsertError::NeedsNodes`]; nothing has changed then.
    pub fn split(
        &mut self,
        index: PageIndex,
        order: Order,
        reserve: &mut Reserve<'_, S>,
    ) -> Result<Option<Stored>, InsertError> {
        let Some(entry) = self.get(index) else { return Ok(None) };
        if entry.order <= order {
            return Ok(Some(entry));
        }
        let (from, to) = (Level::of(entry.order), Level::of(order));
        let mut needs = Needs::default();
        let is_root = self.root_node().is_none();
        if is_root {
            needs.add(from);
        }
        let mut level = from.below();
        while let Some(below) = level.filter(|level| *level >= to) {
            for _ in 0..entry.order.pages() / below.node_pages() {
                needs.add(below);
            }
            level = below.below();
        }
        if !reserve.has(needs) {
            return Err(InsertError::NeedsNodes(needs));
        }
        if is_root {
            self.push_down(reserve);
        }
        self.divide(&entry, order, reserve);
        self.lower();
        Ok(Some(entry))
    }

    /// Writes entries of `order` in the place of `entry`, which is not the root and is larger.
    pub(super) fn divide(&mut self, entry: &Stored, order: Order, reserve: &mut Reserve<'_, S>) {
        let Some(node) = self.node_of(entry) else { return };
        let tags = self.tags_of(entry);
        self.guarded.figures.change(entry, false);
        self.put_parts(node, entry, order, tags, reserve);
        for part in Self::parts(entry, order) {
            self.guarded.figures.change(&part, true);
        }
    }

    /// Writes entries of `order` for the pages of `entry` into `node`, or into new nodes below it.
    fn put_parts(
        &mut self,
        node: HeldNode<'s>,
        entry: &Stored,
        order: Order,
        tags: [bool; TAGS],
        reserve: &mut Reserve<'_, S>,
    ) {
        let level = node.level();
        if level.is_of(order) {
            for part in Self::parts(entry, order) {
                self.write(Some(node), &part);
            }
            for (tag, _) in tags.into_iter().enumerate().filter(|(_, on)| *on) {
                self.tag_all(node, tag, entry);
            }
            return;
        }
        let Some(below) = level.below() else { return };
        // What a word stands for is an order's block: that of the shift.
        let Some(word_order) = Order::new(level.shift() as u8) else { return };
        for part in Self::parts(entry, word_order) {
            let child = self.new_node(reserve, below);
            self.put_parts(child, &part, order, tags, reserve);
            self.link(node, level.slot(part.start.get()), child);
        }
    }

    /// Puts the entry that is the root into a node.
    pub(super) fn push_down(&mut self, reserve: &mut Reserve<'_, S>) {
        let Some(stored) = self.root().stored(0) else { return };
        let node = self.new_node(reserve, Level::of(stored.order));
        self.write(Some(node), &stored);
        for (tag, on) in self.guarded.root_tags.into_iter().enumerate() {
            if on {
                self.tag_all(node, tag, &stored);
            }
        }
        self.link_root(node);
    }

    /// Divides an entry, as a buddy allocator does, until one of the order of `part` begins where that does.
    pub(super) fn isolate(&mut self, entry: Stored, part: &Stored, reserve: &mut Reserve<'_, S>) {
        let mut entry = entry;
        while let Some(order) = entry.order.smaller().filter(|smaller| *smaller >= part.order) {
            self.divide(&entry, order, reserve);
            let start = part.start.block_start(order);
            let pages = start.get() - entry.start.get();
            entry = Stored { start, order, entry: entry.entry.part(pages) };
        }
    }

    /// An order's entries of the pages of `entry`.
    pub(super) fn parts(entry: &Stored, order: Order) -> impl Iterator<Item = Stored> + use<E, S> {
        let whole = *entry;
        (0..whole.order.pages() >> order.get()).map(move |nth| {
            let pages = nth << order.get();
            let start = PageIndex::known(whole.start.get() + pages);
            Stored { start, order, entry: whole.entry.part(pages) }
        })
    }
}
