//! Who makes a call.

use core::fmt;

/// Who makes a call on a name space of SysV shared memory, and when.
#[derive(Clone, Copy)]
pub struct ShmCaller<'c> {
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
    /// Whether a group is one of the caller's, the effective one included.
    pub is_in_group: &'c dyn Fn(u32) -> bool,
    /// The process.
    pub pid: u32,
    /// The time in seconds, of the embedder's clock.
    pub now: i64,
    /// Permissions of segments do not matter (`CAP_IPC_OWNER`).
    pub passes_modes: bool,
    /// It may change and remove segments of others (`CAP_SYS_ADMIN`).
    pub is_admin: bool,
    /// It may keep any segment in memory (`CAP_IPC_LOCK`).
    pub may_lock: bool,
    /// Bytes that its user may keep in memory (`RLIMIT_MEMLOCK`). How much that is already is the embedder's.
    pub lock_limit: u64,
}

impl fmt::Debug for ShmCaller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmCaller").field("uid", &self.uid).field("pid", &self.pid).finish_non_exhaustive()
    }
}
