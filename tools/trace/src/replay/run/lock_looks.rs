//! When locked pages of files are counted again.

use crate::event::EventKind;

/// Mappings that are looked at for each event.
const LOOKS_OF_EVENT: u64 = 16;

/// To count them is to look at all mappings. Each event pays for some of them, so that many locks among many
/// mappings do not take the square of their number.
#[derive(Debug, Default)]
pub(super) struct LockLooks {
    /// Something was locked at some time.
    any: bool,
    /// From this event on they may be counted again.
    from: u64,
}

impl LockLooks {
    /// Whether event number `number`, which is of this kind, may have changed what is locked, and those
    /// before have paid for the last look.
    pub(super) fn are_due(&mut self, kind: &EventKind, number: u64) -> bool {
        self.any |= may_lock(kind);
        let changes = matches!(kind, EventKind::Call(_) | EventKind::Exec(_) | EventKind::Exit(_));
        self.any && changes && number >= self.from
    }

    /// At event number `number` so many mappings were looked at.
    pub(super) fn looked_at(&mut self, mappings: u64, number: u64) {
        self.from = number.saturating_add(mappings / LOOKS_OF_EVENT);
    }
}

/// Whether memory can be locked from this event on.
fn may_lock(kind: &EventKind) -> bool {
    match kind {
        EventKind::Call(call) => match i64::from(call.number) {
            libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_mlockall => true,
            libc::SYS_mmap => call.args[3] & libc::MAP_LOCKED as u64 != 0,
            _ => false,
        },
        EventKind::Exec(image) => image.mappings.iter().any(|mapping| mapping.flags.has(*b"lo")),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Call, CallDetail};

    fn call(number: i64) -> EventKind {
        EventKind::Call(Call { number: number as u32, args: [0; 6], result: 0, detail: CallDetail::None })
    }

    /// A key agent locks and unlocks a page for each secret, beside many mappings.
    #[test]
    fn many_locks_among_many_mappings_look_at_a_few_for_each() {
        const MAPPINGS: u64 = 30_000;
        const EVENTS: u64 = 40_000;
        let mut looks = LockLooks::default();
        let mut looked_at = 0;
        for number in 0..EVENTS {
            let kind = call(if number % 2 == 0 { libc::SYS_mlock } else { libc::SYS_munlock });
            if looks.are_due(&kind, number) {
                looks.looked_at(MAPPINGS, number);
                looked_at += MAPPINGS;
            }
        }
        assert!(looked_at > 2 * MAPPINGS && looked_at <= MAPPINGS + LOOKS_OF_EVENT * EVENTS, "{looked_at}");
    }

    #[test]
    fn nothing_is_looked_at_before_something_is_locked() {
        let mut looks = LockLooks::default();
        assert!(!looks.are_due(&call(libc::SYS_munmap), 0));
        assert!(looks.are_due(&call(libc::SYS_mlock), 1));
        // Few mappings are looked at each time.
        looks.looked_at(LOOKS_OF_EVENT - 1, 1);
        assert!(looks.are_due(&call(libc::SYS_munmap), 1));
        looks.looked_at(5 * LOOKS_OF_EVENT, 2);
        assert!(!looks.are_due(&call(libc::SYS_munmap), 6) && looks.are_due(&call(libc::SYS_munmap), 7));
    }
}
