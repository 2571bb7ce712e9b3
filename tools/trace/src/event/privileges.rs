//! The privileges of a thread that concern memory.

/// The capabilities of a thread that memory calls check.
///
/// Linux checks them in the initial user namespace: capabilities in another user namespace do not count and
/// are not recorded here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Privileges {
    /// `CAP_IPC_LOCK`: memory may be locked beyond `RLIMIT_MEMLOCK`.
    pub ipc_lock: bool,
    /// `CAP_SYS_RAWIO`: mappings with `MAP_FIXED` may lie below `vm.mmap_min_addr`.
    pub sys_rawio: bool,
}

impl Privileges {
    /// Those of root.
    pub const ALL: Self = Self { ipc_lock: true, sys_rawio: true };
}

/// Whether mappings may become executable that were not: the state that `PR_SET_MDWE` sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExecGain {
    /// They may.
    #[default]
    Allowed,
    /// They may not, and neither may those of children (`PR_MDWE_REFUSE_EXEC_GAIN`).
    Refused,
    /// They may not, those of children may (`PR_MDWE_NO_INHERIT` as well).
    RefusedNotInherited,
}
