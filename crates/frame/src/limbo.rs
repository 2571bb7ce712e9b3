//! Frames that lock-free readers may still access.
//!
//! An unlinked page table is freed only when every walker that could have found it is gone, i.e. when the
//! epoch in which it was unlinked has passed. Each CPU keeps what it retired in three buckets, one for each
//! epoch that matters: something retired in epoch `e` is free when the epoch is `e + 2`, so a fourth stamp
//! finds the oldest bucket passed (K. Fraser, 2004, as in [`Epoch`]). Retiring therefore costs a link and,
//! for a whole chain, one stamp. Who frees what has passed, and how much of it, is said in
//! `frames/limbo.rs`.

use crate::chain::FrameChain;
use crate::map::MemoryMap;
use quire_sync::{Epoch, Stamp};

/// The frames that one CPU retired, behind a lock of class `Limbo`.
#[derive(Debug, Default)]
pub(crate) struct LimboLists {
    buckets: [(Stamp, FrameChain); Stamp::BUCKETS],
    /// Their readers are gone; they are freed a portion at a time.
    ready: FrameChain,
}

impl LimboLists {
    /// Takes `chain`, whose frames were unlinked just before.
    pub(crate) fn retire(&mut self, map: &MemoryMap, epoch: &Epoch, mut chain: FrameChain) {
        let stamp = epoch.stamp();
        let (bucket_stamp, bucket) = &mut self.buckets[stamp.bucket()];
        if *bucket_stamp != stamp {
            // Same bucket, different stamp: at least three epochs older, so it has passed. To know it orders
            // nothing. But the caller calls `collect` next under the same lock, which asks `has_passed` for
            // the bucket that is filled here, and so comes after the readers' sections.
            debug_assert!(bucket.is_empty() || epoch.has_passed(*bucket_stamp));
            self.ready.append(map, bucket);
            *bucket_stamp = stamp;
        }
        bucket.append(map, &mut chain);
    }

    /// Takes up to `limit` blocks whose readers are gone, or all of them, if there are no more than `most`.
    pub(crate) fn collect(&mut self, map: &MemoryMap, epoch: &Epoch, limit: u32, most: u64) -> FrameChain {
        for (stamp, bucket) in &mut self.buckets {
            if !bucket.is_empty() && epoch.has_passed(*stamp) {
                self.ready.append(map, bucket);
            }
        }
        // To take all is constant time; a part is walked.
        let all = u64::from(self.ready.blocks()) <= most;
        self.ready.split(map, if all { u32::MAX } else { limit })
    }

    /// Blocks that wait or are ready.
    pub(crate) fn blocks(&self) -> u64 {
        self.chains().map(|chain| u64::from(chain.blocks())).sum()
    }

    /// Every chain, for the auditor.
    pub(crate) fn chains(&self) -> impl Iterator<Item = &FrameChain> {
        self.buckets.iter().map(|(_, chain)| chain).chain(core::iter::once(&self.ready))
    }
}
