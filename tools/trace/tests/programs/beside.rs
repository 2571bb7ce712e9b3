//! Programs with processes beside others that keep the recorder busy, or beside others that are killed.

use crate::shared::{OLD_CALLS, PAGE};
use crate::{PRIVATE, READ_WRITE, kill, leave, make_process, map};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory that all processes share.
fn shared() -> &'static AtomicU32 {
    let addr = map(PAGE, READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a page of zeros that stays mapped.
    unsafe { &*addr.cast::<AtomicU32>() }
}

fn advise() {
    // SAFETY: advice about nothing changes nothing.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_NORMAL) };
}

const YOUNG_CALLS: usize = 50_000;

pub(crate) fn is_busy_beside_older_ones() {
    let ended = shared();
    for _ in 0..4 {
        make_process(|| {
            let mut calls = 0;
            while calls < YOUNG_CALLS && ended.load(Ordering::Relaxed) == 0 {
                advise();
                calls += 1;
            }
        });
    }
    for _ in 0..OLD_CALLS {
        advise();
    }
    ended.store(1, Ordering::Relaxed);
    // SAFETY: waits for the children.
    while unsafe { libc::wait(std::ptr::null_mut()) } > 0 {}
    leave(5);
}

/// Maps and unmaps until it is killed.
extern "C" fn maps_and_unmaps(seed: *mut c_void) -> c_int {
    let mut pages = seed.addr() % 7;
    loop {
        pages = (pages + 3) % 7;
        let len = (pages + 1) * PAGE;
        let addr = map(len, libc::PROT_NONE, PRIVATE);
        // SAFETY: new memory, which is taken away again.
        unsafe { libc::munmap(addr.cast(), len) };
    }
}

pub(crate) fn kills_what_shares_its_memory() {
    const STACK: usize = 16 * PAGE;
    let stack = map(STACK, READ_WRITE, PRIVATE);
    for round in 0..200_usize {
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
