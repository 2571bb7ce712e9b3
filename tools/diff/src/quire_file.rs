//! The file of a program on Quire.

mod fallocate;

pub(crate) use fallocate::is_fallocate_mode;

use crate::linux::{MOST_FILE_PAGES, StoreFacts};
use crate::observation::Observation;
use crate::program::names::{
    F_ADD_SEALS, FILE, FOLDER, MOST_RANGE_BYTES, READ_ONLY, WRITE_ONLY, ZEROS, file_word,
};
use crate::program::{Call, Store};
use crate::sum;
use quire_arch::{Access, Order, PAGE_SIZE, PagingFormat, Platform, VirtAddr};
use quire_host::{HostPlatform, Machine, Program, ProgramSpace};
use quire_mm::abi::OpenFile;
use quire_mm::file::{
    DeviceMemory, Direction, File, FileBacking, FileError, FileIo, IoLimits, PageBytes, PageError, Seals,
    Submitted, Transfer, Transferred, UserCopy,
};
use quire_mm::space::{Errno, MappedFile, Space, VmFlags};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) type HostFile<'m> = File<'m, HostPlatform>;

/// The bytes of a file that are not in its pages. What is past the end of them is zeros.
#[derive(Clone, Debug)]
struct Bytes {
    stored: Arc<Mutex<Vec<u8>>>,
    limits: IoLimits,
}

impl Bytes {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        // A list of bytes is good whatever was done to it.
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileBacking<HostPlatform> for Bytes {
    fn limits(&self) -> IoLimits {
        self.limits
    }

    fn punch(&self, hole: Range<u64>) -> Result<(), FileError> {
        let mut bytes = self.lock();
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
        let hole = place(hole.start)..place(hole.end);
        bytes[hole].fill(0);
        Ok(())
    }

    unsafe fn submit(
        &self,
        memory: DeviceMemory<'_, HostPlatform>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        let mut bytes = self.lock();
        let (Ok(mut at), Ok(mut left)) = (usize::try_from(io.offset), usize::try_from(io.bytes)) else {
            return Submitted::Done(Err(FileError::Io));
        };
        if io.direction == Direction::Write && bytes.len() < at + left {
            bytes.resize(at + left, 0);
        }
        let begin = at;
        for frames in io.frames {
            let ram = memory.platform().direct_map(frames.start()).as_ptr();
            let run = left.min((frames.len() * PAGE_SIZE) as usize);
            let from = at.min(bytes.len());
            let there = run.min(bytes.len() - from);
            let stored = &mut bytes[from..from + there];
            // SAFETY: the frames are RAM of this machine and stay until this returns; those of a read are
            // this backing's. What programs write meanwhile is written again.
            unsafe {
                match io.direction {
                    Direction::Read => ram.copy_from_nonoverlapping(stored.as_ptr(), there),
                    Direction::Write => ram.copy_to_nonoverlapping(stored.as_mut_ptr(), there),
                }
            }
            at += there;
            if there < run {
                return Submitted::Done(Ok(Transferred::Bytes((at - begin) as u64)));
            }
            left -= run;
        }
        Submitted::Done(Ok(Transferred::All))
    }
}

/// The file of a program, with its openings.
pub(crate) struct ProgramFile<'m> {
    facts: StoreFacts,
    bytes: Bytes,
    /// As [`FILE`], [`READ_ONLY`] and [`WRITE_ONLY`].
    openings: [HostFile<'m>; 3],
}

/// What of a descriptor counts for calls about the file.
type Paging = <HostPlatform as Platform>::Paging;

#[derive(Clone, Copy)]
pub(crate) struct Opened<'f, 'm> {
    pub(crate) file: &'f HostFile<'m>,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

/// The result of a call as Linux returns it.
pub(crate) type Raw = i64;

pub(crate) fn failed(errno: Errno) -> Raw {
    -i64::from(errno.0)
}

impl Opened<'_, '_> {
    /// `pread` into a program's memory.
    pub(crate) fn read<S: ProgramSpace>(
        self,
        [_, at, left, offset, ..]: [u64; 6],
        (program, space): (&Program<'_, S>, &Space<'_, HostPlatform>),
    ) -> Result<Raw, Errno> {
        self.reads.then_some(()).ok_or(Errno::EBADF)?;
        let mut to = ToProgram { program, at, left, page: Page::default() };
        transferred(space.files().read(self.file, offset, &mut to))
    }

    /// `pwrite` from a program's memory.
    pub(crate) fn write<S: ProgramSpace>(
        self,
        [_, at, left, offset, ..]: [u64; 6],
        (program, space): (&Program<'_, S>, &Space<'_, HostPlatform>),
    ) -> Result<Raw, Errno> {
        self.writes.then_some(()).ok_or(Errno::EBADF)?;
        // What no program has is refused before anything is made.
        let end = at.checked_add(left).filter(|end| *end <= Paging::USER_END.0);
        end.ok_or(Errno::EFAULT)?;
        let mut from = FromProgram { program, at, left, page: Page::default() };
        let mut done = space.files().write(self.file, offset, &mut from);
        if done.bytes == 0 && done.stopped == Some(PageError::BadAddress) && offset > self.file.size() {
            // ext4 makes the file larger, up to where it is to be written, before it looks whether the
            // memory can be accessed: it may be a page of the file.
            self.file.set_size(offset).map_err(errno_of)?;
            done = space.files().write(self.file, offset, &mut from);
        }
        transferred(done)
    }
}

impl<'m> ProgramFile<'m> {
    pub(crate) fn new(machine: &'m Machine, store: Store, facts: StoreFacts) -> Result<Self, PageError> {
        let file_bytes = store.file_bytes();
        let pages = file_bytes.div_ceil(PAGE_SIZE);
        let words = (0..pages).flat_map(|page| (0..PAGE_SIZE / 8).map(move |at| file_word(page, at)));
        let mut contents: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        contents.truncate(file_bytes as usize);
        let mut limits = IoLimits { holes: true, tail_stays: facts.tail_stays, ..IoLimits::default() };
        if facts.tail_stays {
            // The folder for temporary files is a tmpfs: nothing is read ahead.
            limits.readahead = 0;
        }
        if store == Store::Large {
            (limits.largest_order, limits.pages) = (Order::PMD, IoLimits::MOST_PAGES);
        }
        let stored = if store == Store::Disk { contents.clone() } else { Vec::new() };
        let bytes = Bytes { stored: Arc::new(Mutex::new(stored)), limits };
        let file = match store {
            Store::Memory => machine.memory().create_shmem((), 0)?,
            Store::Disk => machine.memory().create_file(bytes.clone(), file_bytes)?,
            Store::Large => machine.memory().create_file(bytes.clone(), 0)?,
        };
        let (second, third) = (file.open(Access::Write)?, file.open(Access::Write)?);
        let this = Self { facts, bytes, openings: [file, second, third] };
        if store != Store::Disk {
            // By one call, or one for each page, as on Linux: that decides how large its folios are.
            let at_once = if store == Store::Large { contents.len() } else { PAGE_SIZE as usize };
            for (nth, bytes) in contents.chunks(at_once).enumerate() {
                let at = (nth * at_once) as u64;
                let written = this.openings[0].write(at, &mut FromVector { bytes, at: 0 });
                written.stopped.map_or(Ok(()), Err)?;
            }
        } else {
            // On Linux what was written is in the page cache.
            this.bring_in();
        }
        Ok(this)
    }

    /// What the descriptor allows, if it is one of the file.
    pub(crate) fn described(&self, descriptor: u32) -> Option<OpenFile> {
        let at = self.place(descriptor)?;
        Some(OpenFile {
            // Each opening has a number here, too, which nothing reads.
            id: at as u64,
            readable: descriptor != WRITE_ONLY,
            writable: descriptor != READ_ONLY,
            refused: None,
            write_refused: None,
            exec_refused: self.facts.no_exec.then_some(Errno::EPERM),
            max_bytes: MappedFile::REGULAR_BYTES,
            huge_alignment: self.facts.huge_alignment,
            vm_flags: VmFlags::empty(),
        })
    }

    /// The opening that the descriptor is.
    pub(crate) fn opening(&self, descriptor: u32) -> Option<&HostFile<'m>> {
        Some(&self.openings[self.place(descriptor)?])
    }

    fn place(&self, descriptor: u32) -> Option<usize> {
        [FILE, READ_ONLY, WRITE_ONLY].into_iter().position(|one| one == descriptor)
    }

    fn opened(&self, word: u64) -> Option<Opened<'_, 'm>> {
        let descriptor = word as u32;
        let file = self.opening(descriptor)?;
        Some(Opened { file, reads: descriptor != WRITE_ONLY, writes: descriptor != READ_ONLY })
    }

    /// Makes a call about the file.
    pub(crate) fn make<S: ProgramSpace>(
        &self,
        call: Call,
        args: [u64; 6],
        (program, space): (&Program<'_, S>, &Space<'m, HostPlatform>),
    ) -> Raw {
        let [descriptor, second, third, fourth, ..] = args;
        let opened = self.opened(descriptor).ok_or(Errno::EBADF);
        let result = match call {
            Call::Pread | Call::Pwrite if fourth.cast_signed() < 0 => Err(Errno::EINVAL),
            Call::Pread => opened.and_then(|opened| opened.read(args, (program, space))),
            Call::Pwrite => opened.and_then(|opened| opened.write(args, (program, space))),
            Call::Ftruncate if second.cast_signed() < 0 => Err(Errno::EINVAL),
            Call::Ftruncate => opened.and_then(|Opened { file, writes, .. }| {
                writes.then_some(()).ok_or(Errno::EINVAL)?;
                file.set_size(second).map_err(errno_of)?;
                let mut bytes = self.bytes.lock();
                let len = usize::try_from(second).unwrap_or(usize::MAX);
                bytes.truncate(len);
                Ok(0)
            }),
            Call::Fallocate => opened.and_then(|opened| self.fallocate(opened, second, (third, fourth))),
            Call::Fcntl => self.control(descriptor as u32, second, third),
            Call::Fsync => opened.and_then(|Opened { file, .. }| {
                file.sync(0..u64::MAX, false).map_err(|error| errno_of(error.into()))?;
                Ok(0)
            }),
            _ => Err(Errno::ENOSYS),
        };
        result.unwrap_or_else(failed)
    }

    /// `fcntl` about seals: no file of a program can be sealed.
    fn control(&self, descriptor: u32, command: u64, seals: u64) -> Result<Raw, Errno> {
        let in_memory = self.facts.tail_stays;
        let (writes, in_memory) = match descriptor {
            FILE | WRITE_ONLY => (true, in_memory),
            READ_ONLY => (false, in_memory),
            FOLDER => (false, false),
            ZEROS => (true, false),
            _ => return Err(Errno::EBADF),
        };
        let unknown = Seals::from_bits(seals as u32).is_none();
        match (command as u32 == F_ADD_SEALS as u32, in_memory) {
            (true, _) if !writes => Err(Errno::EPERM),
            (true, true) if !unknown => Err(Errno::EPERM),
            (true, _) | (false, false) => Err(Errno::EINVAL),
            (false, true) => Ok(Seals::SEAL.bits().into()),
        }
    }

    /// Reads all of the file into the cache.
    pub(crate) fn bring_in(&self) {
        let mut nowhere = Nowhere(MOST_RANGE_BYTES);
        let _ = self.openings[0].read(0, &mut nowhere);
    }

    /// The number that mappings show it by.
    pub(crate) fn number(&self) -> u64 {
        self.openings[0].number()
    }

    pub(crate) fn size(&self) -> u64 {
        self.openings[0].size()
    }

    /// Notes the size and the sums of its pages, with zeros past its end.
    pub(crate) fn sum_up(&self, seen: &mut Observation) {
        seen.file_size = self.size();
        let pages = seen.file_size.div_ceil(PAGE_SIZE).min(MOST_FILE_PAGES as u64);
        seen.file_sums.extend((0..pages).map(|page| page_sum(&self.openings[0], page * PAGE_SIZE)));
    }
}

/// The sum of a page of a file, with zeros past its end.
pub(crate) fn page_sum(file: &HostFile<'_>, offset: u64) -> u64 {
    let mut read = Sink(Page::default());
    let _ = file.read(offset, &mut read);
    sum::of_page(&read.0.bytes)
}

pub(crate) fn errno_of(error: PageError) -> Errno {
    match error {
        PageError::TooLarge => Errno::EFBIG,
        PageError::Sealed => Errno::EPERM,
        PageError::NotSupported => Errno::EOPNOTSUPP,
        PageError::OtherMachine | PageError::NotForWriting => Errno::EBADF,
        PageError::TextBusy => Errno::ETXTBSY,
        PageError::BadAddress | PageError::PastEnd => Errno::EFAULT,
        PageError::NoMemory(_) | PageError::OverLimit(_) => Errno::ENOMEM,
        PageError::File(FileError::NoSpace) => Errno::ENOSPC,
        // No call returns that a page is swapped out, and no program is killed for want of memory.
        PageError::File(_) | PageError::Swapped(_) | PageError::Killed => Errno::EIO,
    }
}

fn transferred(Transfer { bytes, stopped }: Transfer) -> Result<Raw, Errno> {
    match stopped {
        Some(error) if bytes == 0 => Err(errno_of(error)),
        _ => Ok(bytes.cast_signed()),
    }
}

/// Bytes between a page of the file and a program.
struct Page {
    bytes: [u8; PAGE_SIZE as usize],
    filled: usize,
}

impl Default for Page {
    fn default() -> Self {
        Self { bytes: [0; PAGE_SIZE as usize], filled: 0 }
    }
}

/// The parts of a range that lie in one page each, as lengths.
fn parts(addr: u64, bytes: usize) -> impl Iterator<Item = usize> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let rest = PAGE_SIZE - (addr.wrapping_add(done as u64) & (PAGE_SIZE - 1));
        let part = (bytes - done).min(rest as usize);
        done += part;
        (part > 0).then_some(part)
    })
}

/// A program's memory that a call writes to.
struct ToProgram<'p, 'v, S: ProgramSpace> {
    program: &'p Program<'v, S>,
    at: u64,
    left: u64,
    page: Page,
}

impl<S: ProgramSpace> UserCopy for ToProgram<'_, '_, S> {
    fn left(&self) -> u64 {
        self.left
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        // As many as are copied at once.
        let bytes = bytes.min(PAGE_SIZE as usize);
        let mut ready = 0;
        for part in parts(self.at, bytes) {
            let addr = VirtAddr(self.at.wrapping_add(ready as u64));
            if self.program.touch(addr, Access::Write).is_err() {
                break;
            }
            ready += part;
        }
        ready
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        self.page.filled = page.get(0, &mut self.page.bytes);
        self.page.filled
    }

    fn advance(&mut self, bytes: usize) {
        // The pages were accessible, and nothing else runs in the program.
        let _ = self.program.write(VirtAddr(self.at), &self.page.bytes[..bytes.min(self.page.filled)]);
        self.at = self.at.wrapping_add(bytes as u64);
        self.left -= bytes as u64;
    }
}

/// A program's memory that a call reads.
struct FromProgram<'p, 'v, S: ProgramSpace> {
    program: &'p Program<'v, S>,
    at: u64,
    left: u64,
    page: Page,
}

impl<S: ProgramSpace> UserCopy for FromProgram<'_, '_, S> {
    fn left(&self) -> u64 {
        self.left
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        self.page.filled = 0;
        for part in parts(self.at, bytes.min(PAGE_SIZE as usize)) {
            let from = self.page.filled;
            let addr = VirtAddr(self.at.wrapping_add(from as u64));
            if self.program.read(addr, &mut self.page.bytes[from..from + part]).is_err() {
                break;
            }
            self.page.filled += part;
        }
        // As Linux, all that is wanted, though a page is copied at once.
        let first = (self.at & !(PAGE_SIZE - 1)).saturating_add(PAGE_SIZE);
        for page in (first..self.at.saturating_add(bytes as u64)).step_by(PAGE_SIZE as usize) {
            if self.page.filled == 0 || self.program.touch(VirtAddr(page), Access::Read).is_err() {
                break;
            }
        }
        self.page.filled
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        page.set(0, &self.page.bytes[..self.page.filled])
    }

    fn advance(&mut self, bytes: usize) {
        self.page.bytes.copy_within(bytes..self.page.filled, 0);
        self.page.filled -= bytes;
        self.at = self.at.wrapping_add(bytes as u64);
        self.left -= bytes as u64;
    }
}

/// Bytes that a call writes.
struct FromVector<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl UserCopy for FromVector<'_> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        bytes
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        page.set(0, &self.bytes[self.at..])
    }

    fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

/// A reader of so many bytes that keeps none.
struct Nowhere(u64);

impl UserCopy for Nowhere {
    fn left(&self) -> u64 {
        self.0
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        bytes
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        page.len()
    }

    fn advance(&mut self, bytes: usize) {
        self.0 -= bytes as u64;
    }
}

/// A reader of one page.
struct Sink(Page);

impl UserCopy for Sink {
    fn left(&self) -> u64 {
        PAGE_SIZE - self.0.filled as u64
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        bytes
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        page.get(0, &mut self.0.bytes[self.0.filled..])
    }

    fn advance(&mut self, bytes: usize) {
        self.0.filled += bytes;
    }
}
