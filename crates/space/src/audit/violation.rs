//! What the auditor can find wrong.

use core::fmt;
use quire_arch::{CachedTranslation, CpuId, Pfn, VirtAddr, VirtRange};
use quire_frame::Kind;
use quire_pagetable::SpaceId;
use quire_vma::{AnonVmaViolation, FileRmapViolation};
use quire_vma_tree::tree::TreeViolation;

/// A broken invariant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceViolation {
    /// The tree of VMAs is damaged.
    #[error("space {}: VMA tree: {violation:?}", .space.get())]
    Tree {
        /// Whose.
        space: SpaceId,
        /// How.
        violation: TreeViolation,
    },
    /// A VMA and its entry in the tree have different ranges.
    #[error("space {}: the tree has {expected:?}, its VMA {found:?}", .space.get())]
    VmaRange {
        /// Whose.
        space: SpaceId,
        /// The range in the tree.
        expected: VirtRange,
        /// The VMA's range.
        found: VirtRange,
    },
    /// A count differs from the recount.
    #[error("{}: {what}: expected {expected}, found {found}", whose(*.space))]
    Count {
        /// Whose; `None` for a count of the whole machine.
        space: Option<SpaceId>,
        /// Which count.
        what: &'static str,
        /// The recount.
        expected: u64,
        /// What was counted.
        found: u64,
    },
    /// A table's number of live entries differs from its entries.
    #[error("table {table:?}: expected {expected} live entries, found {found}")]
    TableLive {
        /// The table.
        table: Pfn,
        /// The recount.
        expected: u64,
        /// What its descriptor says.
        found: u64,
    },
    /// An entry points to a table that is none, or to one of another space.
    #[error("space {}: {table:?} is linked as a table but is {kind:?}", .space.get())]
    BadTable {
        /// Whose tables.
        space: SpaceId,
        /// What the entry points to.
        table: Pfn,
        /// What that is.
        kind: Kind,
    },
    /// A page is mapped where there is no mapping, or allows more than the mapping.
    #[error("space {}: {addr:?} maps {pfn:?} ({kind:?}) wrongly", .space.get())]
    BadPage {
        /// Whose.
        space: SpaceId,
        /// Where.
        addr: VirtAddr,
        /// What is mapped.
        pfn: Pfn,
        /// What that is.
        kind: Kind,
    },
    /// A marker is not in a table of pages, or a guard in a mapping that is not marked as having some.
    #[error("space {}: a marker at {addr:?} is out of place", .space.get())]
    StrayMarker {
        /// Whose.
        space: SpaceId,
        /// Where.
        addr: VirtAddr,
    },
    /// Nothing refers to the frame, though it is not free.
    #[error("{pfn:?} ({kind:?}) is lost: nothing refers to it")]
    Leaked {
        /// The frame.
        pfn: Pfn,
        /// What it was allocated for.
        kind: Kind,
    },
    /// The map count of a folio differs from the entries that map it, or its mappings do not hold exactly one
    /// reference; or a table is linked more than once.
    #[error("{pfn:?}: expected {expected} maps, found {maps}, with {refs} references")]
    Refs {
        /// The frame.
        pfn: Pfn,
        /// The recount of maps.
        expected: u32,
        /// References.
        refs: u32,
        /// Maps.
        maps: u32,
    },
    /// An anon_vma, or its tree, does not match its VMAs.
    #[error("space {}: an anon_vma of its VMAs: {violation:?}", .space.get())]
    AnonVma {
        /// The space of the VMA by which the anon_vma was found first.
        space: SpaceId,
        /// What is wrong.
        violation: AnonVmaViolation,
    },
    /// The mappings of a file do not match the VMAs that map it.
    #[error("space {}: the file of one of its VMAs: {violation:?}", .space.get())]
    FileRmap {
        /// The space of the VMA by which it was found.
        space: SpaceId,
        /// What is wrong.
        violation: FileRmapViolation,
    },
    /// A private page is owned by no anon_vma, or by one whose pages the mapping cannot map. A page of a file
    /// is another one's, or at another place, or may be written to while it is clean.
    #[error("space {}: {pfn:?} at {addr:?} is not owned by an anon_vma or file of its VMA", .space.get())]
    PageOwner {
        /// Whose mapping.
        space: SpaceId,
        /// Where.
        addr: VirtAddr,
        /// The page.
        pfn: Pfn,
    },
    /// A private page is mapped here and once more, or another page of its folio by another space, though the
    /// page is marked as exclusive to one process: others see what that process writes.
    #[error(
        "space {}: {pfn:?} at {addr:?} is mapped by other processes too, but {}",
        .space.get(),
        if *.marked { "its folio is marked as exclusive" } else { "an entry allows writes" }
    )]
    NotExclusive {
        /// Whose mapping.
        space: SpaceId,
        /// Where.
        addr: VirtAddr,
        /// The page.
        pfn: Pfn,
        /// Whether the folio is marked as exclusive; else an entry allows writes.
        marked: bool,
    },
    /// A folio is marked as mlocked, but no mlocked mapping maps a page of it; or it is listed as
    /// unevictable, but not marked. Reclaim would never find it.
    #[error("{pfn:?} is kept as mlocked, but no locked VMA has it")]
    StrayLock {
        /// Its first frame.
        pfn: Pfn,
    },
    /// A memcg's counts are wrong, or something belongs to no memcg.
    #[error("memory {0}")]
    Memcg(quire_memcg::MemcgViolation),
    /// The cache of a file.
    #[error("{0}")]
    File(quire_file::FileViolation),
    /// A TLB holds a translation that the tables do not, and no flush precedes its use.
    #[error("stale TLB entry: {0:?}")]
    StaleTranslation(CachedTranslation),
    /// A CPU runs a space and is not in its set of CPUs, or is and does not.
    #[error(
        "space {}: cpu {cpu} {}",
        .space.get(),
        if *.current { "runs it and is not in its set" } else { "is in its set and does not run it" }
    )]
    Running {
        /// The space.
        space: SpaceId,
        /// The CPU.
        cpu: CpuId,
        /// Whether it runs it.
        current: bool,
    },
}

/// The owner of a count.
fn whose(space: Option<SpaceId>) -> impl fmt::Display {
    fmt::from_fn(move |f| match space {
        Some(space) => write!(f, "space {}", space.get()),
        None => f.write_str("machine"),
    })
}
