//! The place of a large leaf.

use quire_arch::Pfn;

/// The place of an entry in a PMD table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HugeSlot {
    /// The table.
    pub table: Pfn,
    /// The index of its entry.
    pub index: usize,
}
