//! Loom models: a look-up without a lock against the writer, with their steps in every order (up to a bound
//! of preemptions) and every value that the orderings allow a load to see. Nodes have four and two words
//! here.
//!
//! Run by `scripts/models.sh loom`.

use super::support::{Cpu, Nodes};
use crate::store::{FolioStore, InsertError, LockedStore};
use crate::{Entry, PageIndex, Payload, Stored};
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use quire_arch::{Order, Pfn, Platform};
use quire_sync::atomic::{AtomicU32, Ordering};

/// The page of a frame that is not in use.
const UNUSED: u32 = u32::MAX;

/// A folio's descriptor: how many references it has, and of which page it is.
struct Frame {
    refs: AtomicU32,
    page: AtomicU32,
}

/// One run of a model.
struct Run {
    store: FolioStore<Cpu>,
    nodes: Nodes,
    frames: [Frame; 3],
}

impl Run {
    /// A run whose store has a folio at each of `pages`, of frames 0, 1, ...
    fn new(pages: &[u64]) -> Self {
        let frame = || Frame { refs: AtomicU32::new(0), page: AtomicU32::new(UNUSED) };
        let run =
            Self { store: FolioStore::new(), nodes: Nodes::new(2), frames: [frame(), frame(), frame()] };
        for (nth, &page) in pages.iter().enumerate() {
            run.insert(page, Order::ZERO, nth);
        }
        run
    }

    fn locked(&self) -> LockedStore<'_, Cpu, Nodes> {
        // SAFETY: all changes of the store use these nodes.
        unsafe { self.store.lock(&self.nodes) }
    }

    /// Makes a frame that is not in use the folio of a page.
    fn insert(&self, page: u64, order: Order, frame: usize) {
        // Relaxed: the store publishes it.
        self.frames[frame].page.store(page as u32, Ordering::Relaxed);
        self.frames[frame].refs.fetch_add(1, Ordering::Release);
        assert_eq!(self.insert_entry(page, order, Entry::Folio(Pfn(frame as u64))), None);
    }

    fn insert_entry(&self, page: u64, order: Order, entry: Entry) -> Option<Payload> {
        let new = Stored { start: index(page), order, entry };
        let mut reserve = self.nodes.reserve();
        loop {
            let result = self.locked().insert(new, &mut reserve);
            match result {
                Err(InsertError::NeedsNodes(needs)) => reserve.fill(needs).unwrap(),
                result => break result.unwrap(),
            }
        }
    }

    /// Removes what is at a page, and then drops the reference of the store. Returns whether that was the
    /// last.
    fn remove(&self, page: u64, frame: usize) -> bool {
        self.locked().remove(index(page)).unwrap();
        self.put(frame)
    }

    fn put(&self, frame: usize) -> bool {
        self.frames[frame].refs.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn try_get(&self, frame: usize) -> bool {
        let refs = &self.frames[frame].refs;
        refs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |refs| (refs > 0).then_some(refs + 1)).is_ok()
    }

    /// Looks a page up that has a folio all the time.
    fn find_kept(&self, page: u64) {
        let machine = Cpu(1);
        let pin = machine.pin();
        let guard = self.nodes.epoch.enter(&pin);
        // SAFETY: the nodes are retired through this epoch.
        let found = unsafe { self.store.find(index(page), &guard) };
        assert!(found.expect("it stays").stored().range().contains(index(page)));
    }

    /// Looks up a page twice: what was found once is found again.
    fn find_from_insertion_on(&self, page: u64) {
        let machine = Cpu(1);
        let pin = machine.pin();
        let guard = self.nodes.epoch.enter(&pin);
        // SAFETY: as in `find_kept`.
        let look = || unsafe { self.store.find(index(page), &guard) }.map(|found| found.stored());
        if look().is_some() {
            assert!(look().expect("it stays").range().contains(index(page)));
        }
    }

    /// Looks which of some pages have folios: none that never had one.
    fn find_around(&self, wanted: u32, ever: u32) {
        let machine = Cpu(1);
        let pin = machine.pin();
        let guard = self.nodes.epoch.enter(&pin);
        // SAFETY: as in `find_kept`.
        let bits = unsafe { self.store.folio_bits(index(0), wanted, &guard) };
        assert_eq!(bits & !(wanted & ever), 0);
    }

    /// Looks up a page whose folio may go, and takes a reference.
    fn find_and_get(&self, page: u64) {
        let machine = Cpu(1);
        let pin = machine.pin();
        let guard = self.nodes.epoch.enter(&pin);
        // SAFETY: as in `find_kept`.
        let Some(found) = (unsafe { self.store.find(index(page), &guard) }) else { return };
        let Entry::Folio(Pfn(frame)) = found.stored().entry else { panic!("{found:?}") };
        if self.try_get(frame as usize) {
            if found.is_current() {
                assert_eq!(self.frames[frame as usize].page.load(Ordering::Relaxed), page as u32);
            }
            self.put(frame as usize);
        }
    }
}

fn index(page: u64) -> PageIndex {
    PageIndex::new(page).unwrap()
}

/// Runs `write` against one `look`.
fn model(
    pages: &'static [u64],
    look: impl Fn(&Run) + Sync + Send + Copy + 'static,
    write: impl Fn(&Run) + Sync + Send + 'static,
) {
    let mut builder = Builder::new();
    // Deeper by LOOM_MAX_PREEMPTIONS.
    builder.preemption_bound = builder.preemption_bound.max(Some(3));
    builder.max_branches = 20_000;
    builder.check(move || {
        let run = Arc::new(Run::new(pages));
        let reader = {
            let run = Arc::clone(&run);
            thread::spawn(move || look(&run))
        };
        write(&run);
        reader.join().expect("the reader is fine");
        let mut left = std::vec::Vec::new();
        run.locked().audit(&mut |wrong| panic!("{wrong}"), &mut |stored, _| left.push(stored.start));
        for page in left {
            run.locked().remove(page).unwrap();
        }
    });
}

/// A hazard of docs/hazards.md, "Files": a root that becomes a node, and is one no more.
#[test]
fn loom_a_look_up_against_a_root_that_becomes_a_node() {
    model(
        &[0],
        |run| run.find_kept(0),
        |run| {
            run.insert(2, Order::ZERO, 1);
            run.remove(2, 1);
        },
    );
}

#[test]
fn loom_a_look_up_against_a_tree_that_grows_and_shrinks() {
    model(
        &[1],
        |run| run.find_kept(1),
        |run| {
            run.insert(9, Order::ZERO, 1);
            run.remove(9, 1);
        },
    );
}

#[test]
fn loom_a_look_around_against_a_tree_that_grows_and_shrinks() {
    model(
        &[1],
        |run| run.find_around(1 << 0 | 1 << 1 | 1 << 8 | 1 << 9, 1 << 1 | 1 << 9),
        |run| {
            run.insert(9, Order::ZERO, 1);
            run.remove(9, 1);
        },
    );
}

/// A hazard of docs/hazards.md, "Files": a folio that is freed, and used for another page, while it is looked
/// up.
#[test]
fn loom_a_look_up_against_removal_and_reuse_of_the_frame() {
    model(
        &[1, 2],
        |run| run.find_and_get(1),
        |run| {
            if run.remove(1, 0) {
                run.insert(3, Order::ZERO, 0);
            }
        },
    );
}

/// The same, where the entry moves from a node to the root first.
#[test]
fn loom_a_look_up_against_a_move_to_the_root_and_reuse() {
    model(
        &[0, 2],
        |run| run.find_and_get(0),
        |run| {
            run.remove(2, 1);
            if run.remove(0, 0) {
                run.insert(3, Order::ZERO, 0);
            }
        },
    );
}

/// A hazard of docs/hazards.md, "Files": nodes of shadows leave where a large folio comes. What is looked up
/// is there all the time: a shadow, or the folio.
#[test]
fn loom_a_look_up_against_an_insertion_over_nodes_of_shadows() {
    model(
        &[16],
        |run| run.find_from_insertion_on(12),
        |run| {
            for page in [8, 12] {
                run.insert_entry(page, Order::ZERO, Entry::Shadow(Payload::default()));
            }
            run.insert_entry(8, Order::new(3).unwrap(), Entry::Folio(Pfn(1)));
        },
    );
}

#[test]
fn loom_a_look_up_against_a_split() {
    model(
        &[],
        |run| run.find_from_insertion_on(13),
        |run| {
            run.insert(8, Order::new(3).unwrap(), 0);
            let mut reserve = run.nodes.reserve();
            loop {
                let result = run.locked().split(index(8), Order::ZERO, &mut reserve);
                match result {
                    Err(InsertError::NeedsNodes(needs)) => reserve.fill(needs).unwrap(),
                    result => break assert!(result.is_ok()),
                }
            }
            run.locked().remove(index(9)).unwrap();
        },
    );
}

/// A hazard of docs/hazards.md, "Collapse and khugepaged": the folios of a block leave it while they are
/// looked up, and one is used for another page.
#[test]
fn loom_a_look_up_against_a_merge_and_reuse_of_the_frame() {
    model(
        &[9, 16],
        |run| run.find_and_get(9),
        |run| {
            let large =
                Stored { start: index(8), order: Order::new(3).unwrap(), entry: Entry::Folio(Pfn(2)) };
            // Of the page that is looked up, as of the others.
            run.frames[2].page.store(9, Ordering::Relaxed);
            run.frames[2].refs.fetch_add(1, Ordering::Release);
            assert!(run.locked().merge(large));
            if run.put(0) {
                run.insert(3, Order::ZERO, 0);
            }
        },
    );
}

#[test]
fn loom_a_look_up_against_a_merge() {
    model(
        &[9, 16],
        |run| run.find_kept(9),
        |run| {
            let large =
                Stored { start: index(8), order: Order::new(3).unwrap(), entry: Entry::Folio(Pfn(2)) };
            assert!(run.locked().merge(large));
        },
    );
}
