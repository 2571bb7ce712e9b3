//! One choice of the OOM killer at a time.

use core::ptr;
use quire_arch::Platform;
use quire_sync::atomic::{AtomicU32, Ordering};

/// A thread is choosing.
const BUSY: u32 = 1;
/// One more choice was made.
const TURN: u32 = 2;

/// Whose turn it is to choose a program that is killed. A thread that finds no memory while another one kills
/// a program, or that has looked for memory before that, looks again: otherwise both would kill one, and the
/// second in vain.
#[derive(Debug)]
pub(crate) struct OomTurns(AtomicU32);

/// The choices that were made when a thread began to look for memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenTurns(u32);

impl OomTurns {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// To be read before memory is looked for. Acquire: pairs with the release at the end of a choice, so
    /// what that freed is found.
    pub(crate) fn seen(&self) -> SeenTurns {
        SeenTurns(self.0.load(Ordering::Acquire))
    }

    /// Calls `choose`, unless another thread does so now or has since `seen`: then this waits for that
    /// thread, and looking for memory again is worthwhile (true). A thread that chooses waits for no lock
    /// that others hold while they wait here: it only tries such.
    pub(crate) fn take<P: Platform>(
        &self,
        platform: &P,
        seen: SeenTurns,
        choose: impl FnOnce() -> bool,
    ) -> bool {
        let key = ptr::from_ref(self).addr();
        if !self.begin(seen) {
            while self.is_busy() {
                platform.park(key, &mut || self.is_busy());
            }
            return true;
        }
        let done = choose();
        self.end(seen);
        platform.unpark(key);
        done
    }

    /// Begins a choice if none was made, or begun, since `seen`.
    fn begin(&self, seen: SeenTurns) -> bool {
        let taken = seen.0 | BUSY;
        seen.0 != taken
            && self.0.compare_exchange(seen.0, taken, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends the choice that was begun after `seen`. Release: pairs with the loads of others. `park` reads the
    /// word under the lock that `unpark` takes.
    fn end(&self, seen: SeenTurns) {
        self.0.store(seen.0.wrapping_add(TURN), Ordering::Release);
    }

    /// Acquire: as in `seen`.
    fn is_busy(&self) -> bool {
        self.0.load(Ordering::Acquire) & BUSY != 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_looked_before_a_choice_looks_again() {
        let turns = OomTurns::new();
        let (a, b) = (turns.seen(), turns.seen());
        assert!(turns.begin(a));
        assert!(!turns.begin(b) && turns.is_busy(), "another one chooses");
        let c = turns.seen();
        assert!(!turns.begin(c));
        turns.end(a);
        assert!(!turns.begin(b) && !turns.begin(c) && !turns.is_busy(), "another one has chosen since");
        assert!(turns.begin(turns.seen()));
    }
}
