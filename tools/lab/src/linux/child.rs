//! Children of the process that measures.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A process that this one made and has not waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Child(Pid);

impl Child {
    /// Forks a child that calls `work` and exits. `work` allocates nothing: another thread may have held the
    /// allocator's lock.
    pub(crate) fn fork(work: impl FnOnce()) -> Option<Self> {
        // SAFETY: the child calls nothing but `work`, which allocates nothing, and ends with `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            work();
            // SAFETY: ends the process at once, as after a fork.
            unsafe { libc::_exit(0) };
        }
        Self::made(pid)
    }

    /// The child that a call which makes a process returned. `None` where the call failed.
    pub(super) fn made(pid: libc::pid_t) -> Option<Self> {
        if pid > 0 { Pid::from_raw(pid).map(Self) } else { None }
    }

    pub(crate) fn kill(self) {
        let _ = kill_process(self.0, Signal::KILL);
    }

    /// Waits for its exit.
    pub(crate) fn wait(self) {
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}
