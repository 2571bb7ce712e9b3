//! Calls that a filter of the program's own leaves to a tracer (SECCOMP_RET_TRACE).
//!
//! It means another tracer than this one, and Linux fails such a call where there is none. So it is not made
//! by any thread that is resumed here: recorded or not, in 64-bit mode or not, on its way out of the
//! recorder's hands or left behind.

use crate::seccomp::MARK;
use crate::sys::ptrace::SyscallStop;
use crate::sys::{Tid, ptrace};

/// Fails the call at which a thread is stopped in PTRACE_EVENT_SECCOMP, if it is such a call. Returns whether
/// the thread may be resumed.
pub(super) fn may_go_on(tid: Tid) -> bool {
    match ptrace::syscall_stop(tid) {
        Ok(SyscallStop::Filtered { told, .. }) => told == MARK || fail_call(tid),
        // It was killed meanwhile. The next wait reports its end; resuming it could skip that.
        Ok(_) | Err(_) => false,
    }
}

/// Fails such a call. Returns whether the thread may be resumed: if not, it was killed. A thread that still
/// could make its call stays stopped.
pub(super) fn fail_call(tid: Tid) -> bool {
    ptrace::skip_call(tid, -i64::from(libc::ENOSYS)).is_ok()
}
