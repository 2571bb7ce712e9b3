//! The slots that can be written back, in the order in which they were filled: a list through one entry for
//! each slot. A slot is on it once or not at all: refilling moves it, freeing takes it off, so the list is
//! never longer than the device, and no step of it walks.

use crate::device::memory::{give_back, own_block};
use core::ptr::NonNull;
use quire_arch::{Order, PAGE_SIZE, Pfn, Pin, Platform};
use quire_frame::{AllocError, FailSite, Frames};
use quire_memcg::MemcgId;

/// The entry of a slot: its neighbours, each by its number plus one, or both zero: it is on no list. And the
/// memcg for which the cache has a page of it; 0 for none.
#[derive(Clone, Copy, Default)]
#[repr(C, packed(2))]
struct Entry {
    older: u32,
    younger: u32,
    memcg: u16,
}

/// In place of a neighbour at an end of the list. No slot has this number (a store has 2^28 at most).
const END: u32 = u32::MAX;
/// Slots whose entries lie in one frame.
pub(super) const CHUNK: u64 = PAGE_SIZE / size_of::<Entry>() as u64;

/// The list. Its frames are the machine's; behind the cache's lock.
#[derive(Debug, Default)]
pub(super) struct Lru {
    slots: u64,
    /// A word for each chunk of entries: zero, or its frame. Without one there are no slots either.
    directory: Option<(Pfn, Order)>,
    oldest: u32,
    youngest: u32,
}

impl Lru {
    /// An empty list for so many slots. It takes 8 bytes for 409 slots now, and
    /// [`add_chunk`](Self::add_chunk) gives it the rest.
    pub(super) fn new<P: Platform>(
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        slots: u64,
        site: FailSite,
    ) -> Result<Self, AllocError> {
        let words = slots.div_ceil(CHUNK);
        let directory = own_block(frames, pin, words * size_of::<u64>() as u64, site)?;
        Ok(Self { slots, directory: Some(directory), oldest: END, youngest: END })
    }

    /// The word of the directory for `chunk`.
    fn word<P: Platform>(&self, frames: &Frames<P>, chunk: u64) -> Option<NonNull<u64>> {
        let (directory, _) = self.directory.filter(|_| chunk < self.slots.div_ceil(CHUNK))?;
        // SAFETY: the block is the list's own and has a word for each chunk.
        Some(unsafe { frames.platform().direct_map(directory).cast::<u64>().add(chunk as usize) })
    }

    fn chunk<P: Platform>(&self, frames: &Frames<P>, chunk: u64) -> Option<Pfn> {
        // SAFETY: a word of the list's own block, which was allocated as zeros.
        let word = unsafe { self.word(frames, chunk)?.read() };
        (word != 0).then_some(Pfn(word))
    }

    /// A chunk of `slots` that has no frame yet, for the caller to [add](Self::add_chunk) one.
    pub(super) fn missing_chunk<P: Platform>(
        &self,
        frames: &Frames<P>,
        mut slots: core::ops::Range<u64>,
    ) -> Option<u64> {
        slots.end = slots.end.min(self.slots);
        let chunks = slots.start / CHUNK..slots.end.div_ceil(CHUNK);
        chunks.into_iter().find(|&chunk| self.chunk(frames, chunk).is_none())
    }

    /// Gives a chunk its frame of zeros. False if it has one, or the list was taken down.
    pub(super) fn add_chunk<P: Platform>(&mut self, frames: &Frames<P>, chunk: u64, frame: Pfn) -> bool {
        // Frame 0 could not be distinguished from none.
        if frame == Pfn(0) || self.chunk(frames, chunk).is_some() {
            return false;
        }
        match self.word(frames, chunk) {
            // SAFETY: a word of the list's own block.
            Some(word) => unsafe { word.write(frame.0) },
            None => return false,
        }
        true
    }

    /// The entry of `slot`, if its chunk is there.
    fn entry<P: Platform>(&self, frames: &Frames<P>, slot: u64) -> Option<NonNull<Entry>> {
        if slot >= self.slots {
            return None;
        }
        let first = frames.platform().direct_map(self.chunk(frames, slot / CHUNK)?).cast::<Entry>();
        // SAFETY: the chunk is a frame of the list's own, page aligned, and has `CHUNK` entries.
        Some(unsafe { first.add((slot % CHUNK) as usize) })
    }

    fn get<P: Platform>(&self, frames: &Frames<P>, slot: u64) -> Entry {
        // SAFETY: an entry of the list's own, behind the cache's lock; any bytes are one.
        self.entry(frames, slot).map_or(Entry::default(), |entry| unsafe { entry.read() })
    }

    fn set<P: Platform>(&mut self, frames: &Frames<P>, slot: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(mut entry) = self.entry(frames, slot) {
            // SAFETY: as in `get`, and the list is borrowed alone.
            change(unsafe { entry.as_mut() });
        }
    }

    /// Makes `slot` the youngest, wherever it was. It has an entry.
    pub(super) fn push_youngest<P: Platform>(&mut self, frames: &Frames<P>, slot: u64) {
        self.remove(frames, slot);
        if self.entry(frames, slot).is_none() {
            debug_assert!(self.directory.is_none(), "slot {slot} was given no entry");
            return;
        }
        // A store has fewer slots than a number can tell apart.
        let (name, before) = (slot as u32 + 1, self.youngest);
        self.set(frames, slot, |entry| *entry = Entry { older: before, younger: END, ..*entry });
        match before {
            END => self.oldest = name,
            before => self.set(frames, u64::from(before - 1), |entry| entry.younger = name),
        }
        self.youngest = name;
    }

    /// Makes `slot` the oldest, as [`push_youngest`](Self::push_youngest) makes it the youngest.
    pub(super) fn push_oldest<P: Platform>(&mut self, frames: &Frames<P>, slot: u64) {
        self.remove(frames, slot);
        if self.entry(frames, slot).is_none() {
            debug_assert!(self.directory.is_none(), "slot {slot} was given no entry");
            return;
        }
        let (name, after) = (slot as u32 + 1, self.oldest);
        self.set(frames, slot, |entry| *entry = Entry { older: END, younger: after, ..*entry });
        match after {
            END => self.youngest = name,
            after => self.set(frames, u64::from(after - 1), |entry| entry.older = name),
        }
        self.oldest = name;
    }

    /// Takes `slot` off the list, if it is on it.
    pub(super) fn remove<P: Platform>(&mut self, frames: &Frames<P>, slot: u64) {
        let Entry { older, younger, .. } = self.get(frames, slot);
        if (older, younger) == (0, 0) {
            return;
        }
        match older {
            END => self.oldest = younger,
            older => self.set(frames, u64::from(older - 1), |entry| entry.younger = younger),
        }
        match younger {
            END => self.youngest = older,
            younger => self.set(frames, u64::from(younger - 1), |entry| entry.older = older),
        }
        self.set(frames, slot, |entry| *entry = Entry { older: 0, younger: 0, ..*entry });
    }

    /// The memcg that a page of the slot counts for.
    pub(super) fn memcg<P: Platform>(&self, frames: &Frames<P>, slot: u64) -> MemcgId {
        MemcgId::from_bits(self.get(frames, slot).memcg)
    }

    /// Changes it.
    pub(super) fn set_memcg<P: Platform>(&mut self, frames: &Frames<P>, slot: u64, memcg: MemcgId) {
        self.set(frames, slot, |entry| entry.memcg = memcg.get());
    }

    /// Takes the oldest slot that is `wanted` off the list, of the `most` oldest. The others stay, or if they
    /// `turn` they become the youngest.
    pub(super) fn pop_oldest_of<P: Platform>(
        &mut self,
        frames: &Frames<P>,
        (most, turn): (u32, bool),
        wanted: impl Fn(MemcgId) -> bool,
    ) -> Option<u64> {
        let mut name = self.oldest;
        for _ in 0..most {
            let slot = match name {
                0 | END => return None,
                name => u64::from(name - 1),
            };
            name = self.get(frames, slot).younger;
            if wanted(self.memcg(frames, slot)) {
                self.remove(frames, slot);
                return Some(slot);
            }
            if turn {
                self.push_youngest(frames, slot);
            }
        }
        None
    }

    /// Gives all frames back, each under a pin of its own.
    pub(super) fn close<P: Platform>(self, frames: &Frames<P>) {
        for chunk in 0..self.slots.div_ceil(CHUNK) {
            let pin = &frames.platform().pin();
            if let Some(frame) = self.chunk(frames, chunk) {
                give_back(frames, pin, frame, Order::ZERO);
            }
        }
        if let Some((directory, order)) = self.directory {
            give_back(frames, &frames.platform().pin(), directory, order);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::device::memory::frame_for_contents;
    use crate::device::testing::Machine;
    use crate::device::testing::{Random, frames, run_on};
    use quire_frame::PcpTechnique;
    use std::collections::VecDeque;

    fn pop_oldest(lru: &mut Lru, frames: &Frames<Machine>) -> Option<u64> {
        lru.pop_oldest_of(frames, (1, false), |_| true)
    }

    const SITE: FailSite = FailSite::new("test");

    #[test]
    fn a_slot_is_listed_once_in_the_order_of_its_last_filling() {
        run_on(0);
        let frames = frames(&[(0, 1024)], 1, PcpTechnique::All);
        let pin = frames.platform().pin();
        let free = frames.reports().totals().free;
        // The last chunk is a part of one.
        let slots = 2 * CHUNK + 7;
        let mut lru = Lru::new(&frames, &pin, slots, SITE).unwrap();
        let empty = frames.reports().totals().free;
        let (mut model, mut random) = (VecDeque::new(), Random(3));
        for _ in 0..100_000 {
            let slot = random.below(slots);
            match random.below(5) {
                0 | 1 => {
                    while let Some(chunk) = lru.missing_chunk(&frames, slot..slot + 1) {
                        let frame = frames.allocate(&pin, frame_for_contents(SITE).zeroed()).unwrap();
                        assert!(lru.add_chunk(&frames, chunk, frame));
                        assert!(!lru.add_chunk(&frames, chunk, frame), "it has one");
                    }
                    model.retain(|&other| other != slot);
                    if random.below(2) == 0 {
                        lru.push_youngest(&frames, slot);
                        model.push_back(slot);
                    } else {
                        lru.push_oldest(&frames, slot);
                        model.push_front(slot);
                    }
                }
                2 | 3 => {
                    lru.remove(&frames, slot);
                    model.retain(|&other| other != slot);
                }
                _ => assert_eq!(pop_oldest(&mut lru, &frames), model.pop_front()),
            }
        }
        assert!(!model.is_empty());
        while let Some(slot) = pop_oldest(&mut lru, &frames) {
            assert_eq!(Some(slot), model.pop_front());
        }
        assert!(model.is_empty());
        assert_eq!(empty - frames.reports().totals().free, 3, "a frame for each chunk, whatever was done");
        lru.remove(&frames, slots);
        assert_eq!(lru.missing_chunk(&frames, slots..slots + 9), None, "there is no such slot");
        lru.close(&frames);
        assert_eq!(frames.reports().totals().free, free);
    }

    #[test]
    fn a_list_that_was_taken_down_takes_nothing() {
        run_on(0);
        let frames = frames(&[(0, 64)], 1, PcpTechnique::All);
        let mut lru = Lru::default();
        assert_eq!(lru.missing_chunk(&frames, 0..4), None);
        assert!(!lru.add_chunk(&frames, 0, Pfn(5)));
        lru.push_youngest(&frames, 3);
        lru.remove(&frames, 3);
        assert_eq!(pop_oldest(&mut lru, &frames), None);
    }
}
