//! A CPU's front of a cache.

use crate::slot::{self, Slot, SlotList, TailedList};
use core::mem;
use quire_sync::{Epoch, Stamp};

/// One CPU's free and retired objects, behind a lock of class `Slab`.
///
/// Free slots are two batches: the one in use, and a spare that is full or empty. So a CPU that alternates
/// around the edge of one batch stays here, and only whole batches move: no slot is touched.
#[derive(Debug, Default)]
pub(crate) struct Front {
    pub(crate) loaded: SlotList,
    spare: SlotList,
    retired: [Bucket; Stamp::BUCKETS],
    /// Retired objects whose readers are gone.
    ready: SlotList,
    /// Objects allocated through this CPU less those freed through it: the sum over all CPUs is what is in
    /// use, one CPU's share may be negative.
    pub(crate) in_use: i64,
}

/// Objects that were retired in one epoch.
#[derive(Debug, Default)]
struct Bucket {
    stamp: Stamp,
    slots: TailedList,
}

impl Front {
    /// Loads the spare batch in place of the loaded one, which is empty.
    pub(crate) fn load_spare(&mut self) {
        mem::swap(&mut self.loaded, &mut self.spare);
    }

    /// Makes the loaded batch, which is complete, the spare one. What was spare before leaves, for the depot.
    #[must_use = "the slots of a batch that leaves are lost unless they are given to the depot"]
    pub(crate) fn change(&mut self) -> SlotList {
        mem::replace(&mut self.spare, mem::take(&mut self.loaded))
    }

    /// Adds a batch of free slots. What there is no room for is returned.
    #[must_use = "the slots of a batch are lost unless they are given to the depot"]
    pub(crate) fn add(&mut self, batch: SlotList) -> SlotList {
        for place in [&mut self.loaded, &mut self.spare] {
            if place.is_empty() {
                *place = batch;
                return SlotList::EMPTY;
            }
        }
        batch
    }

    /// Takes all free slots.
    pub(crate) fn empty(&mut self) -> [SlotList; 2] {
        [mem::take(&mut self.loaded), mem::take(&mut self.spare)]
    }

    /// Whether a slot is among the free ones here. Looks at each of them.
    pub(crate) fn holds(&self, slot: &Slot) -> bool {
        let lists = [&self.loaded, &self.spare].into_iter();
        lists.flat_map(|list| slot::follow(list.first(), |_| true)).any(|address| address == slot.address())
    }

    /// Takes a slot whose object was unlinked just before.
    pub(crate) fn retire(&mut self, epoch: &Epoch, slot: Slot) {
        let stamp = epoch.stamp();
        let bucket = &mut self.retired[stamp.bucket()];
        if bucket.stamp != stamp {
            // Same bucket, different stamp: at least three epochs older, so it has passed. To know it orders
            // nothing. But the caller calls `collect` next under the same lock, which asks `has_passed` for
            // the bucket that is filled here, and so comes after the readers' sections.
            debug_assert!(bucket.slots.list().is_empty() || epoch.has_passed(bucket.stamp));
            bucket.slots.pour(&mut self.ready);
            bucket.stamp = stamp;
        }
        bucket.slots.push(slot);
    }

    /// Takes up to `limit` retired objects whose readers are gone.
    pub(crate) fn collect(&mut self, epoch: &Epoch, limit: u32) -> SlotList {
        for bucket in &mut self.retired {
            if !bucket.slots.list().is_empty() && epoch.has_passed(bucket.stamp) {
                bucket.slots.pour(&mut self.ready);
            }
        }
        self.ready.split(limit)
    }

    /// Objects that wait for readers, or to be freed after them.
    pub(crate) fn retired(&self) -> u64 {
        self.retired_lists().map(|list| u64::from(list.count())).sum()
    }

    fn retired_lists(&self) -> impl Iterator<Item = &SlotList> {
        self.retired.iter().map(|bucket| bucket.slots.list()).chain([&self.ready])
    }

    /// Every list.
    pub(crate) fn lists(&self) -> impl Iterator<Item = &SlotList> {
        self.retired_lists().chain([&self.loaded, &self.spare])
    }
}
