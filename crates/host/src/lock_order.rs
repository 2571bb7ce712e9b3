//! Checks at run time that locks are taken in the order of their classes.

use crate::threads::thread_local;
use core::cell::Cell;
use quire_arch::LockClass;

thread_local! {
    /// For each class, how many of its locks this thread holds or waits for. The class is kept with its
    /// count, for the messages: a class cannot be made from its number.
    static HELD: [Cell<Option<(LockClass, u32)>>; LockClass::COUNT] =
        const { [const { Cell::new(None) }; LockClass::COUNT] };
}

/// A lock of `class` is about to be waited for.
///
/// # Panics
///
/// When the thread holds a lock of a later class.
pub(crate) fn taken(class: LockClass) {
    HELD.with(|held| {
        let later = held[class as usize + 1..].iter().rev().find_map(Cell::get);
        // A second panic while one unwinds would hide the first.
        if let Some((later, _)) = later
            && !std::thread::panicking()
        {
            let all: Vec<(LockClass, u32)> = held.iter().filter_map(Cell::get).collect();
            panic!(
                "lock order: a {class:?} lock is taken while a {later:?} lock is held; held in all: {all:?}"
            );
        }
        let count = held[class as usize].get().map_or(0, |(_, count)| count);
        held[class as usize].set(Some((class, count + 1)));
    });
}

/// A lock of `class` was released.
///
/// # Panics
///
/// When the thread holds none.
pub(crate) fn dropped(class: LockClass) {
    HELD.with(|held| {
        let held = &held[class as usize];
        let count = held.get().map_or(0, |(_, count)| count);
        assert!(
            count > 0 || std::thread::panicking(),
            "lock order: a {class:?} lock is released by a thread that holds none"
        );
        held.set((count > 1).then(|| (class, count - 1)));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_nest_inwards_and_within_themselves() {
        for class in [LockClass::Mmap, LockClass::PteTable, LockClass::PteTable, LockClass::Zone] {
            taken(class);
        }
        for class in [LockClass::Mmap, LockClass::Zone, LockClass::PteTable, LockClass::PteTable] {
            dropped(class);
        }
        taken(LockClass::Spaces);
        dropped(LockClass::Spaces);
    }

    #[test]
    #[should_panic(expected = "a Mmap lock is taken while a Zone lock is held")]
    fn an_outer_lock_under_an_inner_one_is_refused() {
        taken(LockClass::Zone);
        taken(LockClass::Mmap);
    }

    #[test]
    #[should_panic(expected = "released by a thread that holds none")]
    fn a_release_without_a_lock_is_refused() {
        dropped(LockClass::Slab);
    }
}
