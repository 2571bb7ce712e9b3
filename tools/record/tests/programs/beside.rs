//! Programs with processes beside others that keep the recorder busy, or beside others that are killed.

use crate::ends::wait_for_ever;
use crate::maps::SAMPLED_ROUNDS;
use crate::shared::{OLD_CALLS, PAGE};
use crate::{PRIVATE, READ_WRITE, kill, leave, make_process, map};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory that all processes share.
#[derive(Debug)]
struct Shared {
    /// How many calls the old process has begun.
    begun: AtomicU32,
    /// It has made them all.
    ended: AtomicU32,
    /// It stood in one stop while a young one had several turns.
    starved: AtomicU32,
}

fn shared() -> &'static Shared {
    let addr = map(PAGE, READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a page of zeros that stays mapped.
    unsafe { &*addr.cast::<Shared>() }
}

fn advise() {
    // SAFETY: advice about nothing changes nothing.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_NORMAL) };
}

/// Whether a process is in a stop that its tracer has not ended.
fn is_stopped(stat: &str) -> bool {
    let stat = std::fs::read_to_string(stat).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('t'))
}

/// A call has two stops. Each is over when a process that saw it has made a call of its own, and a third one
/// belongs to the next call.
const STOPS: u32 = 3;

pub(crate) fn is_busy_beside_older_ones() {
    let shared = shared();
    let is_over = || shared.ended.load(Ordering::Relaxed) != 0 || shared.starved.load(Ordering::Relaxed) != 0;
    let old = format!("/proc/{}/stat", std::process::id());
    for _ in 0..4 {
        make_process(|| {
            let (mut last, mut stops) = (0, 0);
            while !is_over() {
                // Several, so that it is most often one of these that stops.
                (0..16).for_each(|_| advise());
                let stopped = is_stopped(&old);
                let begun = shared.begun.load(Ordering::Relaxed);
                stops = if stopped && begun == last && begun != 0 { stops + 1 } else { 0 };
                last = begun;
                if stops >= STOPS {
                    shared.starved.store(1, Ordering::Relaxed);
                }
            }
        });
    }
    for call in 1..=OLD_CALLS {
        shared.begun.store(call as u32, Ordering::Relaxed);
        advise();
    }
    // From here on it also stops for signals.
    shared.begun.store(0, Ordering::Relaxed);
    shared.ended.store(1, Ordering::Relaxed);
    // SAFETY: waits for the children.
    while unsafe { libc::wait(std::ptr::null_mut()) } > 0 {}
    leave(if shared.starved.load(Ordering::Relaxed) == 0 { 5 } else { 4 });
}

/// Maps and unmaps, and is killed meanwhile, or soon after it: what all of these do fits into a ring.
extern "C" fn maps_and_unmaps(seed: *mut c_void) -> c_int {
    let mut pages = seed.addr() % 7;
    for _ in 0..SAMPLED_ROUNDS / KILLED {
        pages = (pages + 3) % 7;
        let len = (pages + 1) * PAGE;
        let addr = map(len, libc::PROT_NONE, PRIVATE);
        // SAFETY: new memory, which is taken away again.
        unsafe { libc::munmap(addr.cast(), len) };
    }
    wait_for_ever()
}

/// How many processes `kills_what_shares_its_memory` kills.
const KILLED: usize = 200;

pub(crate) fn kills_what_shares_its_memory() {
    const STACK: usize = 16 * PAGE;
    let stack = map(STACK, READ_WRITE, PRIVATE);
    for round in 0..KILLED {
        // SAFETY: the process has a stack of its own, makes system calls only, and is gone when the next one
        // begins.
        let child = unsafe {
            let top = stack.add(STACK).cast();
            let flags = libc::CLONE_VM | libc::SIGCHLD;
            libc::clone(maps_and_unmaps, top, flags, std::ptr::without_provenance_mut(round))
        };
        assert!(child > 0);
        for _ in 0..round % 5 {
            std::thread::yield_now();
        }
        kill(child);
        // Where this is placed tells which of the other's calls were made.
        map(PAGE, libc::PROT_NONE, PRIVATE);
    }
    leave(6);
}
