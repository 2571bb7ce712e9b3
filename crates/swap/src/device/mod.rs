//! What a swap device is.
//!
//! A device keeps pages in slots. Work is begun with [`submit`](SwapDevice::submit). A device that does all
//! of it there and then says so ([`DeviceFlags::SYNCHRONOUS`]). Any other takes notes and completes later: a
//! thread that waits for something parks on the device's [`wait_key`](SwapDevice::wait_key) and then
//! [`reap`](SwapDevice::reap)s what is done, for the thread that began it. No memory is allocated for a
//! request on the way down: it is a few words that the device copies to a queue of its own.

mod compressed;
mod front;
mod memory;
mod ramdisk;
mod section;
mod slots;
#[cfg(all(test, not(loom)))]
#[path = "../../../frame/tests/common/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of quire-frame, which use more of it")]
mod testing;

pub use compressed::{
    CODEC_OUTPUT, Codec, CompressedRam, CompressedStore, Damaged, Lz4, Lz4Workspace, StoreStatistics,
};
pub use front::CompressedCache;
pub use ramdisk::RamDisk;

use bitflags::bitflags;
use quire_arch::{Pfn, Platform};
use quire_frame::Frames;

bitflags! {
    /// What a device is like.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct DeviceFlags: u8 {
        /// Work is done when `submit` returns.
        const SYNCHRONOUS = 1 << 0;
        /// Wants to hear of clusters that are free again ([`SwapDevice::discard`]).
        const DISCARD = 1 << 1;
        /// Wants to hear of each slot that is free again ([`SwapDevice::freed`]).
        const NOTES_FREED = 1 << 2;
        /// Finding a place takes the device long, so slots near each other are read together.
        const SEEKS = 1 << 3;
    }
}

/// Which way a page goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// From the device to RAM.
    Read,
    /// From RAM to the device.
    Write,
}

/// Pages to read or write: consecutive frames, consecutive slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageIo {
    /// Which way.
    pub direction: Direction,
    /// The first slot.
    pub slot: u64,
    /// The first frame.
    pub pfn: Pfn,
    /// How many pages.
    pub pages: u32,
}

/// Why pages could not be read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceError {
    /// The medium failed.
    #[error("the device failed")]
    Io,
    /// What came back is not what was written.
    #[error("the device returned damaged data")]
    Corrupt,
    /// The device has no room for a page that compresses so badly, or is at its limit.
    #[error("the device has no room")]
    NoSpace,
    /// The slot is not one of the device's.
    #[error("there is no such slot")]
    OutOfRange,
}

/// What became of work that was to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "work that was not taken has to be begun again"]
pub enum Submitted {
    /// It is done, well or not.
    Done(Result<(), DeviceError>),
    /// [`SwapDevice::reap`] will tell.
    Begun,
    /// The device's queue is full: reap, wait, and come again.
    QueueFull,
}

/// What a device tells of itself. Sizes in bytes, counts in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceReport {
    /// Whether this is about a compressed cache in front of the device, and not about the device.
    pub is_cache: bool,
    /// Pages that it keeps.
    pub stored_pages: u64,
    /// Of these, pages all of whose words are equal.
    pub same_pages: u64,
    /// Of these, pages that are kept as they are because they do not compress.
    pub huge_pages: u64,
    /// What the pages come to once compressed.
    pub compressed_bytes: u64,
    /// RAM that the device uses for them.
    pub used_bytes: u64,
    /// The most that it used so far.
    pub peak_bytes: u64,
    /// The most that it may use; none if there is no limit.
    pub limit_bytes: Option<u64>,
    /// Pages of RAM that compaction freed.
    pub compacted_pages: u64,
    /// Pages that went from a compressed cache to the device behind it.
    pub written_back_pages: u64,
}

/// A machine's memory, as a swap device may use it.
#[derive(Debug)]
pub struct DeviceMemory<'f, P: Platform>(&'f Frames<P>);

impl<P: Platform> Clone for DeviceMemory<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for DeviceMemory<'_, P> {}

impl<'f, P: Platform> DeviceMemory<'f, P> {
    /// The memory that `frames` are of: for tests of devices.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(frames: &'f Frames<P>) -> Self {
        Self(frames)
    }

    /// The machine, whose direct map leads to the frames of a request.
    #[must_use]
    pub fn platform(self) -> &'f P {
        self.0.platform()
    }

    pub(crate) const fn frames(self) -> &'f Frames<P> {
        self.0
    }
}

/// A place for pages that are not in RAM.
///
/// Every method may be called from all CPUs at once. `submit` and `discard` are called without locks and
/// without a pin, `freed` with spin locks held.
pub trait SwapDevice<P: Platform>: Send + Sync + 'static {
    /// What kind of device it is, in a word.
    fn kind(&self) -> &'static str;

    /// Number of slots. Never changes.
    fn slots(&self) -> u64;

    /// What it is like. Never changes.
    fn flags(&self) -> DeviceFlags;

    /// Begins to read or write. The frames stay what they are until the work is done; while a page is
    /// written, a program may be changing it, and whatever is written of it then is written again later.
    fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted;

    /// How many of these pages a compressed cache in front of the device has: they are counted as the
    /// cache's. A moment's view.
    fn cached(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> u64 {
        let _ = (memory, io);
        0
    }

    /// Hands over work that is done: each once.
    fn reap(&self, memory: DeviceMemory<'_, P>, done: &mut dyn FnMut(PageIo, Result<(), DeviceError>)) {
        let _ = (memory, done);
    }

    /// Whether `reap` would find something.
    fn has_done(&self) -> bool {
        false
    }

    /// On what to park until [`has_done`](Self::has_done): the device unparks it each time that work is done.
    fn wait_key(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// What these slots hold is needed no more. Does not allocate, fail or sleep.
    fn freed(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        let _ = (memory, slot, count);
    }

    /// None of these slots, a cluster or the end of the last one, is in use.
    fn discard(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        let _ = (memory, slot, count);
    }

    /// Moves what it keeps in RAM together, and returns the frames that this freed. Called when memory is
    /// short, and by the background now and then.
    fn compact(&self, memory: DeviceMemory<'_, P>) -> u64 {
        let _ = memory;
        0
    }

    /// Statistics.
    fn report(&self) -> DeviceReport {
        DeviceReport::default()
    }

    /// The last use: whatever the device has of the machine's frames goes back.
    fn close(&self, memory: DeviceMemory<'_, P>) {
        let _ = memory;
    }
}

/// The numbers of the pages of `io`, if all of them are on a device with so many slots.
fn slots_inside(slots: u64, io: PageIo) -> Result<core::ops::Range<u64>, DeviceError> {
    let pages = u64::from(io.pages);
    if io.slot <= slots && pages <= slots - io.slot { Ok(0..pages) } else { Err(DeviceError::OutOfRange) }
}
