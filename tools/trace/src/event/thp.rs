//! What a process said about transparent huge pages.

/// What a process did with `prctl(PR_SET_THP_DISABLE)`: `PR_GET_THP_DISABLE` returns the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThpDisable {
    /// Nothing: huge pages are as the host has them.
    #[default]
    No = 0,
    /// It does without them.
    Completely = 1,
    /// It does without them except where it said `MADV_HUGEPAGE` or asks for a collapse
    /// (`PR_THP_DISABLE_EXCEPT_ADVISED`).
    ExceptAdvised = 3,
}
