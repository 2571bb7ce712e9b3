//! Nodes that cannot be had.

use super::support::{Cpu, Nodes};
use crate::source::Reserve;
use crate::store::{FolioStore, InsertError, LockedStore};
use crate::{Entry, PageIndex, Payload, Stored};
use quire_arch::{Order, Pfn};
use std::vec::Vec;

/// What is in the store.
fn contents(locked: &LockedStore<'_, Cpu, Nodes>) -> Vec<Stored> {
    let mut all = Vec::new();
    locked.audit(&mut |wrong| panic!("{wrong}"), &mut |stored, _| all.push(*stored));
    all
}

/// An operation that gets too few nodes has changed nothing, and what it got goes back.
#[test]
fn an_operation_without_nodes_changes_nothing() {
    let at = |page, order, entry| Stored {
        start: PageIndex::new(page).unwrap(),
        order: Order::new(order).unwrap(),
        entry,
    };
    let shadow = Entry::Shadow(Payload::default());
    let there = [at(0, 9, shadow), at(1 << 20, 10, Entry::Folio(Pfn(1 << 10))), at(1 << 30, 0, shadow)];
    let new = [
        at(5, 0, Entry::Folio(Pfn(1))),
        at(64, 6, Entry::Folio(Pfn(64))),
        at(1 << 40, 0, Entry::Folio(Pfn(2))),
    ];
    for budget in 0..8 {
        let (store, nodes) = (FolioStore::<Cpu>::new(), Nodes::new(1));
        // SAFETY: all changes of the store use these nodes.
        let lock = || unsafe { store.lock(&nodes) };
        let fill = |reserve: &mut Reserve<'_, Nodes>, result| match result {
            Err(InsertError::NeedsNodes(needs)) => reserve.fill(needs),
            result => panic!("{result:?}"),
        };
        for stored in there {
            let mut reserve = nodes.reserve();
            while let Err(error) = lock().insert(stored, &mut reserve) {
                fill(&mut reserve, Err(error)).unwrap();
            }
        }
        let before = contents(&lock());
        for stored in new {
            nodes.budget.set(Some(budget));
            let mut reserve = nodes.reserve();
            let first = lock().insert(stored, &mut reserve);
            assert_eq!(contents(&lock()), before);
            if fill(&mut reserve, first.map(|_| None)).is_ok() {
                lock().insert(stored, &mut reserve).unwrap();
                nodes.budget.set(None);
                lock().remove(stored.start).unwrap();
                break;
            }
        }
        nodes.budget.set(Some(budget));
        let mut reserve = nodes.reserve();
        let split = lock().split(PageIndex::new(1 << 20).unwrap(), Order::ZERO, &mut reserve);
        assert!(fill(&mut reserve, split).is_err(), "a split of 4 MiB needs 18 nodes");
        drop(reserve);
        let left = contents(&lock());
        for stored in left {
            lock().remove(stored.start).unwrap();
        }
    }
}

/// What is not aligned is refused.
#[test]
fn an_entry_is_aligned_to_its_order() {
    let (store, nodes) = (FolioStore::<Cpu>::new(), Nodes::new(1));
    let start = PageIndex::new(8).unwrap();
    let stored = Stored { start, order: Order::new(4).unwrap(), entry: Entry::Folio(Pfn(0)) };
    // SAFETY: all changes of the store use these nodes.
    let result = unsafe { store.lock(&nodes) }.insert(stored, &mut nodes.reserve());
    assert_eq!(result, Err(InsertError::Misaligned));
}

/// What does not fit into a word, in one of its parts, is refused before anything changes.
#[test]
fn an_entry_fits_into_its_words() {
    let (store, nodes) = (FolioStore::<Cpu>::new(), Nodes::new(1));
    // SAFETY: all changes of the store use these nodes.
    let lock = || unsafe { store.lock(&nodes) };
    let order = Order::new(1).unwrap();
    let most = Payload::MAX.get();
    for entry in [Entry::Folio(Pfn(most + 1)), Entry::Folio(Pfn(most)), Entry::Slot(Payload::MAX)] {
        let stored = Stored { start: PageIndex::ZERO, order, entry };
        assert_eq!(lock().insert(stored, &mut nodes.reserve()), Err(InsertError::TooLarge));
        assert!(contents(&lock()).is_empty());
    }
    let last = Stored { start: PageIndex::ZERO, order, entry: Entry::Folio(Pfn(most - 1)) };
    lock().insert(last, &mut nodes.reserve()).unwrap();
    assert_eq!(lock().replace(PageIndex::ZERO, Entry::Slot(Payload::MAX)), Err(InsertError::TooLarge));
    assert_eq!(lock().remove(PageIndex::ZERO), Some(last));
}
