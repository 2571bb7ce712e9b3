//! The interface of swap devices.
//!
//! A device keeps pages in slots. I/O starts with [`submit`](SwapDevice::submit). A device that completes it
//! there is marked [`DeviceFlags::SYNCHRONOUS`]. Any other queues the request and completes it later: a
//! thread that waits parks on the device's [`wait_key`](SwapDevice::wait_key) and then
//! [`reap`](SwapDevice::reap)s what is done, for the thread that began it. Submitting a request allocates no
//! memory: it is a few words that the device copies to its own queue.
//!
//! Safe code can implement a device. So what a device reports is believed only as far as it can do no harm:
//! it ends a request of its own that is under way, once. But a request names frames by their numbers, and a
//! device accesses them; so to submit one is unsafe, and a device that hands requests on to another one
//! promises that the frames stay.

mod compressed;
mod front;
mod memory;
mod ramdisk;
mod section;
mod slots;
#[cfg(all(test, not(loom)))]
#[path = "../../../frame/tests/common/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of quire-frame, which use more of it")]
pub(crate) mod testing;

pub use compressed::{
    CODEC_OUTPUT, Codec, CompressedRam, CompressedStore, Damaged, Lz4, Lz4Workspace, StoreStatistics,
};
pub use front::CompressedCache;
pub use ramdisk::RamDisk;

use bitflags::bitflags;
use quire_arch::{Pfn, Platform};
use quire_frame::{Frames, MachineId};
use quire_memcg::{MemcgId, Memcgs};

bitflags! {
    /// Properties of a device.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct DeviceFlags: u8 {
        /// I/O is complete when `submit` returns.
        const SYNCHRONOUS = 1 << 0;
        /// Wants discards of freed clusters ([`SwapDevice::discard`]).
        const DISCARD = 1 << 1;
        /// Wants a notification for each freed slot ([`SwapDevice::freed`]).
        const NOTES_FREED = 1 << 2;
        /// Rotational: seeks are slow, so slots near each other are read together.
        const SEEKS = 1 << 3;
    }
}

/// The direction of a transfer.
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
    /// The data read is not the data written.
    #[error("the device returned damaged data")]
    Corrupt,
    /// The device has no space for the page, e.g. a poorly compressible one, or is at its limit.
    #[error("the device has no room")]
    NoSpace,
    /// The slot is not one of the device's.
    #[error("there is no such slot")]
    OutOfRange,
}

/// The result of a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "work that was not taken has to be begun again"]
pub enum Submitted<T = (), E = DeviceError> {
    /// It is complete, with success or an error.
    Done(Result<T, E>),
    /// `reap` will return its completion.
    Begun,
    /// The device's queue is full: reap, wait, and retry. A synchronous device has no queue: for reads past
    /// the swap cache this is an error.
    QueueFull,
}

/// A device's statistics. Sizes in bytes, counts in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceReport {
    /// Whether these are of a compressed cache in front of the device, not of the device itself.
    pub is_cache: bool,
    /// Pages stored.
    pub stored_pages: u64,
    /// Of these, pages all of whose words are equal.
    pub same_pages: u64,
    /// Of these, incompressible pages, which are stored uncompressed.
    pub huge_pages: u64,
    /// Their compressed size.
    pub compressed_bytes: u64,
    /// RAM that the device uses for them.
    pub used_bytes: u64,
    /// The most that it used so far.
    pub peak_bytes: u64,
    /// The most that it may use; none if there is no limit.
    pub limit_bytes: Option<u64>,
    /// Pages of RAM that compaction freed.
    pub compacted_pages: u64,
    /// Pages written back from a compressed cache to the device behind it.
    pub written_back_pages: u64,
}

/// A machine's memory, as a swap device may use it.
#[derive(Debug)]
pub struct DeviceMemory<'f, P: Platform> {
    frames: &'f Frames<P>,
    memcgs: Option<&'f Memcgs<P>>,
}

impl<P: Platform> Clone for DeviceMemory<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for DeviceMemory<'_, P> {}

impl<'f, P: Platform> DeviceMemory<'f, P> {
    /// The memory of the machine of `frames`: for tests of devices.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(frames: &'f Frames<P>) -> Self {
        Self { frames, memcgs: None }
    }

    /// The memory of the machine of `memcgs`.
    pub(crate) fn of(memcgs: &'f Memcgs<P>) -> Self {
        Self { frames: memcgs.frames(), memcgs: Some(memcgs) }
    }

    /// The machine, whose direct map leads to the frames of a request.
    #[must_use]
    pub fn platform(self) -> &'f P {
        self.frames.platform()
    }

    /// Which machine it is: no other one has the same number, also later.
    #[doc(hidden)]
    #[must_use]
    pub fn machine(self) -> MachineId {
        self.frames.id()
    }

    pub(crate) const fn frames(self) -> &'f Frames<P> {
        self.frames
    }

    /// The memcgs, unless it is used without.
    pub(crate) const fn memcgs(self) -> Option<&'f Memcgs<P>> {
        self.memcgs
    }
}

/// A swap device: a store for pages that are not in RAM.
///
/// Every method may be called from all CPUs at once. `submit` and `discard` are called without locks and
/// without a pin, `freed` with spin locks held.
pub trait SwapDevice<P: Platform>: Send + Sync + 'static {
    /// The kind of device, as a short name.
    fn kind(&self) -> &'static str;

    /// Number of slots. Never changes.
    fn slots(&self) -> u64;

    /// Its properties. Never change.
    fn flags(&self) -> DeviceFlags;

    /// Whether the device can be used on this machine: it has no memory of another one, whose frames have
    /// other owners here. A device in front of another one asks that too. Never changes.
    fn is_of(&self, memory: DeviceMemory<'_, P>) -> bool {
        let _ = memory;
        true
    }

    /// Starts a read or write. A program may change a page while it is being written; such a page is written
    /// again later.
    ///
    /// # Safety
    ///
    /// The frames of `io` are in the RAM of the machine of `memory`. They stay what they are, and those of a
    /// read are the device's alone, until the request completes: until this returns [`Submitted::Done`] or
    /// [`Submitted::QueueFull`], or [`reap`](Self::reap) reports it, or [`close`](Self::close) returns.
    ///
    /// A device that hands the request on to another one makes the same promise there. So it does not report
    /// it before the other one does.
    ///
    /// ```compile_fail,E0133
    /// use quire_swap::{DeviceMemory, Direction, PageIo, SwapDevice};
    ///
    /// // Safe code cannot have a device write to whatever frame it names.
    /// fn overwrite<P: quire_arch::Platform>(device: &impl SwapDevice<P>, memory: DeviceMemory<'_, P>) {
    ///     let pfn = quire_arch::Pfn(1 << 40);
    ///     let _ = device.submit(memory, PageIo { direction: Direction::Read, slot: 0, pfn, pages: 1 });
    /// }
    /// ```
    unsafe fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted;

    /// How many of these pages a compressed cache in front of the device has: they are counted as the
    /// cache's. A snapshot; more than there are pages counts as all.
    fn cached(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> u64 {
        let _ = (memory, io);
        0
    }

    /// Returns completed requests, each once. Whatever else it returns is ignored. `done` may call any method
    /// of the device, [`freed`](Self::freed) for one: it is called without locks that these take.
    fn reap(&self, memory: DeviceMemory<'_, P>, done: &mut dyn FnMut(PageIo, Result<(), DeviceError>)) {
        let _ = (memory, done);
    }

    /// Whether `reap` would find something. It is asked under whatever lock the platform's `park` holds, and
    /// so is [`progress`](Self::progress).
    fn has_done(&self) -> bool {
        false
    }

    /// The key to park on until [`has_done`](Self::has_done): the device unparks it on each completion.
    fn wait_key(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// A number that changes when a request that found the queue full may be taken now, although
    /// [`reap`](Self::reap) returned no completion: a device that makes room in another way changes it, and
    /// then unparks the key.
    fn progress(&self) -> u32 {
        0
    }

    /// The contents of these slots are no longer needed. Does not allocate, fail or sleep.
    fn freed(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        let _ = (memory, slot, count);
    }

    /// These slots are charged to another memcg from now on. Called with spin locks held, and like
    /// [`freed`](Self::freed) it does not allocate, fail or sleep.
    #[doc(hidden)]
    fn recharged(&self, memory: DeviceMemory<'_, P>, (slot, count): (u64, u64), to: MemcgId) {
        let _ = (memory, slot, count, to);
    }

    /// None of these slots, a cluster or the end of the last one, is in use.
    fn discard(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        let _ = (memory, slot, count);
    }

    /// Compacts what it keeps in RAM until about `wanted` frames are free, and returns how many were freed.
    /// More than `wanted`, or than were freed on the machine meanwhile, is not believed. Called when memory
    /// is short, by a program that waits for it too.
    fn compact(&self, memory: DeviceMemory<'_, P>, wanted: u64) -> u64 {
        let _ = (memory, wanted);
        0
    }

    /// Statistics.
    fn report(&self) -> DeviceReport {
        DeviceReport::default()
    }

    /// The last use: the device frees its frames, of this machine's. Requests may be under way, whose
    /// completions are not wanted any more: their frames have other uses when this returns, so a device that
    /// uses them at its own time waits for that. May sleep. A device in front of another one closes that,
    /// too.
    fn close(&self, memory: DeviceMemory<'_, P>) {
        let _ = memory;
    }
}

/// A device that says it is [synchronous](DeviceFlags::SYNCHRONOUS) has begun a request, and may use its
/// frames for ever: they are never freed. They are those of a folio.
#[cold]
pub(crate) fn keep_for_ever<P: Platform>(frames: &Frames<P>, io: PageIo) {
    frames.folio(io.pfn).frame().get(1);
}

/// The numbers of the pages of `io`, if all of them are on a device with so many slots.
fn slots_inside(slots: u64, io: PageIo) -> Result<core::ops::Range<u64>, DeviceError> {
    let pages = u64::from(io.pages);
    if io.slot <= slots && pages <= slots - io.slot { Ok(0..pages) } else { Err(DeviceError::OutOfRange) }
}
