//! The peak of a counter since a reset, for each of those that reset it.
//!
//! A file that was reset reads the most since then, also if others reset the peak meanwhile. What has to be
//! known for that of the time between two resets is its most, and only if all later ones are lower. So few
//! are kept; where there is no room, the two that differ least become one, and are read as the higher one.

use core::sync::atomic::AtomicU64;
use quire_sync::atomic::Ordering;

/// How many are kept.
const KEPT: usize = 8;

/// What an open `memory.peak` or `memory.swap.peak` is to read after it was written to: the most since then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemcgPeak {
    /// Which reset it was, from 1.
    reset: u64,
}

/// The time up to a reset.
#[derive(Debug, Default)]
struct Ended {
    reset: AtomicU64,
    most: AtomicU64,
}

impl Ended {
    fn get(&self) -> (u64, u64) {
        (self.reset.load(Ordering::Relaxed), self.most.load(Ordering::Relaxed))
    }

    fn set(&self, (reset, most): (u64, u64)) {
        self.reset.store(reset, Ordering::Relaxed);
        self.most.store(most, Ordering::Relaxed);
    }
}

/// Peaks between resets. All but `recent` changes under the lock of the memcgs.
#[derive(Debug, Default)]
pub(crate) struct Peaks {
    /// Since the last reset.
    recent: AtomicU64,
    resets: AtomicU64,
    /// The times before, each with less than the one before it; `len` of them.
    ended: [Ended; KEPT],
    len: AtomicU64,
}

impl Peaks {
    /// As new.
    pub(crate) fn clear(&self) {
        self.recent.store(0, Ordering::Relaxed);
        self.resets.store(0, Ordering::Relaxed);
        self.len.store(0, Ordering::Relaxed);
    }

    /// There are `now` pages. Returns whether that is the most since the last reset.
    #[inline]
    pub(crate) fn note(&self, now: u64) -> bool {
        let is_most = now > self.recent.load(Ordering::Relaxed);
        if is_most {
            self.recent.fetch_max(now, Ordering::Relaxed);
        }
        is_most
    }

    fn kept(&self) -> &[Ended] {
        let len = self.len.load(Ordering::Relaxed) as usize;
        self.ended.get(..len).unwrap_or(&self.ended)
    }

    /// Begins a new peak with the present `usage`. The caller has the lock of the memcgs.
    pub(crate) fn reset(&self, usage: impl Fn() -> u64) -> MemcgPeak {
        let most = self.recent.swap(usage(), Ordering::Relaxed);
        // A charge may have come between the two, and was noted for what has ended only.
        self.recent.fetch_max(usage(), Ordering::Relaxed);
        let reset = self.resets.load(Ordering::Relaxed) + 1;
        self.resets.store(reset, Ordering::Relaxed);
        let higher = self.kept().iter().take_while(|ended| ended.get().1 > most).count();
        let at = if higher == KEPT { self.make_room() } else { higher };
        if let Some(ended) = self.ended.get(at) {
            ended.set((reset, most));
        }
        self.len.store(at as u64 + 1, Ordering::Relaxed);
        MemcgPeak { reset }
    }

    /// Makes one of the two neighbours that differ least. Returns where the last one was.
    fn make_room(&self) -> usize {
        let differ = |at: usize| self.ended[at - 1].get().1 - self.ended[at].get().1;
        let least = (1..KEPT).min_by_key(|&at| differ(at)).unwrap_or(1);
        self.ended[least - 1].reset.store(self.ended[least].get().0, Ordering::Relaxed);
        for at in least + 1..KEPT {
            self.ended[at - 1].set(self.ended[at].get());
        }
        KEPT - 1
    }

    /// The most since that reset. The caller has the lock of the memcgs.
    pub(crate) fn since(&self, peak: MemcgPeak) -> u64 {
        // The first that ended later has the most of all those.
        let ended = self.kept().iter().map(Ended::get).find(|&(reset, _)| reset > peak.reset);
        ended.map_or(0, |(_, most)| most).max(self.recent.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        /// Steps: how much there is from then on, and whether a file is reset. With few different amounts
        /// all files read what they should; else never less, and never more than the peak of all times.
        #[test]
        fn each_file_reads_the_most_since_its_reset(
            wide in any::<bool>(),
            steps in prop::collection::vec((0u64..64, any::<bool>()), 1..200),
        ) {
            let (peaks, mut files, mut all) = (Peaks::default(), Vec::new(), 0);
            for (amount, resets) in steps {
                let amount = if wide { amount } else { amount % (KEPT as u64) };
                peaks.note(amount);
                all = all.max(amount);
                files.iter_mut().for_each(|(_, most): &mut (MemcgPeak, u64)| *most = (*most).max(amount));
                if resets {
                    files.push((peaks.reset(|| amount), amount));
                }
                for &(file, most) in &files {
                    let read = peaks.since(file);
                    prop_assert!(read == most || wide && (most..=all).contains(&read), "{read}, not {most}");
                }
            }
        }
    }

    #[test]
    fn without_room_the_closest_two_become_one() {
        let peaks = Peaks::default();
        // Falling by 100 each time, once by 1.
        let amounts: Vec<u64> =
            (0..=KEPT as u64).map(|nth| 2000 - 100 * nth + 99 * u64::from(nth == 4)).collect();
        let files: Vec<MemcgPeak> = amounts
            .iter()
            .map(|&amount| {
                peaks.note(amount);
                peaks.reset(|| 0)
            })
            .collect();
        // A file reads the most of what came after its reset.
        let read: Vec<u64> = files.iter().map(|&file| peaks.since(file)).collect();
        let expected: Vec<u64> = (1..=KEPT + 1)
            .map(|next| match next {
                4 => amounts[4].max(amounts[3]),
                next => amounts.get(next).copied().unwrap_or(0),
            })
            .collect();
        assert_eq!(read, expected);
    }
}
