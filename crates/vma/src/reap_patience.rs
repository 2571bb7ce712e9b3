//! How long the OOM killer waits for a killed program whose mmap lock is taken.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The time before the first attempt that counts (Linux's `OOM_REAPER_DELAY`), in nanoseconds.
const DELAY: u64 = 2_000_000_000;
/// The time between two attempts that count: a tenth of a second.
const BETWEEN: u64 = 100_000_000;
/// Attempts that count (Linux's `MAX_OOM_REAP_RETRIES`).
const ATTEMPTS: u32 = 10;

/// Attempts to free the memory of a killed program that failed since its mmap lock was taken. As in Linux it
/// is given up after ten of them, a tenth of a second apart, of which the first comes two seconds after the
/// OOM killer has found the program: so three seconds, if it looks all the time. A program that was killed
/// long before gets the same time.
#[derive(Debug, Default)]
pub struct ReapPatience {
    /// When the next attempt counts; 0 before the first attempt.
    due: AtomicU64,
    counted: AtomicU32,
}

impl ReapPatience {
    /// An attempt has failed `now`. Returns whether it was the last one. Called by one thread at a time.
    pub fn ends(&self, now: u64) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        if due == 0 {
            self.due.store(now.saturating_add(DELAY), Ordering::Relaxed);
            return false;
        }
        if now < due {
            return false;
        }
        self.due.store(now.saturating_add(BETWEEN), Ordering::Relaxed);
        self.counted.fetch_add(1, Ordering::Relaxed) + 1 > ATTEMPTS
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_program_that_is_looked_at_all_the_time_is_given_up_after_three_seconds() {
        for start in [0, 1, 1 << 40] {
            let patience = ReapPatience::default();
            let end = (0..).find(|ms| patience.ends(start + ms * MS));
            assert_eq!(end, Some(3000));
        }
    }

    /// It was killed long before by something else, or there was no shortage for long.
    #[test]
    fn a_program_that_is_looked_at_late_gets_all_its_attempts() {
        let patience = ReapPatience::default();
        assert!(!patience.ends(1 << 50), "its first one");
        let late = (1 << 50) + (1 << 40);
        let end = (0..).find(|ms| patience.ends(late + ms * MS));
        assert_eq!(end, Some(1000));
    }
}
