//! Threads that reclaim. What they have isolated is on no list, so another thread that needs memory finds
//! nothing there, though it comes free at once.

use super::Spaces;
use core::fmt;
use core::ptr;
use quire_arch::Platform;
use quire_sync::atomic::{AtomicU64, Ordering};

/// A thread that reclaims.
const UNDER_WAY: u64 = 1;
/// A thread that waits for those.
const WAITER: u64 = 1 << 22;
/// Something was freed so once more. Above everything else, so that an overflow falls off.
const FREED: u64 = 1 << 44;

/// Wake-ups of a thread that sleeps for a tick: each thread that frees something wakes it, and others by
/// chance. In a model the time is over as soon as another thread has run.
const WAKES: u32 = if cfg!(shuttle) { 1 } else { 1 << 12 };

/// The bits that count those that reclaim, and those that wait.
const RECLAIMING: u64 = WAITER - UNDER_WAY;
const WAITING: u64 = FREED - WAITER;

/// Which threads reclaim now, and how often that has freed something: one word, so that of a thread that goes
/// to sleep and one that frees something one sees the other.
#[derive(Debug)]
pub(crate) struct Reclaims {
    word: AtomicU64,
}

/// What had been freed when a thread began to look for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SeenReclaims(u64);

impl Reclaims {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU64::new(0) }
    }

    /// To be read before memory is looked for. Acquire: pairs with the release of who frees something.
    pub(crate) fn seen(&self) -> SeenReclaims {
        SeenReclaims(self.word.load(Ordering::Acquire) / FREED)
    }

    /// Sleeps as long as `still`, which looks at this, about `ns` nanoseconds at most. The caller reclaims
    /// nothing now; of the locks that it may hold threads that reclaim wait for none.
    pub(crate) fn wait<P: Platform>(&self, platform: &P, ns: u64, still: impl Fn() -> bool) {
        self.word.fetch_add(WAITER, Ordering::Relaxed);
        let until = platform.now().saturating_add(ns);
        for _ in 0..WAKES {
            let left = until.saturating_sub(platform.now());
            if left == 0 || !still() {
                break;
            }
            platform.park_for(self.key(), left, &mut || still());
        }
        self.word.fetch_sub(WAITER, Ordering::Relaxed);
    }

    fn key(&self) -> usize {
        ptr::from_ref(&self.word).addr()
    }

    /// Whether threads reclaim now. Acquire: as in `seen`.
    pub(crate) fn is_any(&self) -> bool {
        self.word.load(Ordering::Acquire) & RECLAIMING > 0
    }

    /// No thread reclaims, and none has freed anything since `seen`. Acquire: as there.
    pub(crate) fn is_in_vain(&self, seen: SeenReclaims) -> bool {
        let word = self.word.load(Ordering::Acquire);
        word / FREED == seen.0 && word & RECLAIMING == 0
    }

    /// Changes the word, and wakes those that wait. Release: what was freed is found by who sees the word.
    fn change<P: Platform>(&self, platform: &P, change: u64) {
        let before = self.word.fetch_add(change, Ordering::Release);
        if before & WAITING > 0 {
            platform.unpark(self.key());
        }
    }
}

/// Reclaim by this thread: as long as it has folios off their lists, others do not take it that there is
/// nothing to free.
pub struct Reclaiming<'s, P: Platform> {
    spaces: &'s Spaces<P>,
}

impl<P: Platform> Drop for Reclaiming<'_, P> {
    fn drop(&mut self) {
        self.spaces.reclaims.change(self.spaces.platform(), UNDER_WAY.wrapping_neg());
    }
}

impl<P: Platform> fmt::Debug for Reclaiming<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaiming").finish_non_exhaustive()
    }
}

impl<P: Platform> Spaces<P> {
    /// This thread begins to reclaim: to be called before it isolates folios.
    pub fn begin_reclaim(&self) -> Reclaiming<'_, P> {
        self.reclaims.word.fetch_add(UNDER_WAY, Ordering::Relaxed);
        Reclaiming { spaces: self }
    }

    /// A thread that reclaims has freed so many pages.
    pub fn note_reclaimed(&self, pages: u64) {
        if pages > 0 {
            self.reclaims.change(self.platform(), FREED);
        }
    }

    pub(crate) fn reclaims(&self) -> &Reclaims {
        &self.reclaims
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn others_are_waited_for_only_while_they_reclaim() {
        let reclaims = Reclaims::new();
        let change = |by: u64| _ = reclaims.word.fetch_add(by, Ordering::Release);
        let seen = reclaims.seen();
        assert!(reclaims.is_in_vain(seen) && !reclaims.is_any());
        change(UNDER_WAY);
        change(UNDER_WAY);
        assert!(reclaims.is_any() && !reclaims.is_in_vain(seen));
        change(FREED);
        let later = reclaims.seen();
        assert!(later != seen, "there is memory");
        change(UNDER_WAY.wrapping_neg());
        change(UNDER_WAY.wrapping_neg());
        assert!(
            reclaims.is_in_vain(later) && !reclaims.is_in_vain(seen),
            "it was freed after the first look"
        );
        // The number of those times starts again, and changes nothing beside it.
        (0..1 << 20).for_each(|_| change(FREED));
        assert!(reclaims.is_in_vain(later));
    }
}
