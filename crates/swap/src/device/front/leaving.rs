//! Which pages of the cache can be written back, and which are being written back. Behind the cache's lock.
//!
//! A slot of which the cache has a page is in one of three places: on the list, under writeback, or with the
//! thread that is filling it. So no writeback of an older page begins while a newer one is being stored, and
//! none while another page of the same slot is on its way to the device.

use super::lru::Lru;
use crate::device::{Direction, PageIo};
use arrayvec::ArrayVec;
use core::ops::Range;
use quire_arch::{Pfn, Platform};
use quire_frame::Frames;

/// The most pages under writeback at once.
const LEAVING: usize = 16;

/// What became of a slot since the writeback of its page began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Since {
    /// Nothing: the cache still has that page.
    Nothing,
    /// It was freed, or is being filled anew. What the device gets is no page of any slot.
    Taken,
    /// The cache has another page for it, which goes on the list when the device is done with this one.
    Refilled,
}

/// A page under writeback.
#[derive(Debug)]
struct Leaving {
    slot: u64,
    /// The copy that the device reads.
    frame: Pfn,
    /// Of all writebacks.
    number: u64,
    /// The copy is made, so the device may have it. Before that, and after its end, it comes to no end,
    /// whatever the device reports.
    sent: bool,
    since: Since,
}

/// A writeback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Copied {
    pub(super) slot: u64,
    pub(super) frame: Pfn,
    /// Which one, of those of this slot with their copy in this frame. None if a device has reported it: that
    /// is the one that is under way.
    number: Option<u64>,
}

impl Copied {
    /// What a device reports, if it may be the writeback of a page.
    pub(super) fn reported(io: PageIo) -> Option<Self> {
        let is_one = io.direction == Direction::Write && io.pages == 1;
        is_one.then_some(Self { slot: io.slot, frame: io.pfn, number: None })
    }

    fn is(self, page: &Leaving) -> bool {
        let is_it = self.number.is_none_or(|number| page.number == number);
        page.frame == self.frame && page.slot == self.slot && page.sent && is_it
    }
}

/// What came of a writeback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The device has the page.
    Written,
    /// The device failed: the page is tried again after all others.
    Failed,
    /// The device took no request: the page is the next again.
    NotTaken,
}

/// What is left to do after a writeback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// Nothing: the page stays in the cache.
    Done,
    /// No such page is under writeback.
    Unknown,
    /// The page was written, and the cache dropped it.
    Dropped,
    /// The slot was taken meanwhile. Until [`WriteBack::forget`] nothing is written to it.
    Taken(u64),
}

/// The list, and the pages under writeback.
#[derive(Debug, Default)]
pub(super) struct WriteBack {
    pub(super) lru: Lru,
    leaving: ArrayVec<Leaving, LEAVING>,
    /// Writebacks so far.
    begun: u64,
}

impl WriteBack {
    pub(super) fn new(lru: Lru) -> Self {
        Self { lru, leaving: ArrayVec::new(), begun: 0 }
    }

    /// The caller frees the slots or fills them anew: no writeback of what they have begins any more, and one
    /// that is under way does not drop what they get.
    pub(super) fn take<P: Platform>(&mut self, frames: &Frames<P>, slots: Range<u64>) {
        for page in self.leaving.iter_mut().filter(|page| slots.contains(&page.slot)) {
            page.since = Since::Taken;
        }
        slots.for_each(|slot| self.lru.remove(frames, slot));
    }

    /// The caller, who has [taken](Self::take) the slots, has filled them: they are the youngest.
    pub(super) fn filled<P: Platform>(&mut self, frames: &Frames<P>, slots: Range<u64>) {
        for slot in slots {
            match self.leaving.iter_mut().find(|page| page.slot == slot) {
                Some(page) => page.since = Since::Refilled,
                None => self.lru.push_youngest(frames, slot),
            }
        }
    }

    /// Whether an older page of one of the slots is on its way to the device.
    pub(super) fn is_leaving(&self, slots: &Range<u64>) -> bool {
        self.leaving.iter().any(|page| slots.contains(&page.slot))
    }

    /// Whether this is a writeback that the device may have.
    pub(super) fn is_sent(&self, copied: Copied) -> bool {
        self.leaving.iter().any(|page| copied.is(page))
    }

    /// The copy of the page is in `frame`.
    pub(super) fn send(&mut self, frame: Pfn) {
        self.leaving.iter_mut().filter(|page| page.frame == frame).for_each(|page| page.sent = true);
    }

    /// The frame of a copy that the device does not read any more: it is closed. `None` if there is none
    /// left.
    pub(super) fn abandon(&mut self) -> Option<Pfn> {
        self.leaving.pop().map(|page| page.frame)
    }

    /// Begins to write back a page, whose copy will be in `frame`: the oldest one that `pop` takes off the
    /// list.
    pub(super) fn begin(&mut self, frame: Pfn, pop: impl FnOnce(&mut Lru) -> Option<u64>) -> Option<Copied> {
        if self.leaving.is_full() {
            return None;
        }
        let slot = pop(&mut self.lru)?;
        self.begun = self.begun.wrapping_add(1);
        let number = self.begun;
        self.leaving.push(Leaving { slot, frame, number, sent: false, since: Since::Nothing });
        Some(Copied { slot, frame, number: Some(number) })
    }

    /// The writeback has come to an end. If the cache still has that page and the
    /// device has it too, it is freed, by `free`, before another thread can take the slot.
    pub(super) fn end<P: Platform>(
        &mut self,
        frames: &Frames<P>,
        copied: Copied,
        outcome: Outcome,
        free: impl FnOnce(&mut Lru, u64),
    ) -> Ended {
        let Some(at) = self.leaving.iter().position(|page| copied.is(page)) else { return Ended::Unknown };
        let Leaving { slot, since, .. } = self.leaving[at];
        if since == Since::Taken {
            // It ends once, though it is in its place still.
            self.leaving[at].sent = false;
            return Ended::Taken(slot);
        }
        self.leaving.swap_remove(at);
        match (since, outcome) {
            (Since::Nothing, Outcome::Written) => {
                free(&mut self.lru, slot);
                return Ended::Dropped;
            }
            (Since::Nothing, Outcome::NotTaken) => self.lru.push_oldest(frames, slot),
            _ => self.lru.push_youngest(frames, slot),
        }
        Ended::Done
    }

    /// The rest of a writeback that ended with [`Ended::Taken`].
    pub(super) fn forget<P: Platform>(&mut self, frames: &Frames<P>, frame: Pfn) {
        let Some(at) = self.leaving.iter().position(|page| page.frame == frame) else { return };
        let Leaving { slot, since, .. } = self.leaving.swap_remove(at);
        if since == Since::Refilled {
            self.lru.push_youngest(frames, slot);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::device::memory::frame_for_contents;
    use crate::device::testing::{frames, run_on};
    use quire_frame::{FailSite, PcpTechnique};

    const SITE: FailSite = FailSite::new("test");

    /// Hazard: a device reports the end of a page that it does not have yet, or had, and the frame of the
    /// copy is given back while the copy is made, or twice.
    #[test]
    fn a_page_leaves_once_and_not_before_it_was_sent() {
        run_on(0);
        let frames = frames(&[(1, 1024)], 1, PcpTechnique::All);
        let pin = frames.platform().pin();
        let [chunk, copy] = [0, 1].map(|_| frames.allocate(&pin, frame_for_contents(SITE).zeroed()).unwrap());
        let mut back = WriteBack::new(Lru::new(&frames, &pin, 8, SITE).unwrap());
        assert!(back.lru.add_chunk(&frames, 0, chunk));
        back.lru.push_youngest(&frames, 5);
        let mut freed = 0;
        let mut end =
            |back: &mut WriteBack, copied| back.end(&frames, copied, Outcome::Written, |_, _| freed += 1);
        let copied = back.begin(copy, |lru| lru.pop_oldest_of(&frames, (1, false), |_| true)).unwrap();
        assert_eq!((copied.slot, copied.frame), (5, copy));
        assert_eq!((back.is_sent(copied), end(&mut back, copied)), (false, Ended::Unknown));
        back.send(copy);
        assert_eq!((back.is_sent(copied), end(&mut back, copied)), (true, Ended::Dropped));
        assert_eq!((back.is_sent(copied), end(&mut back, copied)), (false, Ended::Unknown));
        // Another one of the slot, with its copy in the same frame.
        back.lru.push_youngest(&frames, 5);
        let again = back.begin(copy, |lru| lru.pop_oldest_of(&frames, (1, false), |_| true)).unwrap();
        back.send(copy);
        assert_eq!(end(&mut back, copied), Ended::Unknown);
        back.take(&frames, 5..6);
        // Until it is forgotten it is under writeback, and ends no second time.
        assert_eq!(end(&mut back, again), Ended::Taken(5));
        assert_eq!((back.is_leaving(&(5..6)), end(&mut back, again)), (true, Ended::Unknown));
        back.forget(&frames, copy);
        assert_eq!(back.abandon(), None);
        assert_eq!(freed, 1);
    }
}
