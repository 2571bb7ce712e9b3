//! Walks over what a range maps.

mod look;
mod swapped;

pub use look::MappedPage;
pub use swapped::SwappedRun;

use crate::huge::HugeLeaves;
use crate::huge_slot::HugeSlot;
use crate::table::{Found, Tables, parts};
use quire_arch::{Entry, Level, PagingFormat, Pfn, Platform, VirtRange};
use quire_sync::atomic::raw::Ordering;

/// What a walk finds.
#[derive(Clone, Copy, Debug)]
pub enum WalkEntry {
    /// A bottom table.
    Table(Pfn),
    /// A leaf in the place of a bottom table. It may have become something else by the time that its lock is
    /// held.
    Huge(HugeSlot),
}

/// How a walk continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WalkStep {
    /// Done with this part.
    Next,
    /// Only a part of the large leaf is concerned: it is split into a table, which is visited.
    Split,
    /// The leaf is gone: the walk looks again.
    Again,
    /// The walk ends.
    Stop,
}

quire_arch::part_of! {
    /// Visits what the tables of a space map.
    pub struct Walker { pub tables: Tables<'w> }
}

impl<P: Platform> Walker<'_, P> {
    /// Calls `visit` for every bottom table, and every leaf in the place of one, that covers part of `range`,
    /// in the order of the addresses, with the part of `range` that it covers. The caller makes sure that the
    /// tables stay linked.
    pub fn walk(self, range: VirtRange, visit: &mut impl FnMut(WalkEntry, VirtRange) -> WalkStep) {
        if Tables::<P>::is_in_one_table(range) {
            // Most ranges are.
            match self.tables.lookup(range.start()) {
                Found::Table(table) => {
                    visit(WalkEntry::Table(table), range);
                    return;
                }
                Found::Nothing => return,
                Found::Huge(_) => {}
            }
        }
        if !range.is_empty() {
            self.walk_below(self.tables.space().root(), P::Paging::root_level(), range, visit);
        }
    }

    /// Returns [`WalkStep::Stop`] where the walk ends.
    fn walk_below(
        self,
        table: Pfn,
        level: Level,
        range: VirtRange,
        visit: &mut impl FnMut(WalkEntry, VirtRange) -> WalkStep,
    ) -> WalkStep {
        let Some(below) = level.down() else { return visit(WalkEntry::Table(table), range) };
        for (index, part) in parts::<P::Paging>(range, level) {
            loop {
                let raw = self.tables.entries(table)[index].load(Ordering::Acquire);
                let step = match P::Paging::table_of(raw, level) {
                    Some(child) => match self.walk_below(child, below, part, visit) {
                        WalkStep::Stop => WalkStep::Stop,
                        _ => WalkStep::Next,
                    },
                    None if matches!(P::Paging::decode(raw, level), Entry::Leaf(_)) => {
                        visit(WalkEntry::Huge(HugeSlot { table, index }), part)
                    }
                    None => WalkStep::Next,
                };
                match step {
                    WalkStep::Next => break,
                    WalkStep::Split => HugeLeaves::new(self.tables).split_huge(HugeSlot { table, index }),
                    WalkStep::Again => {}
                    WalkStep::Stop => return WalkStep::Stop,
                }
            }
        }
        WalkStep::Next
    }
}
