//! Forks of a space, as seen by lock-free pins (`calls/pin_fast.rs`).

use quire_sync::atomic::{AtomicU64, Ordering, fence};

/// Forks of a space: odd while one shares pages.
#[derive(Debug, Default)]
pub struct ForkSequence(AtomicU64);

impl ForkSequence {
    /// A fork begins to share pages. The caller holds the mmap lock for writing until it calls
    /// [`end`](Self::end).
    #[inline]
    pub fn begin(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `pin_page_fast`: the looks for pins come after.
        fence(Ordering::SeqCst);
    }

    /// The fork has shared all its pages.
    #[inline]
    pub fn end(&self) {
        // Release: pairs with the acquire in `read`. A thread that finds no fork under way sees its write
        // protection.
        self.0.fetch_add(1, Ordering::Release);
    }

    /// The number of forks, unless one is under way.
    #[inline]
    pub fn read(&self) -> Option<u64> {
        let number = self.0.load(Ordering::Acquire);
        (number & 1 == 0).then_some(number)
    }

    /// Whether no fork has begun since `number` was read. The caller has pinned a page before, and there is a
    /// fence between.
    #[inline]
    pub fn unchanged(&self, number: u64) -> bool {
        self.0.load(Ordering::Relaxed) == number
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;
    use quire_sync::atomic::AtomicU32;

    /// A page, as far as a pin and a fork ask for it.
    #[derive(Debug, Default)]
    struct Page {
        pins: AtomicU32,
        shared: AtomicU32,
    }

    /// A fork shares only unpinned pages and a pin takes only unshared ones: at least one sees the other.
    #[test]
    fn loom_of_a_fast_pin_and_a_fork_one_sees_the_other() {
        loom::model(|| {
            let state = Arc::new((ForkSequence::default(), Page::default()));
            let forking = {
                let state = Arc::clone(&state);
                thread::spawn(move || {
                    let (forks, page) = &*state;
                    forks.begin();
                    let shares = page.pins.load(Ordering::Relaxed) == 0;
                    if shares {
                        page.shared.store(1, Ordering::Relaxed);
                    }
                    forks.end();
                    shares
                })
            };
            let (forks, page) = &*state;
            let pinned = forks.read().is_some_and(|number| {
                page.pins.fetch_add(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                page.shared.load(Ordering::Relaxed) == 0 && forks.unchanged(number)
            });
            let shared = forking.join().expect("the fork ends");
            assert!(!(pinned && shared), "a pinned page is shared");
        });
    }
}
