//! Starting the program.
//!
//! The child waits between fork and exec until the recorder has seized it. Then it does the steps that the
//! recorder requests, one after the other, and reports the result of each: it mounts the memory limit that
//! the program is shown, turns transparent huge pages off, installs the seccomp filter, and executes the
//! program. Between fork and exec it makes system calls only: another thread of the recorder may hold the
//! allocator's lock.

use super::error::RecordError;
use super::seccomp::{self, Stops};
use super::shown_limit::LimitMounts;
use super::sys::process::{close_copy, disable_thp, fork};
use super::sys::signals::{self, SavedSignal};
use super::sys::{Tid, pipe};
use rustix::io::retry_on_intr;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// A child that waits before its exec.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) pid: Tid,
    /// The child's reports: the result of each step, then why exec failed (nothing if it did not).
    report: File,
    go: File,
}

/// What the child has of the caller.
#[derive(Debug)]
pub(crate) struct Outer<'o> {
    /// Its standard input, if it is not the caller's.
    pub(crate) stdin: Option<&'o File>,
    /// The standard output is taken: the program writes to the standard error output.
    pub(crate) to_stderr: bool,
    pub(crate) signals: &'o [SavedSignal],
}

/// The step that the child is to do next, and then reports.
const STEP_THP_EXCEPT_ADVISED: u8 = b'a';
const STEP_THP_OFF: u8 = b't';
const STEP_SHOW_LIMIT: u8 = b'l';
const STEP_FILTER_ALL: u8 = b'f';
const STEP_FILTER_SOME: u8 = b's';
const STEP_EXEC: u8 = b'x';

/// That transparent huge pages are off for the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThpOff {
    /// The kernel knows `PR_THP_DISABLE_EXCEPT_ADVISED`.
    pub(crate) knows_except_advised: bool,
}

/// `PR_THP_DISABLE_EXCEPT_ADVISED`, which libc does not have yet.
pub(crate) const EXCEPT_ADVISED: u64 = 2;

/// The code of a child that executed nothing.
const FAILED: i32 = 127;

impl Child {
    /// Forks. Its signals do what they did before the recorder changed them: what is ignored stays ignored
    /// when it executes. The child does nothing until [`Child::install_filter`].
    pub(crate) fn start(
        command: &[OsString],
        outer: &Outer<'_>,
        shown: Option<&LimitMounts>,
    ) -> Result<Self, RecordError> {
        let words = command.iter().map(|word| CString::new(word.as_bytes()));
        let words: Vec<CString> = words
            .collect::<Result<_, _>>()
            .map_err(|_| RecordError::Command("a word has a zero byte in it"))?;
        let mut argv: Vec<*const libc::c_char> = words.iter().map(|word| word.as_ptr()).collect();
        argv.push(std::ptr::null());
        let filters = [Stops::All, Stops::WhereMoreIsRead].map(seccomp::program);
        let start = |source| RecordError::Start { source };
        let (report_out, report_in) = pipe().map_err(start)?;
        let (go_out, go_in) = pipe().map_err(start)?;
        let live = || {
            // The recorder's end must not keep the pipe open when the recorder dies.
            close_copy(&go_in);
            if let Some(stdin) = outer.stdin {
                let _ = rustix::stdio::dup2_stdin(stdin);
            }
            if outer.to_stderr {
                let _ = rustix::stdio::dup2_stdout(rustix::stdio::stderr());
            }
            signals::restore(outer.signals);
            child(&argv, &filters, shown, &go_out, &report_in)
        };
        // SAFETY: the child calls only async-signal-safe functions (see `child`).
        let pid = unsafe { fork(live) }.map_err(start)?;
        Ok(Self { pid, report: report_out.into(), go: go_in.into() })
    }

    /// Lets the child install the filter that stops these calls; `false` if it is not allowed to.
    pub(crate) fn install_filter(&mut self, stops: Stops) -> io::Result<bool> {
        let step = match stops {
            Stops::All => STEP_FILTER_ALL,
            Stops::WhereMoreIsRead => STEP_FILTER_SOME,
        };
        Ok(self.ask(step)? == 0)
    }

    /// Lets the child mount the limit that the program is shown.
    pub(crate) fn show_limit(&mut self) -> io::Result<()> {
        match self.ask(STEP_SHOW_LIMIT)? {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Lets the child turn transparent huge pages off, which the program inherits.
    pub(crate) fn turn_thp_off(&mut self) -> io::Result<ThpOff> {
        // Tried first: the second call undoes it.
        let knows_except_advised = self.ask(STEP_THP_EXCEPT_ADVISED)? == 0;
        match self.ask(STEP_THP_OFF)? {
            0 => Ok(ThpOff { knows_except_advised }),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Lets the child do a step; returns 0 or the errno.
    fn ask(&mut self, step: u8) -> io::Result<i32> {
        self.go.write_all(&[step])?;
        let mut report = [0; 5];
        self.report.read_exact(&mut report)?;
        let [done, errno @ ..] = report;
        if done == step { Ok(i32::from_le_bytes(errno)) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Lets the child execute the program.
    pub(crate) fn execute(&mut self) -> io::Result<()> {
        self.go.write_all(&[STEP_EXEC])
    }

    /// Why the exec failed; `None` if it did not. Returns when the child has executed or has ended.
    pub(crate) fn exec_error(&mut self) -> Option<io::Error> {
        let mut report = [0; 5];
        self.report.read_exact(&mut report).ok()?;
        let [step, errno @ ..] = report;
        (step == STEP_EXEC).then(|| io::Error::from_raw_os_error(i32::from_le_bytes(errno)))
    }
}

/// What the child runs: returns its exit code if there is no program to execute. Calls only
/// async-signal-safe functions and allocates nothing.
fn child(
    argv: &[*const libc::c_char],
    [all, some]: &[Vec<libc::sock_filter>; 2],
    shown: Option<&LimitMounts>,
    go: &OwnedFd,
    report: &OwnedFd,
) -> i32 {
    loop {
        let (step, errno) = match wait_for(go) {
            Some(step @ STEP_THP_EXCEPT_ADVISED) => (step, disable_thp(EXCEPT_ADVISED)),
            Some(step @ STEP_THP_OFF) => (step, disable_thp(0)),
            Some(step @ STEP_SHOW_LIMIT) => (step, shown.map_or(0, LimitMounts::mount)),
            Some(step @ STEP_FILTER_ALL) => (step, install(all)),
            Some(step @ STEP_FILTER_SOME) => (step, install(some)),
            Some(_) => break,
            // The recorder has ended.
            None => return FAILED,
        };
        tell(report, step, errno);
    }
    // SAFETY: `argv` holds pointers to strings that live on in this copy of the process, and a null at the
    // end.
    unsafe { libc::execvp(argv[0], argv.as_ptr()) };
    tell(report, STEP_EXEC, errno());
    FAILED
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn wait_for(go: &OwnedFd) -> Option<u8> {
    let mut byte = [0];
    let read = retry_on_intr(|| rustix::io::read(go, &mut byte));
    (read == Ok(1)).then_some(byte[0])
}

fn tell(report: &OwnedFd, step: u8, errno: i32) {
    let [a, b, c, d] = errno.to_le_bytes();
    // So short a write to a pipe is atomic.
    let _ = rustix::io::write(report, &[step, a, b, c, d]);
}

/// Installs the filter: returns 0 or the errno. Privileged programs keep the right to gain privileges by
/// exec.
fn install(filter: &[libc::sock_filter]) -> i32 {
    let program =
        libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_ptr().cast_mut() };
    let program: *const libc::sock_fprog = &raw const program;
    // SAFETY: `program` points to a filter that outlives the call; the kernel copies and checks it.
    let set = || unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, program) };
    if set() == 0 {
        return 0;
    }
    if errno() != libc::EACCES {
        return errno();
    }
    let _ = rustix::thread::set_no_new_privs(true);
    if set() == 0 { 0 } else { errno() }
}
