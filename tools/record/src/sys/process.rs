//! Processes of the recorder's own, and settings of them.

use super::{Tid, pipe};
use crate::seccomp::X32_BIT;
use quire_trace::event::ThpDisable;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

/// Drops descriptors whose last close takes long. A process that is made for it has copies of them, and
/// closes those after the drop here: so that process waits for the kernel. If no process can be made, only
/// time is lost.
pub(crate) fn close_in_background<T>(owner: T) {
    let Ok((end, begin)) = pipe() else { return drop(owner) };
    // SAFETY: closing what the copy has harms no other, and reading needs no lock and no memory.
    let made = unsafe {
        in_background(|| {
            close_range(0..3);
            close_copy(&begin);
            // Until the recorder has closed its own, or has ended.
            let _ = rustix::io::read(&end, &mut [0]);
        })
    };
    // Without it only time is lost.
    drop(made);
    drop(owner);
    drop(begin);
}

/// Makes a process that calls `body` and ends. It is in a session of its own and not a child of the
/// recorder, so a shell that waits for the job does not wait for it.
///
/// # Safety
///
/// The recorder has other threads, so that `body` may call only functions that are async-signal-safe.
pub(crate) unsafe fn in_background(body: impl FnOnce()) -> io::Result<()> {
    // SAFETY: the children call only async-signal-safe functions, as the caller promises.
    let middle = unsafe {
        // The intermediate process ends at once, so that the recorder has no child that it must wait
        // for.
        fork(|| {
            match fork(|| {
                let _ = rustix::process::setsid();
                body();
                0
            }) {
                Ok(_) => 0,
                Err(_) => 1,
            }
        })?
    };
    let ended = retry_on_intr(|| waitpid(Pid::from_raw(middle), WaitOptions::empty())).ok().flatten();
    let failed = ended.is_some_and(|(_, status)| status.exit_status() != Some(0));
    if failed { Err(Errno::AGAIN.into()) } else { Ok(()) }
}

/// Makes a child that calls `body` and ends with the code that it returns. Returns the child's id.
///
/// # Safety
///
/// `body` must be fit for [`in_background`].
pub(crate) unsafe fn fork(body: impl FnOnce() -> i32) -> io::Result<Tid> {
    // SAFETY: the child calls what the caller vouches for, and ends without any cleanup of the copied state.
    unsafe {
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => libc::_exit(body()),
            child => Ok(child),
        }
    }
}

/// Closes all descriptors of this process but two.
pub(crate) fn close_all_but(one: i32, other: i32) {
    let mut first = 0;
    for kept in [one.min(other), one.max(other)] {
        if let Ok(kept) = u32::try_from(kept) {
            close_range(first..kept);
            first = kept + 1;
        }
    }
    close_range(first..u32::MAX);
}

/// Closes the copy that a child has of a descriptor.
pub(crate) fn close_copy(fd: &OwnedFd) {
    let fd = fd.as_raw_fd().cast_unsigned();
    close_range(fd..fd + 1);
}

fn close_range(fds: Range<u32>) {
    if !fds.is_empty() {
        // SAFETY: the descriptors' owners are gone with the process that this one was copied from.
        unsafe { libc::syscall(libc::SYS_close_range, fds.start, fds.end - 1, 0) };
    }
}

/// What this process, or the one that started it, did with `PR_SET_THP_DISABLE`.
pub(crate) fn thp_disable() -> ThpDisable {
    // SAFETY: it asks for a setting; all arguments are numbers.
    match unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0_u64, 0_u64, 0_u64, 0_u64) } {
        1 => ThpDisable::Completely,
        3 => ThpDisable::ExceptAdvised,
        _ => ThpDisable::No,
    }
}

/// Disables transparent huge pages for this process and its children; returns 0 or the errno.
/// Async-signal-safe.
pub(crate) fn disable_thp(flags: u64) -> i32 {
    // SAFETY: a setting of this process; all arguments are numbers.
    let result = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1_u64, flags, 0_u64, 0_u64) };
    if result == 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(0) }
}

/// Whether the kernel has calls of the x32 ABI. Where a filter kills a process for those, so does this.
pub(crate) fn has_x32() -> bool {
    static HAS_IT: OnceLock<bool> = OnceLock::new();
    *HAS_IT.get_or_init(|| {
        // SAFETY: it asks for a number and changes nothing.
        unsafe { libc::syscall(libc::SYS_getpid | i64::from(X32_BIT)) != -1 }
    })
}

/// Whether the calling thread's personality keeps addresses from being random.
pub(crate) fn no_randomize() -> bool {
    const QUERY: libc::c_ulong = 0xffff_ffff;
    // SAFETY: it asks for the personality and changes nothing.
    unsafe { libc::personality(QUERY) & libc::ADDR_NO_RANDOMIZE != 0 }
}
