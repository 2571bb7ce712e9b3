//! Programs that make calls for ever.

use crate::compat;
use crate::confined::filter;
use crate::shared::{Counts, EXECS, FAILURES, FORKS, GO, MAPS, NAPS, PID, SIGNALS, counts};
use crate::{
    PAGE, PRIVATE, READ_WRITE, end, execute, handle, ignore_ends, leave, make_process, map, nap, wait_for,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts a success or a failure.
fn count(counts: &Counts, what: usize, success: bool) {
    counts[if success { what } else { FAILURES }].fetch_add(1, Ordering::Relaxed);
}

/// Makes a process that runs `body` and returns whether it ended with code 0.
fn ends_well(body: impl FnOnce()) -> bool {
    let child = make_process(body);
    child > 0 && wait_for(child) == 0
}

/// Ends, and leaves a process of another session behind that maps memory for ever.
pub(crate) fn leaves_a_daemon() {
    let counts = counts(&PathBuf::from(std::env::var_os("QUIRE_COUNTS").unwrap()));
    make_process(|| {
        let _ = rustix::process::setsid();
        let parent = rustix::process::getppid();
        counts[GO].store(1, Ordering::Relaxed);
        while rustix::process::getppid() == parent {
            nap(1_000_000);
        }
        counts[PID].store(u64::from(std::process::id()), Ordering::Relaxed);
        loop {
            let addr = map(PAGE, READ_WRITE, PRIVATE);
            // SAFETY: new memory, which is written and taken away.
            let unmapped = unsafe {
                addr.write_volatile(1);
                libc::munmap(addr.cast(), PAGE) == 0
            };
            count(counts, MAPS, unmapped);
            nap(1_000_000);
        }
    });
    while counts[GO].load(Ordering::Relaxed) == 0 {
        nap(1_000_000);
    }
    leave(3);
}

/// Calls that its filter leaves to a tracer, which there is not; also of a thread in 32-bit mode, where there
/// is that.
pub(crate) fn asks_a_tracer_for_ever() {
    let counts = counts(&PathBuf::from(std::env::var_os("QUIRE_COUNTS").unwrap()));
    ignore_ends();
    let is_there = compat::is_there();
    if !is_there {
        eprintln!("left out: this kernel has no 32-bit calls");
    }
    filter(&[libc::SYS_getppid, i64::from(compat::GETPPID)], libc::SECCOMP_RET_TRACE | 7);
    counts[PID].store(u64::from(std::process::id()), Ordering::Relaxed);
    std::thread::spawn(|| {
        loop {
            // SAFETY: asks for a number.
            let result = unsafe { libc::syscall(libc::SYS_getppid) };
            count(counts, FORKS, result == -1);
        }
    });
    loop {
        count(counts, MAPS, !is_there || compat::call(compat::GETPPID) == -libc::ENOSYS);
        nap(1_000_000);
    }
}

pub(crate) fn makes_calls_for_ever() {
    static SIGNALS_SEEN: AtomicU64 = AtomicU64::new(0);
    extern "C" fn on_signal(_signal: i32) {
        SIGNALS_SEEN.fetch_add(1, Ordering::Relaxed);
    }
    let counts = counts(&PathBuf::from(std::env::var_os("QUIRE_COUNTS").unwrap()));
    ignore_ends();
    handle(libc::SIGUSR1, on_signal as extern "C" fn(i32) as libc::sighandler_t);
    counts[PID].store(u64::from(std::process::id()), Ordering::Relaxed);
    std::thread::spawn(|| {
        loop {
            count(counts, FORKS, ends_well(|| {}));
        }
    });
    std::thread::spawn(|| {
        loop {
            // SAFETY: new memory, which is written and taken away.
            unsafe {
                let addr = libc::mmap(std::ptr::null_mut(), PAGE, READ_WRITE, PRIVATE, -1, 0);
                if addr != libc::MAP_FAILED {
                    addr.cast::<u8>().write_volatile(1);
                }
                count(counts, MAPS, addr != libc::MAP_FAILED && libc::munmap(addr, PAGE) == 0);
            }
        }
    });
    std::thread::spawn(|| {
        loop {
            let executes = || {
                execute(&[c"/bin/true"]);
                end(1);
            };
            count(counts, EXECS, ends_well(executes));
        }
    });
    // A wait that is made to go on where it was.
    std::thread::spawn(|| {
        loop {
            let begun = Instant::now();
            let whole = nap(50_000_000);
            count(counts, NAPS, whole && begun.elapsed() >= Duration::from_millis(50));
        }
    });
    // A thread that gets a signal all the time.
    loop {
        let before = SIGNALS_SEEN.load(Ordering::Relaxed);
        // SAFETY: a signal to this thread, which handles it.
        let sent = unsafe { libc::raise(libc::SIGUSR1) } == 0;
        count(counts, SIGNALS, sent && SIGNALS_SEEN.load(Ordering::Relaxed) == before + 1);
    }
}
