//! What the folio store costs: 2^20 entries of one order, in the order of their pages and shuffled.
//!
//! `cargo bench -p quire-file` prints nanoseconds for each operation, beside a `BTreeMap`, which has no
//! look-up without a lock; and the look-up beside a thread that inserts and removes, with the ratio of both.
//! `count NAME N` does one operation for N entries, to be run under callgrind (`scripts/instructions.sh`).

#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

#[allow(dead_code, reason = "shared with the tests")]
#[path = "../../frame/tests/common/mod.rs"]
mod common;

use common::{Machine, frames, run_on};
use quire_arch::{Order, Pfn, Platform};
use quire_file::{
    Entry, Filter, FolioStore, IndexRange, InsertError, LockedStore, NodeSlabs, NodesOn, PageIndex, Payload,
    Reserve, Stored,
};
use quire_frame::{Frames, PcpTechnique};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

const ENTRIES: u64 = 1 << 20;
/// 1 GiB: the nodes of all entries of order 4, which take most, have 151 MiB.
const FRAMES: u64 = 1 << 18;
const ROUNDS: usize = 5;
/// Look-ups in one section of the epoch: as many as a call looks up at once.
const BATCH: usize = 32;
const ORDERS: [u8; 3] = [0, 4, 9];

#[derive(Clone, Copy, PartialEq, Debug)]
enum Operation {
    /// Nothing but the pin and the lock, which each change takes.
    Lock,
    /// An entry of a folio.
    Insert,
    /// A look-up without the lock, with the second look at the word.
    Find,
    /// The shadow in the place of the folio.
    Evict,
    /// Nothing in its place.
    Remove,
}

const OPERATIONS: [Operation; 5] =
    [Operation::Lock, Operation::Insert, Operation::Find, Operation::Evict, Operation::Remove];

/// Entries of one order, in the order in which they are used.
struct Entries {
    order: Order,
    /// The first page of each.
    pages: Vec<PageIndex>,
}

impl Entries {
    fn new(order: u8, shuffled: bool, count: u64) -> Self {
        let order = Order::new(order).unwrap();
        let mut pages: Vec<PageIndex> =
            (0..count).map(|number| PageIndex::new(number << order.get()).unwrap()).collect();
        if shuffled {
            fastrand::Rng::with_seed(7).shuffle(&mut pages);
        }
        Self { order, pages }
    }

    fn each(&self) -> impl Iterator<Item = Stored> + '_ {
        let entry = |start: PageIndex| Entry::Folio(Pfn(start.get()));
        self.pages.iter().map(move |&start| Stored { start, order: self.order, entry: entry(start) })
    }
}

/// A file on a machine. The lock is taken for each change, as page by page in Linux.
struct File<'f> {
    frames: &'f Frames<Machine>,
    nodes: NodesOn<'f, Machine>,
    store: FolioStore<Machine>,
}

impl<'f> File<'f> {
    fn new(frames: &'f Frames<Machine>, slabs: &'f NodeSlabs<Machine>) -> Self {
        Self { frames, nodes: slabs.on(frames), store: FolioStore::new() }
    }

    fn locked<R>(&self, change: impl FnOnce(&mut LockedStore<'_, Machine, NodesOn<'f, Machine>>) -> R) -> R {
        let _pin = self.frames.platform().pin();
        // SAFETY: each lock of the store is passed these nodes, which are retired through the epoch of the
        // frames.
        change(&mut unsafe { self.store.lock(&self.nodes) })
    }

    fn insert(&self, new: Stored) {
        // SAFETY: the store is locked with these nodes only.
        let mut reserve = unsafe { Reserve::new(&self.nodes) };
        while let Err(error) = self.locked(|store| store.insert(new, &mut reserve)) {
            let InsertError::NeedsNodes(needs) = error else { panic!("{error}") };
            reserve.fill(needs).unwrap();
        }
    }

    fn find(&self, pages: &[PageIndex]) {
        let pin = self.frames.platform().pin();
        let guard = self.frames.epoch().enter(&pin);
        for &page in pages {
            // SAFETY: the nodes are retired through this epoch.
            let found = unsafe { self.store.find(page, &guard) }.unwrap();
            assert!(black_box(found.stored()).start <= page && found.is_current());
        }
    }

    /// Does one operation for each entry, which `prepare` has made possible.
    #[inline(never)]
    fn measured(&self, operation: Operation, entries: &Entries) {
        match operation {
            Operation::Lock => entries.pages.iter().for_each(|_| {
                black_box(self.locked(|store| store.figures().nodes));
            }),
            Operation::Insert => entries.each().for_each(|new| self.insert(new)),
            Operation::Find => entries.pages.chunks(BATCH).for_each(|pages| self.find(pages)),
            Operation::Evict => {
                let shadow = Entry::Shadow(Payload::new(7).unwrap());
                for &page in &entries.pages {
                    black_box(self.locked(|store| store.replace(page, shadow)).unwrap().unwrap());
                }
            }
            Operation::Remove => entries.pages.iter().for_each(|&page| {
                black_box(self.locked(|store| store.remove(page)).unwrap());
            }),
        }
    }

    fn prepare(&self, operation: Operation, entries: &Entries) {
        if !matches!(operation, Operation::Lock | Operation::Insert) {
            entries.each().for_each(|new| self.insert(new));
        }
    }

    fn clear(&self) {
        self.locked(|store| {
            while let Some(first) = store.next(IndexRange::ALL, Filter::All) {
                store.remove(first.start);
            }
        });
        self.frames.limbo().reap_all(&self.frames.platform().pin());
    }
}

/// A map of the same entries. It has no order of its own, so an entry is found as the last one before a page.
#[derive(Default)]
struct Map(RwLock<BTreeMap<u64, (Order, Entry)>>);

impl Map {
    fn measured(&self, operation: Operation, entries: &Entries) {
        match operation {
            Operation::Lock => entries.pages.iter().for_each(|_| {
                black_box(self.0.write().unwrap().len());
            }),
            Operation::Insert => entries.each().for_each(|new| {
                self.0.write().unwrap().insert(new.start.get(), (new.order, new.entry));
            }),
            Operation::Find => entries.pages.iter().for_each(|page| {
                let map = self.0.read().unwrap();
                let (&start, &(order, entry)) = map.range(..=page.get()).next_back().unwrap();
                assert!(black_box(entry) != Entry::Slot(Payload::MAX) && start + order.pages() > page.get());
            }),
            Operation::Evict => entries.pages.iter().for_each(|page| {
                let mut map = self.0.write().unwrap();
                map.get_mut(&page.get()).unwrap().1 = Entry::Shadow(Payload::new(7).unwrap());
            }),
            Operation::Remove => entries.pages.iter().for_each(|page| {
                black_box(self.0.write().unwrap().remove(&page.get()).unwrap());
            }),
        }
    }
}

/// Nanoseconds for each of `count` operations.
fn timed(count: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / count as f64
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Prints a line: the store, the map, and the median of the ratios of rounds in turn.
fn print(name: &str, rounds: &[(f64, f64)]) {
    let store = median(rounds.iter().map(|round| round.0).collect());
    let map = median(rounds.iter().map(|round| round.1).collect());
    let ratio = median(rounds.iter().map(|round| round.0 / round.1).collect());
    println!("{name:<40} {store:>8.1} {map:>8.1} {ratio:>7.2}");
}

/// Look-ups of all entries on this CPU, while `change` is made again and again on another.
fn beside(change: impl Fn() + Sync, look: impl FnOnce() -> f64) -> f64 {
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            run_on(1);
            while !done.load(Ordering::Relaxed) {
                change();
                begun.store(true, Ordering::Relaxed);
            }
        });
        while !begun.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        let figure = look();
        done.store(true, Ordering::Relaxed);
        figure
    })
}

fn times(frames: &Frames<Machine>, slabs: &NodeSlabs<Machine>) {
    println!("{:<40} {:>8} {:>8} {:>7}", "ns for each", "store", "BTreeMap", "ratio");
    for order in ORDERS {
        for shuffled in [false, true] {
            let entries = Entries::new(order, shuffled, ENTRIES);
            let what = format!("order {order}, {}", if shuffled { "shuffled" } else { "in order" });
            let count = entries.pages.len();
            let mut rounds: [Vec<(f64, f64)>; OPERATIONS.len()] = Default::default();
            let mut shared = Vec::new();
            for _ in 0..ROUNDS {
                let (file, map) = (File::new(frames, slabs), Map::default());
                for operation in OPERATIONS {
                    let store = timed(count, || file.measured(operation, &entries));
                    let other = timed(count, || map.measured(operation, &entries));
                    rounds[operation as usize].push((store, other));
                    if operation == Operation::Find {
                        // Behind the entries that are looked up: they stay.
                        let behind = PageIndex::new(ENTRIES << 9).unwrap();
                        let new = Stored { start: behind, order: Order::ZERO, entry: Entry::Folio(Pfn(1)) };
                        let one = Entries { order: Order::ZERO, pages: vec![behind] };
                        let store = beside(
                            || {
                                file.insert(new);
                                file.measured(Operation::Remove, &one);
                            },
                            || timed(count, || file.measured(Operation::Find, &entries)),
                        );
                        let other = beside(
                            || {
                                map.measured(Operation::Insert, &one);
                                map.measured(Operation::Remove, &one);
                            },
                            || timed(count, || map.measured(Operation::Find, &entries)),
                        );
                        shared.push((store, other));
                    }
                }
                file.clear();
            }
            for operation in OPERATIONS {
                print(&format!("{what}: {operation:?}").to_lowercase(), &rounds[operation as usize]);
            }
            print(&format!("{what}: find, beside inserts"), &shared);
        }
    }
}

/// Does one operation `times` times; `None` if there is no such one.
fn count(frames: &Frames<Machine>, slabs: &NodeSlabs<Machine>, name: &str, times: &str) -> Option<()> {
    let [operation, order, sequence] = name.split('-').collect::<Vec<_>>()[..] else { return None };
    let operation = OPERATIONS.into_iter().find(|it| format!("{it:?}").to_lowercase() == operation)?;
    let order = order.parse().ok().filter(|order| *order <= Order::MAX.get())?;
    let shuffled = ["ordered", "shuffled"].iter().position(|it| *it == sequence)? == 1;
    let entries = Entries::new(order, shuffled, times.parse().ok()?);
    let file = File::new(frames, slabs);
    file.prepare(operation, &entries);
    file.measured(operation, &entries);
    file.clear();
    Some(())
}

fn main() -> ExitCode {
    let frames = frames(&[(0, FRAMES)], 2, PcpTechnique::All);
    let slabs = NodeSlabs::new(&frames, &frames.platform().pin()).unwrap();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", name, number] => match count(&frames, &slabs, name, number) {
            Some(()) => ExitCode::SUCCESS,
            None => {
                eprintln!("count takes a name such as insert-0-ordered or find-9-shuffled, and a number");
                ExitCode::from(2)
            }
        },
        _ => {
            times(&frames, &slabs);
            ExitCode::SUCCESS
        }
    }
}
