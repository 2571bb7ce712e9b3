//! Words and nodes: what all changes are made of.

use super::LockedStore;
use crate::entry::Stored;
use crate::level::Level;
use crate::node::{HeldNode, TAGS};
use crate::source::{NodeSource, Reserve, retire};
use crate::store::tag::{mark, words_mask};
use crate::word::{Holds, Word};
use core::ops::Range;
use quire_arch::Execution;
use quire_sync::atomic::Ordering;

impl<'s, E: Execution, S: NodeSource> LockedStore<'s, E, S> {
    pub(super) fn set_root(&mut self, word: Word) {
        // Release: pairs with the acquire in `FolioStore::find`.
        self.store.root.store(word.raw(), Ordering::Release);
    }

    /// A new node, not linked yet.
    pub(super) fn new_node(&mut self, reserve: &mut Reserve<'_, S>, level: Level) -> HeldNode<'s> {
        self.guarded.figures.nodes += 1;
        reserve.take(level)
    }

    /// Writes a word, and counts it: nothing else does but [`set_words`](Self::set_words).
    pub(super) fn set_word(&mut self, node: HeldNode<'s>, slot: usize, word: Word) {
        self.set_words(node, slot..slot + 1, (node.word(slot), word));
    }

    /// Writes words that are all the same, and will be.
    #[inline]
    pub(super) fn set_words(
        &mut self,
        node: HeldNode<'s>,
        slots: Range<usize>,
        (before, after): (Word, Word),
    ) {
        let count = slots.len() as u8;
        for slot in slots {
            debug_assert_eq!(node.word(slot), before);
            node.store(slot, after);
        }
        let (is_new, goes) = (before == Word::NONE, after == Word::NONE);
        let (was_shadow, is_shadow) = (before.is_shadow(), after.is_shadow());
        if (is_new, was_shadow) != (goes, is_shadow) {
            let of = |condition: bool| if condition { count } else { 0 };
            node.count(|counts| {
                counts.words = counts.words + of(is_new) - of(goes);
                counts.shadows = counts.shadows + of(is_shadow) - of(was_shadow);
            });
            self.list_shadow_node(node);
        }
    }

    /// Links `child` in a word of `parent`.
    pub(super) fn link(&mut self, parent: HeldNode<'s>, slot: usize, child: HeldNode<'s>) {
        child.count(|counts| {
            counts.parent = Some(parent.head());
            counts.slot = slot as u8;
        });
        self.set_word(parent, slot, child.link());
        for tag in 0..TAGS {
            mark(parent, tag, 1 << slot, child.counts().tags[tag] != 0);
        }
    }

    /// Makes `child` the root.
    pub(super) fn link_root(&mut self, child: HeldNode<'s>) {
        child.count(|counts| counts.parent = None);
        self.set_root(child.link());
        self.guarded.root_tags = [false; TAGS];
    }

    /// Writes the words of an entry, into `node` or as the root. Until now they were all the same.
    pub(super) fn write(&mut self, node: Option<HeldNode<'s>>, stored: &Stored) {
        self.overwrite(node, stored, Word::entry(stored.order, stored.entry));
    }

    /// Empties the words of an entry, and forgets its tags.
    pub(super) fn erase(&mut self, node: Option<HeldNode<'s>>, stored: &Stored) {
        self.clear_tags(node, stored);
        self.overwrite(node, stored, Word::NONE);
    }

    #[inline]
    fn overwrite(&mut self, node: Option<HeldNode<'s>>, stored: &Stored, word: Word) {
        let Some(node) = node else { return self.set_root(word) };
        let first = node.slot(stored.start.get());
        if node.level().words_of(stored.order) == 1 {
            return self.set_words(node, first..first + 1, (node.word(first), word));
        }
        self.set_words(node, first..first + node.level().words_of(stored.order), (node.word(first), word));
    }

    #[inline]
    pub(super) fn clear_tags(&mut self, node: Option<HeldNode<'s>>, stored: &Stored) {
        let Some(node) = node else {
            self.guarded.root_tags = [false; TAGS];
            return;
        };
        // Most entries have none.
        if node.counts().tags != [0; TAGS] {
            let mask = words_mask(node.slot(stored.start.get()), node.level().words_of(stored.order));
            (0..TAGS).for_each(|tag| mark(node, tag, mask, false));
        }
    }

    /// Retires `node`, which nothing links any more. What its words were, readers find at the root.
    pub(super) fn retire(&mut self, node: HeldNode<'s>) {
        for slot in 0..node.level().words() {
            if node.word(slot) != Word::NONE {
                node.store(slot, Word::GONE);
            }
        }
        self.unlist_shadow_node(node);
        self.guarded.figures.nodes -= 1;
        // SAFETY: the node came from the source of all changes of this store, and nothing links it.
        unsafe { retire(self.source, node) };
    }

    /// Retires `node` if it is empty, the same above it, and makes the tree as low as it can be.
    pub(super) fn prune(&mut self, node: HeldNode<'s>) {
        let mut node = node;
        while node.counts().words == 0 {
            let Some(parent) = node.parent() else {
                self.set_root(Word::NONE);
                return self.retire(node);
            };
            self.set_word(parent, usize::from(node.counts().slot), Word::NONE);
            self.retire(node);
            node = parent;
        }
        // Below the root nothing is lowered.
        if node.parent().is_none() {
            self.lower();
        }
    }

    /// Makes the tree as low as it can be.
    pub(super) fn lower(&mut self) {
        while let Some(root) = self.root_node()
            && self.lower_by_one(root)
        {}
    }

    /// Makes the only thing in the root node the root, if it begins at the first page.
    fn lower_by_one(&mut self, root: HeldNode<'s>) -> bool {
        let words = usize::from(root.counts().words);
        match root.word(0).holds() {
            Holds::Node(_) if words == 1 => {
                let child = root.child(0);
                child.into_iter().for_each(|child| self.link_root(child));
            }
            Holds::Entry(order, entry) if words == root.level().words_of(order) => {
                let tags = root.counts().tags.map(|tagged| tagged != 0);
                self.set_root(Word::entry(order, entry));
                self.guarded.root_tags = tags;
            }
            _ => return false,
        }
        self.retire(root);
        true
    }
}
