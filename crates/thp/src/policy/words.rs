//! The words that can be written to the controls.

/// Declares a choice between words, from the first to the last as Linux shows them.
macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $word_doc:literal])+ $variant:ident = $word:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum $name {
            $($(#[doc = $word_doc])+ $variant,)+
        }

        impl $name {
            /// All choices, in the order in which Linux's file shows them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}

words! {
    /// Where large folios are used, for all sizes that inherit it (`enabled`).
    HugeEnabled {
        /// Everywhere but where a program said NOHUGEPAGE.
        Always = "always",
        /// Where a program said HUGEPAGE.
        Madvise = "madvise",
        /// Nowhere.
        Never = "never",
    }
}

words! {
    /// Where folios of one size are used (`hugepages-*kB/enabled`).
    SizeEnabled {
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

words! {
    /// What a fault does for a large folio when none is free (`defrag`).
    HugeDefrag {
        /// It makes room itself.
        Always = "always",
        /// It asks the background to make room for the next one.
        Defer = "defer",
        /// The first where a program said HUGEPAGE, else the second.
        DeferMadvise = "defer+madvise",
        /// The first where a program said HUGEPAGE, else nothing.
        Madvise = "madvise",
        /// Nothing.
        Never = "never",
    }
}
