//! What programs and the tests that record them have in common.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::AtomicU64;

pub(crate) const PAGE: usize = 4096;

/// What a recorder ends with where nothing may be followed.
pub(crate) const NOT_PERMITTED: i32 = 77;

/// How many calls the old process of `is_busy_beside_older_ones` makes.
pub(crate) const OLD_CALLS: usize = 1000;

/// How many pages the programs that only root may look into write in each place.
pub(crate) const HIDDEN_PAGES: usize = 500;
/// How many threads of `touches_in_threads` do so, one after the other.
pub(crate) const TOUCHING_THREADS: usize = 40;

/// How many threads live at once in `has_threads_and_starts_a_program`, and what it holds meanwhile.
pub(crate) const THREADS: usize = 40;
pub(crate) const PARENT_BYTES: usize = 16 << 20;
/// Pages that come in without a page fault of a program.
pub(crate) const UNRECORDED_PAGES: usize = 2000;

/// Pages of a file that is mapped, and pages of the mapping.
pub(crate) const FILE_PAGES: usize = 64;
pub(crate) const FILE_AREA: usize = 128;
/// Files of `reads_many_files`: more than there are sets of events for.
pub(crate) const MANY_FILES: usize = 30;

/// Pages of each file in memory of `reads_files_in_memory`.
pub(crate) const MEMORY_FILE_PAGES: usize = 500;

/// Pages of `uses_what_was_paged_out`, and how often it uses all of them again.
pub(crate) const PRESSED_PAGES: usize = 4096;
pub(crate) const PRESSED_ROUNDS: usize = 4;

/// Of these pages, one in so many is used again by `uses_pages_that_compress_badly`, and how often.
pub(crate) const HOT_EACH: usize = 8;
pub(crate) const HOT_ROUNDS: usize = 12;

/// How many processes of `executes_what_used_pages_again` execute another program, and how many pages that
/// were paged out each uses just before.
pub(crate) const EXECUTING: usize = 24;
pub(crate) const USED_BEFORE_EXEC: usize = 16;

/// Pages of `uses_a_part_of_its_memory`.
pub(crate) const SAMPLED_PAGES: usize = 65536;

/// Stands for memory of the program.
pub(crate) const OWN: usize = usize::MAX - 77;
/// Calls that are not built, each with arguments that Linux refuses.
pub(crate) const FAILING: [(i64, [usize; 6]); 14] = [
    // CLONE_THREAD without CLONE_SIGHAND.
    (libc::SYS_clone, [libc::CLONE_THREAD as usize, 0, 0, 0, 0, 0]),
    (libc::SYS_clone3, [OWN, 1, 0, 0, 0, 0]),
    (libc::SYS_io_setup, [0, OWN, 0, 0, 0, 0]),
    (libc::SYS_io_destroy, [OWN, 0, 0, 0, 0, 0]),
    (libc::SYS_shmat, [u32::MAX as usize, 0, 0, 0, 0, 0]),
    (libc::SYS_shmdt, [OWN, 0, 0, 0, 0, 0]),
    (libc::SYS_mbind, [OWN, PAGE, 99, 0, 0, 0]),
    (libc::SYS_remap_file_pages, [OWN, PAGE, 0, 0, 0, 0]),
    (libc::SYS_userfaultfd, [0x7fff_0000, 0, 0, 0, 0, 0]),
    (libc::SYS_mseal, [OWN, PAGE, 99, 0, 0, 0]),
    (libc::SYS_process_madvise, [u32::MAX as usize, OWN, 1, 4, 0, 0]),
    (libc::SYS_pkey_mprotect, [OWN, PAGE, 1, 99, 0, 0]),
    // MADV_REMOVE of private memory, MADV_HWPOISON of nothing.
    (libc::SYS_madvise, [OWN, PAGE, 9, 0, 0, 0]),
    (libc::SYS_madvise, [0x1000, PAGE, 100, 0, 0, 0]),
];

/// What the program counts, in a file that it shares with the test.
pub(crate) const FORKS: usize = 0;
pub(crate) const MAPS: usize = 1;
pub(crate) const EXECS: usize = 2;
pub(crate) const NAPS: usize = 3;
pub(crate) const SIGNALS: usize = 4;
pub(crate) const FAILURES: usize = 5;
pub(crate) const PID: usize = 6;
/// What the test tells the program.
pub(crate) const GO: usize = 7;
pub(crate) type Counts = [AtomicU64; 8];

/// How many times each of three threads of `maps_files_again_and_again` maps a file in two ways.
pub(crate) const FILE_ROUNDS: usize = 400;

/// How often `makes_calls_that_are_not_read` maps and unmaps.
pub(crate) const ROUNDS: usize = 240_000;

pub(crate) fn counts(path: &Path) -> &'static Counts {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    file.set_len(4096).unwrap();
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file that has the length; it stays mapped.
    let addr = unsafe { libc::mmap(std::ptr::null_mut(), 4096, prot, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(addr, libc::MAP_FAILED);
    // SAFETY: the mapping holds the counters, which are atomic for all that share it.
    unsafe { &*addr.cast::<Counts>() }
}

/// The CPUs of this thread.
pub(crate) fn cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}
