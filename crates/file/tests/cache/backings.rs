//! Backings: in memory, and those that fail, come short, complete later, or lie.

use crate::machine::Machine;
use quire_arch::{Order, PAGE_SIZE, PfnRange, Platform};
use quire_file::{FileBacking, FileError, FileIo, IoLimits, IoToken, Transferred};
use quire_swap::{DeviceMemory, Direction, Submitted};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A file in memory: all that a backing needs.
pub(crate) struct Plain(pub(crate) Mutex<Vec<u8>>);

impl FileBacking<Machine> for Plain {
    unsafe fn submit(
        &self,
        memory: DeviceMemory<'_, Machine>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        let mut bytes = self.0.lock().unwrap();
        let end = (io.offset + io.bytes) as usize;
        let len = bytes.len().max(end);
        bytes.resize(len, 0);
        let pages = io.frames.iter().flat_map(|run| (run.start().0..run.end().0).map(quire_arch::Pfn));
        for (page, part) in pages.zip(bytes[io.offset as usize..end].chunks_mut(PAGE_SIZE as usize)) {
            let page = memory.platform().direct_map(page).as_ptr();
            match io.direction {
                // SAFETY: the page is the request's, and as long as the part.
                Direction::Read => unsafe { page.copy_from_nonoverlapping(part.as_ptr(), part.len()) },
                // SAFETY: as above.
                Direction::Write => unsafe { page.copy_to_nonoverlapping(part.as_mut_ptr(), part.len()) },
            }
        }
        Submitted::Done(Ok(Transferred::All))
    }
}

/// A request as it was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Logged {
    pub(crate) direction: Direction,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) segments: usize,
}

/// What a test knows of a disk, and what it makes it do.
#[derive(Default)]
pub(crate) struct Disk {
    bytes: Mutex<Vec<u8>>,
    log: Mutex<Vec<Logged>>,
    /// Reads, writes, and syncs fail with this.
    pub(crate) fail_reads: Mutex<Option<FileError>>,
    pub(crate) fail_writes: Mutex<Option<FileError>>,
    pub(crate) fail_syncs: Mutex<Option<FileError>>,
    /// Reads that have this byte fail.
    pub(crate) bad_byte: Mutex<Option<u64>>,
    /// Writes write less than they should.
    pub(crate) short_writes: AtomicBool,
    pub(crate) full: AtomicBool,
    /// What space was asked for.
    pub(crate) prepared: Mutex<Vec<Range<u64>>>,
    pub(crate) dropped: AtomicBool,
    pub(crate) limits: Mutex<Option<IoLimits>>,
}

impl Disk {
    pub(crate) fn new(bytes: &[u8]) -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::new(bytes.to_vec()), ..Self::default() })
    }

    /// An empty one, whose file may have folios of `order`.
    pub(crate) fn with_folios_of(order: u8) -> Arc<Self> {
        let (largest_order, pages) = (Order::new(order).unwrap(), IoLimits::MOST_PAGES);
        let limits = IoLimits { pages, largest_order, ..IoLimits::default() };
        Arc::new(Self { limits: Mutex::new(Some(limits)), ..Self::default() })
    }

    pub(crate) fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap()
    }

    /// The requests since the last call.
    pub(crate) fn take_log(&self) -> Vec<Logged> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    /// Frees what is stored of these bytes.
    pub(crate) fn free(&self, bytes: &Range<u64>) {
        let mut stored = self.bytes();
        let there = |at: u64| stored.len().min(at as usize);
        let hole = there(bytes.start)..there(bytes.end);
        stored[hole].fill(0);
    }

    pub(crate) fn file(self: &Arc<Self>) -> Immediate {
        Immediate(Arc::clone(self))
    }

    /// A file that completes requests when it is polled, and takes so many at a time.
    pub(crate) fn queued(self: &Arc<Self>, depth: usize) -> Queued {
        Queued { disk: Arc::clone(self), depth, queue: Mutex::default(), extra: Mutex::default() }
    }

    fn transfer(
        &self,
        memory: DeviceMemory<'_, Machine>,
        direction: Direction,
        range: Range<u64>,
        frames: &[PfnRange],
    ) -> Result<Transferred, FileError> {
        let wanted = range.end - range.start;
        self.log.lock().unwrap().push(Logged {
            direction,
            offset: range.start,
            bytes: wanted,
            segments: frames.len(),
        });
        let room = frames.iter().map(|run| run.len() * PAGE_SIZE).sum::<u64>();
        assert!(wanted > 0 && wanted <= room && range.start.is_multiple_of(PAGE_SIZE));
        let fails = match direction {
            Direction::Read => &self.fail_reads,
            Direction::Write => &self.fail_writes,
        };
        if let Some(error) = *fails.lock().unwrap() {
            return Err(error);
        }
        let bad = self.bad_byte.lock().unwrap().is_some_and(|byte| range.contains(&byte));
        if bad && direction == Direction::Read {
            return Err(FileError::Io);
        }
        let mut bytes = self.bytes();
        let mut count = wanted as usize;
        match direction {
            // A hole, or less than was wanted, where there is nothing: the rest is the cache's to fill.
            Direction::Read => {
                count = count.min(bytes.len().saturating_sub(range.start as usize));
                let Some(there) = bytes.get(range.start as usize..range.start as usize + count) else {
                    return Ok(Transferred::Zeros);
                };
                if there.iter().all(|&byte| byte == 0) {
                    return Ok(Transferred::Zeros);
                }
            }
            Direction::Write => {
                count -= usize::from(self.short_writes.load(Ordering::Relaxed));
                let end = range.start as usize + count;
                let len = bytes.len().max(end);
                bytes.resize(len, 0);
            }
        }
        let pages = frames.iter().flat_map(|run| (run.start().0..run.end().0).map(quire_arch::Pfn));
        let bytes = &mut bytes[range.start as usize..range.start as usize + count];
        for (page, part) in pages.zip(bytes.chunks_mut(PAGE_SIZE as usize)) {
            let page = memory.platform().direct_map(page).as_ptr();
            match direction {
                // SAFETY: the page is the request's, and as long as the part.
                Direction::Read => unsafe { page.copy_from_nonoverlapping(part.as_ptr(), part.len()) },
                // SAFETY: as above.
                Direction::Write => unsafe { page.copy_to_nonoverlapping(part.as_mut_ptr(), part.len()) },
            }
        }
        Ok(if count as u64 == wanted { Transferred::All } else { Transferred::Bytes(count as u64) })
    }

    fn prepare(&self, bytes: Range<u64>) -> Result<(), FileError> {
        self.prepared.lock().unwrap().push(bytes);
        if self.full.load(Ordering::Relaxed) { Err(FileError::NoSpace) } else { Ok(()) }
    }
}

/// Completes at once.
pub(crate) struct Immediate(Arc<Disk>);

impl Drop for Immediate {
    fn drop(&mut self) {
        self.0.dropped.store(true, Ordering::Relaxed);
    }
}

impl FileBacking<Machine> for Immediate {
    unsafe fn submit(
        &self,
        memory: DeviceMemory<'_, Machine>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        Submitted::Done(self.0.transfer(memory, io.direction, io.offset..io.offset + io.bytes, io.frames))
    }

    fn limits(&self) -> IoLimits {
        self.0.limits.lock().unwrap().unwrap_or_default()
    }

    fn prepare_write(&self, bytes: Range<u64>) -> Result<(), FileError> {
        self.0.prepare(bytes)
    }

    fn sync(&self, _bytes: Range<u64>, _data_only: bool) -> Result<(), FileError> {
        self.0.fail_syncs.lock().unwrap().map_or(Ok(()), Err)
    }
}

struct Waiting {
    direction: Direction,
    range: Range<u64>,
    frames: Vec<PfnRange>,
    token: IoToken,
}

/// Completes when it is polled.
pub(crate) struct Queued {
    disk: Arc<Disk>,
    depth: usize,
    queue: Mutex<VecDeque<Waiting>>,
    /// Tokens that are reported once more, although they have ended.
    extra: Mutex<Vec<IoToken>>,
}

impl FileBacking<Machine> for Queued {
    unsafe fn submit(
        &self,
        _memory: DeviceMemory<'_, Machine>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        let mut queue = self.queue.lock().unwrap();
        if queue.len() >= self.depth {
            return Submitted::QueueFull;
        }
        queue.push_back(Waiting {
            direction: io.direction,
            range: io.offset..io.offset + io.bytes,
            frames: io.frames.to_vec(),
            token: io.token,
        });
        Submitted::Begun
    }

    fn reap(
        &self,
        memory: DeviceMemory<'_, Machine>,
        done: &mut dyn FnMut(IoToken, Result<Transferred, FileError>),
    ) {
        for token in self.extra.lock().unwrap().iter() {
            done(*token, Err(FileError::Corrupt));
        }
        // The newest first: in another order than they were made.
        let next = self.queue.lock().unwrap().pop_back();
        if let Some(next) = next {
            let result = self.disk.transfer(memory, next.direction, next.range, &next.frames);
            done(next.token, result);
            self.extra.lock().unwrap().push(next.token);
            done(next.token, Ok(Transferred::Zeros));
        }
    }

    fn has_done(&self) -> bool {
        !self.queue.lock().unwrap().is_empty()
    }

    fn limits(&self) -> IoLimits {
        self.disk.limits.lock().unwrap().unwrap_or_default()
    }
}

/// Reports requests that it has refused or never had, and ends what it has taken at once and once more later.
pub(crate) struct Liar {
    pub(crate) disk: Arc<Disk>,
    pub(crate) seen: Mutex<Vec<IoToken>>,
    pub(crate) refusals: AtomicU32,
}

impl FileBacking<Machine> for Liar {
    unsafe fn submit(
        &self,
        memory: DeviceMemory<'_, Machine>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        if self.refusals.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) {
            return Submitted::QueueFull;
        }
        self.seen.lock().unwrap().push(io.token);
        let result = self.disk.transfer(memory, io.direction, io.offset..io.offset + io.bytes, io.frames);
        Submitted::Done(result)
    }

    fn reap(
        &self,
        _memory: DeviceMemory<'_, Machine>,
        done: &mut dyn FnMut(IoToken, Result<Transferred, FileError>),
    ) {
        self.seen.lock().unwrap().iter().for_each(|token| done(*token, Err(FileError::Corrupt)));
    }

    fn progress(&self) -> u32 {
        self.refusals.load(Ordering::Relaxed)
    }
}

/// Notes what it was asked for, and completes it at once or panics. Each token is reported whenever it is
/// asked.
pub(crate) struct Asked {
    pub(crate) asked: Arc<Mutex<Vec<(IoToken, quire_arch::Pfn)>>>,
    pub(crate) panics: bool,
}

impl FileBacking<Machine> for Asked {
    unsafe fn submit(
        &self,
        _memory: DeviceMemory<'_, Machine>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        self.asked.lock().unwrap().push((io.token, io.frames[0].start()));
        assert!(!self.panics, "a backing ends here");
        Submitted::Done(Ok(Transferred::All))
    }

    fn reap(
        &self,
        _memory: DeviceMemory<'_, Machine>,
        done: &mut dyn FnMut(IoToken, Result<Transferred, FileError>),
    ) {
        self.asked.lock().unwrap().iter().for_each(|(token, _)| done(*token, Ok(Transferred::All)));
    }

    fn has_done(&self) -> bool {
        self.panics
    }
}

/// Reads wait until they are let through, and fail.
#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) asked_for: Mutex<Option<quire_arch::Pfn>>,
    /// Those of one page succeed.
    pub(crate) reads_alone: AtomicBool,
    pub(crate) is_open: AtomicBool,
}

impl FileBacking<Machine> for Arc<Gate> {
    unsafe fn submit(
        &self,
        _memory: DeviceMemory<'_, Machine>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        *self.asked_for.lock().unwrap() = Some(io.frames[0].start());
        while !self.is_open.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let succeeds = self.reads_alone.load(Ordering::Relaxed) && io.bytes <= PAGE_SIZE;
        Submitted::Done(if succeeds { Ok(Transferred::Zeros) } else { Err(FileError::Corrupt) })
    }
}

/// A method of a backing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    Submit,
    Progress,
    Reap,
}

/// As the one that it has, but panics in one method, once.
pub(crate) struct Unsteady {
    pub(crate) queued: Queued,
    pub(crate) panics: Arc<Mutex<Option<Method>>>,
}

impl Unsteady {
    fn reach(&self, method: Method) {
        let panics = self.panics.lock().unwrap().take_if(|panics| *panics == method);
        assert!(panics.is_none(), "a backing ends here");
    }
}

impl FileBacking<Machine> for Unsteady {
    unsafe fn submit(
        &self,
        memory: DeviceMemory<'_, Machine>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        self.reach(Method::Submit);
        // SAFETY: the caller's promise.
        unsafe { self.queued.submit(memory, io) }
    }

    fn reap(
        &self,
        memory: DeviceMemory<'_, Machine>,
        done: &mut dyn FnMut(IoToken, Result<Transferred, FileError>),
    ) {
        self.reach(Method::Reap);
        self.queued.reap(memory, done);
    }

    fn has_done(&self) -> bool {
        self.queued.has_done()
    }

    fn progress(&self) -> u32 {
        self.reach(Method::Progress);
        0
    }

    fn limits(&self) -> IoLimits {
        self.queued.limits()
    }
}

/// Space for pages that is asked for and freed. When it was asked for it waits, if it is armed.
#[derive(Default)]
pub(crate) struct Space {
    pub(crate) pages: Mutex<std::collections::BTreeSet<u64>>,
    pub(crate) is_armed: AtomicBool,
    pub(crate) waits: AtomicBool,
}

impl Space {
    pub(crate) fn free(&self, bytes: &Range<u64>) {
        let gone = bytes.start / PAGE_SIZE..bytes.end / PAGE_SIZE;
        self.pages.lock().unwrap().retain(|page| !gone.contains(page));
    }
}

impl FileBacking<Machine> for Arc<Space> {
    unsafe fn submit(
        &self,
        _: DeviceMemory<'_, Machine>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        Submitted::Done(Ok(if io.direction == Direction::Read {
            Transferred::Zeros
        } else {
            Transferred::All
        }))
    }

    fn prepare_write(&self, bytes: Range<u64>) -> Result<(), FileError> {
        self.pages.lock().unwrap().insert(bytes.start / PAGE_SIZE);
        if self.is_armed.swap(false, Ordering::Relaxed) {
            self.waits.store(true, Ordering::Release);
            while self.waits.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}
