//! One thread with an io_uring.
//!
//! The host ties a request to the submitting thread, and cancels a thread's pending requests when it ends. So
//! only the device's own thread submits; others queue their work and ring a bell (an eventfd), which the ring
//! polls too.

use super::queue::{Request, Shared, error};
use io_uring::types::Fd;
use io_uring::{IoUring, Probe, opcode, squeue};
use quire_swap::{DeviceError, Direction};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};

/// The bell's number; requests are numbered by their places.
const BELL: u64 = u64::MAX;

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
        Ok(Self { shared, ring, requests: vec![None; depth].into(), free: (0..depth).collect() })
    }

    fn work(mut self) {
        let bell = Fd(self.shared.bell.as_raw_fd());
        let listen = opcode::PollAdd::new(bell, libc::POLLIN as u32).build().user_data(BELL);
        self.push(&listen);
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
                self.push(&listen);
            }
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
        self.push(&entry.user_data(place as u64));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: a request's frames lie in the machine's RAM and stay what they are until it is done
        // (`SwapDevice::submit`); the device waits for all that the host has before it goes. The bell and the
        // file live as long as `shared`.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.submit(0);
        }
    }

    /// Hands over what was pushed, and waits until so much is done.
    fn submit(&self, wait_for: usize) {
        loop {
            match self.ring.submit_and_wait(wait_for) {
                Ok(_) => return,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                    // The host refuses its own ring.
                    _ => panic!("the host's ring does not take requests: {error}"),
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
