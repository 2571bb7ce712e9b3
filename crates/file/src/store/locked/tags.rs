//! The tags of entries.

use super::LockedStore;
use crate::entry::Stored;
use crate::index::PageIndex;
use crate::node::{HeldNode, TAGS};
use crate::source::NodeSource;
use crate::store::tag::{Tag, mark, words_mask};
use quire_arch::Execution;

impl<'s, E: Execution, S: NodeSource> LockedStore<'s, E, S> {
    /// Marks the entry at `index`, and returns whether there is one that can be: shadows have no tags.
    pub fn set_tag(&mut self, index: PageIndex, tag: Tag) -> bool {
        self.change_tag(index, tag, true)
    }

    /// Takes the mark from the entry at `index`, and returns whether there is one that can have it.
    pub fn clear_tag(&mut self, index: PageIndex, tag: Tag) -> bool {
        self.change_tag(index, tag, false)
    }

    fn change_tag(&mut self, index: PageIndex, tag: Tag, on: bool) -> bool {
        let located = self.locate(index).filter(|(_, stored)| !stored.entry.is_shadow());
        let Some((node, stored)) = located else { return false };
        match node {
            None => self.guarded.root_tags[tag.index()] = on,
            Some(node) => {
                let slot = node.slot(stored.start.get());
                let mask = words_mask(slot, node.level().words_of(stored.order));
                mark(node, tag.index(), mask, on);
            }
        }
        true
    }

    /// Whether the entry at `index` has the tag.
    pub fn has_tag(&self, index: PageIndex, tag: Tag) -> bool {
        self.locate(index).is_some_and(|(node, _)| match node {
            None => self.guarded.root_tags[tag.index()],
            Some(node) => node.counts().tags[tag.index()] >> node.slot(index.get()) & 1 != 0,
        })
    }

    /// Whether any entry has the tag.
    pub fn any_tagged(&self, tag: Tag) -> bool {
        self.root_node()
            .map_or(self.guarded.root_tags[tag.index()], |root| root.counts().tags[tag.index()] != 0)
    }

    /// The tags of an entry.
    pub(super) fn tags_of(&self, stored: &Stored) -> [bool; TAGS] {
        Tag::ALL.map(|tag| self.has_tag(stored.start, tag))
    }

    /// Sets a tag of all words of an entry in `node`.
    pub(super) fn tag_all(&mut self, node: HeldNode<'s>, tag: usize, stored: &Stored) {
        debug_assert!(tag < TAGS);
        let (level, slot) = (node.level(), node.slot(stored.start.get()));
        mark(node, tag, words_mask(slot, level.words_of(stored.order)), true);
    }
}
