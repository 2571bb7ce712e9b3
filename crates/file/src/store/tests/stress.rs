//! Look-ups without a lock beside changes, on real threads.

use super::support::{Cpu, Nodes};
use crate::store::{FolioStore, InsertError};
use crate::{Entry, PageIndex, Stored};
use quire_arch::{Order, Pfn, Platform};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const ROUNDS: u64 = 20_000;
const SEED: u64 = 0x51_0e5e;
/// Pages whose folios come and go.
const PAGES: u64 = 12;
/// Frames that these share, so that each is soon another page's.
const SHARED: usize = 3;
const FRAMES: usize = 8;

/// A folio's descriptor. The store has a reference while the folio is in it.
#[derive(Default)]
struct Frame {
    refs: AtomicU64,
    /// The page that it is the folio of. Written while there is no reference.
    page: AtomicU64,
}

/// A file, and the frames of its folios.
struct Run {
    store: FolioStore<Cpu>,
    nodes: Nodes,
    frames: [Frame; FRAMES],
}

impl Run {
    fn insert(&self, page: u64, frame: usize) {
        // Relaxed: the reference publishes it.
        self.frames[frame].page.store(page, Ordering::Relaxed);
        assert_eq!(self.frames[frame].refs.fetch_add(1, Ordering::Release), 0);
        let start = PageIndex::new(page).unwrap();
        let new = Stored { start, order: Order::ZERO, entry: Entry::Folio(Pfn(frame as u64)) };
        let mut reserve = self.nodes.reserve();
        loop {
            // SAFETY: all changes of the store use these nodes.
            let result = unsafe { self.store.lock(&self.nodes) }.insert(new, &mut reserve);
            match result {
                Err(InsertError::NeedsNodes(needs)) => reserve.fill(needs).unwrap(),
                result => break assert!(result.is_ok()),
            }
        }
    }

    fn remove(&self, page: u64) {
        // SAFETY: all changes of the store use these nodes.
        let removed = unsafe { self.store.lock(&self.nodes) }.remove(PageIndex::new(page).unwrap()).unwrap();
        let Entry::Folio(pfn) = removed.entry else { panic!("{removed:?}") };
        self.put(pfn.0 as usize);
    }

    /// A shared frame without a reference.
    fn free_frame(&self, from: usize) -> usize {
        let mut nth = from;
        loop {
            // Acquire: pairs with the release of the last reference.
            if self.frames[nth % SHARED].refs.load(Ordering::Acquire) == 0 {
                return nth % SHARED;
            }
            nth += 1;
            thread::yield_now();
        }
    }

    fn try_get(&self, frame: usize) -> bool {
        let refs = &self.frames[frame].refs;
        refs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |refs| (refs > 0).then_some(refs + 1)).is_ok()
    }

    fn put(&self, frame: usize) {
        assert_ne!(self.frames[frame].refs.fetch_sub(1, Ordering::AcqRel), 0);
    }

    /// Looks each page up once.
    fn look(&self, kept: &[u64]) {
        let machine = Cpu(1);
        let pin = machine.pin();
        let guard = self.nodes.epoch.enter(&pin);
        // SAFETY: the nodes are retired through this epoch.
        let find = |page| unsafe { self.store.find(PageIndex::new(page).unwrap(), &guard) };
        for (nth, &page) in kept.iter().enumerate() {
            let found = find(page).expect("it stays").stored();
            assert_eq!(found.entry, Entry::Folio(Pfn((SHARED + 1 + nth) as u64)));
        }
        for page in 1..=PAGES {
            let Some(found) = find(page) else { continue };
            let Entry::Folio(Pfn(frame)) = found.stored().entry else { panic!("{found:?}") };
            let frame = frame as usize;
            if self.try_get(frame) {
                if found.is_current() {
                    assert_eq!(self.frames[frame].page.load(Ordering::Relaxed), page);
                }
                self.put(frame);
            }
        }
    }
}

/// A folio that stays is found by each look-up. One that is found, and still there after a reference was
/// taken, is of that page.
fn look_while_it_changes(kept: &[u64]) {
    std::println!("seed {SEED:#x}");
    let run = Run { store: FolioStore::new(), nodes: Nodes::new(2), frames: Default::default() };
    let done = AtomicBool::new(false);
    for (nth, &page) in kept.iter().enumerate() {
        run.insert(page, SHARED + 1 + nth);
    }
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut looked = 0u64;
            while !done.load(Ordering::Relaxed) {
                run.look(kept);
                looked += 1;
            }
            looked
        });
        let mut random = SEED;
        for round in 0..ROUNDS {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let page = 1 + (random >> 40) % PAGES;
            run.insert(page, run.free_frame((random >> 20) as usize % SHARED));
            // A far one makes the tree higher for a moment.
            let far = (round % 4 == 0).then_some(1 << (16 + round % 30));
            if let Some(far) = far {
                run.insert(far, SHARED);
                run.remove(far);
            }
            run.remove(page);
            // The far one's frame is looked up by no reader.
            assert_eq!(run.frames[SHARED].refs.load(Ordering::Relaxed), 0);
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
    kept.iter().for_each(|&page| run.remove(page));
}

#[test]
fn what_stays_is_found_while_the_tree_changes() {
    look_while_it_changes(&[0, 70, 1 << 9, 5 << 15]);
}

/// The folio at the first page is in a node and the root in turns.
#[test]
fn what_stays_is_found_while_it_moves_to_the_root() {
    look_while_it_changes(&[0]);
}

/// Folios come and go alone.
#[test]
fn a_folio_that_was_found_is_of_its_page() {
    look_while_it_changes(&[]);
}
