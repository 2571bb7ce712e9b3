//! Pages of address spaces, and what those who have them from before a fork see of them.

use super::block::{Bits, Block, Demand};
use super::budget::Budget;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The pages of each block that a space has from before a fork.
pub(super) type Inherited = BTreeMap<u64, Bits>;

/// What an entry of that takes, in bytes.
pub(super) const INHERITED_BYTES: u64 = 96;
/// Blocks by their number.
#[derive(Debug, Default)]
pub(super) struct PlannedPages {
    pub(super) blocks: BTreeMap<u64, Block>,
    pub(super) demand: Demand,
}

impl PlannedPages {
    /// Changes a block that exists.
    pub(super) fn edit(&mut self, number: u64, change: impl FnOnce(&mut Block)) {
        if let Some(block) = self.blocks.get_mut(&number) {
            self.demand.subtract(&block.demand());
            change(block);
            self.demand.add(&block.demand());
        }
    }

    pub(super) fn remove(&mut self, number: u64) {
        if let Some(block) = self.blocks.remove(&number) {
            self.demand.subtract(&block.demand());
        }
    }

    /// Of these pages only those that are seen. `false` if that is too much to look at.
    fn keep(&mut self, budget: &mut Budget, seen: &Inherited) -> bool {
        for (number, block) in &mut self.blocks {
            let gone = seen.get(number).map_or(block.touched, |seen| block.touched.without(seen));
            if !gone.is_empty() {
                self.demand.subtract(&block.demand());
                block.drop_pages(&gone);
                self.demand.add(&block.demand());
            }
        }
        budget.edit(self.blocks.len() as u64)
    }

    /// Adds other pages. `false` if that is too much to look at.
    pub(super) fn take(&mut self, budget: &mut Budget, mut other: Self) -> bool {
        // The smaller into the larger.
        if other.blocks.len() > self.blocks.len() {
            std::mem::swap(&mut other, self);
        }
        let visited = other.blocks.len() as u64;
        for (number, taken) in other.blocks {
            if self.blocks.contains_key(&number) {
                budget.blocks += 1;
                self.edit(number, |block| block.take(&taken));
            } else {
                self.demand.add(&taken.demand());
                self.blocks.insert(number, taken);
            }
        }
        budget.edit(visited)
    }
}

/// What had seen `seen` takes the pages of a layer, and sees those `below`: what it dropped since stays gone.
/// `false` if that is too much to look at.
pub(super) fn leave_dropped(
    budget: &mut Budget,
    seen: &Inherited,
    pages: &mut PlannedPages,
    below: &mut Arc<Inherited>,
) -> bool {
    if !budget.visit(below.len() as u64) || !pages.keep(budget, seen) {
        return false;
    }
    for (block, pages) in Arc::make_mut(below).iter_mut() {
        *pages = seen.get(block).map_or(Bits::default(), |seen| pages.and(seen));
    }
    true
}
