//! A swap device on a file or a block device of the host.
//!
//! Pages go directly between the file and the machine's RAM. A submission only queues the work; threads of
//! the device do it (`ring`, `pool`), and wake the threads that wait for the device.

mod header;
mod pool;
mod queue;
mod ring;

pub use header::make_swap;

use core::fmt;
use header::{Header, PAGE};
use queue::{Bytes, Shared};
use quire_arch::paging::X86_64Level4;
use quire_arch::{PagingFormat, Platform};
use quire_swap::{DeviceError, DeviceFlags, DeviceMemory, PageIo, Submitted, SwapDevice};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::platform::HostPlatform;

/// How a file is used as a swap device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileDeviceOptions {
    /// The engine; `None` selects the best that the host permits.
    pub engine: Option<Engine>,
    /// Use direct I/O, bypassing the host's page cache. Some file systems do not support it; then it goes
    /// through the cache.
    pub direct: bool,
    /// Requests in flight at once, including those not yet reaped: 1 to [`MAX_DEPTH`](Self::MAX_DEPTH).
    pub depth: usize,
}

impl FileDeviceOptions {
    /// The most requests in flight at once: with one of its own as many as a ring of the host takes.
    pub const MAX_DEPTH: usize = (1 << 15) - 1;
}

impl Default for FileDeviceOptions {
    fn default() -> Self {
        Self { engine: None, direct: true, depth: 64 }
    }
}

/// The I/O engine of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Engine {
    /// One thread with an io_uring: queued requests are submitted to the host in one call.
    Ring,
    /// A few threads, each with one request at a time.
    Pool,
}

/// Why a file cannot be a swap device. Displayed as one line.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", .path.display())]
pub struct FileDeviceError {
    path: PathBuf,
    #[source]
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error(transparent)]
    Host(io::Error),
    #[error("there is no swap signature; make one with mkswap")]
    NoSignature,
    #[error("the swap header has version {0}, which is not 1")]
    Version(u32),
    #[error("the swap header lists {0} bad pages; use another device")]
    BadPages(u32),
    #[error("the swap header says {pages} pages, but there are {has}; use mkswap again")]
    Short { pages: u64, has: u64 },
    #[error("swap needs two pages of 4 KiB at least")]
    TooSmall,
    #[error("it is in use")]
    Busy,
    #[error("a depth of no request is too small")]
    NoDepth,
    #[error("a depth of {0} requests is too large; {max} are the most", max = FileDeviceOptions::MAX_DEPTH)]
    Depth(usize),
    #[error("the host permits no io_uring: {0}")]
    Ring(#[source] io::Error),
}

/// A swap device on a file or a block device of the host.
pub struct FileDevice<F: PagingFormat = X86_64Level4> {
    platform: HostPlatform<F>,
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    slots: u64,
    engine: Engine,
    direct: bool,
}

impl<F: PagingFormat> FileDevice<F> {
    /// Opens a file that has a swap header ([`make_swap`]) for the machine of `platform`.
    ///
    /// # Errors
    ///
    /// [`FileDeviceError`]: it cannot be opened, it is in use, or it is no swap file; or there can be no such
    /// number of requests.
    pub fn open(
        platform: &HostPlatform<F>,
        path: &Path,
        options: FileDeviceOptions,
    ) -> Result<Self, FileDeviceError> {
        let wrong = |cause| FileDeviceError { path: path.to_path_buf(), cause };
        match options.depth {
            0 => return Err(wrong(Cause::NoDepth)),
            1..=FileDeviceOptions::MAX_DEPTH => {}
            depth => return Err(wrong(Cause::Depth(depth))),
        }
        let (file, header, direct) = open(path, options.direct).map_err(wrong)?;
        let wake_platform = platform.clone();
        // Waiters sleep on the address of what is shared.
        let wake = Box::new(move |key| wake_platform.unpark(key));
        let shared = Shared::new(file, options.depth, wake).map_err(|error| wrong(Cause::Host(error)))?;
        let shared = Arc::new(shared);
        let ring = match options.engine {
            Some(Engine::Pool) => None,
            Some(Engine::Ring) => Some(ring::start(&shared).map_err(|error| wrong(Cause::Ring(error)))?),
            None => ring::start(&shared).ok(),
        };
        let engine = if ring.is_some() { Engine::Ring } else { Engine::Pool };
        let workers = match ring {
            Some(worker) => vec![worker],
            None => pool::start(&shared).map_err(|error| wrong(Cause::Host(error)))?,
        };
        let slots = u64::from(header.last_page);
        Ok(Self { platform: platform.clone(), shared, workers, slots, engine, direct })
    }

    /// On a new file of `slots` pages without a name, in the folder for temporary files: it is gone with the
    /// device.
    ///
    /// # Errors
    ///
    /// [`FileDeviceError`]: the file cannot be made or written.
    pub fn temporary(
        platform: &HostPlatform<F>,
        slots: u64,
        options: FileDeviceOptions,
    ) -> Result<Self, FileDeviceError> {
        let wrong = |cause| FileDeviceError { path: tempfile::env::temp_dir(), cause };
        let file = tempfile::tempfile().map_err(|error| wrong(Cause::Host(error)))?;
        header::format(&file, slots).map_err(wrong)?;
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        Self::open(platform, Path::new(&own), options).map_err(|error| wrong(error.cause))
    }

    /// The engine.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Whether it has all these slots.
    fn has(&self, slot: u64, count: u64) -> bool {
        slot.checked_add(count).is_some_and(|end| end <= self.slots)
    }
}

/// Opens the file for this process alone, and reads its header.
fn open(path: &Path, direct: bool) -> Result<(File, Header, bool), Cause> {
    let is_block = std::fs::metadata(path).map_err(Cause::Host)?.file_type().is_block_device();
    let attempt = |direct: bool| {
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        flags.set(OFlags::DIRECT, direct);
        // For a block device: it is not mounted, and cannot be while it is open.
        flags.set(OFlags::EXCL, is_block);
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
            Errno::BUSY => Cause::Busy,
            error => Cause::Host(error.into()),
        })?;
        let file = File::from(file);
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => Cause::Busy,
            error => Cause::Host(error.into()),
        })?;
        let header = Header::read(&file)?;
        Ok((file, header, direct))
    };
    match attempt(direct) {
        // A file system without direct input says so when the file is opened, or when it is read.
        Err(Cause::Host(error)) if direct && error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            attempt(false)
        }
        result => result,
    }
}

impl<F: PagingFormat> SwapDevice<HostPlatform<F>> for FileDevice<F> {
    fn kind(&self) -> &'static str {
        if self.direct { "file" } else { "cached-file" }
    }

    fn slots(&self) -> u64 {
        self.slots
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::DISCARD
    }

    fn is_of(&self, memory: DeviceMemory<'_, HostPlatform<F>>) -> bool {
        memory.platform().is_same(&self.platform)
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, HostPlatform<F>>, io: PageIo) -> Submitted {
        if !self.is_of(memory) {
            // The frames are of the machine of `memory`, and the transfer would be to this one's.
            return Submitted::Done(Err(DeviceError::Io));
        }
        if !self.has(io.slot, u64::from(io.pages)) {
            return Submitted::Done(Err(DeviceError::OutOfRange));
        }
        if io.pages == 0 {
            return Submitted::Done(Ok(()));
        }
        let bytes = Bytes {
            // Frames of one request are consecutive, and so are they in the direct map.
            start: self.platform.direct_map(io.pfn),
            len: io.pages as usize * PAGE,
            offset: (io.slot + 1) * PAGE as u64,
        };
        if self.shared.begin(io, bytes) { Submitted::Begun } else { Submitted::QueueFull }
    }

    fn reap(
        &self,
        memory: DeviceMemory<'_, HostPlatform<F>>,
        done: &mut dyn FnMut(PageIo, Result<(), DeviceError>),
    ) {
        // Each completion is told once, and the other machine would wait for it for ever.
        if self.is_of(memory) {
            self.shared.reap(done);
        }
    }

    fn has_done(&self) -> bool {
        self.shared.has_done()
    }

    fn wait_key(&self) -> usize {
        self.shared.wait_key()
    }

    fn close(&self, _memory: DeviceMemory<'_, HostPlatform<F>>) {
        self.shared.wait_until_idle();
    }

    fn discard(&self, memory: DeviceMemory<'_, HostPlatform<F>>, slot: u64, count: u64) {
        // What is none of its slots is the header, or belongs to what is behind it.
        if !self.is_of(memory) || !self.has(slot, count) || count == 0 {
            return;
        }
        let page = PAGE as u64;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Only a hint: what cannot be discarded stays in the file.
        let _ = rustix::fs::fallocate(&self.shared.file, how, (slot + 1) * page, count * page);
    }
}

impl<F: PagingFormat> Drop for FileDevice<F> {
    /// Waits for all that was submitted: the host may be writing to the machine's RAM.
    fn drop(&mut self) {
        self.shared.stop();
        for worker in self.workers.drain(..) {
            // A worker that panicked has printed its message.
            let _ = worker.join();
        }
    }
}

impl<F: PagingFormat> fmt::Debug for FileDevice<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDevice")
            .field("file", &self.shared.file)
            .field("slots", &self.slots)
            .field("engine", &self.engine)
            .field("direct", &self.direct)
            .finish_non_exhaustive()
    }
}
