//! Changes that need no node.

use super::LockedStore;
use crate::entry::{Entry, Stored};
use crate::index::PageIndex;
use crate::node::HeldNode;
use crate::source::NodeSource;
use crate::store::error::InsertError;
use crate::word::Word;
use quire_arch::Execution;

impl<'s, E: Execution, S: NodeSource> LockedStore<'s, E, S> {
    /// Puts `entry` in the place of the entry at `index`, and returns what was there. The order stays, and
    /// the tags unless it is a shadow: that has none. Needs no node.
    ///
    /// As with [`remove`](Self::remove), the caller drops the store's reference to a folio that was there
    /// with release, after this call.
    ///
    /// # Errors
    ///
    /// [`InsertError::TooLarge`]; nothing has changed then.
    pub fn replace(&mut self, index: PageIndex, entry: Entry) -> Result<Option<Stored>, InsertError> {
        self.replace_by(index, |_| Some(entry))
    }

    /// The same with the entry that `by` makes of what is there. `None` where nothing is, or it makes none.
    ///
    /// # Errors
    ///
    /// As for [`replace`](Self::replace).
    #[inline]
    pub(crate) fn replace_by(
        &mut self,
        index: PageIndex,
        by: impl FnOnce(&Stored) -> Option<Entry>,
    ) -> Result<Option<Stored>, InsertError> {
        let Some((node, before)) = self.locate(index) else { return Ok(None) };
        let Some(entry) = by(&before) else { return Ok(None) };
        if !entry.fits(before.order.pages()) {
            return Err(InsertError::TooLarge);
        }
        let after = Stored { entry, ..before };
        if entry.is_shadow() {
            self.clear_tags(node, &before);
        }
        self.write(node, &after);
        self.guarded.figures.change(&before, false);
        self.guarded.figures.change(&after, true);
        Ok(Some(before))
    }

    /// Removes the entry at `index`, and returns what was there. Needs no node.
    ///
    /// The caller drops the store's reference to the folio with release, after this call:
    /// [`Found::is_current`](crate::Found::is_current) relies on it.
    pub fn remove(&mut self, index: PageIndex) -> Option<Stored> {
        let (node, before) = self.locate(index)?;
        self.erase(node, &before);
        self.guarded.figures.change(&before, false);
        if let Some(node) = node {
            self.prune(node);
        }
        Some(before)
    }

    /// Removes up to `limit` nodes that have nothing but shadows, and these. Returns how many nodes went with
    /// those above them that became empty.
    pub fn drop_shadow_nodes(&mut self, limit: u64) -> u64 {
        let before = self.guarded.figures.nodes;
        for _ in 0..limit {
            let Some(head) = self.guarded.shadow_nodes else { break };
            // SAFETY: the lock is held, and a node leaves the list before it is retired.
            let node = unsafe { HeldNode::<'s>::new(head) };
            let mut slot = 0;
            while slot < node.level().words() {
                let words = match node.word(slot).stored((slot as u64) << node.level().shift()) {
                    Some(stored) => {
                        self.guarded.figures.change(&stored, false);
                        node.level().words_of(stored.order)
                    }
                    None => 1,
                };
                for one in slot..slot + words {
                    self.set_word(node, one, Word::NONE);
                }
                slot += words;
            }
            self.prune(node);
        }
        before - self.guarded.figures.nodes
    }
}
