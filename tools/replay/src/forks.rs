//! What forks cost: what they copy, and the writes to shared pages after them.

use crate::space::HostSpace;
use quire_arch::{Order, PAGE_SIZE};
use quire_host::HostPlatform;
use quire_mm::{Memory, frame::VmEvent};
use serde::{Deserialize, Serialize};

/// What the forks of a replay copied, and what came after them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkFigures {
    /// Address spaces that were copied.
    pub forks: u64,
    /// Entries of page tables that the children got.
    pub entries: u64,
    /// Entries of PMD tables that map 2 MiB likewise.
    pub huge_entries: u64,
    /// Page tables that the children got.
    pub tables: u64,
    /// Pages that were copied since then by writes to what processes shared.
    pub copies: u64,
    /// Writes since then that found their page no longer shared, or never: only its entry changed.
    pub reuses: u64,
    /// Entries for 2 MiB that such writes split into those for single pages, since processes shared them.
    pub splits: u64,
}

/// Counts them.
#[derive(Debug, Default)]
pub(super) struct Forks {
    figures: ForkFigures,
    /// Writes so far that found a page that is not shared.
    reused: u64,
    /// Entries for 2 MiB that were split before the touch that is made.
    split: u64,
}

impl Forks {
    /// Whether there were any: without, no private page is shared.
    pub(super) fn any(&self) -> bool {
        self.figures.forks > 0
    }

    /// A child was made.
    pub(super) fn forked(&mut self, memory: &Memory<HostPlatform>, space: &HostSpace<'_>) {
        let mut huge = 0;
        if memory.huge_mapped() > 0 {
            space.mappings().for_each_figures(|mapping| huge += mapping.anonymous_huge);
        }
        let child = space.figures();
        let resident = child.resident_anonymous + child.resident_file;
        let figures = &mut self.figures;
        figures.forks += 1;
        figures.entries += resident.saturating_sub(huge) / PAGE_SIZE;
        figures.huge_entries += huge / Order::PMD.bytes();
        figures.tables += child.page_tables / PAGE_SIZE;
        self.reused = memory.event(VmEvent::Pgreuse);
    }

    /// Memory is about to be touched.
    pub(super) fn touches(&mut self, memory: &Memory<HostPlatform>) {
        self.split = memory.event(VmEvent::ThpSplitPmd);
    }

    /// A write fault found its page in memory.
    pub(super) fn wrote(&mut self, memory: &Memory<HostPlatform>) {
        self.figures.splits += memory.event(VmEvent::ThpSplitPmd).saturating_sub(self.split);
        let reused = memory.event(VmEvent::Pgreuse);
        if std::mem::replace(&mut self.reused, reused) < reused {
            self.figures.reuses += 1;
        } else {
            self.figures.copies += 1;
        }
    }

    pub(super) fn figures(&self) -> ForkFigures {
        self.figures
    }
}
