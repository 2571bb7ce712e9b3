//! Compressed pages by slot.

#[cfg(all(test, not(loom)))]
mod tests;

use super::StoreStatistics;
use super::codec::Codec;
use super::lz4::Lz4;
use super::pool::{EmptyChain, MAX_OBJECT, MAX_OWNERS, Pool, Referrer};
use super::tally::Tally;
use super::workspace::{Workspace, Workspaces};
use crate::device::DeviceError;
use crate::device::memory::{PAGE, bytes_of, fill, word_of_same, words_of};
use crate::device::section::{Gate, Section};
use crate::device::slots::{Contents, Location, MAX_SLOTS, SlotTable};
use core::fmt;
use core::ptr::NonNull;
use quire_arch::{Order, PAGE_SIZE, Pfn, Pin, Platform};
use quire_frame::{AllocError, FailSite, Frames};

/// The site of the store's own memory, for fail plans.
const SITE: FailSite = FailSite::new("zram");

/// Pages in RAM, compressed, each in a slot.
///
/// A page all of whose words are equal is kept as one word. One that would need more than about four fifths
/// of a page is stored uncompressed. All others are objects of a pool that packs them densely.
///
/// Every method may be called from all CPUs at once, with and without a pin, and takes spin locks of the
/// classes CompressedSlot and CompressedPool, and what [`Frames::allocate`] takes without draining. All are
/// called with the machine that the store was made on. Its frames are freed by [`close`](Self::close), not
/// when it is dropped.
///
/// A device of compressed RAM is just a store ([`CompressedRam`](super::CompressedRam)). A compressed cache
/// in front of another device has a store with that device's slots: [`load`](Self::load) says whether it has
/// the page; the cache decides which page is written back to the device next.
pub struct CompressedStore<P: Platform, C: Codec = Lz4> {
    codec: C,
    gate: Gate,
    table: SlotTable<P>,
    pool: Pool<P>,
    workspaces: Workspaces<C>,
    tally: Tally,
}

impl<P: Platform, C: Codec> CompressedStore<P, C> {
    /// A store of `slots` empty slots, without a limit. It takes 8 bytes for 512 slots now, a page for 512
    /// when the first of them is used, and for each CPU what the codec needs to work.
    ///
    /// # Errors
    ///
    /// As for [`Frames::allocate`], and [`AllocError::OutOfMemory`] for more slots than a store can have
    /// (2^28, which are a TiB).
    pub fn new(frames: &Frames<P>, slots: u64, codec: C) -> Result<Self, AllocError> {
        if slots > MAX_SLOTS.min(MAX_OWNERS) {
            return Err(AllocError::OutOfMemory);
        }
        let pin = &frames.platform().pin();
        let table = SlotTable::new(frames, slots, SITE)?;
        let made = Pool::new(frames, pin, SITE).and_then(|pool| {
            let workspaces = Workspaces::new(frames, pin, &codec, SITE);
            if workspaces.is_err() {
                pool.close(frames, pin);
            }
            Ok((pool, workspaces?))
        });
        match made {
            Ok((pool, workspaces)) => {
                Ok(Self { codec, gate: Gate::new(frames), table, pool, workspaces, tally: Tally::default() })
            }
            Err(error) => {
                table.close(frames, |_, _| {});
                Err(error)
            }
        }
    }

    /// Number of slots.
    pub fn slots(&self) -> u64 {
        self.table.slots()
    }

    /// Whether this is the machine that the store was made on.
    pub fn is_of(&self, frames: &Frames<P>) -> bool {
        self.gate.is_of(frames)
    }

    /// Stores the page in frame `page`, in place of what the slot has. A program may be writing the page
    /// meanwhile: then what is stored is a mixture of the old and the new.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoSpace`] at the limit or without memory, [`DeviceError::OutOfRange`] for a slot out of
    /// range, and [`DeviceError::Io`] once the store is closed. The slot is unchanged.
    #[inline]
    pub fn store(&self, frames: &Frames<P>, slot: u64, page: Pfn) -> Result<(), DeviceError> {
        let pin = frames.platform().pin();
        let section = self.gate.enter(frames, &pin).ok_or(DeviceError::Io)?;
        self.table.prepare(&section, slot)?;
        // `new` refuses so many slots that a number might not fit.
        let owner = slot as u32;
        // SAFETY: the caller's frame, which programs may be writing.
        let contents = match word_of_same(unsafe { words_of(frames, page) }) {
            Some(word) if Contents::fits(word) => Contents::Same(word),
            Some(word) => Contents::Pattern(self.pool.insert(frames, &pin, owner, &word.to_ne_bytes())?),
            None => {
                // SAFETY: the copy is this CPU's own frame; the other is the caller's, which programs may be
                // writing.
                let fill = |copy| unsafe { frames.platform().copy(page, copy, Order::ZERO) };
                let compress = |workspace: &mut Workspace<C>| self.keep(&section, owner, workspace);
                self.workspaces.with(&section, fill, compress).ok_or(DeviceError::Io)??
            }
        };
        self.put(&section, slot, contents);
        Ok(())
    }

    /// Finds a place for the page in `workspace`.
    fn keep(
        &self,
        section: &Section<'_, P>,
        owner: u32,
        workspace: &mut Workspace<C>,
    ) -> Result<Contents, DeviceError> {
        let Section { frames, pin, .. } = *section;
        let length = self.codec.compress(&mut workspace.codec, &workspace.page, &mut workspace.output);
        if let Some(length) = length.filter(|&length| length <= MAX_OBJECT) {
            let location = self.pool.insert(frames, pin, owner, &workspace.output[..length])?;
            return Ok(Contents::Packed { location, length: length as u16 });
        }
        let whole = self.pool.take_whole(frames, pin)?;
        // SAFETY: the frame was just allocated, so it is apart from the workspace, and no other thread uses
        // it.
        unsafe {
            let place = bytes_of(frames, whole).cast::<[u8; PAGE]>();
            place.copy_from_nonoverlapping(NonNull::from(&workspace.page), 1);
        }
        Ok(Contents::Whole(whole))
    }

    /// Puts `contents` in the slot, and takes away what was there.
    fn put(&self, section: &Section<'_, P>, slot: u64, contents: Contents) {
        let Some(mut locked) = self.table.lock(section, slot) else { return };
        let before = locked.replace(contents);
        drop(locked);
        self.tally.replaced(section.pin, before, contents);
        self.release(section.frames, section.pin, before);
    }

    /// Gives back what `contents` name: they are in no slot any more.
    fn release(&self, frames: &Frames<P>, pin: &Pin<'_, P>, contents: Contents) {
        match contents {
            Contents::Empty | Contents::Same(_) => {}
            Contents::Pattern(location) | Contents::Packed { location, .. } => {
                self.pool.remove(frames, pin, location);
            }
            Contents::Whole(pfn) => self.pool.put_whole(frames, pin, pfn),
        }
    }

    /// Copies the slot's page to frame `page`, which only the caller uses, and returns whether the slot has
    /// one. If not, the frame is unchanged.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Corrupt`] if it cannot be decompressed: then the frame's contents are unspecified.
    /// [`DeviceError::OutOfRange`] and [`DeviceError::Io`] as for [`store`](Self::store).
    pub fn load(&self, frames: &Frames<P>, slot: u64, page: Pfn) -> Result<bool, DeviceError> {
        if slot >= self.slots() {
            return Err(DeviceError::OutOfRange);
        }
        let pin = frames.platform().pin();
        let section = self.gate.enter(frames, &pin).ok_or(DeviceError::Io)?;
        let Some(locked) = self.table.lock(&section, slot) else { return Ok(false) };
        match locked.contents() {
            Contents::Empty => return Ok(false),
            // SAFETY: the frame is the caller's.
            Contents::Same(word) => unsafe { fill(frames, page, word) },
            Contents::Pattern(location) => {
                let word = &mut [0; size_of::<u64>()];
                let mut read = [0; size_of::<u64>()];
                // SAFETY: the slot is locked, so that its object stays where it is.
                unsafe {
                    self.pool.with(frames, (location, word.len()), word, |bytes| read.copy_from_slice(bytes));
                }
                // SAFETY: the frame is the caller's.
                unsafe { fill(frames, page, u64::from_ne_bytes(read)) };
            }
            Contents::Packed { location, length } => {
                // SAFETY: the frame is the caller's alone, and an array of bytes may hold anything.
                let page = unsafe { bytes_of(frames, page).cast::<[u8; PAGE]>().as_mut() };
                let decompress = |workspace: &mut Workspace<C>| {
                    let Workspace { output, codec, .. } = workspace;
                    let decode = |bytes: &[u8]| self.codec.decompress(codec, bytes, page);
                    // SAFETY: the slot is locked, so that its object stays where it is.
                    unsafe { self.pool.with(frames, (location, usize::from(length)), output, decode) }
                };
                let done = self.workspaces.with(&section, |_| (), decompress).ok_or(DeviceError::Io)?;
                done.map_err(|_| DeviceError::Corrupt)?;
            }
            // SAFETY: the slot is locked, so that its frame stays; the other is the caller's.
            Contents::Whole(pfn) => unsafe { frames.platform().copy(pfn, page, Order::ZERO) },
        }
        Ok(true)
    }

    /// Whether the slot has a page: a snapshot.
    pub fn has(&self, frames: &Frames<P>, slot: u64) -> bool {
        let pin = frames.platform().pin();
        let Some(section) = self.gate.enter(frames, &pin) else { return false };
        slot < self.slots()
            && self.table.lock(&section, slot).is_some_and(|locked| locked.contents() != Contents::Empty)
    }

    /// Bytes of the slot's page as it is kept: none if it has none, or one whose words are all equal.
    pub(crate) fn length(&self, frames: &Frames<P>, slot: u64) -> u64 {
        let pin = frames.platform().pin();
        let Some(section) = self.gate.enter(frames, &pin).filter(|_| slot < self.slots()) else { return 0 };
        self.table.lock(&section, slot).map_or(0, |locked| super::tally::bytes(locked.contents()))
    }

    /// Empties the slot. Allocates nothing and cannot fail; there need not be such a slot.
    #[inline]
    pub fn free(&self, frames: &Frames<P>, slot: u64) {
        let pin = frames.platform().pin();
        if let Some(section) = self.gate.enter(frames, &pin) {
            self.put(&section, slot, Contents::Empty);
        }
    }

    /// Compacts the pool until about `wanted` frames are free, and returns the bytes of RAM freed. Pages in
    /// use by another thread stay in place.
    pub fn compact(&self, frames: &Frames<P>, wanted: u64) -> u64 {
        let step = |one: &mut EmptyChain<'_, P>| {
            let pin = frames.platform().pin();
            let section = self.gate.enter(frames, &pin);
            if let Some(section) = &section {
                one(frames, &pin, &Slots { table: &self.table, section });
            }
            section.is_some()
        };
        self.pool.compact(wanted, step) * PAGE_SIZE
    }

    /// Bytes of RAM that hold pages.
    pub fn used(&self) -> u64 {
        self.pool.used_bytes()
    }

    /// Sets the limit of bytes of RAM for pages, or no limit. Pages already stored stay.
    pub fn set_limit(&self, bytes: Option<u64>) {
        self.pool.set_limit(bytes);
    }

    /// Sets the [peak](StoreStatistics::mem_used_max) back to what is used now.
    pub fn reset_peak(&self) {
        self.pool.reset_peak();
    }

    /// The store in numbers.
    pub fn statistics(&self) -> StoreStatistics {
        let sums = self.tally.sums();
        StoreStatistics {
            orig_data_size: sums.stored * PAGE_SIZE,
            compr_data_size: sums.bytes,
            mem_used_total: self.pool.used_bytes(),
            mem_limit: self.pool.limit_bytes(),
            mem_used_max: self.pool.peak_bytes(),
            same_pages: sums.same,
            pages_compacted: self.pool.compacted(),
            huge_pages: sums.whole,
            huge_pages_since: sums.whole_since,
        }
    }

    /// Frees every frame, once all users of the store are done. A later user finds it closed.
    ///
    /// Not to be called in a section of [`Frames::epoch`], for whose end it would wait.
    pub fn close(&self, frames: &Frames<P>) {
        if !self.gate.close(frames) {
            return;
        }
        self.table.close(frames, |pin, contents| {
            self.tally.replaced(pin, contents, Contents::Empty);
            self.release(frames, pin, contents);
        });
        let pin = &frames.platform().pin();
        self.pool.close(frames, pin);
        self.workspaces.close(frames, pin);
    }
}

/// The slots' words, for objects that move.
struct Slots<'s, P: Platform> {
    table: &'s SlotTable<P>,
    section: &'s Section<'s, P>,
}

impl<P: Platform> Referrer for Slots<'_, P> {
    fn relocate(&self, owner: u32, from: Location, to: Location, copy: &mut dyn FnMut()) -> bool {
        let Some(mut slot) = self.table.try_lock_at(self.section, u64::from(owner), from) else {
            return false;
        };
        copy();
        slot.replace(slot.contents().moved_to(to));
        true
    }
}

impl<P: Platform, C: Codec> fmt::Debug for CompressedStore<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompressedStore")
            .field("codec", &C::NAME)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}
