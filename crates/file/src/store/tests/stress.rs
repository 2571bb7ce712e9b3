//! Look-ups without a lock beside changes, on real threads.

use super::support::{Cpu, Nodes};
use crate::source::Reserve;
use crate::store::{FolioStore, InsertError};
use crate::{Entry, PageIndex, Stored};
use quire_arch::{Order, Pfn, Platform};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::vec::Vec;

/// Stays for the whole test.
const KEPT: [u64; 4] = [0, 70, 1 << 9, 5 << 15];
const ROUNDS: u64 = 20_000;
const SEED: u64 = 0x51_0e5e;

/// The frames of folios: how many references each has. The store has one while the folio is in it.
struct Frames(Vec<AtomicU64>);

impl Frames {
    fn try_get(&self, pfn: Pfn) -> bool {
        let refs = &self.0[pfn.0 as usize];
        refs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |refs| (refs > 0).then_some(refs + 1)).is_ok()
    }

    fn put(&self, pfn: Pfn) {
        assert_ne!(self.0[pfn.0 as usize].fetch_sub(1, Ordering::AcqRel), 0);
    }
}

/// A folio that stays is found by each look-up. One that is found, and still there after a reference was
/// taken, is of that page.
#[test]
fn what_stays_is_found_while_the_tree_changes() {
    std::println!("seed {SEED:#x}");
    let (store, nodes) = (FolioStore::<Cpu>::new(), Nodes::new(2));
    let frames = Frames((0..64).map(|_| AtomicU64::new(0)).collect());
    let done = AtomicBool::new(false);
    let insert = |page: u64, order: Order, pfn: Pfn| {
        let mut reserve = Reserve::new(&nodes);
        let new = Stored { start: PageIndex::new(page).unwrap(), order, entry: Entry::Folio(pfn) };
        frames.0[pfn.0 as usize].fetch_add(1, Ordering::AcqRel);
        loop {
            // SAFETY: all changes of the store use these nodes.
            match unsafe { store.lock(&nodes) }.insert(new, &mut reserve) {
                Err(InsertError::NeedsNodes(needs)) => reserve.fill(needs).unwrap(),
                result => break assert!(result.is_ok()),
            }
        }
    };
    for (nth, page) in KEPT.into_iter().enumerate() {
        insert(page, Order::ZERO, Pfn(nth as u64));
    }
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let machine = Cpu(1);
            let mut looked = 0u64;
            while !done.load(Ordering::Relaxed) {
                let pin = machine.pin();
                let guard = nodes.epoch.enter(&pin);
                for (nth, page) in KEPT.into_iter().enumerate() {
                    // SAFETY: the nodes are retired through this epoch.
                    let found = unsafe { store.find(PageIndex::new(page).unwrap(), &guard) };
                    let found = found.expect("it stays").stored();
                    assert_eq!(found.entry, Entry::Folio(Pfn(nth as u64)));
                }
                // Others come and go; their frame says of which page they are.
                for page in 1..40u64 {
                    // SAFETY: as above.
                    let Some(found) = (unsafe { store.find(PageIndex::new(page).unwrap(), &guard) }) else {
                        continue;
                    };
                    let Entry::Folio(pfn) = found.stored().entry else { panic!("{found:?}") };
                    if frames.try_get(pfn) {
                        assert!(!found.is_current() || pfn.0 == page + 10);
                        frames.put(pfn);
                    }
                }
                looked += 1;
            }
            looked
        });
        let mut random = SEED;
        for round in 0..ROUNDS {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let page = 1 + (random >> 40) % 39;
            let pfn = Pfn(page + 10);
            insert(page, Order::ZERO, pfn);
            // A far one makes the tree higher for a moment.
            let far = 1 << (16 + round % 30);
            insert(far, Order::ZERO, Pfn(60));
            // SAFETY: all changes of the store use these nodes.
            let mut locked = unsafe { store.lock(&nodes) };
            locked.remove(PageIndex::new(far).unwrap()).unwrap();
            locked.remove(PageIndex::new(page).unwrap()).unwrap();
            drop(locked);
            frames.put(pfn);
            frames.put(Pfn(60));
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
    for page in KEPT {
        // SAFETY: all changes of the store use these nodes.
        unsafe { store.lock(&nodes) }.remove(PageIndex::new(page).unwrap()).unwrap();
    }
}
