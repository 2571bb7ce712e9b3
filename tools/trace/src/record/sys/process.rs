//! Processes of the recorder's own.

use super::{check, pipe};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::io;
use std::os::fd::AsRawFd;

/// Drops what holds descriptors whose last close takes long. A process that is made for it has copies of
/// them, and closes those when that is done here: so it is the one that waits for the kernel. If no process
/// can be made, nothing is lost but time.
pub(crate) fn close_in_background<T>(owner: T) {
    let Ok((end, begin)) = pipe() else { return drop(owner) };
    // SAFETY: closing what the copy has harms no other; `byte` is a live local of one byte.
    let made = unsafe {
        in_background(|| {
            for standard in 0..3 {
                libc::close(standard);
            }
            libc::close(begin.as_raw_fd());
            // Until the recorder has closed its own, or is gone.
            let mut byte = 0_u8;
            libc::read(end.as_raw_fd(), (&raw mut byte).cast(), 1);
        })
    };
    // Without it only time is lost.
    drop(made);
    drop(owner);
    drop(begin);
}

/// Makes a process that calls `body` and ends. It is in a session of its own and no child of the recorder's.
/// What waits for the job's processes does not wait for it.
///
/// # Safety
///
/// The recorder has other threads, so that `body` may call only functions that are async-signal-safe.
pub(crate) unsafe fn in_background(body: impl FnOnce()) -> io::Result<()> {
    // SAFETY: the child calls only async-signal-safe functions, as the caller promises, and never returns.
    let middle = unsafe { libc::fork() };
    if middle == 0 {
        // The process between ends at once, so that the recorder's has no child that it must wait for.
        // SAFETY: as above.
        unsafe {
            let made = libc::fork();
            if made == 0 {
                libc::setsid();
                body();
            }
            libc::_exit(i32::from(made < 0))
        }
    }
    check(i64::from(middle))?;
    // The child is ours and ends at once.
    let ended = retry_on_intr(|| waitpid(Pid::from_raw(middle), WaitOptions::empty())).ok().flatten();
    let failed = ended.is_some_and(|(_, status)| status.exit_status() != Some(0));
    if failed { Err(Errno::AGAIN.into()) } else { Ok(()) }
}

/// Closes all descriptors of this process but two.
pub(crate) fn close_all_but(one: i32, other: i32) {
    let mut first = 0_u32;
    for kept in [one.min(other), one.max(other)] {
        if let Ok(kept) = u32::try_from(kept) {
            close_range(first, i64::from(kept) - 1);
            first = kept + 1;
        }
    }
    close_range(first, i64::from(u32::MAX));
}

fn close_range(first: u32, last: i64) {
    if last >= i64::from(first) {
        // SAFETY: the descriptors' owners are gone with the process that this one was copied from.
        unsafe { libc::syscall(libc::SYS_close_range, first, last as u32, 0) };
    }
}
