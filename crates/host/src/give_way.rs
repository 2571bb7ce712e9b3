//! Threads that yield at random, for more interleavings than the host's scheduler would produce.

use crate::threads::{thread_local, yield_now};
use core::cell::Cell;

thread_local! {
    /// State of the generator (xorshift); 0 while the thread does not yield by itself.
    static STATE: Cell<u64> = const { Cell::new(0) };
}

/// One of so many chances is taken.
const SELDOM: u64 = 16;

/// From now on the calling thread yields now and then when it is about to take a lock and when it has
/// released one. `seed` decides at which of these chances, 0 ends it. Only builds with debug assertions watch
/// locks.
pub fn give_way(seed: u64) {
    STATE.with(|state| state.set(seed));
}

/// A place where another thread may run.
#[inline]
pub(crate) fn chance() {
    let taken = STATE.with(|state| {
        let mut now = state.get();
        now ^= now << 13;
        now ^= now >> 7;
        now ^= now << 17;
        state.set(now);
        now != 0 && now.is_multiple_of(SELDOM)
    });
    if taken {
        yield_now();
    }
}
