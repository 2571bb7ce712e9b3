//! Types that are one duty of a larger whole.

/// Declares a part of a whole that is generic over the [`Platform`](crate::Platform): a reference to the
/// whole, passed by value, for functions of one duty. `new` makes it, where the field is visible. A whole
/// that is a view itself is named with its lifetime, which is `'w`.
#[macro_export]
macro_rules! part_of {
    ($(#[$meta:meta])+
     $of:vis struct $part:ident { $vis:vis $field:ident: $whole:ident $(<$view:lifetime>)? }) => {
        $(#[$meta])+
        #[derive(Debug)]
        $of struct $part<'w, P: $crate::Platform> {
            /// The whole.
            $vis $field: &'w $whole<$($view,)? P>,
        }

        impl<'w, P: $crate::Platform> $part<'w, P> {
            /// This part of the whole.
            #[inline]
            $vis fn new($field: &'w $whole<$($view,)? P>) -> Self {
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
