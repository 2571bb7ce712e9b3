//! Where tools that count instructions look.

/// Does what is counted: `callgrind --toggle-collect='*measured::measured*'`. What comes before and after is not.
#[inline(never)]
pub(crate) fn measured<R>(work: impl FnOnce() -> R) -> R {
    work()
}
