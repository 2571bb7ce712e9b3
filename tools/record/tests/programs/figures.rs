//! Programs whose figures are looked at.

use crate::shared::{MEMORY_FILE_PAGES, NOT_PERMITTED, PARENT_BYTES, THREADS, UNRECORDED_PAGES};
use crate::{PAGE, PRIVATE, READ_WRITE, map};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
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

/// Maps a file in memory of so many bytes, of which it has `written` by write(2).
fn map_memory_file(bytes: usize, written: usize, flags: i32) -> (File, *const u8) {
    // SAFETY: the descriptor is new, and nothing else has it.
    let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"file".as_ptr(), 0)) };
    file.write_all(&vec![1; written]).expect("memory");
    let (no_place, descriptor) = (std::ptr::null_mut(), file.as_raw_fd());
    // SAFETY: a new mapping, which is read alone.
    let addr = unsafe { libc::mmap(no_place, bytes, libc::PROT_READ, flags, descriptor, 0) };
    assert_ne!(addr, libc::MAP_FAILED);
    (file, addr.cast())
}

/// All pages were there before it maps them.
pub(crate) fn reads_files_in_memory() {
    let bytes = MEMORY_FILE_PAGES * PAGE;
    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        let (_, addr) = map_memory_file(bytes, bytes, flags);
        for page in 0..MEMORY_FILE_PAGES {
            // SAFETY: it is within the mapping, and the file is as long.
            assert_eq!(unsafe { addr.add(page * PAGE).read_volatile() }, 1);
        }
    }
}

/// It was one page long when it was mapped, and grew before it was locked. Where so much may not be locked it
/// ends as not permitted.
pub(crate) fn locks_a_file_in_memory_that_grew() {
    let bytes = MEMORY_FILE_PAGES * PAGE;
    let (file, addr) = map_memory_file(bytes, PAGE, libc::MAP_SHARED);
    file.set_len(bytes as u64).expect("memory");
    // SAFETY: a lock of what was mapped here changes no contents.
    if unsafe { libc::mlock(addr.cast(), bytes) } != 0 {
        std::process::exit(NOT_PERMITTED);
    }
}

/// Makes a memfd smaller and larger, punches it, and lets it go; then a System V segment; and keeps another
/// memfd.
pub(crate) fn lets_files_in_memory_go() {
    let bytes = MEMORY_FILE_PAGES * PAGE;
    let make = || {
        let (file, addr) = map_memory_file(bytes, bytes, libc::MAP_SHARED);
        // SAFETY: it is mapped for as long as it is used, and as long as the file.
        assert_eq!(unsafe { addr.read_volatile() }, 1);
        (file, addr)
    };
    let (kept, _) = make();
    let (file, addr) = make();
    file.set_len((bytes / 2) as u64).expect("it can be shorter");
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: takes numbers; no reference is to the mappings and the segment, which are this function's own.
    unsafe {
        assert_eq!(libc::fallocate(file.as_raw_fd(), punch, 0, 4 * PAGE as i64), 0);
        assert_eq!(libc::munmap(addr.cast_mut().cast(), bytes), 0);
        drop(file);
        let segment = libc::shmget(libc::IPC_PRIVATE, 4 * PAGE, libc::IPC_CREAT | 0o600);
        let at = libc::shmat(segment, std::ptr::null(), 0);
        at.cast::<u8>().write_volatile(1);
        libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut());
        libc::shmdt(at);
    }
    map(PAGE, READ_WRITE, PRIVATE);
    drop(kept);
}
