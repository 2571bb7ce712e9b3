//! When locked pages of files are counted again.

use crate::space::HostSpace;
use quire_trace::event::EventKind;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// Spaces and mappings that are looked at for each event.
const LOOKS_OF_EVENT: u64 = 16;

/// To count them is to look at all mappings of the spaces that have locked memory. Each event pays for some
/// of them, so that many locks among many mappings do not take the square of their number. Which spaces these
/// are is kept, so that an event looks at no other ones.
#[derive(Default)]
pub(super) struct LockLooks<'m> {
    /// Spaces with locked memory, by their numbers, and some that are gone.
    spaces: BTreeMap<usize, Weak<HostSpace<'m>>>,
    /// From this event on they may be counted again.
    from: u64,
}

impl<'m> LockLooks<'m> {
    /// An event changed space number `number`.
    pub(super) fn note(&mut self, number: usize, space: &Rc<HostSpace<'m>>) {
        if space.figures().locked == 0 {
            self.spaces.remove(&number);
        } else {
            self.spaces.entry(number).or_insert_with(|| Rc::downgrade(space));
        }
    }

    /// Whether they may be counted again at event number `number`: there are none, or those before have paid
    /// for the last look.
    pub(super) fn are_due(&self, number: u64) -> bool {
        self.spaces.is_empty() || number >= self.from
    }

    /// The spaces with locked memory.
    pub(super) fn spaces(&mut self) -> Vec<Rc<HostSpace<'m>>> {
        self.spaces.retain(|_, space| space.strong_count() > 0);
        self.spaces.values().filter_map(Weak::upgrade).collect()
    }

    /// At event number `number` so many spaces and mappings were looked at.
    pub(super) fn looked_at(&mut self, count: u64, number: u64) {
        self.from = number.saturating_add(count / LOOKS_OF_EVENT);
    }
}

/// Whether an event of this kind can change what is locked.
pub(super) fn changes_locks(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Call(_) | EventKind::Exec(_) | EventKind::Exit(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_arch::PAGE_SIZE;
    use quire_host::{HostConfig, Machine};
    use quire_mm::MemoryConfig;
    use quire_mm::space::{MapRequest, Protection};

    /// A key agent locks and unlocks a page for each secret, beside many mappings.
    #[test]
    fn many_locks_among_many_mappings_look_at_a_few_for_each() {
        const MAPPINGS: u64 = 30_000;
        const EVENTS: u64 = 40_000;
        let mut looks = LockLooks { spaces: [(0, Weak::new())].into(), from: 0 };
        let mut looked_at = 0;
        for number in 0..EVENTS {
            if looks.are_due(number) {
                looks.looked_at(MAPPINGS, number);
                looked_at += MAPPINGS;
            }
        }
        assert!(looked_at > 2 * MAPPINGS && looked_at <= MAPPINGS + LOOKS_OF_EVENT * EVENTS, "{looked_at}");
    }

    #[test]
    fn only_spaces_that_live_and_lock_are_looked_at() {
        let machine = Machine::new(&HostConfig::with_ram(4 << 20), MemoryConfig::default()).unwrap();
        let vcpu = machine.vcpu(0).unwrap();
        vcpu.run(|| {
            let mut looks = LockLooks::default();
            let spaces = [0, 1, 2].map(|_| Rc::new(machine.memory().create_space().unwrap()));
            let lock = |space: &HostSpace<'_>| {
                let request = MapRequest::anonymous(PAGE_SIZE, Protection::READ | Protection::WRITE);
                let addr = space.mmap(&request).unwrap();
                space.mlock(addr, PAGE_SIZE, false).unwrap();
                addr
            };
            let locked = [0, 1].map(|number| lock(&spaces[number]));
            (0..3).for_each(|number| looks.note(number, &spaces[number]));
            assert_eq!(looks.spaces().len(), 2);
            // Nothing is locked any more in one of them, and the other one ends.
            looks.looked_at(100 * LOOKS_OF_EVENT, 1);
            assert!(!looks.are_due(100) && looks.are_due(101));
            spaces[0].munlock(locked[0], PAGE_SIZE).unwrap();
            looks.note(0, &spaces[0]);
            assert!(Rc::ptr_eq(&looks.spaces()[0], &spaces[1]));
            drop(spaces);
            assert!(looks.spaces().is_empty());
            // That takes no time.
            assert!(looks.are_due(2));
        });
    }
}
