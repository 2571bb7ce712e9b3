//! A program that makes calls for ever.

use crate::shared::{Counts, EXECS, FAILURES, FORKS, MAPS, NAPS, PID, SIGNALS, counts};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts a success or a failure.
fn count(counts: &Counts, what: usize, success: bool) {
    counts[if success { what } else { FAILURES }].fetch_add(1, Ordering::Relaxed);
}

/// Makes a process that runs `body` and returns whether it ended with code 0.
fn child(body: impl FnOnce()) -> bool {
    // SAFETY: the bodies make system calls only.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            body();
            libc::_exit(0);
        }
        let mut status = 0;
        let waited = libc::waitpid(child, &raw mut status, 0);
        child > 0 && waited == child && status == 0
    }
}

pub(crate) fn makes_calls_for_ever() {
    static SIGNALS_SEEN: AtomicU64 = AtomicU64::new(0);
    extern "C" fn on_signal(_signal: i32) {
        SIGNALS_SEEN.fetch_add(1, Ordering::Relaxed);
    }
    let counts = counts(&PathBuf::from(std::env::var_os("QUIRE_COUNTS").unwrap()));
    // SAFETY: ignoring signals has no memory preconditions; the handler adds to an atomic number only.
    unsafe {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::signal(libc::SIGUSR1, on_signal as extern "C" fn(i32) as libc::sighandler_t);
    }
    counts[PID].store(u64::from(std::process::id()), Ordering::Relaxed);
    std::thread::spawn(|| {
        loop {
            count(counts, FORKS, child(|| {}));
        }
    });
    std::thread::spawn(|| {
        loop {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: new memory, which is written and taken away.
            unsafe {
                let addr = libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0);
                if addr != libc::MAP_FAILED {
                    addr.cast::<u8>().write_volatile(1);
                }
                count(counts, MAPS, addr != libc::MAP_FAILED && libc::munmap(addr, 4096) == 0);
            }
        }
    });
    std::thread::spawn(|| {
        loop {
            count(
                counts,
                EXECS,
                child(|| {
                    let program = c"/bin/true".as_ptr();
                    // SAFETY: the words are a list that ends with null.
                    unsafe { libc::execv(program, [program, std::ptr::null()].as_ptr()) };
                    // SAFETY: ends the child, which did not become the program.
                    unsafe { libc::_exit(1) };
                }),
            );
        }
    });
    // A wait that is made to go on where it was.
    std::thread::spawn(|| {
        loop {
            let begun = Instant::now();
            let nap = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            // SAFETY: the pointer is to a live local.
            let result = unsafe { libc::nanosleep(&raw const nap, std::ptr::null_mut()) };
            count(counts, NAPS, result == 0 && begun.elapsed() >= Duration::from_millis(50));
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
