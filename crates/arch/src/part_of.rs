//! Types that are one duty of a larger whole.

/// Declares a part of a whole that is generic over the [`Platform`](crate::Platform): a reference to the whole,
/// passed by value, for functions of one duty. `new` makes it, within the crate.
#[macro_export]
macro_rules! part_of {
    ($(#[$meta:meta])+ pub struct $part:ident { $field:ident: $whole:ident }) => {
        $(#[$meta])+
        #[derive(Debug)]
        pub struct $part<'w, P: $crate::Platform> {
            $field: &'w $whole<P>,
        }

        impl<'w, P: $crate::Platform> $part<'w, P> {
            #[inline]
            pub(crate) fn new($field: &'w $whole<P>) -> Self {
                Self { $field }
            }
        }

        // Not derived: that would ask for a platform that can be copied.
        impl<P: $crate::Platform> Clone for $part<'_, P> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<P: $crate::Platform> Copy for $part<'_, P> {}
    };
}
