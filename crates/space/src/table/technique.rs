//! What the techniques of page tables leave to choose.

/// What becomes of a table that is left without entries while mappings lie over it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TablesTechnique {
    /// It stays until the last mapping over it is unmapped (before).
    Keep,
    /// It is freed, and so are tables above it that this leaves empty.
    #[default]
    Free,
}

impl TablesTechnique {
    /// Every strategy.
    pub const ALL: [Self; 2] = [Self::Keep, Self::Free];

    /// Its name on the command line.
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
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ptes => "ptes",
            Self::Puds => "puds",
        }
    }
}
