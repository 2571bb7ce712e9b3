//! A swap device in the host's memory, whose pages and errors a test controls.

use quire_arch::{PAGE_SIZE, Platform};
use quire_mm::swap::{DeviceError, DeviceFlags, DeviceMemory, Direction, PageIo, Submitted, SwapDevice};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const BYTES: usize = PAGE_SIZE as usize;

/// The state of a [`Disk`] that a test reads and sets.
#[derive(Debug, Default)]
pub(crate) struct Medium {
    pages: BTreeMap<u64, Box<[u8; BYTES]>>,
    /// Requests so far.
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    /// The requests that fail, counted from 1.
    pub(crate) bad_reads: BTreeSet<u64>,
    pub(crate) bad_writes: BTreeSet<u64>,
    /// Slots that cannot be read.
    pub(crate) bad_slots: BTreeSet<u64>,
    /// Nothing can be read, or written.
    pub(crate) unreadable: bool,
    pub(crate) unwritable: bool,
    /// Discards so far.
    pub(crate) discards: u64,
    /// Pages that were stored when the last one began.
    pub(crate) stored_at_discard: usize,
    /// The device was closed.
    pub(crate) closed: bool,
}

impl Medium {
    /// Slots that hold a page.
    pub(crate) fn stored(&self) -> Vec<u64> {
        self.pages.keys().copied().collect()
    }

    fn serve<P: Platform>(&mut self, memory: DeviceMemory<'_, P>, io: PageIo) -> Result<(), DeviceError> {
        let fails = match io.direction {
            Direction::Read => {
                self.reads += 1;
                let slots = io.slot..io.slot + u64::from(io.pages);
                self.unreadable
                    || self.bad_reads.contains(&self.reads)
                    || self.bad_slots.range(slots).next().is_some()
            }
            Direction::Write => {
                self.writes += 1;
                self.unwritable || self.bad_writes.contains(&self.writes)
            }
        };
        if fails {
            return Err(DeviceError::Io);
        }
        for nth in 0..u64::from(io.pages) {
            let page = memory.platform().direct_map(io.pfn.offset(nth)).as_ptr();
            match io.direction {
                Direction::Read => {
                    // A slot that was freed, or never written, reads as bytes that no test wrote.
                    let stored = self.pages.get(&(io.slot + nth));
                    let bytes = stored.map_or([0xdd; BYTES], |page| **page);
                    // SAFETY: the frame is the caller's, and the caller waits for it to be filled.
                    unsafe { page.copy_from_nonoverlapping(bytes.as_ptr(), BYTES) };
                }
                Direction::Write => {
                    let mut bytes = Box::new([0; BYTES]);
                    // SAFETY: the frame is in RAM as long as it is written, and no entry maps it.
                    unsafe { page.copy_to_nonoverlapping(bytes.as_mut_ptr(), BYTES) };
                    self.pages.insert(io.slot + nth, bytes);
                }
            }
        }
        Ok(())
    }
}

/// The device. Its medium is shared with the test.
#[derive(Debug)]
pub(crate) struct Disk {
    slots: u64,
    medium: Arc<Mutex<Medium>>,
}

impl Disk {
    pub(crate) fn new(slots: u64) -> (Self, Arc<Mutex<Medium>>) {
        let medium = Arc::default();
        (Self { slots, medium: Arc::clone(&medium) }, medium)
    }

    fn medium(&self) -> MutexGuard<'_, Medium> {
        lock(&self.medium)
    }
}

/// The medium of a device.
pub(crate) fn lock(medium: &Mutex<Medium>) -> MutexGuard<'_, Medium> {
    medium.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P: Platform> SwapDevice<P> for Disk {
    fn kind(&self) -> &'static str {
        "disk"
    }

    fn slots(&self) -> u64 {
        self.slots
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::SYNCHRONOUS | DeviceFlags::NOTES_FREED | DeviceFlags::DISCARD
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted {
        Submitted::Done(self.medium().serve(memory, io))
    }

    fn freed(&self, _: DeviceMemory<'_, P>, slot: u64, count: u64) {
        let mut medium = self.medium();
        for slot in slot..slot + count {
            medium.pages.remove(&slot);
        }
    }

    fn discard(&self, _: DeviceMemory<'_, P>, _: u64, _: u64) {
        let mut medium = self.medium();
        medium.discards += 1;
        medium.stored_at_discard = medium.pages.len();
    }

    fn close(&self, _: DeviceMemory<'_, P>) {
        self.medium().closed = true;
    }
}
