//! Signals to the recorder, which are the program's or end the recording.

use super::Tracer;
use crate::sys::signals;
use nix::sys::signal::Signal;

/// A signal that comes sooner after the first one belongs to it.
const SECOND_SIGNAL_AFTER_NS: u64 = 100_000_000;

impl Tracer<'_> {
    /// The index of a signal that came since the last check; it is then counted as seen.
    pub(super) fn new_signal(&mut self) -> Option<usize> {
        let new = signals::new_since(&self.seen_signals)?;
        self.summary.interrupted.get_or_insert(signals::NOTED[new] as u8);
        Some(new)
    }

    /// The program gets Ctrl-C from the terminal. Another signal to the recorder alone is passed on. Returns
    /// the signal if it is the recorder's: the second one, or one that came when the program itself had
    /// ended.
    pub(super) fn pass_signals_on(&mut self) -> Option<u8> {
        let seen = signals::seen();
        let new = self.new_signal()?;
        let time = signals::last();
        // A signal to the recorder's whole process group often follows one to the recorder: both are the
        // first. And the program may have ended by it.
        let belongs_to = |since: u64| time.saturating_sub(since) <= SECOND_SIGNAL_AFTER_NS;
        let first = *self.first_signal.get_or_insert(time);
        if !belongs_to(first) || !self.root_ended.is_none_or(belongs_to) {
            return Some(signals::NOTED[new] as u8);
        }
        for (place, signal) in signals::NOTED.into_iter().enumerate() {
            if seen[place] != self.seen_signals[place]
                && signal != Signal::SIGINT
                && self.root_ended.is_none()
            {
                signals::send(self.root, signal);
            }
        }
        self.seen_signals = seen;
        None
    }
}
