//! The setting of a process for transparent huge pages.

/// The state set by `prctl(PR_SET_THP_DISABLE)`, with the numbers that `PR_GET_THP_DISABLE`
/// returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThpDisable {
    /// Nothing: huge pages are as the host has them.
    #[default]
    No = 0,
    /// They are disabled.
    Completely = 1,
    /// They are disabled except with `MADV_HUGEPAGE` or for a collapse
    /// (`PR_THP_DISABLE_EXCEPT_ADVISED`).
    ExceptAdvised = 3,
}
