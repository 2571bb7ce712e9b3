//! Processes of the recorder's own.

use super::pipe;
use std::os::fd::AsRawFd;

/// Drops what holds descriptors whose last close takes long. A process that is made for it has copies of them, and
/// closes those when that is done here: so it is the one that waits for the kernel. If no process can be made, nothing
/// is lost but time.
pub(crate) fn close_in_background<T>(owner: T) {
    let Ok((end, begin)) = pipe() else { return drop(owner) };
    // SAFETY: the child calls only async-signal-safe functions and never returns.
    let middle = unsafe { libc::fork() };
    if middle == 0 {
        // The process between ends at once, so that the recorder's has no child that it must wait for.
        // SAFETY: as above; `byte` is a live local of one byte, and closing what this copy has harms no other.
        unsafe {
            if libc::fork() == 0 {
                // Nothing that waits for the job's processes, or for the end of a pipe, waits for this one.
                libc::setsid();
                for standard in 0..3 {
                    libc::close(standard);
                }
                libc::close(begin.as_raw_fd());
                // Until the recorder has closed its own, or is gone.
                let mut byte = 0_u8;
                libc::read(end.as_raw_fd(), (&raw mut byte).cast(), 1);
            }
            libc::_exit(0)
        }
    }
    if middle > 0 {
        let mut status = 0;
        // SAFETY: `status` is a live local; the child is ours and ends at once.
        while unsafe { libc::waitpid(middle, &raw mut status, libc::__WALL) } == -1
            && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
        {}
    }
    drop(owner);
    drop(begin);
}
