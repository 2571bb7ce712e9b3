//! A device that completes requests later: for code paths that only asynchronous devices take.

use core::fmt;
use quire_arch::{PAGE_SIZE, Platform};
use quire_frame::MachineId;
use quire_mm::memcg::MemcgId;
use quire_swap::{
    DeviceError, DeviceFlags, DeviceMemory, DeviceReport, Direction, PageIo, Submitted, SwapDevice,
};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The contents of a frame before, or without, a successful read.
const UNREAD: u8 = 0xee;

/// When a [`SlowDevice`] completes a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// After so many reaps since; at the first one, if zero. As long as requests wait for that, the device
    /// [has something](SwapDevice::has_done), so that no thread sleeps forever.
    AfterReaps(u32),
    /// When [`SlowDevice::complete`] says so.
    WhenTold,
}

/// How a [`SlowDevice`] behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowConfig {
    /// When requests complete.
    pub completion: Completion,
    /// Requests that it takes before its queue is full; zero counts as one, since else no request would ever
    /// end.
    pub queue: usize,
    /// The read that fails, counted from 1.
    pub fail_read: Option<u64>,
    /// The write that fails, counted from 1.
    pub fail_write: Option<u64>,
}

impl Default for SlowConfig {
    fn default() -> Self {
        Self { completion: Completion::AfterReaps(2), queue: 16, fail_read: None, fail_write: None }
    }
}

/// A synchronous device `D`, made to complete later, in the order of submission.
///
/// The work is not begun before it completes: a page whose frame is freed too early is lost, and what is read
/// is not there before the device says so. A frame that is being read into holds no zeros and nothing that
/// was there before.
pub struct SlowDevice<D> {
    inner: D,
    config: SlowConfig,
    queue: Mutex<Queue>,
    /// Notified when a thread has carried out requests.
    idle: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Request>,
    done: VecDeque<(PageIo, Result<(), DeviceError>)>,
    /// Requests that threads are carrying out.
    at_work: usize,
    reads: u64,
    writes: u64,
}

struct Request {
    io: PageIo,
    /// The machine that the frames are of.
    machine: MachineId,
    fails: bool,
    /// Reaps that it still waits for.
    reaps: u32,
}

/// A thread carries out so many requests, until this is dropped: also by a panic of the device behind.
struct AtWork<'d, D> {
    device: &'d SlowDevice<D>,
    count: usize,
}

impl<D> Drop for AtWork<'_, D> {
    fn drop(&mut self) {
        self.device.queue().at_work -= self.count;
        self.device.idle.notify_all();
    }
}

impl<D> SlowDevice<D> {
    /// Makes `inner`, which is synchronous, slow.
    pub fn new(inner: D, config: SlowConfig) -> Self {
        Self { inner, config, queue: Mutex::default(), idle: Condvar::new() }
    }

    /// The device behind.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Pending requests.
    pub fn waiting(&self) -> usize {
        self.queue().waiting.len()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panic elsewhere leaves the queue consistent: no call that could panic is made with the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes the first `count` requests that wait, and wakes their waiters. Those that are not of the
    /// machine of `memory` fail. Returns how many there were.
    pub fn complete<P: Platform>(&self, memory: DeviceMemory<'_, P>, count: usize) -> usize
    where
        D: SwapDevice<P>,
    {
        let requests: Vec<_> = {
            let mut queue = self.queue();
            let count = count.min(queue.waiting.len());
            queue.at_work += count;
            queue.waiting.drain(..count).collect()
        };
        let at_work = AtWork { device: self, count: requests.len() };
        for request in requests {
            let fails = request.fails || request.machine != memory.machine();
            // SAFETY: the request was submitted for this machine, and not reported yet.
            let work = |io| unsafe { self.work(memory, io) };
            let result = if fails { Err(DeviceError::Io) } else { work(request.io) };
            self.queue().done.push_back((request.io, result));
            memory.platform().unpark(self.wait_key());
        }
        at_work.count
    }

    /// # Safety
    ///
    /// As for [`submit`](SwapDevice::submit).
    unsafe fn work<P: Platform>(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Result<(), DeviceError>
    where
        D: SwapDevice<P>,
    {
        // SAFETY: the caller's promise.
        match unsafe { self.inner.submit(memory, io) } {
            Submitted::Done(result) => result,
            Submitted::Begun | Submitted::QueueFull => Err(DeviceError::Io),
        }
    }
}

impl<P: Platform, D: SwapDevice<P>> SwapDevice<P> for SlowDevice<D> {
    fn kind(&self) -> &'static str {
        "slow"
    }

    fn slots(&self) -> u64 {
        self.inner.slots()
    }

    fn flags(&self) -> DeviceFlags {
        self.inner.flags() - DeviceFlags::SYNCHRONOUS
    }

    fn is_of(&self, memory: DeviceMemory<'_, P>) -> bool {
        self.inner.is_of(memory)
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted {
        let mut queue = self.queue();
        if queue.waiting.len() + queue.done.len() >= self.config.queue.max(1) {
            return Submitted::QueueFull;
        }
        let fails = match io.direction {
            Direction::Read => {
                queue.reads += 1;
                self.config.fail_read == Some(queue.reads)
            }
            Direction::Write => {
                queue.writes += 1;
                self.config.fail_write == Some(queue.writes)
            }
        };
        if io.direction == Direction::Read {
            for nth in 0..u64::from(io.pages) {
                let page = memory.platform().direct_map(io.pfn.offset(nth));
                // SAFETY: the caller's promise: the frames of a read are the device's.
                unsafe { page.write_bytes(UNREAD, PAGE_SIZE as usize) };
            }
        }
        let reaps = match self.config.completion {
            Completion::AfterReaps(reaps) => reaps.saturating_sub(1),
            Completion::WhenTold => 0,
        };
        queue.waiting.push_back(Request { io, machine: memory.machine(), fails, reaps });
        Submitted::Begun
    }

    fn reap(&self, memory: DeviceMemory<'_, P>, done: &mut dyn FnMut(PageIo, Result<(), DeviceError>)) {
        if let Completion::AfterReaps(_) = self.config.completion {
            let ready = {
                let mut queue = self.queue();
                let ready = queue.waiting.iter().take_while(|request| request.reaps == 0).count();
                queue.waiting.iter_mut().for_each(|request| request.reaps = request.reaps.saturating_sub(1));
                ready
            };
            self.complete(memory, ready);
        }
        loop {
            let Some((io, result)) = self.queue().done.pop_front() else { return };
            done(io, result);
        }
    }

    fn has_done(&self) -> bool {
        let queue = self.queue();
        let counts = matches!(self.config.completion, Completion::AfterReaps(_));
        !queue.done.is_empty() || counts && !queue.waiting.is_empty()
    }

    fn freed(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        self.inner.freed(memory, slot, count);
    }

    fn recharged(&self, memory: DeviceMemory<'_, P>, slots: (u64, u64), to: MemcgId) {
        self.inner.recharged(memory, slots, to);
    }

    fn discard(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        self.inner.discard(memory, slot, count);
    }

    fn report(&self) -> DeviceReport {
        self.inner.report()
    }

    fn close(&self, memory: DeviceMemory<'_, P>) {
        {
            // None of them is begun any more: their frames have other owners then.
            let mut queue = self.queue();
            queue.waiting.clear();
            queue.done.clear();
            while queue.at_work > 0 {
                queue = self.idle.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.done.clear();
        }
        self.inner.close(memory);
    }
}

impl<D> fmt::Debug for SlowDevice<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlowDevice").field("config", &self.config).finish_non_exhaustive()
    }
}
