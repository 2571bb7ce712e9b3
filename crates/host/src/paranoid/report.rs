//! Reports of stale translations.

use core::fmt;
use quire_arch::{Access, CachedTranslation, Entry, Level, Pfn, TlbFlush, VirtAddr};

/// How a cached translation differs from the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Staleness {
    /// It agrees with the tables.
    None,
    /// The tables map nothing at the address.
    NotMapped,
    /// The tables map another frame.
    OtherFrame,
    /// The cached entry permits more than the tables.
    MorePermission,
    /// A write goes through the cached entry, and the dirty bit in the tables was cleared: the write is lost
    /// to every reader of that bit.
    LostDirty,
}

/// A use of a translation that differs from the tables.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StaleHit {
    /// The cached translation, and its CPU.
    pub cached: CachedTranslation,
    /// Root of the tables that were current.
    pub root: Pfn,
    /// The address of the access.
    pub addr: VirtAddr,
    /// Its kind.
    pub access: Access,
    /// The entry in the tables.
    pub table: Entry,
    /// The level of that entry.
    pub table_level: Level,
    /// The difference.
    pub staleness: Staleness,
    /// Whether the frame was free.
    pub frame_is_free: bool,
    /// Flushes that the CPU had not done yet.
    pub pending: Vec<TlbFlush>,
    /// Flushes that the CPU had done last, oldest first.
    pub recent: Vec<TlbFlush>,
}

impl fmt::Display for StaleHit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.staleness {
            Staleness::None => "the tables map a free frame",
            Staleness::NotMapped => "stale TLB entry: the tables map nothing here",
            Staleness::OtherFrame => "stale TLB entry: the tables map another frame",
            Staleness::MorePermission => "stale TLB entry: the tables permit less",
            Staleness::LostDirty => "stale TLB entry: the dirty bit was cleared under it",
        };
        writeln!(f, "{what}{}", if self.frame_is_free { "; the frame is free" } else { "" })?;
        let CachedTranslation { cpu, asid, addr, level, leaf } = self.cached;
        writeln!(f, "  access:  {:?} of {:#x} on cpu {cpu}, {asid:?}", self.access, self.addr)?;
        writeln!(f, "  TLB:     {leaf:?} at {level:?} for {addr:#x}")?;
        writeln!(f, "  tables:  {:?} at {:?}, root {:?}", self.table, self.table_level, self.root)?;
        writeln!(f, "  pending: {:?}", self.pending)?;
        write!(f, "  done:    {:?}", self.recent)
    }
}
