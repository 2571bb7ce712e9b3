//! Whether the swap cache is used as before or as now.

/// How swap-ins and swap-outs of a page synchronise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum SwapTechnique {
    /// A word for each page, so that each page of a large folio is unmapped and counted by itself; a
    /// synchronous read bypasses the cache; zero-filled pages are written as any other (before).
    Bypass,
    /// Everything goes through the cache, with one word for all slots of a large folio. The first to insert
    /// reads. A folio is swapped in as large as it was swapped out, a page leaves the cache when it is
    /// mapped, and a zero-filled page is stored only as its word.
    #[default]
    All,
}

impl SwapTechnique {
    /// Every choice, the state before first.
    pub const ALL: [Self; 2] = [Self::Bypass, Self::All];

    /// Name on the command line.
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::All => "all",
        }
    }

    /// Whether a synchronous read bypasses the cache.
    #[doc(hidden)]
    #[inline]
    pub const fn bypasses(self) -> bool {
        matches!(self, Self::Bypass)
    }

    /// Whether all slots of a large folio share one word. If not, every cluster in use has a table.
    #[doc(hidden)]
    #[inline]
    pub const fn whole_words(self) -> bool {
        matches!(self, Self::All)
    }

    /// Whether zero-filled pages are marked, so that no device has to keep them.
    #[doc(hidden)]
    #[inline]
    pub const fn knows_zeros(self) -> bool {
        matches!(self, Self::All)
    }

    /// Whether a folio leaves the cache in the step in which its last name is mapped, and is swapped in as
    /// large as it was swapped out.
    #[doc(hidden)]
    #[inline]
    pub const fn leaves_when_mapped(self) -> bool {
        matches!(self, Self::All)
    }

    /// Whether tables that hold only shadows are searched for when memory is short, and not listed before.
    #[doc(hidden)]
    #[inline]
    pub const fn lazy_bookkeeping(self) -> bool {
        matches!(self, Self::All)
    }
}
