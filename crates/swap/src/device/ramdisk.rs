//! A device that keeps pages uncompressed, in frames.

use super::memory::{fill, frame_for_contents, give_back};
use super::section::{Gate, Section};
use super::slots::{Contents, LockedSlot, MAX_SLOTS, SlotTable};
use super::{
    DeviceError, DeviceFlags, DeviceMemory, DeviceReport, Direction, PageIo, Submitted, SwapDevice,
    slots_inside,
};
use core::fmt;
// Counts order nothing, so no model has to see them.
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Order, PAGE_SIZE, Pfn, Pin, Platform};
use quire_frame::{AllocError, FailSite, Frames};

/// The site of the device's frames, for fail plans.
const SITE: FailSite = FailSite::new("ramdisk");

/// A swap device whose pages are frames of RAM: one for each written slot, until the slot is freed. A slot
/// without one reads as zeros.
pub struct RamDisk<P: Platform> {
    gate: Gate,
    table: SlotTable<P>,
    /// Every slot has its frame, always.
    preallocated: bool,
    used: AtomicU64,
    peak: AtomicU64,
}

impl<P: Platform> RamDisk<P> {
    /// A device of `slots` slots that takes frames as pages are written.
    ///
    /// # Errors
    ///
    /// As for [`Frames::allocate`], and [`AllocError::OutOfMemory`] for more slots than a device can have
    /// (2^28, which are a TiB).
    #[doc(hidden)]
    pub fn new(frames: &Frames<P>, slots: u64) -> Result<Self, AllocError> {
        if slots > MAX_SLOTS {
            return Err(AllocError::OutOfMemory);
        }
        let table = SlotTable::new(frames, slots, SITE)?;
        let (used, peak) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { gate: Gate::new(frames), table, preallocated: false, used, peak })
    }

    /// A device of `slots` slots that takes all its frames now, and no more until it is closed: no write to
    /// it can fail.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    #[doc(hidden)]
    pub fn preallocated(frames: &Frames<P>, slots: u64) -> Result<Self, AllocError> {
        let mut disk = Self::new(frames, slots)?;
        disk.preallocated = true;
        for slot in 0..slots {
            let pin = frames.platform().pin();
            let made = match disk.gate.enter(frames, &pin) {
                Some(section) => disk.make(&section, slot),
                None => Err(DeviceError::Io),
            };
            if made.is_err() {
                drop(pin);
                disk.close(DeviceMemory::new(frames));
                return Err(AllocError::OutOfMemory);
            }
        }
        Ok(disk)
    }

    /// Bytes of RAM that hold pages.
    fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed) * PAGE_SIZE
    }

    /// Gives the slot a frame of zeros if it has none.
    fn make(&self, section: &Section<'_, P>, slot: u64) -> Result<(), DeviceError> {
        self.table.prepare(section, slot)?;
        if self.table.lock(section, slot).is_some_and(|locked| locked.contents() != Contents::Empty) {
            return Ok(());
        }
        let request = frame_for_contents(SITE).zeroed();
        let fresh = section.frames.allocate(section.pin, request).map_err(|_| DeviceError::NoSpace)?;
        if let Some(mut locked) = self.table.lock(section, slot)
            && locked.contents() == Contents::Empty
        {
            locked.replace(Contents::Whole(fresh));
            let used = self.used.fetch_add(1, Ordering::Relaxed) + 1;
            self.peak.fetch_max(used, Ordering::Relaxed);
        } else {
            give_back(section.frames, section.pin, fresh, Order::ZERO);
        }
        Ok(())
    }

    /// # Safety
    ///
    /// `page` is the frame of a write, as for [`submit`](SwapDevice::submit).
    unsafe fn write(&self, section: &Section<'_, P>, slot: u64, page: Pfn) -> Result<(), DeviceError> {
        loop {
            self.make(section, slot)?;
            let Some(locked) = self.table.lock(section, slot) else { continue };
            // A thread that frees the slot at the same time may have taken the frame again.
            let Contents::Whole(pfn) = locked.contents() else { continue };
            // SAFETY: the slot is locked, so that its frame stays and no other thread uses it; the other is
            // the caller's, which programs may be writing.
            unsafe { section.frames.platform().copy(page, pfn, Order::ZERO) };
            return Ok(());
        }
    }

    /// # Safety
    ///
    /// `page` is the frame of a read, as for [`submit`](SwapDevice::submit).
    unsafe fn read(&self, section: &Section<'_, P>, slot: u64, page: Pfn) {
        let locked = self.table.lock(section, slot);
        let contents = locked.as_ref().map_or(Contents::Empty, LockedSlot::contents);
        // SAFETY: the slot is locked, so that its frame stays; the other is the caller's alone.
        unsafe {
            match contents {
                Contents::Whole(pfn) => section.frames.platform().copy(pfn, page, Order::ZERO),
                _ => fill(section.frames, page, 0),
            }
        }
    }

    /// # Safety
    ///
    /// As for [`submit`](SwapDevice::submit).
    unsafe fn page(&self, frames: &Frames<P>, io: PageIo, nth: u64) -> Result<(), DeviceError> {
        let pin = frames.platform().pin();
        let section = self.gate.enter(frames, &pin).ok_or(DeviceError::Io)?;
        let (slot, page) = (io.slot + nth, io.pfn.offset(nth));
        // SAFETY: the caller's promise.
        unsafe {
            match io.direction {
                Direction::Write => self.write(&section, slot, page)?,
                Direction::Read => self.read(&section, slot, page),
            }
        }
        Ok(())
    }

    fn release(&self, frames: &Frames<P>, pin: &Pin<'_, P>, contents: Contents) {
        if let Contents::Whole(pfn) = contents {
            give_back(frames, pin, pfn, Order::ZERO);
            self.used.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<P: Platform> SwapDevice<P> for RamDisk<P> {
    fn kind(&self) -> &'static str {
        "ramdisk"
    }

    fn slots(&self) -> u64 {
        self.table.slots()
    }

    fn flags(&self) -> DeviceFlags {
        if self.preallocated {
            DeviceFlags::SYNCHRONOUS
        } else {
            DeviceFlags::SYNCHRONOUS | DeviceFlags::NOTES_FREED | DeviceFlags::DISCARD
        }
    }

    fn is_of(&self, memory: DeviceMemory<'_, P>) -> bool {
        self.gate.is_of(memory.frames())
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted {
        let frames = memory.frames();
        let pages = slots_inside(self.slots(), io);
        // SAFETY: the caller's promise.
        let page = |nth| unsafe { self.page(frames, io, nth) };
        Submitted::Done(pages.and_then(|mut pages| pages.try_for_each(page)))
    }

    fn freed(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        if self.preallocated {
            return;
        }
        let frames = memory.frames();
        for slot in slot..slot.saturating_add(count).min(self.slots()) {
            let pin = frames.platform().pin();
            let Some(section) = self.gate.enter(frames, &pin) else { return };
            let before = self.table.lock(&section, slot).map(|mut locked| locked.replace(Contents::Empty));
            self.release(frames, &pin, before.unwrap_or(Contents::Empty));
        }
    }

    fn discard(&self, memory: DeviceMemory<'_, P>, slot: u64, count: u64) {
        self.freed(memory, slot, count);
    }

    fn report(&self) -> DeviceReport {
        DeviceReport {
            stored_pages: self.used.load(Ordering::Relaxed),
            used_bytes: self.used_bytes(),
            peak_bytes: self.peak.load(Ordering::Relaxed) * PAGE_SIZE,
            ..DeviceReport::default()
        }
    }

    fn close(&self, memory: DeviceMemory<'_, P>) {
        let frames = memory.frames();
        if self.gate.close(frames) {
            self.table.close(frames, |pin, contents| self.release(frames, pin, contents));
        }
    }
}

impl<P: Platform> fmt::Debug for RamDisk<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RamDisk")
            .field("table", &self.table)
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}
