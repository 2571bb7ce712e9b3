//! The embedder's side of a file: where its bytes are when they are not in RAM.
//!
//! Safe code can implement a backing. So what it reports is believed only as far as it can do no harm: it
//! ends a request of its own that is under way, once. But a request names frames by their numbers, and a
//! backing accesses them; so to submit one is unsafe, and a backing that hands requests on promises that the
//! frames stay.

use core::ops::Range;
use quire_arch::{Order, PfnRange, Platform};
use quire_swap::{DeviceMemory, Direction, Submitted};

/// The name of a request. Each has one of its own, whatever machine it is of, so one that was kept from an
/// earlier request is no other's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IoToken(u64);

impl IoToken {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> u64 {
        self.0
    }
}

/// A transfer of consecutive bytes of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileIo<'a> {
    /// Which way.
    pub direction: Direction,
    /// The first byte in the file: a multiple of the page size.
    pub offset: u64,
    /// How many, at least one. The last page may be one that they fill in part: where the file ends.
    pub bytes: u64,
    /// The pages, in order. They have room for all the bytes.
    pub frames: &'a [PfnRange],
    /// What to report the end by.
    pub token: IoToken,
}

/// How much was transferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transferred {
    /// All that was asked for.
    All,
    /// Nothing, as all of it is zeros: a hole. Of a write this is an error.
    Zeros,
    /// So many bytes from the start. What is missing of a read is taken as zeros; of a write it is an error.
    Bytes(u64),
}

/// Why bytes of a file could not be transferred or stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u8)]
pub enum FileError {
    /// The medium failed (`EIO`).
    #[error("the file's medium failed")]
    Io = 1,
    /// The data read is not the data written (`EIO`).
    #[error("the file's data is damaged")]
    Corrupt = 2,
    /// There is no space for it (`ENOSPC`).
    #[error("there is no space for the file's data")]
    NoSpace = 3,
    /// The owner's share of the space is used up (`EDQUOT`).
    #[error("the owner's share of the space is used up")]
    Quota = 4,
    /// The file is not there any more (`ESTALE`).
    #[error("the file is not there any more")]
    Stale = 5,
}

impl FileError {
    /// The error with this number.
    pub(crate) const fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            1 => Self::Io,
            2 => Self::Corrupt,
            3 => Self::NoSpace,
            4 => Self::Quota,
            5 => Self::Stale,
            _ => return None,
        })
    }
}

/// The most pages that are read around one that is missing: 64 KiB.
pub(crate) const READAHEAD: usize = 16;

/// What a backing can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoLimits {
    /// Pages of a request, at least 1 and at most [`MOST_PAGES`](Self::MOST_PAGES).
    pub pages: u32,
    /// Ranges of frames of a request, at least 1 and at most [`MOST_SEGMENTS`](Self::MOST_SEGMENTS).
    pub segments: u32,
    /// The largest order of the file's folios. A folio is read or written by one request, so it has no more
    /// pages than that may have. As in Linux a call that writes makes folios as large as what it writes, and
    /// a fault in a mapping with MADV_HUGEPAGE reads the largest one; all others have one page.
    pub largest_order: Order,
    /// Pages that are read where one is missing, at most 16: those of an aligned block of so many which are
    /// not cached. With 0 or 1 the page alone, as of Linux's tmpfs.
    pub readahead: u32,
    /// Requests of the file that are under way at a time, at least 1 and at most
    /// [`MOST_IN_FLIGHT`](Self::MOST_IN_FLIGHT).
    pub in_flight: u32,
    /// Whether the contents of a page must not change while it is being written: it has a checksum beside it,
    /// for one. Calls that write wait then.
    pub stable_writes: bool,
    /// Whether programs may make holes by their mappings (`MADV_REMOVE`): [`FileBacking::punch`] does its
    /// part.
    pub holes: bool,
    /// Whether what programs write past the end of the file, in its last page, is in the file when that
    /// grows, as in Linux's tmpfs. Otherwise it becomes zeros, as in ext4.
    pub tail_stays: bool,
}

impl IoLimits {
    /// The most pages of a request: one folio of the largest order.
    pub const MOST_PAGES: u32 = 1 << Order::PMD.get();
    /// The most ranges of frames of a request.
    pub const MOST_SEGMENTS: u32 = 32;
    /// Pages of a request, where a backing does not say otherwise.
    const USUAL_PAGES: u32 = 32;
    /// The most requests of a file that are under way at a time.
    pub const MOST_IN_FLIGHT: u32 = 8;

    /// The order of the blocks that are read around a page.
    pub(crate) fn readahead_order(&self) -> Order {
        let pages = self.readahead.clamp(1, READAHEAD as u32);
        Order::new(pages.ilog2() as u8).unwrap_or(Order::ZERO)
    }

    /// The largest order of a folio that one request can transfer.
    pub(crate) fn folio_order(&self) -> Order {
        let pages = self.pages.clamp(1, Self::MOST_PAGES);
        let of_request = Order::new(pages.ilog2() as u8).unwrap_or(Order::ZERO);
        self.largest_order.min(of_request).min(Order::PMD)
    }
}

impl Default for IoLimits {
    fn default() -> Self {
        Self {
            pages: Self::USUAL_PAGES,
            segments: Self::MOST_SEGMENTS,
            largest_order: Order::ZERO,
            readahead: READAHEAD as u32,
            in_flight: Self::MOST_IN_FLIGHT,
            stable_writes: false,
            holes: false,
            tail_stays: false,
        }
    }
}

/// Where the bytes of a file are when they are not in RAM.
///
/// Every method may be called from all CPUs at once, and none is called pinned. The mmap lock of a space may
/// be held, where a call populates memory. None may call the memory management. A backing is aligned to a
/// page at most.
///
/// The size of the file is the cache's to know. A backing never sees a byte past it; where the embedder makes
/// a file smaller, it changes the size in the cache first and what is stored afterwards. What was never
/// written is read as zeros.
pub trait FileBacking<P: Platform>: Send + Sync + 'static {
    /// Starts one transfer of consecutive bytes. May sleep; folio locks and Invalidate may be held. Never
    /// called in reclaim.
    ///
    /// # Safety
    ///
    /// The frames of `io` are in the RAM of the machine of `memory`. They stay what they are, and those of a
    /// read are the backing's alone, until the request completes: until this returns [`Submitted::Done`] or
    /// [`Submitted::QueueFull`], or [`reap`](Self::reap) reports it.
    ///
    /// A backing that hands the request on to another one makes the same promise there. So it does not report
    /// it before the other one does. One that panics here has completed the request: nothing transfers it.
    unsafe fn submit(
        &self,
        memory: DeviceMemory<'_, P>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError>;

    /// Returns completed requests, each once. Whatever else it returns is ignored. `done` is called without
    /// locks that `submit` takes.
    fn reap(
        &self,
        memory: DeviceMemory<'_, P>,
        done: &mut dyn FnMut(IoToken, Result<Transferred, FileError>),
    ) {
        let _ = (memory, done);
    }

    /// Whether `reap` would find something. It is asked under whatever lock the platform's `park` holds, and
    /// so is [`progress`](Self::progress).
    fn has_done(&self) -> bool {
        false
    }

    /// The key to park on until [`has_done`](Self::has_done): the backing unparks it on each completion.
    fn wait_key(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// A number that changes when a request that found the queue full may be taken now, although
    /// [`reap`](Self::reap) returned no completion: a queue that files share changes it when it has room, and
    /// then unparks the key.
    fn progress(&self) -> u32 {
        0
    }

    /// What it can take. Asked once, when the file is made.
    fn limits(&self) -> IoLimits {
        IoLimits::default()
    }

    /// Space for the bytes of pages that are about to become dirty, or have more written to them: all of
    /// them, where the file may end before. A large folio is dirty as a whole. No folio is locked, and no
    /// lock of the file is held but the embedder's. If a hole is made meanwhile it is asked again.
    ///
    /// # Errors
    ///
    /// There is none. The pages are not written to then.
    fn prepare_write(&self, bytes: Range<u64>) -> Result<(), FileError> {
        let _ = bytes;
        Ok(())
    }

    /// Frees what is stored of whole pages that a program has made a hole of (`MADV_REMOVE`): they are zeros
    /// from now on. Invalidate is held: no page of them is cached, and none is read or written meanwhile.
    /// Only called if the [limits](IoLimits::holes) say so. As calls that write to the file may run
    /// meanwhile, the embedder's lock of the inode is not held.
    ///
    /// # Errors
    ///
    /// They could not be freed, and are what is stored.
    fn punch(&self, bytes: Range<u64>) -> Result<(), FileError> {
        let _ = bytes;
        Ok(())
    }

    /// Makes lasting what was written before. With `data_only` what is not needed to read the bytes again, as
    /// a time, may be left out (`fdatasync`).
    ///
    /// # Errors
    ///
    /// Something could not be made lasting.
    fn sync(&self, bytes: Range<u64>, data_only: bool) -> Result<(), FileError> {
        let _ = (bytes, data_only);
        Ok(())
    }
}
