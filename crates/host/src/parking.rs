//! Sleeping on a key.

use crate::cpu::current;
use crate::threads::{Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;
use std::time::Duration;

const BUCKETS: usize = 64;

#[derive(Debug, Default)]
struct Bucket {
    lock: Mutex<()>,
    wake: Condvar,
}

impl Bucket {
    fn lock(&self) -> MutexGuard<'_, ()> {
        // The lock guards no data, so a panic under it (in `still`) breaks nothing.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where threads sleep, by a hash of the key. Keys that share a bucket wake each other, which `park` permits.
#[derive(Debug)]
pub(crate) struct Parking(Box<[Bucket]>);

impl Parking {
    pub(crate) fn new() -> Self {
        Self((0..BUCKETS).map(|_| Bucket::default()).collect())
    }

    fn bucket(&self, key: usize) -> &Bucket {
        // RAM is mapped at a multiple of 2 MiB, so in a model these bits alone are the same in each run.
        let key = if cfg!(shuttle) { key % (2 << 20) } else { key };
        // Keys are mostly addresses: the multiplication brings their middle bits to the top.
        let hash = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(hash >> 58) as usize % BUCKETS]
    }

    /// Sleeps until [`unpark`](Self::unpark) of `key` unless `still`, asked under the bucket's lock, says no.
    /// The vCPU that the thread is on can be used by others meanwhile, as a sleeping thread's CPU can.
    pub(crate) fn park(&self, key: usize, still: &mut dyn FnMut() -> bool) {
        let bucket = self.bucket(key);
        let guard = bucket.lock();
        if !still() {
            return;
        }
        current::lend(|| {
            // Woken for any reason, the caller looks again; hence no loop. Unlocked before the CPU is taken
            // back, which may have to wait.
            drop(bucket.wake.wait(guard).unwrap_or_else(PoisonError::into_inner));
        });
    }

    /// As [`park`](Self::park), for `most` at most. A model knows no time: any other thread may run, and then
    /// the time is over.
    pub(crate) fn park_for(&self, key: usize, most: Duration, still: &mut dyn FnMut() -> bool) {
        let bucket = self.bucket(key);
        let guard = bucket.lock();
        if !still() {
            return;
        }
        current::lend(|| {
            #[cfg(shuttle)]
            {
                let _ = most;
                drop(guard);
                crate::threads::yield_now();
            }
            #[cfg(not(shuttle))]
            drop(bucket.wake.wait_timeout(guard, most).unwrap_or_else(PoisonError::into_inner));
        });
    }

    /// Wakes all that sleep on `key`.
    pub(crate) fn unpark(&self, key: usize) {
        let bucket = self.bucket(key);
        // A thread that is about to sleep does so before, and is woken, or asks after. The lock is free again
        // when it wakes.
        drop(bucket.lock());
        bucket.wake.notify_all();
    }
}
