//! A small thread pool that reads and writes, for hosts that permit no io_uring.

use super::queue::{Bytes, Request, Shared, error};
use quire_swap::{DeviceError, Direction};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// As many as keep a disk busy; they mostly wait.
const THREADS: usize = 4;

pub(super) fn start(shared: &Arc<Shared>) -> io::Result<Vec<JoinHandle<()>>> {
    let mut workers = Vec::with_capacity(THREADS);
    for _ in 0..THREADS {
        let own = Arc::clone(shared);
        match Builder::new().name("quire-swap".into()).spawn(move || work(&own)) {
            Ok(worker) => workers.push(worker),
            // Fewer will do.
            Err(_) if !workers.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(workers)
}

fn work(shared: &Shared) {
    while let Some(Request { io, bytes }) = shared.wait_for_request() {
        shared.finish(io, transfer(shared.file.as_raw_fd(), io.direction, bytes));
        shared.wake();
    }
}

fn transfer(file: i32, direction: Direction, bytes: Bytes) -> Result<(), DeviceError> {
    let mut done = 0;
    while done < bytes.len {
        let (rest, offset) = (bytes.len - done, (bytes.offset + done as u64) as libc::off_t);
        // SAFETY: the frames lie in the machine's RAM and stay what they are until the request is done
        // (`SwapDevice::submit`). The kernel copies to and from them as a device does.
        let moved = unsafe {
            let at = bytes.start.as_ptr().add(done).cast();
            match direction {
                Direction::Read => libc::pread(file, at, rest, offset),
                Direction::Write => libc::pwrite(file, at, rest, offset),
            }
        };
        match usize::try_from(moved) {
            // The file has become shorter.
            Ok(0) => return Err(DeviceError::Io),
            Ok(moved) => done += moved,
            Err(_) => match io::Error::last_os_error().raw_os_error().unwrap_or(0) {
                libc::EINTR => {}
                errno => return Err(error(direction, errno)),
            },
        }
    }
    Ok(())
}
