//! The state shared by the device and its workers: submitted and completed requests.

use core::fmt;
use core::ptr::NonNull;
use quire_swap::{DeviceError, Direction, PageIo};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The place of pages, in RAM and in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bytes {
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    pub(super) offset: u64,
}

// SAFETY: the pointer is an address in the machine's RAM, which any thread may use; the caller makes sure
// that the frames are its own (`SwapDevice::submit`).
unsafe impl Send for Bytes {}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) io: PageIo,
    pub(super) bytes: Bytes,
}

#[derive(Debug)]
struct Pending {
    requests: VecDeque<Request>,
    stop: bool,
}

/// The state shared by the device and its workers.
pub(super) struct Shared {
    pub(super) file: File,
    depth: usize,
    /// Requests that were begun and not reaped yet: never more than `depth`, so that no queue has to grow.
    under_way: AtomicUsize,
    pending: Mutex<Pending>,
    /// A worker of the pool waits for this.
    more: Condvar,
    /// One that closes the device waits for this: a request is done.
    finished: Condvar,
    /// The ring's worker waits for this: it becomes readable when there is work after there was none.
    pub(super) bell: OwnedFd,
    done: Mutex<VecDeque<(PageIo, Result<(), DeviceError>)>>,
    done_count: AtomicUsize,
    wake: Box<dyn Fn(usize) + Send + Sync>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Queues are consistent between two steps, so a panic of another thread does not matter.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(file: File, depth: usize, wake: Box<dyn Fn(usize) + Send + Sync>) -> io::Result<Self> {
        Ok(Self {
            file,
            depth,
            under_way: AtomicUsize::new(0),
            pending: Mutex::new(Pending { requests: VecDeque::with_capacity(depth), stop: false }),
            more: Condvar::new(),
            finished: Condvar::new(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            done: Mutex::new(VecDeque::with_capacity(depth)),
            done_count: AtomicUsize::new(0),
            wake,
        })
    }

    /// How many requests may be under way.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn wait_key(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Submits a request, unless there are too many.
    pub(super) fn begin(&self, io: PageIo, bytes: Bytes) -> bool {
        let more = |count| (count < self.depth).then_some(count + 1);
        if self.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            return false;
        }
        let mut pending = lock(&self.pending);
        let was_empty = pending.requests.is_empty();
        pending.requests.push_back(Request { io, bytes });
        drop(pending);
        self.more.notify_one();
        if was_empty {
            self.ring_bell();
        }
        true
    }

    /// The workers are to end when nothing is left to do.
    pub(super) fn stop(&self) {
        lock(&self.pending).stop = true;
        self.more.notify_all();
        self.ring_bell();
    }

    fn ring_bell(&self) {
        // It can only fail when it rings already (and its count is at the end of 64 bits).
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// The next request; waits for one. `None` when the workers are to end.
    pub(super) fn wait_for_request(&self) -> Option<Request> {
        let mut pending = lock(&self.pending);
        loop {
            if let Some(request) = pending.requests.pop_front() {
                return Some(request);
            }
            if pending.stop {
                return None;
            }
            pending = self.more.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Hands over all requests that wait. Returns whether more may come.
    pub(super) fn take_requests(&self, mut each: impl FnMut(Request)) -> bool {
        let mut pending = lock(&self.pending);
        pending.requests.drain(..).for_each(&mut each);
        !pending.stop
    }

    /// A request is done. [`wake`](Self::wake) wakes the waiters when a few are.
    pub(super) fn finish(&self, io: PageIo, result: Result<(), DeviceError>) {
        let mut done = lock(&self.done);
        done.push_back((io, result));
        self.done_count.store(done.len(), Ordering::Release);
        self.finished.notify_all();
    }

    /// Whether no worker uses the frames of a request, where these are done.
    fn is_idle(&self, done: &VecDeque<(PageIo, Result<(), DeviceError>)>) -> bool {
        // What is reaped leaves both under the lock.
        done.len() >= self.under_way.load(Ordering::Acquire)
    }

    /// Waits until no worker uses the frames of a request. No thread begins one meanwhile.
    pub(super) fn wait_until_idle(&self) {
        let mut done = lock(&self.done);
        while !self.is_idle(&done) {
            done = self.finished.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes the threads that wait. A worker that panicked here would leave what it has to do undone, so one
    /// that closes the device would wait for ever.
    pub(super) fn wake(&self) {
        // The panic has printed its message.
        let _ = catch_unwind(AssertUnwindSafe(|| (self.wake)(self.wait_key())));
    }

    pub(super) fn has_done(&self) -> bool {
        self.done_count.load(Ordering::Acquire) > 0
    }

    pub(super) fn reap(&self, each: &mut dyn FnMut(PageIo, Result<(), DeviceError>)) {
        loop {
            // One at a time: what is called may begin more work.
            let mut done = lock(&self.done);
            let Some((io, result)) = done.pop_front() else { return };
            self.done_count.store(done.len(), Ordering::Release);
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            drop(done);
            each(io, result);
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("file", &self.file)
            .field("under_way", &self.under_way)
            .finish_non_exhaustive()
    }
}

/// The device error for a failed call of the host.
pub(super) fn error(direction: Direction, errno: i32) -> DeviceError {
    match (direction, errno) {
        // A file with holes on a full file system.
        (Direction::Write, libc::ENOSPC | libc::EDQUOT) => DeviceError::NoSpace,
        _ => DeviceError::Io,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_arch::Pfn;

    /// Hazard: the memory of a machine ends while the host still writes to its RAM, since the device that
    /// does it is not gone: a device of the embedder's hands requests on to it.
    #[test]
    fn a_queue_is_idle_when_its_last_request_is_done() {
        let file = tempfile::tempfile().expect("a temporary file");
        let shared = Shared::new(file, 2, Box::new(|_| ())).expect("the host has a bell");
        let is_idle = || shared.is_idle(&lock(&shared.done));
        assert!(is_idle());
        let io = PageIo { direction: Direction::Read, slot: 0, pfn: Pfn(1), pages: 1 };
        for _ in 0..2 {
            assert!(shared.begin(io, Bytes { start: NonNull::dangling(), len: 0, offset: 0 }));
        }
        assert!(!is_idle());
        shared.finish(io, Ok(()));
        assert!(!is_idle(), "one is still under way");
        shared.finish(io, Ok(()));
        shared.wait_until_idle();
        shared.reap(&mut |_, _| ());
        assert!(is_idle());
    }
}
