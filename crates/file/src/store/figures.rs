//! What is counted of a store.

use crate::entry::{Entry, Stored};

/// What is in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreFigures {
    /// Pages of folios (Linux's `nrpages`).
    pub cached_pages: u64,
    /// Pages that are in swap slots.
    pub swapped_pages: u64,
    /// Shadows.
    pub shadows: u64,
    /// Nodes.
    pub nodes: u64,
    /// Nodes that have nothing but shadows.
    pub shadow_nodes: u64,
}

impl StoreFigures {
    /// Counts an entry that came, or one that went.
    pub(super) fn change(&mut self, stored: &Stored, comes: bool) {
        let (count, by) = match stored.entry {
            Entry::Folio(_) => (&mut self.cached_pages, stored.order.pages()),
            Entry::Slot(_) => (&mut self.swapped_pages, stored.order.pages()),
            Entry::Shadow(_) => (&mut self.shadows, 1),
        };
        *count = if comes { *count + by } else { *count - by };
    }
}
