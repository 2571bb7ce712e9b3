//! Programs that make the calls which need no stop.

use crate::shared::{FILE_ROUNDS, GO, MAPS, PID, ROUNDS, counts};
use crate::{PAGE, PRIVATE, READ_WRITE, end, kill, leave, make_process, map, nap, wait_for};
use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often a program maps and unmaps two pages of which nothing may be lost: that is half of a ring.
pub(crate) const SAMPLED_ROUNDS: usize = 9000;

fn write(addr: *mut u8, pages: usize) {
    for page in 0..pages {
        // SAFETY: the callers pass memory that they mapped to be written.
        unsafe { addr.add(page * PAGE).write_volatile(1) };
    }
}

fn unmap(addr: *mut u8, pages: usize) {
    // SAFETY: the callers pass memory that they mapped and use no more.
    assert_eq!(unsafe { libc::munmap(addr.cast(), pages * PAGE) }, 0);
}

/// Each of the calls, those that fail as well, in a program with one thread.
pub(crate) fn maps_alone() {
    for round in 0..200 {
        let pages = 4 + round % 29;
        let addr = map(pages * PAGE, READ_WRITE, PRIVATE);
        write(addr, pages);
        // SAFETY: each call gets memory that was mapped here, or an address that Linux refuses.
        unsafe {
            let page = |number: usize| addr.add(number * PAGE).cast::<c_void>();
            assert_eq!(libc::mprotect(page(1), PAGE, libc::PROT_READ), 0);
            assert_eq!(libc::mprotect(page(1), PAGE, READ_WRITE), 0);
            assert_eq!(libc::madvise(page(0), 2 * PAGE, libc::MADV_DONTNEED), 0);
            write(addr, 2);
            assert_eq!(libc::munmap(page(2), PAGE), 0);
            let fixed = libc::mmap(page(2), PAGE, READ_WRITE, PRIVATE | libc::MAP_FIXED, -1, 0);
            assert_eq!(fixed, page(2));
            write(addr, 3);
            let more = libc::mremap(page(0), pages * PAGE, 2 * pages * PAGE, libc::MREMAP_MAYMOVE);
            // The part that was mapped anew may be a mapping of its own, which Linux does not move with the
            // rest.
            let (addr, pages) =
                if more == libc::MAP_FAILED { (addr, pages) } else { (more.cast(), 2 * pages) };
            write(addr, pages);
            let old = libc::sbrk(0);
            assert_ne!(libc::sbrk(8 * PAGE as isize), usize::MAX as *mut c_void);
            old.cast::<u8>().add(7 * PAGE).write_volatile(1);
            assert_eq!(libc::brk(old), 0);
            // Refused: no length, nothing there, no such advice.
            assert_eq!(libc::munmap(addr.cast(), 0), -1);
            assert_eq!(libc::mprotect(std::ptr::without_provenance_mut(PAGE), PAGE, libc::PROT_READ), -1);
            assert_eq!(libc::madvise(addr.cast(), PAGE, 4711), -1);
            unmap(addr, pages);
        }
    }
    leave(0);
}

/// Maps files in turns, in each way, from two threads; some of these calls are refused.
pub(crate) fn maps_files_again_and_again() {
    let work = || {
        let own = std::fs::File::open("/proc/self/exe").unwrap();
        let other = std::fs::File::open("/etc/passwd").unwrap();
        let files = [own.as_raw_fd(), own.as_raw_fd(), other.as_raw_fd(), -1];
        for round in 0..FILE_ROUNDS {
            let fd = files[round % files.len()];
            for (prot, flags) in [(libc::PROT_READ, libc::MAP_PRIVATE), (READ_WRITE, libc::MAP_SHARED)] {
                // SAFETY: a new mapping at an address of the kernel's choice, which is read and taken away.
                unsafe {
                    let addr = libc::mmap(std::ptr::null_mut(), PAGE, prot, flags, fd, 0);
                    // The files were opened to be read.
                    assert_eq!(addr != libc::MAP_FAILED, prot == libc::PROT_READ && fd >= 0);
                    if addr != libc::MAP_FAILED {
                        addr.cast::<u8>().read_volatile();
                        assert_eq!(libc::munmap(addr, PAGE), 0);
                    }
                }
            }
        }
    };
    work();
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    leave(0);
}

/// Threads that take memory which others have just given back, all the time.
pub(crate) fn hands_memory_from_thread_to_thread() {
    let work = |seed: usize| {
        let mut kept = [(std::ptr::null_mut::<u8>(), 0); 3];
        for round in 0..1500 {
            let pages = 1 + (round + seed) % 3;
            let place = &mut kept[round % 3];
            if !place.0.is_null() {
                unmap(place.0, place.1);
            }
            *place = (map(pages * PAGE, READ_WRITE, PRIVATE), pages);
            write(place.0, pages);
        }
    };
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || work(seed));
        }
    });
    leave(0);
}

/// Copies of its memory are made while a thread changes it. However long it waits for a CPU meanwhile, what
/// it does fits into a ring.
pub(crate) fn forks_while_a_thread_maps() {
    const COPIES: usize = 60;
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    let thread = std::thread::spawn(|| {
        for copy in 1..=COPIES {
            while BEGUN.load(Ordering::Relaxed) < copy {
                std::thread::yield_now();
            }
            for _ in 0..SAMPLED_ROUNDS / COPIES {
                let addr = map(2 * PAGE, READ_WRITE, PRIVATE);
                write(addr, 2);
                unmap(addr, 2);
            }
        }
    });
    for copy in 1..=COPIES {
        BEGUN.store(copy, Ordering::Relaxed);
        wait_for(make_process(|| {
            let addr = map(3 * PAGE, READ_WRITE, PRIVATE);
            write(addr, 3);
            unmap(addr, 3);
        }));
    }
    thread.join().unwrap();
    leave(0);
}

/// Children are killed while they map and unmap, or soon after that: what they do fits into a ring.
pub(crate) fn kills_what_maps() {
    const CHILDREN: usize = 40;
    for round in 0..CHILDREN {
        let child = make_process(|| {
            for _ in 0..SAMPLED_ROUNDS / CHILDREN {
                let addr = map(64 * PAGE, READ_WRITE, PRIVATE | libc::MAP_POPULATE);
                unmap(addr, 64);
            }
            loop {
                nap(1_000_000);
            }
        });
        nap(10_000 * round as i64);
        kill(child);
    }
    leave(0);
}

/// Makes calls while its recorder reads nothing, and then while it does.
pub(crate) fn makes_calls_that_are_not_read() {
    let counts = counts(&PathBuf::from(std::env::var_os("QUIRE_COUNTS").unwrap()));
    // One ring is to be filled.
    let mut one = rustix::thread::CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    counts[PID].store(u64::from(std::process::id()), Ordering::Relaxed);
    while counts[GO].load(Ordering::Relaxed) == 0 {
        nap(1_000_000);
    }
    for round in 0..ROUNDS {
        map_with_number(round);
        counts[MAPS].store((round + 1) as u64, Ordering::Relaxed);
    }
    end(0);
}

/// Maps a page and takes it away. One more than the number is the offset in pages, which Linux ignores where
/// there is no file.
fn map_with_number(round: usize) {
    let offset = ((round + 1) * PAGE) as i64;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let addr = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, READ_WRITE, PRIVATE, -1, offset) };
    assert_ne!(addr, libc::MAP_FAILED);
    unmap(addr.cast(), 1);
}
