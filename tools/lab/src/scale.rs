//! How much an experiment does.

/// An experiment's `Scale`: a line for each of its quantities, with the values of the three scales.
macro_rules! scale {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $full:expr, $quick:expr, $tiny:expr;)+) => {
        /// How much the experiment does. The shape is the same at every scale.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Scale {
            $($(#[$doc])* $field: $type,)+
        }

        impl Scale {
            /// What figures are taken with: some minutes.
            pub const FULL: Self = Self { $($field: $full),+ };
            /// A first look, in seconds.
            pub const QUICK: Self = Self { $($field: $quick),+ };
            /// The least that still does everything once: for tests, where debug builds check each step. The
            /// host's settings stay as they are.
            pub const TINY: Self = Self { $($field: $tiny),+ };
        }
    };
}
pub(crate) use scale;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
