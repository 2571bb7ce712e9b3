//! Loom models: one lookup without a lock against the writer, with their steps in every order (up to a bound
//! of preemptions) and every value that the orderings allow a load to see. Nodes have four slots here.
//!
//! Run by `scripts/models.sh loom`.

use super::super::node::{Extent, NOWHERE, Node, NodeSlot};
use super::super::{NodeStore, OutOfNodes, RangeTree, Writer};
use super::support::{Cpu, NodeMemory, epoch};
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use quire_arch::{PAGE_SIZE, Platform, VirtAddr, VirtRange};
use quire_sync::atomic::{AtomicU32, Ordering};
use quire_sync::{Epoch, Stamp};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::vec::Vec;

const UNFILLED: u32 = 0;
const ALIVE: u32 = 7;
const POISON: u32 = 13;

/// What entries map to: filled before it is inserted, poisoned after it was removed and its epoch has passed.
type Object = AtomicU32;

/// Heap blocks that live until the run is over. A node whose epoch has passed is changed so that a reader
/// that is still there finds poison.
struct Store {
    nodes: RefCell<Vec<NodeMemory<Object>>>,
    retired: RefCell<Vec<(Stamp, NonNull<Node<Object>>)>>,
}

/// One run of a model.
struct Run {
    tree: RangeTree<Object>,
    store: Store,
    epoch: Epoch,
    objects: Vec<Object>,
    poison: Object,
}

// SAFETY: the cells of the store are used by the writer's thread alone; the rest is shared by its own means.
unsafe impl Sync for Run {}
// SAFETY: the nodes lie on the heap, and nothing here belongs to a thread.
unsafe impl Send for Run {}

// SAFETY: memory lives until the run is over, and is changed only after its epoch has passed.
unsafe impl NodeStore<Object> for Run {
    fn allocate(&self) -> Result<NonNull<Node<Object>>, OutOfNodes> {
        let memory = NodeMemory::new();
        let node = memory.at();
        self.store.nodes.borrow_mut().push(memory);
        Ok(node)
    }

    unsafe fn retire(&self, node: NonNull<Node<Object>>) {
        self.store.retired.borrow_mut().push((self.epoch.stamp(), node));
    }
}

/// One page at every second page.
fn range(place: usize) -> VirtRange {
    let start = VirtAddr(PAGE_SIZE * (1 + 2 * place as u64));
    VirtRange::from_len(start, PAGE_SIZE).expect("small")
}

impl Run {
    /// A run whose tree has the entries of `places`.
    fn new(places: &[usize]) -> Self {
        let object = |_| Object::new(UNFILLED);
        let run = Self {
            tree: RangeTree::new(),
            store: Store { nodes: RefCell::default(), retired: RefCell::default() },
            epoch: epoch(2),
            objects: (0..6).map(object).collect(),
            poison: Object::new(POISON),
        };
        for &place in places {
            run.insert(place);
        }
        run
    }

    /// Fills the object of `place` and maps it.
    fn insert(&self, place: usize) {
        // Relaxed: the tree publishes it.
        self.objects[place].store(ALIVE, Ordering::Relaxed);
        self.writer().insert(range(place), self.object(place)).expect("free");
    }

    fn writer(&self) -> Writer<'_, Object, Self> {
        // SAFETY: only one thread of a model writes, and it makes one writer at a time.
        unsafe { self.tree.writer(self) }
    }

    fn object(&self, place: usize) -> NonNull<Object> {
        NonNull::from(&self.objects[place])
    }

    /// Lets epochs pass as far as the reader allows, and poisons what is past its own: the retired nodes and
    /// the objects that were removed before `removed`.
    fn reuse(&self, removed: &[(Stamp, usize)]) {
        let _ = self.epoch.advance() && self.epoch.advance();
        for &(stamp, place) in removed {
            if self.epoch.has_passed(stamp) {
                self.objects[place].store(POISON, Ordering::Relaxed);
            }
        }
        for &(stamp, node) in self.store.retired.borrow().iter() {
            if self.epoch.has_passed(stamp) {
                // SAFETY: nodes live until the run is over.
                let node = unsafe { node.as_ref() };
                for slot in (0..node.count()).rev() {
                    node.remove(slot);
                }
                let link = NonNull::from(&self.poison).as_ptr().expose_provenance();
                node.set_level(0);
                node.push(NodeSlot { extent: Extent { start: 0, end: NOWHERE - 1, gap: 0 }, link });
            }
        }
    }

    /// Looks up a place without a lock; what is found is alive.
    fn look(&self, place: usize) {
        let machine = Cpu(1);
        let pin = machine.pin();
        let guard = self.epoch.enter(&pin);
        // SAFETY: the store retires nodes through this epoch.
        if let Some(found) = unsafe { self.tree.find_lockless(range(place).start(), &guard) } {
            let known = self.objects.iter().find(|object| NonNull::from(*object) == found);
            let object = known.expect("something that was never inserted was found");
            assert_eq!(object.load(Ordering::Relaxed), ALIVE);
        }
    }
}

/// Runs `write` against one lookup of `place`.
fn model(places: &'static [usize], place: usize, write: impl Fn(&Run) + Sync + Send + 'static) {
    let mut builder = Builder::new();
    // Deeper by LOOM_MAX_PREEMPTIONS.
    builder.preemption_bound = builder.preemption_bound.max(Some(3));
    builder.max_branches = 20_000;
    builder.check(move || {
        let run = Arc::new(Run::new(places));
        let reader = {
            let run = Arc::clone(&run);
            thread::spawn(move || run.look(place))
        };
        write(&run);
        reader.join().expect("the reader is fine");
        let writer = run.writer();
        writer.validate().expect("a sound tree");
    });
}

/// Removes `place` and returns when, for [`Run::reuse`].
fn remove(run: &Run, place: usize) -> (Stamp, usize) {
    run.writer().remove(range(place).start()).expect("it is mapped");
    (run.epoch.stamp(), place)
}

#[test]
fn loom_a_lookup_against_a_change_of_its_leaf() {
    model(&[1, 3], 3, |run| {
        let removed = remove(run, 1);
        run.reuse(&[removed]);
        run.insert(2);
    });
}

#[test]
fn loom_a_lookup_against_the_removal_of_its_entry() {
    model(&[1, 3], 1, |run| {
        let removed = remove(run, 1);
        run.reuse(&[removed]);
    });
}

/// A hazard of docs/hazards.md, "Every part": publishing a node before it is filled.
#[test]
fn loom_a_lookup_against_a_split() {
    model(&[0, 1, 2, 3], 3, |run| {
        run.insert(4);
    });
}

/// A hazard of docs/hazards.md, "Every part": freeing while a lock-free reader looks.
#[test]
fn loom_a_lookup_against_a_merge() {
    // Two leaves, of places 0 to 2 and of 3 and 4. With two entries gone they are one, and the root goes too.
    model(&[0, 1, 2, 3, 4], 4, |run| {
        let removed = [remove(run, 0), remove(run, 3)];
        assert_eq!(run.writer().height(), 1);
        run.reuse(&removed);
    });
}
