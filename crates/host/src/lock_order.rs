//! Checks at run time that locks are taken in the order of their classes, and spin locks in pinned sections.
//!
//! A kernel may preempt a thread that is not pinned. With a spin lock it would leave those that spin for the
//! lock waiting, on its own CPU for ever. Threads of a host go on all the same, so that no test would notice
//! it.

use crate::threads::thread_local;
use core::cell::Cell;
use quire_arch::LockClass;

thread_local! {
    /// For each class, how many of its locks this thread holds or waits for. The class is kept with its
    /// count, for the messages: a class cannot be made from its number.
    static HELD: [Cell<Option<(LockClass, u32)>>; LockClass::COUNT] =
        const { [const { Cell::new(None) }; LockClass::COUNT] };
    /// How many pinned sections this thread is in, on any machine. Counted in debug builds only.
    static PINS: Cell<u64> = const { Cell::new(0) };
}

/// The thread has begun a pinned section.
#[inline]
pub(crate) fn pinned() {
    if cfg!(debug_assertions) {
        PINS.with(|pins| pins.set(pins.get() + 1));
    }
}

/// The thread has ended a pinned section.
#[inline]
pub(crate) fn unpinned() {
    if cfg!(debug_assertions) {
        PINS.with(|pins| pins.set(pins.get() - 1));
    }
}

/// Whether those that wait for a lock of `class` spin. They sleep for the others.
fn spins(class: LockClass) -> bool {
    use LockClass::{FileRmap, Inode, Invalidate, Mmap, Rename, Rmap};
    !matches!(class, Rename | Inode | Mmap | Invalidate | FileRmap | Rmap)
}

/// A lock of `class` is about to be waited for.
///
/// # Panics
///
/// When the thread holds a lock of a later class; when it is not pinned and the lock is a spin lock.
pub(crate) fn taken(class: LockClass) {
    // A second panic while one unwinds would hide the first.
    assert!(
        !spins(class) || PINS.with(Cell::get) > 0 || !cfg!(debug_assertions) || std::thread::panicking(),
        "lock order: a {class:?} lock is taken by a thread that is not pinned"
    );
    HELD.with(|held| {
        let later = held[class as usize + 1..].iter().rev().find_map(Cell::get);
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
        pinned();
        for class in [LockClass::Mmap, LockClass::PteTable, LockClass::PteTable, LockClass::Zone] {
            taken(class);
        }
        for class in [LockClass::Mmap, LockClass::Zone, LockClass::PteTable, LockClass::PteTable] {
            dropped(class);
        }
        taken(LockClass::Spaces);
        dropped(LockClass::Spaces);
        unpinned();
    }

    #[test]
    #[should_panic(expected = "a Mmap lock is taken while a Zone lock is held")]
    fn an_outer_lock_under_an_inner_one_is_refused() {
        pinned();
        taken(LockClass::Zone);
        taken(LockClass::Mmap);
    }

    #[test]
    #[should_panic(expected = "released by a thread that holds none")]
    fn a_release_without_a_lock_is_refused() {
        dropped(LockClass::Slab);
    }

    /// Hazard: a thread with a spin lock is preempted by one that spins for it.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a Zone lock is taken by a thread that is not pinned")]
    fn a_spin_lock_outside_of_pinned_sections_is_refused() {
        pinned();
        pinned();
        unpinned();
        taken(LockClass::Zone);
        dropped(LockClass::Zone);
        unpinned();
        taken(LockClass::Mmap);
        dropped(LockClass::Mmap);
        taken(LockClass::Zone);
    }
}
