//! One choice of the OOM killer at a time.

use super::OomOutcome;
use core::ptr;
use quire_arch::Platform;
use quire_sync::atomic::{AtomicU32, Ordering};

/// A thread is choosing.
const BUSY: u32 = 1;
/// One more process was killed or reaped, or a killed program has exited.
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
        SeenTurns(self.word.load(Ordering::Acquire) & !BUSY)
    }

    /// Calls `choose`, one thread at a time, unless another thread has freed something so since `seen`: then
    /// looking for memory again is worthwhile. A thread that chooses waits for no lock that others hold while
    /// they wait here: it only tries such.
    pub(crate) fn take<P: Platform>(
        &self,
        platform: &P,
        seen: SeenTurns,
        choose: impl FnOnce() -> OomOutcome,
    ) -> OomOutcome {
        let key = self.key_of_turn();
        while !self.begin(seen) {
            if self.has_turned(seen) {
                return OomOutcome::Freed;
            }
            platform.park(key, &mut || self.is_busy());
        }
        let outcome = choose();
        self.end(outcome == OomOutcome::Freed);
        platform.unpark(key);
        if outcome == OomOutcome::Freed {
            platform.unpark(self.key_of_wait());
        }
        outcome
    }

    /// Waits until something is freed by a choice, or a killed program has exited, since `seen`; about `ns`
    /// nanoseconds at most.
    pub(crate) fn wait<P: Platform>(&self, platform: &P, seen: SeenTurns, ns: u64) {
        platform.park_for(self.key_of_wait(), ns, &mut || !self.has_turned(seen));
    }

    /// What those sleep on that want to choose.
    fn key_of_turn(&self) -> usize {
        ptr::from_ref(&self.word).addr()
    }

    /// What those sleep on that wait for a killed program.
    fn key_of_wait(&self) -> usize {
        ptr::from_ref(&self.begun).addr()
    }

    /// Begins a choice if none was made since `seen`, and none is under way.
    fn begin(&self, seen: SeenTurns) -> bool {
        let taken = seen.0 | BUSY;
        let begins = self.word.compare_exchange(seen.0, taken, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if begins {
            // Relaxed: read by this thread alone.
            self.begun.store(taken, Ordering::Relaxed);
        }
        begins
    }

    /// Ends the choice that was begun, by which something was `freed` or not. Release: pairs with the loads
    /// of others. `park` reads the word under the lock that `unpark` takes.
    fn end(&self, freed: bool) {
        let turn = if freed { TURN } else { 0 };
        self.word.fetch_add(turn.wrapping_sub(BUSY), Ordering::Release);
    }

    /// A killed program has exited. Release: pairs with the loads in `seen`, `has_come` and `has_turned`,
    /// so what the exit freed is found.
    pub(crate) fn note_exit<P: Platform>(&self, platform: &P) {
        self.word.fetch_add(TURN, Ordering::Release);
        platform.unpark(self.key_of_wait());
    }

    /// Whether a killed program has exited since the thread that chooses began to look for memory. Acquire:
    /// as in `seen`. Called by that thread.
    pub(crate) fn has_come(&self) -> bool {
        self.word.load(Ordering::Acquire) != self.begun.load(Ordering::Relaxed)
    }

    /// Whether something was freed since `seen`. Acquire: as there.
    pub(crate) fn has_turned(&self, seen: SeenTurns) -> bool {
        self.word.load(Ordering::Acquire) & !BUSY != seen.0
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
        turns.end(true);
        assert!(!turns.begin(b) && !turns.begin(c) && !turns.is_busy(), "another one has chosen since");
        assert!(turns.has_turned(b) && turns.has_turned(c));
        assert!(turns.begin(turns.seen()));
        assert!(!turns.has_come());
        turns.word.fetch_add(TURN, Ordering::Release);
        assert!(turns.has_come(), "the thread that chooses sees the exit of a killed program");
        turns.end(true);
        let before = turns.seen();
        turns.word.fetch_add(TURN, Ordering::Release);
        assert!(!turns.begin(before) && turns.begin(turns.seen()), "and so do those that looked before");
    }

    /// Else each of two threads that wait for one program would look for memory whenever the other one looks
    /// for the program.
    #[test]
    fn a_look_that_frees_nothing_is_no_turn_of_others() {
        let turns = OomTurns::new();
        let (a, b) = (turns.seen(), turns.seen());
        assert!(turns.begin(a));
        let c = turns.seen();
        turns.end(false);
        assert!(!turns.has_turned(a) && !turns.has_turned(b) && !turns.has_turned(c) && !turns.is_busy());
        assert!(turns.begin(b));
        turns.end(false);
        assert!(turns.begin(c), "it looked while another one chose");
    }
}
