//! The techniques of page tables.

/// What happens to a table that becomes empty while mappings cover it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TablesTechnique {
    /// It stays until the last mapping that covers it is unmapped (before).
    Keep,
    /// It is freed, and so are tables above it that this leaves empty.
    #[default]
    Free,
}

impl TablesTechnique {
    /// Every strategy.
    pub const ALL: [Self; 2] = [Self::Keep, Self::Free];

    /// Its name on the command line.
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Free => "free",
        }
    }
}

/// The largest piece in which `mremap` moves pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum RemapTechnique {
    /// Entry by entry (before).
    Ptes,
    /// Whole tables where they fit: PTE tables by their entry in the PMD table, PMD tables by theirs in the
    /// PUD table.
    #[default]
    Puds,
}

impl RemapTechnique {
    /// Every strategy.
    pub const ALL: [Self; 2] = [Self::Ptes, Self::Puds];

    /// Its name on the command line.
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ptes => "ptes",
            Self::Puds => "puds",
        }
    }
}

/// How the teardown of mappings treats a folio that several entries map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GatherTechnique {
    /// Page by page: each entry is a removal from the rmap and a count of its own (before).
    Pages,
    /// A run at a time: one read of the folio's first descriptor, one change of its counts.
    #[default]
    Runs,
}

impl GatherTechnique {
    /// Every strategy.
    pub const ALL: [Self; 2] = [Self::Pages, Self::Runs];

    /// Its name on the command line.
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::Runs => "runs",
        }
    }

    /// Entries in a run at most.
    #[inline]
    pub(crate) const fn longest_run(self) -> u64 {
        match self {
            Self::Pages => 1,
            Self::Runs => u64::MAX,
        }
    }
}

/// How the page tables of a machine are managed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Techniques {
    /// How mappings are torn down.
    pub gather: GatherTechnique,
    /// What happens to empty tables.
    pub tables: TablesTechnique,
    /// In which pieces pages are moved.
    pub mremap: RemapTechnique,
}
