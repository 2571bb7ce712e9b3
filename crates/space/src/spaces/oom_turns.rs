//! One choice of the OOM killer at a time.

use core::ptr;
use quire_arch::Platform;
use quire_sync::atomic::{AtomicU32, Ordering};

/// A thread is choosing.
const BUSY: u32 = 1;
/// One more choice was made, or a killed program has exited.
const TURN: u32 = 2;

/// Whose turn it is to choose a program that is killed. A thread that finds no memory while another one kills
/// a program, or that has looked for memory before that, looks again: otherwise both would kill one, and the
/// second in vain. So does one that has looked before a killed program had exited.
#[derive(Debug)]
pub(crate) struct OomTurns {
    word: AtomicU32,
    /// The word when the choice began that is under way: what the thread that chooses had seen.
    begun: AtomicU32,
}

/// The choices that were made when a thread began to look for memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenTurns(u32);

impl OomTurns {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU32::new(0), begun: AtomicU32::new(0) }
    }

    /// To be read before memory is looked for. Acquire: pairs with the release at the end of a choice, so
    /// what that freed is found.
    pub(crate) fn seen(&self) -> SeenTurns {
        SeenTurns(self.word.load(Ordering::Acquire))
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
        self.end();
        platform.unpark(key);
        done
    }

    /// Begins a choice if none was made, or begun, since `seen`.
    fn begin(&self, seen: SeenTurns) -> bool {
        let taken = seen.0 | BUSY;
        let begins = seen.0 != taken
            && self.word.compare_exchange(seen.0, taken, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if begins {
            // Relaxed: read by this thread alone.
            self.begun.store(taken, Ordering::Relaxed);
        }
        begins
    }

    /// Ends the choice that was begun. Release: pairs with the loads of others. `park` reads the word under
    /// the lock that `unpark` takes.
    fn end(&self) {
        self.word.fetch_add(TURN - BUSY, Ordering::Release);
    }

    /// A killed program has exited. Release: as above.
    pub(crate) fn note_exit(&self) {
        self.word.fetch_add(TURN, Ordering::Release);
    }

    /// Whether a killed program has exited since the thread that chooses began to look for memory. Acquire:
    /// as in `seen`. Called by that thread.
    pub(crate) fn has_come(&self) -> bool {
        self.word.load(Ordering::Acquire) != self.begun.load(Ordering::Relaxed)
    }

    /// Acquire: as in `seen`.
    fn is_busy(&self) -> bool {
        self.word.load(Ordering::Acquire) & BUSY != 0
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
        turns.end();
        assert!(!turns.begin(b) && !turns.begin(c) && !turns.is_busy(), "another one has chosen since");
        assert!(turns.begin(turns.seen()));
        assert!(!turns.has_come());
        turns.note_exit();
        assert!(turns.has_come(), "the thread that chooses sees it");
        turns.end();
        let before = turns.seen();
        turns.note_exit();
        assert!(!turns.begin(before) && turns.begin(turns.seen()), "and so do those that looked before");
    }
}
