//! One thread with an io_uring.
//!
//! The host ties a request to the submitting thread, and cancels a thread's pending requests when it ends. So
//! only the device's own thread submits; others queue their work and ring a bell (an eventfd), which the ring
//! polls too.
//!
//! A host that refuses its own ring, once it has given it, gets no more requests, and those that it has not
//! taken fail. It may still be at work for the others, so their ends are waited for.

use super::queue::{Request, Shared, error};
use io_uring::types::Fd;
use io_uring::{IoUring, Probe, opcode, squeue};
use quire_swap::{DeviceError, Direction};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The bell's number; requests are numbered by their places.
const BELL: u64 = u64::MAX;
/// Between two looks at what is done, where the host wakes no thread any more.
const LOOKS: Duration = Duration::from_millis(10);

/// Starts the thread, if the host permits a ring.
pub(super) fn start(shared: &Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let own = Arc::clone(shared);
    let (tell, told) = mpsc::sync_channel(1);
    // The ring is made by the thread that uses it: it belongs to it alone.
    let worker = Builder::new().name("quire-swap".into()).spawn(move || match Ring::new(&own) {
        Ok(ring) => {
            let _ = tell.send(Ok(()));
            ring.work();
        }
        Err(error) => {
            let _ = tell.send(Err(error));
        }
    })?;
    told.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).map(|()| worker)
}

struct Ring<'s> {
    shared: &'s Shared,
    ring: IoUring,
    /// Requests that the host has, by their places, with the bytes that are left of each.
    requests: Box<[Option<Request>]>,
    free: Vec<usize>,
    /// The numbers of what was pushed and is not submitted yet, the oldest first.
    pushed: VecDeque<u64>,
    /// The host does not take requests any more.
    refused: bool,
}

impl<'s> Ring<'s> {
    fn new(shared: &'s Shared) -> io::Result<Self> {
        let depth = shared.depth();
        let entries = u32::try_from(depth + 1).unwrap_or(u32::MAX).next_power_of_two();
        let ring = IoUring::builder().setup_clamp().setup_single_issuer().build(entries)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let wanted = [opcode::Read::CODE, opcode::Write::CODE, opcode::PollAdd::CODE];
        if !wanted.into_iter().all(|code| probe.is_supported(code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self {
            shared,
            ring,
            requests: vec![None; depth].into(),
            free: (0..depth).collect(),
            pushed: VecDeque::with_capacity(depth + 1),
            refused: false,
        })
    }

    fn work(mut self) {
        let bell = Fd(self.shared.bell.as_raw_fd());
        let listen = opcode::PollAdd::new(bell, libc::POLLIN as u32).build();
        self.push(listen.clone(), BELL);
        loop {
            let mut new = Vec::new();
            let going = self.shared.take_requests(|request| new.push(request));
            for request in new {
                self.hand_in(request);
            }
            if !going && self.free.len() == self.requests.len() {
                return;
            }
            self.submit(1);
            if self.collect() {
                let mut count = [0; 8];
                // Cleared before work is looked for: a bell that rings in between is heard again.
                let _ = rustix::io::read(&self.shared.bell, &mut count);
                self.push(listen.clone(), BELL);
            }
            if self.refused {
                self.fail_pushed();
                std::thread::sleep(LOOKS);
            }
        }
    }

    /// What the host has not taken, and will not, has failed.
    fn fail_pushed(&mut self) {
        let mut any = false;
        for number in std::mem::take(&mut self.pushed).into_iter().filter(|number| *number != BELL) {
            let place = number as usize;
            if let Some(request) = self.requests[place].take() {
                self.free.push(place);
                self.shared.finish(request.io, Err(DeviceError::Io));
                any = true;
            }
        }
        if any {
            self.shared.wake();
        }
    }

    /// Submits a request, or what is left of it.
    fn hand_in(&mut self, request: Request) {
        // There are as many places as requests under way.
        let Some(place) = self.free.pop() else {
            return self.shared.finish(request.io, Err(DeviceError::Io));
        };
        let file = Fd(self.shared.file.as_raw_fd());
        let (start, len) = (request.bytes.start.as_ptr(), request.bytes.len as u32);
        let entry = match request.io.direction {
            Direction::Read => opcode::Read::new(file, start, len).offset(request.bytes.offset).build(),
            Direction::Write => opcode::Write::new(file, start, len).offset(request.bytes.offset).build(),
        };
        self.requests[place] = Some(request);
        self.push(entry, place as u64);
    }

    fn push(&mut self, entry: squeue::Entry, number: u64) {
        let entry = entry.user_data(number);
        self.pushed.push_back(number);
        // SAFETY: a request's frames lie in the machine's RAM and stay what they are until it is done
        // (`SwapDevice::submit`); the device waits for all that the host has before it goes. The bell and the
        // file live as long as `shared`.
        while !self.refused && unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.submit(0);
        }
    }

    /// Hands over what was pushed, and waits until so much is done.
    fn submit(&mut self, wait_for: usize) {
        while !self.refused {
            match self.ring.submit_and_wait(wait_for) {
                Ok(taken) => {
                    self.pushed.drain(..taken.min(self.pushed.len()));
                    return;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                    _ => self.refused = true,
                },
            }
        }
    }

    /// Takes what is done. Returns whether the bell rang.
    fn collect(&mut self) -> bool {
        let (mut rang, mut any) = (false, false);
        let done: Vec<(u64, i32)> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (number, result) in done {
            if number == BELL {
                rang = true;
                continue;
            }
            let place = number as usize;
            let Some(mut request) = self.requests[place].take() else { continue };
            self.free.push(place);
            let (io, bytes) = (request.io, &mut request.bytes);
            match usize::try_from(result) {
                Ok(moved) if moved == bytes.len => self.shared.finish(io, Ok(())),
                // The file has become shorter.
                Ok(0) => self.shared.finish(io, Err(DeviceError::Io)),
                Ok(moved) => {
                    // SAFETY: less than the whole was moved.
                    bytes.start = unsafe { bytes.start.add(moved) };
                    bytes.offset += moved as u64;
                    bytes.len -= moved;
                    self.hand_in(request);
                    continue;
                }
                Err(_) if matches!(-result, libc::EINTR | libc::EAGAIN) => {
                    self.hand_in(request);
                    continue;
                }
                Err(_) => self.shared.finish(io, Err(error(io.direction, -result))),
            }
            any = true;
        }
        if any {
            self.shared.wake();
        }
        rang
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::Bytes;
    use super::*;
    use quire_arch::Pfn;
    use quire_swap::PageIo;
    use std::ptr::NonNull;

    /// A queue of four, and two requests for pages of `memory` in it.
    fn with_two_requests(memory: &mut [u8; 8192], wake: Box<dyn Fn(usize) + Send + Sync>) -> Arc<Shared> {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(8192).expect("a file of two pages");
        let shared = Arc::new(Shared::new(file, 4, wake).expect("the host has a bell"));
        for (slot, page) in (0..).zip(memory.chunks_mut(4096)) {
            let io = PageIo { direction: Direction::Read, slot, pfn: Pfn(1 + slot), pages: 1 };
            let start = NonNull::new(page.as_mut_ptr()).expect("an address");
            assert!(shared.begin(io, Bytes { start, len: page.len(), offset: slot * 4096 }));
        }
        shared
    }

    fn results(shared: &Shared) -> Vec<Result<(), DeviceError>> {
        let mut results = Vec::new();
        shared.reap(&mut |_, result| results.push(result));
        results
    }

    /// Hazard: a worker ends in the middle of its work, and one that closes the device waits for ever.
    #[test]
    fn a_ring_that_the_host_refuses_fails_what_it_was_not_given() {
        let mut memory = [7; 8192];
        let shared = with_two_requests(&mut memory, Box::new(|_| ()));
        // Where the host permits none there is nothing to try.
        let Ok(ring) = Ring::new(&shared) else { return };
        let other = tempfile::tempfile().expect("a temporary file");
        // SAFETY: the descriptor is the ring's, which finds another file there from now on.
        assert!(unsafe { libc::dup2(other.as_raw_fd(), ring.ring.as_raw_fd()) } >= 0);
        shared.stop();
        ring.work();
        assert_eq!(results(&shared), [Err(DeviceError::Io); 2]);
        shared.wait_until_idle();
        assert!(memory.iter().all(|&byte| byte == 7));
    }

    /// Hazard: the same, since it panics where it wakes a thread.
    #[test]
    fn a_panic_where_a_thread_is_woken_ends_no_worker() {
        for engine in [work_of_ring, work_of_pool] {
            let mut memory = [7; 8192];
            let shared = with_two_requests(&mut memory, Box::new(|_| panic!("a waker that panics")));
            shared.stop();
            if !engine(&shared) {
                continue;
            }
            assert_eq!(results(&shared), [Ok(()); 2]);
            shared.wait_until_idle();
            assert!(memory.iter().all(|&byte| byte == 0));
        }
    }

    fn work_of_ring(shared: &Arc<Shared>) -> bool {
        let Ok(worker) = start(shared) else { return false };
        worker.join().expect("it does its work");
        true
    }

    fn work_of_pool(shared: &Arc<Shared>) -> bool {
        let workers = super::super::pool::start(shared).expect("threads");
        workers.into_iter().for_each(|worker| worker.join().expect("it does its work"));
        true
    }
}
