//! Insertion, and merges: several entries become one.
//!
//! First it is found out, without a change, what stands in the way and how many nodes are missing. Then
//! nothing can fail.

use super::LockedStore;
use crate::entry::{Entry, Payload, Stored};
use crate::index::IndexRange;
use crate::level::Level;
use crate::node::HeldNode;
use crate::source::{Needs, NodeSource, Reserve};
use crate::store::error::InsertError;
use crate::store::tag::Filter;
use crate::word::{Holds, Word};
use core::ops::Range;
use quire_arch::Execution;

impl<'s, E: Execution, S: NodeSource> LockedStore<'s, E, S> {
    /// Inserts an entry where there is nothing but shadows, which go. Returns one of these. Where a shadow is
    /// larger, the rest of it stays.
    ///
    /// # Errors
    ///
    /// See [`InsertError`]; nothing has changed then.
    pub fn insert(
        &mut self,
        new: Stored,
        reserve: &mut Reserve<'_, S>,
    ) -> Result<Option<Payload>, InsertError> {
        if !new.start.is_aligned(new.order) {
            return Err(InsertError::Misaligned);
        }
        if !new.entry.fits(new.order.pages()) {
            return Err(InsertError::TooLarge);
        }
        if let Some((node, words)) = self.empty_words(&new) {
            self.set_words(node, words, (Word::NONE, Word::entry(new.order, new.entry)));
            self.guarded.figures.change(&new, true);
            return Ok(None);
        }
        let needs = self.plan(&new).map_err(InsertError::Occupied)?;
        if !reserve.has(needs) {
            return Err(InsertError::NeedsNodes(needs));
        }
        let mut shadow = None;
        let node = self.make_way(&new, reserve, &mut shadow);
        match node {
            None => {
                let old = self.root();
                self.write(None, &new);
                self.drop_word(old, 0, &mut shadow);
            }
            Some(node) => {
                let (slots, word) = (words_in(node, &new), Word::entry(new.order, new.entry));
                if are_empty(node, slots.clone()) {
                    self.set_words(node, slots, (Word::NONE, word));
                } else {
                    for (slot, nth) in slots.zip(0..) {
                        let old = node.word(slot);
                        self.set_word(node, slot, word);
                        let page = new.start.get() + nth * node.level().word_pages();
                        self.drop_word(old, page, &mut shadow);
                    }
                }
            }
        }
        self.guarded.figures.change(&new, true);
        if shadow.is_some() {
            self.lower();
        }
        Ok(shadow)
    }

    /// Puts `new` in the place of all that is there of its pages: entries of smaller orders, of which there
    /// is one at least, and nothing. It has no tag. Needs no node. Returns false, and changes nothing, where
    /// that is not so, or where it is misaligned or does not fit into a word.
    ///
    /// A look-up finds what was there, or `new`. As with [`remove`](Self::remove), the caller drops the
    /// store's references to the folios that were there with release, after this call.
    pub fn merge(&mut self, new: Stored) -> bool {
        let is_smaller = self.next(new.range(), Filter::All).is_some_and(|old| old.order < new.order);
        if !is_smaller || !new.start.is_aligned(new.order) || !new.entry.fits(new.order.pages()) {
            return false;
        }
        let (word, mut shadow) = (Word::entry(new.order, new.entry), None);
        // What is there lies below the words of the new entry, or, with the root, in the first of them.
        match self.node_of(&new) {
            None => {
                let old = self.root();
                self.clear_tags(None, &new);
                self.set_root(word);
                self.drop_word(old, 0, &mut shadow);
            }
            Some(node) => {
                self.clear_tags(Some(node), &new);
                let first = node.slot(new.start.get());
                for nth in 0..node.level().words_of(new.order) {
                    let old = node.word(first + nth);
                    self.set_word(node, first + nth, word);
                    let page = new.start.get() + nth as u64 * node.level().word_pages();
                    self.drop_word(old, page, &mut shadow);
                }
            }
        }
        self.guarded.figures.change(&new, true);
        self.lower();
        true
    }

    /// The words of an entry, if its node is there and they are empty. So it is for most of a file.
    #[inline]
    fn empty_words(&self, new: &Stored) -> Option<(HeldNode<'s>, Range<usize>)> {
        let (start, target) = (new.start.get(), Level::of(new.order));
        let mut node = self.root_node().filter(|root| root.holds(start))?;
        while node.level() > target {
            node = node.child(node.slot(start))?;
        }
        let slots = words_in(node, new);
        (node.level() == target && are_empty(node, slots.clone())).then_some((node, slots))
    }

    /// The nodes that an insertion needs, or what stands in its way.
    fn plan(&self, new: &Stored) -> Result<Needs, Stored> {
        let (start, target) = (new.start.get(), Level::of(new.order));
        let top = Level::covering(new.range().end() - 1).max(target);
        let mut needs = Needs::default();
        match self.root().holds() {
            Holds::Nothing | Holds::Gone if start == 0 => {}
            Holds::Nothing | Holds::Gone => needs.add_levels(target, top),
            Holds::Entry(order, entry) => {
                let base = Level::of(order);
                if start >= order.pages() {
                    needs.add_levels(base, top.max(base));
                    add_path(&mut needs, new, base, top.max(base));
                } else if !entry.is_shadow() {
                    return Err(Stored { start: new.start.block_start(order), order, entry });
                } else if new.order < order {
                    needs.add_levels(target, base);
                }
            }
            Holds::Node(_) => {
                let Some(root) = self.root_node() else { return Ok(needs) };
                let base = root.level();
                if start == 0 && target > base {
                    self.only_shadows(new.range())?;
                } else if base.holds(start) {
                    self.plan_below(root, new, &mut needs)?;
                } else {
                    base.above().into_iter().for_each(|above| needs.add_levels(above, top));
                    add_path(&mut needs, new, base, top);
                }
            }
        }
        Ok(needs)
    }

    /// As [`plan`](Self::plan), from a node on that holds the pages.
    fn plan_below(&self, node: HeldNode<'s>, new: &Stored, needs: &mut Needs) -> Result<(), Stored> {
        let (start, target) = (new.start.get(), Level::of(new.order));
        let mut node = node;
        while node.level() > target {
            let word = node.word(node.slot(start));
            match (word.holds(), node.level().below()) {
                (Holds::Node(_), _) => match node.child(node.slot(start)) {
                    Some(child) => node = child,
                    None => return Ok(()),
                },
                (_, Some(below)) => {
                    needs.add_levels(target, below);
                    return word.stored(start).filter(|old| !old.entry.is_shadow()).map_or(Ok(()), Err);
                }
                (_, None) => return Ok(()),
            }
        }
        if are_empty(node, words_in(node, new)) {
            return Ok(());
        }
        self.only_shadows(new.range())
    }

    /// Whether there are only shadows; else what else there is.
    fn only_shadows(&self, range: IndexRange) -> Result<(), Stored> {
        let mut rest = range;
        while let Some(found) = self.next(rest, Filter::All) {
            if !found.entry.is_shadow() {
                return Err(found);
            }
            rest = IndexRange::new(found.range().end(), range.end());
        }
        Ok(())
    }

    /// The node for the words of `new`, made with those above it; `None` for the root. A larger shadow that
    /// is there is divided, so that none is larger than `new`.
    fn make_way(
        &mut self,
        new: &Stored,
        reserve: &mut Reserve<'_, S>,
        shadow: &mut Option<Payload>,
    ) -> Option<HeldNode<'s>> {
        let (start, target) = (new.start.get(), Level::of(new.order));
        let top = Level::covering(new.range().end() - 1).max(target);
        match self.root().holds() {
            Holds::Nothing | Holds::Gone if start == 0 => return None,
            Holds::Nothing | Holds::Gone => {
                let root = self.new_node(reserve, top);
                self.link_root(root);
            }
            Holds::Entry(order, _) if start < order.pages() && new.order >= order => return None,
            Holds::Entry(..) => self.push_down(reserve),
            Holds::Node(_) => {
                if start == 0 && self.root_node().is_some_and(|root| target > root.level()) {
                    return None;
                }
            }
        }
        let mut node = self.root_node()?;
        while node.level() < top {
            let above = self.new_node(reserve, node.level().above()?);
            self.link(above, 0, node);
            self.link_root(above);
            node = above;
        }
        loop {
            let slot = node.slot(start);
            if let Some(larger) = node.word(slot).stored(start).filter(|old| old.order > new.order) {
                if let Entry::Shadow(payload) = larger.entry {
                    *shadow = Some(payload);
                }
                self.isolate(larger, new, reserve);
                return self.node_of(new);
            }
            if node.level() == target {
                return Some(node);
            }
            node = match node.child(slot) {
                Some(child) => child,
                None => {
                    let child = self.new_node(reserve, node.level().below()?);
                    self.link(node, slot, child);
                    child
                }
            };
        }
    }

    /// Counts what the word `old` of page `page` was, which was overwritten.
    fn drop_word(&mut self, old: Word, page: u64, shadow: &mut Option<Payload>) {
        match old.holds() {
            Holds::Entry(_, entry) => {
                if let Entry::Shadow(payload) = entry {
                    *shadow = Some(payload);
                }
                // An entry has several words.
                if let Some(stored) = old.stored(page).filter(|stored| stored.start.get() == page) {
                    self.guarded.figures.change(&stored, false);
                }
            }
            Holds::Node(link) => {
                // SAFETY: the lock is held, and the node was in the store until now.
                let node = unsafe { HeldNode::<'s>::new(link.cast()) };
                for slot in 0..node.level().words() {
                    let (word, page) = (node.word(slot), page + slot as u64 * node.level().word_pages());
                    // What it links is not linked any more before it is retired.
                    if word != Word::NONE {
                        node.store(slot, Word::GONE);
                    }
                    self.drop_word(word, page, shadow);
                }
                self.retire(node);
            }
            _ => {}
        }
    }
}

/// The words of `new` in a node of its level.
#[inline]
fn words_in(node: HeldNode<'_>, new: &Stored) -> Range<usize> {
    let first = node.slot(new.start.get());
    first..first + node.level().words_of(new.order)
}

#[inline]
fn are_empty(node: HeldNode<'_>, mut slots: Range<usize>) -> bool {
    slots.all(|slot| node.word(slot) == Word::NONE)
}

/// The nodes on the way from a node of level `top` down to the words of `new`, other than those that hold the
/// first page, from level `base` on.
fn add_path(needs: &mut Needs, new: &Stored, base: Level, top: Level) {
    let start = new.start.get();
    let mut level = Some(Level::of(new.order));
    while let Some(one) = level.filter(|level| *level <= top) {
        if one < base || !one.holds(start) {
            needs.add(one);
        }
        level = one.above();
    }
}
