//! The order in which slots were filled: a queue of slot numbers, in frames allocated and freed as it grows
//! and shrinks.

use crate::device::memory::{frame_for_contents, give_back};
use core::ptr::NonNull;
use quire_arch::{Order, PAGE_SIZE, Pfn, Pin, Platform};
use quire_frame::{FaultSite, Frames};

const SITE: FaultSite = FaultSite::new("zswap");

/// Numbers in one frame, behind the link to the next.
const NUMBERS: usize = (PAGE_SIZE as usize - size_of::<u64>()) / size_of::<u32>();

/// A frame of the queue.
#[repr(C)]
struct Chunk {
    /// The frame after this one, plus one.
    next: u64,
    numbers: [u32; NUMBERS],
}

const _: () = assert!(size_of::<Chunk>() <= PAGE_SIZE as usize);

/// The queue: its first and its last frame, and how far they are used.
#[derive(Debug, Default)]
pub(super) struct Ages {
    first: Option<Pfn>,
    last: Option<Pfn>,
    /// Numbers of the first frame that are out already.
    taken: usize,
    /// Numbers of the last frame that are in.
    filled: usize,
    pub(super) len: u64,
}

impl Ages {
    fn chunk<P: Platform>(frames: &Frames<P>, pfn: Pfn) -> NonNull<Chunk> {
        frames.platform().direct_map(pfn).cast()
    }

    /// Adds a slot that was just filled. Without memory the slot is in no queue, and never the oldest.
    pub(super) fn push<P: Platform>(&mut self, frames: &Frames<P>, pin: &Pin<'_, P>, slot: u32) {
        if self.last.is_none() || self.filled == NUMBERS {
            let Ok(new) = frames.allocate(pin, frame_for_contents(SITE)) else { return };
            // SAFETY: the frame is the queue's own, page aligned, and holds a chunk.
            unsafe { Self::chunk(frames, new).as_mut() }.next = 0;
            match self.last {
                // SAFETY: as above.
                Some(last) => unsafe { Self::chunk(frames, last).as_mut() }.next = new.0 + 1,
                None => (self.first, self.taken) = (Some(new), 0),
            }
            (self.last, self.filled) = (Some(new), 0);
        }
        if let Some(last) = self.last {
            // SAFETY: as above.
            unsafe { Self::chunk(frames, last).as_mut() }.numbers[self.filled] = slot;
            self.filled += 1;
            self.len += 1;
        }
    }

    /// Takes the slot that was filled first.
    pub(super) fn pop<P: Platform>(&mut self, frames: &Frames<P>, pin: &Pin<'_, P>) -> Option<u32> {
        let first = self.first?;
        if self.len == 0 {
            return None;
        }
        // SAFETY: the frame is the queue's own, page aligned, and holds a chunk.
        let chunk = unsafe { Self::chunk(frames, first).as_ref() };
        let (slot, next) = (chunk.numbers[self.taken], chunk.next);
        self.taken += 1;
        self.len -= 1;
        let used_up = self.taken == NUMBERS || Some(first) == self.last && self.taken == self.filled;
        if used_up {
            self.first = next.checked_sub(1).map(Pfn);
            self.taken = 0;
            if self.first.is_none() {
                (self.last, self.filled) = (None, 0);
            }
            give_back(frames, pin, first, Order::ZERO);
        }
        Some(slot)
    }

    /// Gives all frames back.
    pub(super) fn clear<P: Platform>(&mut self, frames: &Frames<P>, pin: &Pin<'_, P>) {
        while self.pop(frames, pin).is_some() {}
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::device::testing::{frames, run_on};
    use quire_frame::PcpTechnique;
    use std::collections::VecDeque;

    #[test]
    fn what_goes_in_first_comes_out_first_and_the_frames_go_home() {
        run_on(0);
        let frames = frames(&[(0, 1024)], 1, PcpTechnique::All);
        let pin = frames.platform().pin();
        let free = frames.totals().free;
        let (mut ages, mut model) = (Ages::default(), VecDeque::new());
        let mut number = 1u32;
        for round in 0..40u32 {
            for _ in 0..(round * 131) % 2600 {
                number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ages.push(&frames, &pin, number);
                model.push_back(number);
            }
            for _ in 0..(round * 89) % 2900 {
                assert_eq!(ages.pop(&frames, &pin), model.pop_front(), "round {round}");
            }
            assert_eq!(ages.len, model.len() as u64);
        }
        ages.clear(&frames, &pin);
        assert_eq!(frames.totals().free, free);
    }
}
