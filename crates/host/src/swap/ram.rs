//! A swap device in memory of the host.

use crate::threads::{Mutex, MutexGuard};
use core::fmt;
use core::ptr::NonNull;
use quire_arch::{PAGE_SIZE, Platform};
use quire_swap::{
    DeviceError, DeviceFlags, DeviceMemory, DeviceReport, Direction, PageIo, Submitted, SwapDevice,
};
use std::collections::TryReserveError;
use std::sync::PoisonError;
// Counts order nothing, so no model has to see them.
use core::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = PAGE_SIZE as usize / size_of::<u64>();

type Page = Box<[u64; WORDS]>;

/// A swap device that keeps pages in memory of the host: as fast as possible, and it takes none of the
/// machine's own RAM.
///
/// Memory is allocated when a slot is written, and freed when the slot is free.
pub struct HostRam {
    slots: Box<[Mutex<Option<Page>>]>,
    stored: AtomicU64,
    flags: DeviceFlags,
}

impl HostRam {
    /// A device of `slots` slots.
    ///
    /// # Errors
    ///
    /// The host has no memory for the table of so many slots.
    pub fn new(slots: usize) -> Result<Self, TryReserveError> {
        let mut places = Vec::new();
        places.try_reserve_exact(slots)?;
        places.resize_with(slots, || Mutex::new(None));
        Ok(Self {
            slots: places.into(),
            stored: AtomicU64::new(0),
            flags: DeviceFlags::SYNCHRONOUS | DeviceFlags::NOTES_FREED,
        })
    }

    /// A device that the memory manager treats as a non-rotational disk: it uses the swap cache and
    /// readahead. It still completes at once, so runs are deterministic.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn disk(slots: usize) -> Result<Self, TryReserveError> {
        Ok(Self { flags: DeviceFlags::NOTES_FREED, ..Self::new(slots)? })
    }

    fn slot(&self, slot: u64) -> Option<MutexGuard<'_, Option<Page>>> {
        let slot = self.slots.get(usize::try_from(slot).ok()?)?;
        Some(slot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// # Safety
    ///
    /// As for [`submit`](SwapDevice::submit).
    unsafe fn page<P: Platform>(
        &self,
        memory: DeviceMemory<'_, P>,
        io: PageIo,
        nth: u64,
    ) -> Result<(), DeviceError> {
        let mut slot = self.slot(io.slot + nth).ok_or(DeviceError::OutOfRange)?;
        // SAFETY: the caller's promise; a program accesses what is written by atomics.
        let words = unsafe { words_of(memory.platform().direct_map(io.pfn.offset(nth))) };
        match io.direction {
            Direction::Write => {
                let page = slot.get_or_insert_with(|| {
                    self.stored.fetch_add(1, Ordering::Relaxed);
                    Box::new([0; WORDS])
                });
                for (kept, word) in page.iter_mut().zip(words) {
                    *kept = word.load(Ordering::Relaxed);
                }
            }
            Direction::Read => {
                for (nth, word) in words.iter().enumerate() {
                    word.store(slot.as_ref().map_or(0, |page| page[nth]), Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }
}

/// The words of a frame that programs may be writing.
///
/// # Safety
///
/// `base` is where the direct map has a frame in RAM, which stays what it is as long as the result is used,
/// and which others access by atomics only.
unsafe fn words_of<'f>(base: NonNull<u8>) -> &'f [AtomicU64; WORDS] {
    // SAFETY: one valid, aligned page (contract of `Platform`), and the caller's promise.
    unsafe { base.cast().as_ref() }
}

impl<P: Platform> SwapDevice<P> for HostRam {
    fn kind(&self) -> &'static str {
        "ram"
    }

    fn slots(&self) -> u64 {
        self.slots.len() as u64
    }

    fn flags(&self) -> DeviceFlags {
        self.flags
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted {
        // SAFETY: the caller's promise.
        let page = |nth| unsafe { self.page(memory, io, nth) };
        Submitted::Done((0..u64::from(io.pages)).try_for_each(page))
    }

    fn freed(&self, _: DeviceMemory<'_, P>, slot: u64, count: u64) {
        for slot in slot..slot.saturating_add(count).min(self.slots.len() as u64) {
            if self.slot(slot).is_some_and(|mut slot| slot.take().is_some()) {
                self.stored.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn report(&self) -> DeviceReport {
        DeviceReport { stored_pages: self.stored.load(Ordering::Relaxed), ..DeviceReport::default() }
    }
}

impl fmt::Debug for HostRam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostRam").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}
