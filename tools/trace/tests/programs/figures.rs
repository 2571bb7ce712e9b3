//! Programs whose figures are looked at.

use crate::shared::{PARENT_BYTES, THREADS, UNRECORDED_PAGES};
use crate::{PAGE, PRIVATE, READ_WRITE, map};
use std::sync::Barrier;

/// Forty threads live at once and end; memory is held while another program runs, which is started as by
/// vfork.
pub(crate) fn has_threads_and_starts_a_program() {
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| barrier.wait());
        }
    });
    let held = vec![1_u8; PARENT_BYTES];
    assert!(std::process::Command::new("true").status().unwrap().success());
    assert_eq!(held[PARENT_BYTES / 2], 1);
}

/// The kernel writes to fresh memory for a call that names another process, which is this one: as for a
/// device, no thread of the program touches it.
pub(crate) fn has_memory_that_the_kernel_brings_in() {
    let len = UNRECORDED_PAGES * PAGE;
    let from = vec![1_u8; len];
    let to = map(len, READ_WRITE, PRIVATE);
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: len };
    let remote = libc::iovec { iov_base: to.cast(), iov_len: len };
    // SAFETY: both are memory of this length, and the second is used for nothing else.
    unsafe {
        assert_eq!(
            libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0),
            len as isize
        );
        assert_eq!(libc::munmap(to.cast(), len), 0);
    }
}

/// As much memory comes in by calls.
pub(crate) fn has_memory_that_calls_bring_in() {
    let len = UNRECORDED_PAGES * PAGE;
    map(len, READ_WRITE, PRIVATE | libc::MAP_POPULATE);
    let advised = map(len, READ_WRITE, PRIVATE);
    // SAFETY: advice and locks of memory that was mapped here, which change no contents. Where a limit
    // refuses a lock nothing comes in.
    unsafe {
        assert_eq!(libc::madvise(advised.cast(), len, libc::MADV_POPULATE_WRITE), 0);
        let locked = map(len, READ_WRITE, PRIVATE);
        libc::mlock(locked.cast(), len);
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE);
    }
    map(len, READ_WRITE, PRIVATE);
}
