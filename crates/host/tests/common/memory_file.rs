//! Files whose bytes are in this process.

use super::*;
pub(crate) use quire_mm::file::*;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What a [`MemoryFile`] is made of, as the test sees it.
#[derive(Debug, Default)]
pub(crate) struct FileStore {
    pub(crate) bytes: Mutex<Vec<u8>>,
    /// Whether transfers fail.
    pub(crate) fails_reads: AtomicBool,
    pub(crate) fails_writes: AtomicBool,
    /// Whether there is no space for more bytes.
    pub(crate) full: AtomicBool,
    /// Whether mappings cannot make holes.
    pub(crate) has_no_holes: AtomicBool,
    /// The largest order of the file's folios.
    pub(crate) largest_order: AtomicU8,
    /// Whether nothing is read with a page that is missing.
    pub(crate) reads_alone: AtomicBool,
    /// Requests to read and to write, and bytes that were written.
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) written: AtomicU64,
    /// Calls that made it lasting, and those that were content with the data.
    pub(crate) syncs: AtomicU64,
    pub(crate) data_syncs: AtomicU64,
    /// Files that have it.
    pub(crate) files: AtomicU64,
}

impl FileStore {
    /// Frees what is stored of a hole.
    pub(crate) fn free(&self, hole: Range<u64>) -> Result<(), FileError> {
        take_time();
        let mut bytes = self.bytes.lock().expect("no thread panicked");
        let there = |at: u64| bytes.len().min(at as usize);
        let hole = there(hole.start)..there(hole.end);
        bytes[hole].fill(0);
        Ok(())
    }
}

/// In a model other threads run before something is transferred or freed.
fn take_time() {
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
}

/// A file with its bytes in a [`FileStore`].
#[derive(Debug)]
pub(crate) struct MemoryFile(Arc<FileStore>);

impl MemoryFile {
    /// One with `bytes`, and what it is made of.
    pub(crate) fn new(bytes: Vec<u8>) -> (Self, Arc<FileStore>) {
        let store = Arc::new(FileStore { bytes: Mutex::new(bytes), ..FileStore::default() });
        store.files.fetch_add(1, Ordering::Relaxed);
        (Self(store.clone()), store)
    }

    /// The same, of a file that is read page by page.
    pub(crate) fn alone(bytes: Vec<u8>) -> (Self, Arc<FileStore>) {
        let (file, store) = Self::new(bytes);
        store.reads_alone.store(true, Ordering::Relaxed);
        (file, store)
    }

    /// The same, of a file that may have folios of the PMD's order.
    pub(crate) fn huge(bytes: Vec<u8>) -> (Self, Arc<FileStore>) {
        let (file, store) = Self::new(bytes);
        store.largest_order.store(Order::PMD.get(), Ordering::Relaxed);
        (file, store)
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        self.0.files.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<P: Platform> FileBacking<P> for MemoryFile {
    unsafe fn submit(
        &self,
        memory: DeviceMemory<'_, P>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        take_time();
        let (fails, count) = match io.direction {
            Direction::Read => (&self.0.fails_reads, &self.0.reads),
            Direction::Write => (&self.0.fails_writes, &self.0.writes),
        };
        count.fetch_add(1, Ordering::Relaxed);
        if fails.load(Ordering::Relaxed) {
            return Submitted::Done(Err(FileError::Io));
        }
        let mut bytes = self.0.bytes.lock().expect("no thread panicked");
        let (mut at, mut left) = (io.offset as usize, io.bytes as usize);
        let end = at + left;
        if io.direction == Direction::Write {
            let size = bytes.len().max(end);
            bytes.resize(size, 0);
            self.0.written.fetch_add(io.bytes, Ordering::Relaxed);
        }
        for frames in io.frames {
            let ram = memory.platform().direct_map(frames.start()).as_ptr();
            let run = left.min((frames.len() * PAGE) as usize);
            let there = run.min(bytes.len().saturating_sub(at));
            // SAFETY: the frames are this backing's until it returns. Programs may write to them meanwhile,
            // as to what a device reads: such a page is written again.
            unsafe {
                match io.direction {
                    Direction::Read => ram.copy_from(bytes[at.min(bytes.len())..].as_ptr(), there),
                    Direction::Write => ram.copy_to(bytes[at..].as_mut_ptr(), there),
                }
            }
            if there < run {
                return Submitted::Done(Ok(Transferred::Bytes((at + there) as u64 - io.offset)));
            }
            (at, left) = (at + run, left - run);
        }
        Submitted::Done(Ok(Transferred::All))
    }

    fn sync(&self, _bytes: Range<u64>, data_only: bool) -> Result<(), FileError> {
        self.0.syncs.fetch_add(1, Ordering::Relaxed);
        self.0.data_syncs.fetch_add(data_only.into(), Ordering::Relaxed);
        Ok(())
    }

    fn limits(&self) -> IoLimits {
        let holes = !self.0.has_no_holes.load(Ordering::Relaxed);
        let largest_order = Order::new(self.0.largest_order.load(Ordering::Relaxed)).expect("a test's order");
        let pages = IoLimits::default().pages.max(largest_order.pages() as u32);
        let usual = IoLimits::default();
        let readahead = if self.0.reads_alone.load(Ordering::Relaxed) { 0 } else { usual.readahead };
        IoLimits { holes, largest_order, pages, readahead, ..usual }
    }

    fn punch(&self, bytes: Range<u64>) -> Result<(), FileError> {
        self.0.free(bytes)?;
        Ok(())
    }

    fn prepare_write(&self, _bytes: Range<u64>) -> Result<(), FileError> {
        if self.0.full.load(Ordering::Relaxed) { Err(FileError::NoSpace) } else { Ok(()) }
    }
}

/// A buffer of the test as the program's side of a call.
#[derive(Debug)]
pub(crate) struct Buffer<'b> {
    pub(crate) bytes: &'b mut [u8],
    pub(crate) at: usize,
}

impl<'b> Buffer<'b> {
    pub(crate) fn new(bytes: &'b mut [u8]) -> Self {
        Self { bytes, at: 0 }
    }
}

impl UserCopy for Buffer<'_> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        bytes.min(self.bytes.len() - self.at)
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        let end = (self.at + page.len()).min(self.bytes.len());
        let part = &mut self.bytes[self.at..end];
        if page.is_target() { page.set(0, part) } else { page.get(0, part) }
    }

    fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

/// Reads bytes of a file by a call.
pub(crate) fn read_file<P: Platform>(file: &File<'_, P>, at: u64, bytes: usize) -> Vec<u8> {
    let mut read = vec![0; bytes];
    let done = file.read(at, &mut Buffer::new(&mut read));
    assert_eq!(done.stopped, None);
    read.truncate(done.bytes as usize);
    read
}

/// Writes bytes to a file by a call.
pub(crate) fn write_file<P: Platform>(file: &File<'_, P>, at: u64, bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let done = file.write(at, &mut Buffer::new(&mut bytes));
    assert_eq!((done.bytes, done.stopped), (bytes.len() as u64, None));
}

/// A request to map pages of a file from its page `first` on.
pub(crate) fn file_request(first: u64, pages: u64, protection: Protection, flags: MapFlags) -> MapRequest {
    MapRequest {
        file: Some(MappedFile::new(0, first)),
        flags,
        ..MapRequest::anonymous(pages * PAGE, protection)
    }
}

/// All of a file.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;
