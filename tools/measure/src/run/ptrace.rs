//! Stops of the program's processes at their start, `exec` and end, and what they cost.

use std::io;
use std::time::Duration;

/// What stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A thread that has just been attached to, or continues after a group stop.
    Attached,
    /// In a group stop, until SIGCONT.
    Halted,
    /// It has executed a new program.
    Exec,
    /// It starts another process or thread.
    Fork,
    /// It is about to end; its memory is still there.
    Ending,
    /// A signal is about to be delivered.
    Signal(i32),
    /// It has ended; the wait status.
    Gone(i32),
}

/// The result of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopped {
    pub(crate) thread: i32,
    pub(crate) stop: Stop,
    pub(crate) usage: Usage,
}

/// What a process used, with its descendants that were waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
}

impl Usage {
    pub(crate) fn add(&mut self, other: &Self) {
        self.user += other.user;
        self.system += other.system;
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
    }
}

/// Attaches to a process, so that it and all that it starts stop at those events. All are killed when this
/// thread ends.
pub(crate) fn seize(pid: i32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACEEXIT
        | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SEIZE, pid, i64::from(options))
}

/// Resumes a thread, with a signal or without one.
pub(crate) fn resume(thread: i32, stop: Stop) {
    // A thread that was killed meanwhile cannot be resumed.
    let _ = match stop {
        Stop::Halted => request(libc::PTRACE_LISTEN, thread, 0),
        Stop::Signal(signal) => request(libc::PTRACE_CONT, thread, i64::from(signal)),
        _ => request(libc::PTRACE_CONT, thread, 0),
    };
}

fn request(request: libc::c_uint, thread: i32, data: i64) -> io::Result<()> {
    // SAFETY: the requests made here take no address, and write to no memory of this process.
    match unsafe { libc::ptrace(request, thread, 0_usize, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Waits for the next stop of a thread that the calling thread traces; none if there is no such thread any
/// more.
pub(crate) fn wait() -> io::Result<Option<Stopped>> {
    let mut status = 0;
    // SAFETY: rusage is a struct of integers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // Only what this thread traces: the children of other threads are not ours to wait for.
        // SAFETY: both addresses are of variables of their types.
        let thread =
            unsafe { libc::wait4(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD, &raw mut usage) };
        if thread > 0 {
            return Ok(Some(Stopped { thread, stop: decode(status), usage: usage_of(&usage) }));
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

fn decode(status: i32) -> Stop {
    if !libc::WIFSTOPPED(status) {
        return Stop::Gone(status);
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        libc::PTRACE_EVENT_EXIT => Stop::Ending,
        libc::PTRACE_EVENT_EXEC => Stop::Exec,
        libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => Stop::Fork,
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Stop::Attached,
        libc::PTRACE_EVENT_STOP => Stop::Halted,
        _ => Stop::Signal(signal),
    }
}

fn usage_of(usage: &libc::rusage) -> Usage {
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    Usage {
        user: time(usage.ru_utime),
        system: time(usage.ru_stime),
        minor_faults: usage.ru_minflt.unsigned_abs(),
        major_faults: usage.ru_majflt.unsigned_abs(),
    }
}

/// Whether two processes share their memory, as after `vfork`.
pub(crate) fn share_memory(one: i32, other: i32) -> bool {
    const KCMP_VM: libc::c_long = 1;
    // SAFETY: the call takes five numbers; it compares, and changes nothing.
    one != other && unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0_usize, 0_usize) } == 0
}
