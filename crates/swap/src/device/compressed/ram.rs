//! The device of compressed RAM.

use super::codec::Codec;
use super::lz4::Lz4;
use super::{CompressedStore, StoreStatistics};
use crate::device::{
    DeviceError, DeviceFlags, DeviceMemory, DeviceReport, Direction, PageIo, Submitted, SwapDevice, memory,
    slots_inside,
};
use core::fmt;
use quire_arch::{PAGE_SIZE, Platform};
use quire_frame::{AllocError, Frames};

/// A swap device whose pages stay in RAM, compressed: what Linux calls zram.
///
/// A slot that was never written, or is free, reads as zeros. If one page of several cannot be written, those
/// before it are written. That is harmless: the caller rewrites all of them, or frees their slots.
#[derive(Debug)]
pub struct CompressedRam<P: Platform, C: Codec = Lz4> {
    store: CompressedStore<P, C>,
}

impl<P: Platform, C: Codec> CompressedRam<P, C> {
    /// A device of `slots` slots.
    ///
    /// # Errors
    ///
    /// As for [`CompressedStore::new`].
    #[doc(hidden)]
    pub fn new(frames: &Frames<P>, slots: u64, codec: C) -> Result<Self, AllocError> {
        Ok(Self { store: CompressedStore::new(frames, slots, codec)? })
    }

    /// The store of its pages.
    #[doc(hidden)]
    pub fn store(&self) -> &CompressedStore<P, C> {
        &self.store
    }

    /// The device in numbers.
    #[doc(hidden)]
    pub fn statistics(&self) -> StoreStatistics {
        self.store.statistics()
    }

    /// Writes the line that Linux shows in `mm_stat`.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    #[doc(hidden)]
    pub fn mm_stat(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.statistics().mm_stat(out)
    }

    /// # Safety
    ///
    /// As for [`submit`](SwapDevice::submit).
    unsafe fn page(&self, frames: &Frames<P>, io: PageIo, nth: u64) -> Result<(), DeviceError> {
        let (slot, pfn) = (io.slot + nth, io.pfn.offset(nth));
        match io.direction {
            Direction::Write => self.store.store(frames, slot, pfn),
            Direction::Read => {
                if !self.store.load(frames, slot, pfn)? {
                    // SAFETY: the caller's promise: the frames of a read are the device's.
                    unsafe { memory::fill(frames, pfn, 0) };
                }
                Ok(())
            }
        }
    }
}

impl<P: Platform, C: Codec> SwapDevice<P> for CompressedRam<P, C> {
    fn kind(&self) -> &'static str {
        "zram"
    }

    fn slots(&self) -> u64 {
        self.store.slots()
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::SYNCHRONOUS | DeviceFlags::NOTES_FREED
    }

    fn is_of(&self, memory: DeviceMemory<'_, P>) -> bool {
        self.store.is_of(memory.frames())
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted {
        let frames = memory.frames();
        let pages = slots_inside(self.slots(), io);
        // SAFETY: the caller's promise.
        let page = |nth| unsafe { self.page(frames, io, nth) };
        Submitted::Done(pages.and_then(|mut pages| pages.try_for_each(page)))
    }

    fn freed(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        let frames = memory.frames();
        (slot..slot.saturating_add(count).min(self.slots())).for_each(|slot| self.store.free(frames, slot));
    }

    fn report(&self) -> DeviceReport {
        self.statistics().report()
    }

    fn compact(&self, memory: DeviceMemory<'_, P>, wanted: u64) -> u64 {
        let frames = memory.frames();
        self.store.compact(frames, wanted) / PAGE_SIZE
    }

    fn close(&self, memory: DeviceMemory<'_, P>) {
        let frames = memory.frames();
        self.store.close(frames);
    }
}
