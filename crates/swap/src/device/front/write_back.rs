//! Writing pages of the cache back to the device behind.

use super::leaving::{Copied, Ended, Outcome};
use super::lru::Lru;
use super::{CompressedCache, LOOKS, SENT_AT_ONCE, SITE};
use crate::device::memory::{frame_for_contents, give_back};
use crate::device::{DeviceFlags, DeviceMemory, Direction, PageIo, Submitted, SwapDevice};
use quire_arch::{Order, Platform};
use quire_frame::{Frames, VmEvent};
use quire_memcg::{MemcgId, MemcgStat};
use quire_sync::atomic::Ordering;

impl<P: Platform, D: SwapDevice<P>> CompressedCache<P, D> {
    /// Starts writeback of the oldest pages.
    pub(super) fn send_oldest(&self, memory: DeviceMemory<'_, P>) {
        for _ in 0..SENT_AT_ONCE {
            if !self.send_one(memory, None) {
                return;
            }
        }
    }

    /// Starts writeback of the oldest page, or of the oldest one of a memcg. Returns whether there was one,
    /// and the device took it.
    pub(super) fn send_one(&self, memory: DeviceMemory<'_, P>, of: Option<MemcgId>) -> bool {
        let frames = memory.frames();
        let Some(copied) = self.begin_leaving(memory, of) else { return false };
        let Copied { slot, frame, .. } = copied;
        let io = PageIo { direction: Direction::Write, slot, pfn: frame, pages: 1 };
        let loaded = self.store.load(frames, slot, frame);
        {
            let _pin = frames.platform().pin();
            self.state.lock().back.send(frame);
        }
        let outcome = match loaded {
            // SAFETY: the frame is the cache's own, and given back when the request has come to an end.
            Ok(true) => match unsafe { self.behind.submit(DeviceMemory::new(frames), io) } {
                Submitted::Begun => return true,
                Submitted::Done(Ok(())) => Outcome::Written,
                Submitted::Done(Err(_)) => Outcome::Failed,
                Submitted::QueueFull => Outcome::NotTaken,
            },
            // The slot was freed since, or its page is damaged.
            Ok(false) | Err(_) => Outcome::Failed,
        };
        if self.left(memory, copied, outcome) {
            // No reap will report it.
            self.move_on(frames);
        }
        outcome != Outcome::NotTaken
    }

    /// The oldest page that may be written back, with a frame for its copy, recorded as under writeback.
    fn begin_leaving(&self, memory: DeviceMemory<'_, P>, of: Option<MemcgId>) -> Option<Copied> {
        let frames = memory.frames();
        let writes_back = |memcg| memory.memcgs().is_none_or(|memcgs| memcgs.zswap().writes_back(memcg));
        if of.is_some_and(|memcg| !writes_back(memcg)) {
            return None;
        }
        let pop = |lru: &mut Lru| match of {
            Some(of) => lru.pop_oldest_of(frames, (LOOKS, false), |memcg| memcg == of),
            None => lru.pop_oldest_of(frames, (LOOKS, true), writes_back),
        };
        let pin = frames.platform().pin();
        let frame = frames.allocate(&pin, frame_for_contents(SITE)).ok()?;
        let copied = self.state.lock().back.begin(frame, pop);
        if copied.is_none() {
            give_back(frames, &pin, frame, Order::ZERO);
        }
        copied
    }

    /// The writeback has come to an end. If the page was not written it stays in the cache. Returns whether a
    /// thread may wait for the end: one that took the slot meanwhile.
    pub(super) fn left(&self, memory: DeviceMemory<'_, P>, copied: Copied, outcome: Outcome) -> bool {
        let frames = memory.frames();
        let pin = frames.platform().pin();
        let free = |lru: &mut Lru, slot| {
            // Before it is free: the slot's charge keeps the memcg as long as this lock is held.
            if let Some(memcgs) = memory.memcgs() {
                let memcg = lru.memcg(frames, slot);
                for stat in [MemcgStat::Zswpwb, MemcgStat::Pswpout] {
                    memcgs.counters().add_stat(&pin, memcg, stat, 1);
                }
            }
            self.count_for(memory, lru, slot, MemcgId::ROOT);
            self.store.free(frames, slot);
        };
        let ended = self.state.lock().back.end(frames, copied, outcome, free);
        match ended {
            Ended::Done => {}
            // Another thread was told of its end too, by a device that says so twice.
            Ended::Unknown => return false,
            Ended::Dropped => {
                self.written_back.fetch_add(1, Ordering::Relaxed);
                frames.events().add(&pin, VmEvent::Zswpwb, 1);
                frames.events().add(&pin, VmEvent::Pswpout, 1);
            }
            Ended::Taken(slot) => {
                // It may have been freed before the device had the page, which nothing else would free.
                if self.flags.contains(DeviceFlags::NOTES_FREED) {
                    self.behind.freed(DeviceMemory::new(frames), slot, 1);
                }
                self.state.lock().back.forget(frames, copied.frame);
            }
        }
        give_back(frames, &pin, copied.frame, Order::ZERO);
        matches!(ended, Ended::Taken(_))
    }

    /// The writeback that the device reports with this, if it has such a one.
    pub(super) fn sent(&self, frames: &Frames<P>, io: PageIo) -> Option<Copied> {
        let copied = Copied::reported(io)?;
        let _pin = frames.platform().pin();
        self.state.lock().back.is_sent(copied).then_some(copied)
    }
}
