//! The words that can be written to the controls, from the first to the last as Linux shows them.

use quire_arch::named_enum;

named_enum! {
    /// Where large folios are used, for all sizes that inherit it (`enabled`).
    #[repr(u8)]
    pub enum HugeEnabled {
        /// Everywhere but where a program said NOHUGEPAGE.
        Always = "always",
        /// Where a program said HUGEPAGE.
        Madvise = "madvise",
        /// Nowhere.
        Never = "never",
    }
}

named_enum! {
    /// Where folios of one size are used (`hugepages-*kB/enabled`).
    #[repr(u8)]
    pub enum SizeEnabled {
        /// Everywhere but where a program said NOHUGEPAGE, whatever [`HugeEnabled`] says.
        Always = "always",
        /// As [`HugeEnabled`] says.
        Inherit = "inherit",
        /// Where a program said HUGEPAGE, whatever [`HugeEnabled`] says.
        Madvise = "madvise",
        /// Nowhere.
        Never = "never",
    }
}

named_enum! {
    /// What a fault does for a large folio when none is free (`defrag`).
    #[repr(u8)]
    pub enum HugeDefrag {
        /// It reclaims and compacts directly.
        Always = "always",
        /// It wakes background reclaim, for the next fault.
        Defer = "defer",
        /// The first where a program said HUGEPAGE, else the second.
        DeferMadvise = "defer+madvise",
        /// The first where a program said HUGEPAGE, else nothing.
        Madvise = "madvise",
        /// Nothing.
        Never = "never",
    }
}
