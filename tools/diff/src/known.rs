//! Differences that remain, by name. Each is a line of docs/differences.md.

use std::collections::BTreeMap;

macro_rules! differences {
    ($($(#[$doc:meta])* $difference:ident = $name:literal,)*) => {
        /// A difference from Linux that is deliberate or waits for a part that is not built.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum KnownDifference {
            $($(#[$doc])* $difference,)*
        }

        impl KnownDifference {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$difference),*];

            /// Its name in docs/differences.md.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$difference => $name,)*
                }
            }
        }
    };
}

differences! {
    /// Which pages of a file on a disk that a call has changed are in memory, what of it a call could not
    /// write, and what is mapped around a fault on the memory that a call writes from.
    FilePages = "file-pages",
    /// `MADV_PAGEOUT` drops pages of files and pages out shared memory; here it does nothing with them. On a
    /// host with swap space of its own where pages go cannot be compared.
    PageOut = "pageout",
    /// Linux counts locked pages of a mapping of 8 TiB and more in an `int`, which overflows.
    LockedOverflow = "locked-overflow",
    /// Linux still counts memory as locked that `MREMAP_DONTUNMAP` left behind unlocked.
    LockedDontUnmap = "locked-dontunmap",
    /// Linux leaves the mappings split that a `MAP_FIXED` was to replace in part, when it fails after that.
    FailedSplit = "failed-split",
    /// A call, or a form of one, that is not built.
    NotBuilt = "not-built",
    /// `MAP_32BIT` begins to search for a range at a random address: Linux's choice is taken over.
    Below2G = "below-2g",
    /// Linux frees a table only where one `MADV_DONTNEED` covers it as a whole.
    PageTables = "page-tables",
    /// Linux brings a large folio back from swap page by page, or in the sizes that faults may have below 2
    /// MiB; page by page alone once its zswap was on.
    SwapInWhole = "swap-in-whole",
    /// Linux knows which processes map a large folio only as long as they are two; a third that is left alone
    /// with it counts as one of several.
    ThirdSharer = "third-sharer",
    /// Whether a page has one user only, Linux knows for each page of a large folio; here the folio as a
    /// whole is shared or not.
    PartShared = "part-shared",
    /// Linux knows that one process alone maps a large folio, wherever its pages are mapped; here only where
    /// one table maps all of them.
    MovedPart = "moved-part",
    /// When Linux splits a large folio, it marks all its pages dirty if one of them was: lazily freed ones
    /// are kept. Here they are dropped.
    LazySplit = "lazy-split",
    /// The host's Linux has no guard pages, or does not mark mappings that may have some.
    GuardPages = "guard-pages",
    /// A hole within the first page of shared memory unmaps all of it that is behind the hole: a length
    /// wraps.
    FirstPageHole = "first-page-hole",
    /// Linux calls mappings that end below 2 MiB eligible for large folios.
    LowEligible = "low-eligible",
}

/// How often known differences occurred.
pub type KnownCounts = BTreeMap<KnownDifference, u64>;
