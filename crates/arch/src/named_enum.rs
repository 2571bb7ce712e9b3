//! Enums whose variants have names.

/// Declares an enum once, with the name of each variant: the constant `ALL` has them in the order of the
/// enum, and `name` returns the name of one.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$meta:meta])+
        pub enum $enum:ident { $($(#[$variant_meta:meta])+ $variant:ident = $name:literal,)+ }
    ) => {
        $(#[$meta])+
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $enum {
            $($(#[$variant_meta])+ $variant,)+
        }

        impl $enum {
            /// Every one, in the order of the enum.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
