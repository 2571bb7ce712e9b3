//! Counts of what a store has.

use super::MAX_OBJECT;
use crate::device::memory::PAGE;
use crate::device::slots::Contents;
// Counts order nothing, so no model has to see them.
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Pin, Platform};

/// Sets of counters, so that CPUs seldom share one. What one CPU counts up, another counts down: only sums
/// mean something.
const SHARDS: usize = 8;

/// On a line of its own. Not further apart, since a device is passed by value, on kernel stacks of a few
/// pages.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard {
    stored: AtomicU64,
    same: AtomicU64,
    whole: AtomicU64,
    bytes: AtomicU64,
    whole_since: AtomicU64,
}

/// Counters of all CPUs.
#[derive(Debug, Default)]
pub(super) struct Tally {
    shards: [Shard; SHARDS],
}

/// Their sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sums {
    pub(super) stored: u64,
    pub(super) same: u64,
    pub(super) whole: u64,
    pub(super) bytes: u64,
    pub(super) whole_since: u64,
}

/// The contribution of one slot.
fn share(contents: Contents) -> Sums {
    let one = Sums { stored: 1, ..Sums::default() };
    match contents {
        Contents::Empty => Sums::default(),
        Contents::Same(_) | Contents::Pattern(_) => Sums { same: 1, ..one },
        Contents::Packed { length, .. } => Sums { bytes: u64::from(length), ..one },
        Contents::Whole(_) => Sums { whole: 1, whole_since: 1, bytes: PAGE as u64, ..one },
    }
}

/// Bytes of a slot's page.
pub(super) fn bytes(contents: Contents) -> u64 {
    share(contents).bytes
}

impl Tally {
    /// A slot had `before` and has `after`.
    #[inline]
    pub(super) fn replaced<P: Platform>(&self, pin: &Pin<'_, P>, before: Contents, after: Contents) {
        let shard = &self.shards[pin.cpu().index() % SHARDS];
        let (before, after) = (share(before), share(after));
        let change = |counter: &AtomicU64, before: u64, after: u64| {
            if before != after {
                counter.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        change(&shard.stored, before.stored, after.stored);
        change(&shard.same, before.same, after.same);
        change(&shard.whole, before.whole, after.whole);
        change(&shard.bytes, before.bytes, after.bytes);
        change(&shard.whole_since, 0, after.whole_since);
    }

    /// The sums: exact on a quiet machine.
    pub(super) fn sums(&self) -> Sums {
        let sum = |counter: fn(&Shard) -> &AtomicU64| {
            let counts = self.shards.iter().map(|shard| counter(shard).load(Ordering::Relaxed));
            counts.fold(0, u64::wrapping_add)
        };
        Sums {
            stored: sum(|shard| &shard.stored),
            same: sum(|shard| &shard.same),
            whole: sum(|shard| &shard.whole),
            bytes: sum(|shard| &shard.bytes),
            whole_since: sum(|shard| &shard.whole_since),
        }
    }
}

const _: () = assert!(MAX_OBJECT < 1 << 12, "a slot's word has room for an object's length");
