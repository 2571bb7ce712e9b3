//! One writer against lock-free readers, on real threads, with memory that is poisoned and reused as soon as
//! its epoch has passed.
//!
//! The amount of work is fixed; the seed is fixed and printed.

use super::super::node::SLOTS;
use super::super::{Node, NodeStore, OutOfNodes, RangeTree, Writer};
use super::support::{Cpu, NodeMemory, StoredTree, epoch};
use quire_arch::{PAGE_SIZE, Platform, VirtAddr, VirtRange};
use quire_sync::{Epoch, Stamp};
use std::boxed::Box;
use std::collections::VecDeque;
use std::println;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::vec::Vec;

const SEED: u64 = 0x51ab_0c3d_77e1_0f25;
const STEPS: usize = 200_000;
const LOOKUPS: usize = 20_000_000;
/// Places for entries, two pages apart.
const PLACES: usize = 2000;

const ALIVE: u64 = 0xa11e_a11e_a11e_a11e;
const POISON: u64 = 0xdead_dead_dead_dead;

/// What an entry's value is here: an object of a pool, poisoned when it is reused.
struct Object {
    state: AtomicU64,
}

/// Random numbers (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Retired things, oldest first.
struct Limbo<T>(VecDeque<(Stamp, NonNull<T>)>);

impl<T> Limbo<T> {
    fn next_passed(&mut self, epoch: &Epoch) -> Option<NonNull<T>> {
        let &(stamp, thing) = self.0.front()?;
        if !epoch.has_passed(stamp) {
            epoch.advance();
            return None;
        }
        self.0.pop_front();
        Some(thing)
    }
}

struct Nodes {
    free: Vec<NonNull<Node<Object>>>,
    limbo: Limbo<Node<Object>>,
    all: Vec<NodeMemory<Object>>,
    reused: usize,
}

// SAFETY: the pointers are to memory that the store owns, behind the mutex.
unsafe impl Send for Nodes {}

/// A store whose memory is never unmapped, so that a late reader finds poison and does not crash.
struct PoisoningStore<'e> {
    epoch: &'e Epoch,
    /// A poisoned node that is never handed out.
    poison: NonNull<Node<Object>>,
    nodes: Mutex<Nodes>,
}

// SAFETY: all but the mutex is read-only after construction.
unsafe impl Sync for PoisoningStore<'_> {}

/// Overwrites a node so that a lookup in it returns `poison`: the ends are above every address that the test
/// maps (they are addresses of the heap), the links are to `poison` and the starts are 0, as is the level, so
/// that no lookup stays here for long.
fn poison_node(node: NonNull<Node<Object>>, poison: NonNull<Node<Object>>) {
    let link = poison.as_ptr().expose_provenance() as u64;
    for word in 0..size_of::<Node<Object>>() / 8 {
        // The head, then the ends and the links, then the rest.
        let poison = if (1..=2 * SLOTS).contains(&word) { link } else { 0 };
        // SAFETY: inside the node, which no reader uses any more. Relaxed atomics, in case the test is right
        // to suspect that one does.
        unsafe { AtomicU64::from_ptr(node.cast::<u64>().add(word).as_ptr()) }
            .store(poison, Ordering::Relaxed);
    }
}

impl<'e> PoisoningStore<'e> {
    fn new(epoch: &'e Epoch) -> Self {
        let memory = NodeMemory::new();
        let poison = memory.at();
        poison_node(poison, poison);
        let nodes =
            Nodes { free: Vec::new(), limbo: Limbo(VecDeque::new()), all: Vec::from([memory]), reused: 0 };
        Self { epoch, poison, nodes: Mutex::new(nodes) }
    }

    fn reclaim(&self, nodes: &mut Nodes) {
        while let Some(node) = nodes.limbo.next_passed(self.epoch) {
            poison_node(node, self.poison);
            nodes.free.push(node);
        }
    }
}

// SAFETY: memory comes back to use only after its epoch has passed, and is not touched before.
unsafe impl NodeStore<Object> for PoisoningStore<'_> {
    fn allocate(&self) -> Result<NonNull<Node<Object>>, OutOfNodes> {
        let mut nodes = self.nodes.lock().expect("no thread panicked");
        self.reclaim(&mut nodes);
        if let Some(node) = nodes.free.pop() {
            nodes.reused += 1;
            return Ok(node);
        }
        let memory = NodeMemory::new();
        let node = memory.at();
        nodes.all.push(memory);
        Ok(node)
    }

    unsafe fn retire(&self, node: NonNull<Node<Object>>) {
        let mut nodes = self.nodes.lock().expect("no thread panicked");
        let stamp = self.epoch.stamp();
        nodes.limbo.0.push_back((stamp, node));
        self.reclaim(&mut nodes);
    }
}

/// Where the entry of a place lies, far below the heap: see [`poison_node`].
fn range(place: usize) -> VirtRange {
    let start = VirtAddr(PAGE_SIZE * (16 + 2 * place as u64));
    VirtRange::from_len(start, PAGE_SIZE).expect("small")
}

/// The object of the pool that a value of the tree leads to.
#[track_caller]
fn object_at(pool: &[Object], value: NonNull<Object>) -> &Object {
    let offset = value.addr().get().wrapping_sub(pool.as_ptr().addr());
    let object =
        pool.get(offset / size_of::<Object>()).filter(|_| offset.is_multiple_of(size_of::<Object>()));
    object.unwrap_or_else(|| panic!("found {value:?}, which no one inserted"))
}

fn write(store: &PoisoningStore<'_>, mut writer: Writer<'_, Object, PoisoningStore<'_>>, pool: &[Object]) {
    let mut random = Random(SEED);
    let mut free: Vec<&Object> = pool.iter().collect();
    let mut limbo = Limbo(VecDeque::new());
    let mut mapped = std::vec![false; PLACES];
    for step in 0..STEPS {
        // Waves, so that the tree grows by levels and shrinks to nothing again.
        let grow = step / 5000 % 2 == 0;
        // Runs at one place as well as changes everywhere.
        let place = if step % 3 == 0 { random.below(PLACES) } else { step * 7 % PLACES };
        let start = range(place).start();
        if grow && !mapped[place] {
            let Some(object) = free.pop() else { continue };
            object.state.store(ALIVE, Ordering::Relaxed);
            if random.below(2) == 0 {
                writer.reserve(2).expect("the store never refuses");
            }
            writer.insert(range(place), NonNull::from(object)).expect("the place is free");
            mapped[place] = true;
        } else if !grow && mapped[place] {
            let entry = writer.remove(start).expect("it is mapped");
            limbo.0.push_back((store.epoch.stamp(), entry.value));
            mapped[place] = false;
        } else if mapped[place] {
            let len = PAGE_SIZE * (1 + random.below(2) as u64);
            let range = VirtRange::from_len(start, len).expect("small");
            writer.set_range(start, range).expect("the page above is free");
        }
        while let Some(object) = limbo.next_passed(store.epoch) {
            let object = object_at(pool, object);
            object.state.store(POISON, Ordering::Relaxed);
            free.push(object);
        }
        if step % 1000 == 0 {
            writer.validate().expect("a sound tree");
        }
        if step % 64 == 0 {
            // The readers run, however few CPUs there are; each leaves its section in the end.
            while !store.epoch.advance() {
                thread::yield_now();
            }
        }
    }
    writer.validate().expect("a sound tree");
    writer.clear();
}

/// Looks up addresses until the work is done, and returns how many were found.
fn read(tree: &RangeTree<Object>, epoch: &Epoch, cpu: usize, pool: &[Object], done: &AtomicBool) -> usize {
    let machine = Cpu(cpu);
    let mut random = Random(SEED ^ cpu as u64);
    let mut found = 0;
    for _ in 0..LOOKUPS {
        let pin = machine.pin();
        let guard = epoch.enter(&pin);
        let addr = VirtAddr(range(random.below(PLACES)).start().0 + random.below(2 * 4096) as u64);
        // SAFETY: the store retires nodes through this epoch.
        if let Some(value) = unsafe { tree.find_lockless(addr, &guard) } {
            let state = object_at(pool, value).state.load(Ordering::Relaxed);
            assert_eq!(state, ALIVE, "found an object that was reused");
            found += 1;
        }
        if done.load(Ordering::Relaxed) {
            break;
        }
    }
    found
}

/// A hazard of docs/hazards.md, "Every part": publishing before it is filled, freeing while a lock-free
/// reader looks.
#[test]
fn readers_find_nothing_but_what_was_inserted() {
    println!("seed {SEED:#x}");
    let epoch = epoch(3);
    let mut stored = StoredTree::new(PoisoningStore::new(&epoch));
    let (tree, store, writer) = stored.parts();
    let pool: Box<[Object]> = (0..2 * PLACES).map(|_| Object { state: AtomicU64::new(POISON) }).collect();
    let done = AtomicBool::new(false);
    let found: Vec<usize> = thread::scope(|scope| {
        let readers: Vec<_> = [1, 2]
            .map(|cpu| {
                let (epoch, pool, done) = (&epoch, &pool, &done);
                scope.spawn(move || read(tree, epoch, cpu, pool, done))
            })
            .into_iter()
            .collect();
        let writer = scope.spawn(|| write(store, writer, &pool));
        writer.join().expect("the writer is fine");
        done.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().expect("the reader is fine")).collect()
    });
    let reused = store.nodes.lock().expect("no thread panicked").reused;
    assert!(reused > 0, "no node was reused: nothing was tested");
    println!("found {found:?}, nodes reused {reused}");
}
