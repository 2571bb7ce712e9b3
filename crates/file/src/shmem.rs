//! Shared memory: files whose bytes are nowhere else (Linux's shmem).
//!
//! A page that was never written is a hole, and a new page of zeros where a program maps it. All pages are
//! dirty for good, so writes are not noticed, and nothing is written back.

use crate::backing::{FileBacking, FileError, FileIo, IoLimits, Transferred};
use crate::huge::ShmemEnabled;
use crate::index::IndexRange;
use crate::seals::{SealState, Seals};
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use quire_arch::Platform;
use quire_swap::{DeviceMemory, Direction, Submitted};
use quire_sync::atomic::raw::{AtomicBool, AtomicU64, Ordering};

/// Who is asked for each page that comes to exist of shared memory, in RAM or on a swap device, and told of
/// each that is gone: a file system with a size, for one.
///
/// The first is called with nothing locked but the mmap lock, where a call populates memory; the second with
/// the locks of the file, too, so it does not call the memory management. Reclaim calls that in the depth of
/// any request for memory: so it takes no lock that is held where memory is asked for, and if it panics there
/// the folios that reclaim has in hand are lost.
///
/// It is dropped where the last opening of the file is closed. Where reclaim had that it is kept until a
/// thread [ends such files](crate::HeldFile::end_left): that holds no lock, so the drop may sleep, but it may
/// come later than the close, and in any thread.
pub trait ShmemOwner: Send + Sync + 'static {
    /// `pages` more are about to exist.
    ///
    /// # Errors
    ///
    /// There is no room for them: a fault is `SIGBUS`, as in Linux.
    fn take_pages(&self, pages: u64) -> Result<(), FileError>;

    /// So many that were taken are gone, or did not come.
    fn give_back_pages(&self, pages: u64);

    /// The file system that it takes pages of: all owners with this number take them of one. Where that has
    /// no room, what large folios have past the end of its files is freed. 0 for memory of no file system.
    /// Asked once, when the file is made.
    fn file_system(&self) -> usize {
        0
    }

    /// Where its pages come in large folios: what the option `huge` of its file system says, where the first
    /// four are allowed. `None` for memory of no file system, for which the settings of the machine are.
    fn huge(&self) -> Option<ShmemEnabled> {
        None
    }
}

/// Memory without a limit of its own.
impl ShmemOwner for () {
    fn take_pages(&self, _pages: u64) -> Result<(), FileError> {
        Ok(())
    }

    fn give_back_pages(&self, _pages: u64) {}
}

/// Which shared memory it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShmemName {
    /// What `mmap` makes. It has no number, and no seal can be added.
    None,
    /// A memfd, or a file in a tmpfs.
    File,
    /// A segment of SysV shared memory. No seal can be added.
    Segment,
}

/// How pages of shared memory count as committed (`Committed_AS`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShmemPromise {
    /// So many from the start, for as long as it is there.
    Whole(u64),
    /// Those that exist, as of a file in a tmpfs.
    Each,
}

/// What makes a file shared memory.
pub struct ShmemState {
    /// A part of the backing, which outlives this.
    owner: NonNull<dyn ShmemOwner>,
    /// What it said when the file was made.
    file_system: usize,
    promise: ShmemPromise,
    seals: SealState,
    name: ShmemName,
    /// Its pages stay in memory.
    stays: AtomicBool,
    /// A large folio was made for it. Set before that is put into its cache, and never cleared.
    pub(crate) has_large: AtomicBool,
    /// How far pages were allocated (Linux's `fallocend`): what a large folio has up to there stays when that
    /// is split.
    pub(crate) allocated: AllocatedEnd,
}

/// The page up to which pages were allocated, as the last calls say: it is not exact where others are made at
/// the same time.
pub(crate) struct AllocatedEnd(AtomicU64);

impl AllocatedEnd {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    // Relaxed: it is written before the pages are made, and read by a thread that has locked one of them.

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Pages are about to be allocated up to `end`. Returns what there was.
    pub(crate) fn raise(&self, end: u64) -> u64 {
        self.0.fetch_max(end, Ordering::Relaxed)
    }

    /// That has failed, and `before` is what there was.
    pub(crate) fn undo(&self, end: u64, before: u64) {
        if before < end {
            // Where another call has changed it since, that holds.
            let _ = self.0.compare_exchange(end, before, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The pages of a range are gone.
    pub(crate) fn cut(&self, gone: IndexRange) {
        let ends_there = |end: u64| (end > gone.start() && end <= gone.end()).then_some(gone.start());
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, ends_there);
    }
}

impl ShmemState {
    /// Of memory without seals, or without the possibility of any.
    ///
    /// # Safety
    ///
    /// The owner is valid as long as this is used.
    pub(crate) unsafe fn new(owner: NonNull<dyn ShmemOwner>, promise: ShmemPromise, name: ShmemName) -> Self {
        let seals = if matches!(name, ShmemName::File) { Seals::empty() } else { Seals::SEAL };
        Self {
            owner,
            // SAFETY: it is valid (caller).
            file_system: unsafe { owner.as_ref() }.file_system(),
            promise,
            seals: SealState::new(seals),
            name,
            stays: AtomicBool::new(false),
            has_large: AtomicBool::new(false),
            allocated: AllocatedEnd::new(),
        }
    }

    /// Who is asked for its pages.
    pub(crate) fn owner(&self) -> &dyn ShmemOwner {
        // SAFETY: valid as long as this is used (contract of `new`).
        unsafe { self.owner.as_ref() }
    }

    pub(crate) const fn promise(&self) -> ShmemPromise {
        self.promise
    }

    /// The file system that it takes pages of.
    pub const fn file_system(&self) -> usize {
        self.file_system
    }

    /// Its seals with what belongs to them.
    pub(crate) const fn seal_state(&self) -> &SealState {
        &self.seals
    }

    /// Its seals.
    #[inline]
    pub fn seals(&self) -> Seals {
        self.seals.get()
    }

    /// Whether it is a segment of SysV shared memory.
    #[inline]
    pub fn is_segment(&self) -> bool {
        self.name == ShmemName::Segment
    }

    /// Whether its pages are kept from being paged out (`SHM_LOCK`).
    #[inline]
    pub fn stays_in_memory(&self) -> bool {
        self.stays.load(Ordering::Relaxed)
    }

    /// From now on pages that are in memory stay there, or do not. Nothing is brought in. The caller
    /// [rescues](crate::ShmemPages::rescue) what does not stay any more.
    pub(crate) fn keep_in_memory(&self, stays: bool) {
        self.stays.store(stays, Ordering::Relaxed);
    }
}

impl fmt::Debug for ShmemState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmemState")
            .field("promise", &self.promise)
            .field("seals", &self.seals)
            .finish_non_exhaustive()
    }
}

/// The backing of shared memory.
pub(crate) struct Shmem<O>(pub(crate) O);

impl<O: ShmemOwner> ShmemOwner for Shmem<O> {
    fn take_pages(&self, pages: u64) -> Result<(), FileError> {
        self.0.take_pages(pages)
    }

    fn give_back_pages(&self, pages: u64) {
        self.0.give_back_pages(pages);
    }

    fn file_system(&self) -> usize {
        self.0.file_system()
    }

    fn huge(&self) -> Option<ShmemEnabled> {
        self.0.huge()
    }
}

impl<P: Platform, O: ShmemOwner> FileBacking<P> for Shmem<O> {
    unsafe fn submit(
        &self,
        _memory: DeviceMemory<'_, P>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        Submitted::Done(match io.direction {
            Direction::Read => Ok(Transferred::Zeros),
            Direction::Write => Err(FileError::Io),
        })
    }

    fn limits(&self) -> IoLimits {
        IoLimits { readahead: 0, holes: true, tail_stays: true, ..IoLimits::default() }
    }

    fn punch(&self, _bytes: Range<u64>) -> Result<(), FileError> {
        Ok(())
    }
}
