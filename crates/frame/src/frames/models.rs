//! Loom models of the list of caches. `scripts/models.sh loom` runs them.

use super::Frames;
use super::caches::{CacheList, CacheNode, FrameCache, Turn};
use crate::testing::Machine;
use crate::violation::FrameViolation;
use core::any::Any;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use loom::sync::Arc;
use loom::thread;
use quire_arch::{LockClass, Pin};
use quire_sync::atomic::force_failures;
use quire_sync::{SpinLock, Watched};
use std::boxed::Box;
use std::vec::Vec;

/// An empty cache.
struct Empty {
    name: &'static str,
    node: CacheNode<Machine>,
    lock: SpinLock<(), Machine>,
}

impl FrameCache<Machine> for Empty {
    fn reap(&self, _: &Frames<Machine>, _: &Pin<'_, Machine>, _: Turn, _: u64) {}

    fn shrink(&self, _: &Frames<Machine>, _: &Pin<'_, Machine>) -> u64 {
        0
    }

    fn audit(&self, _: &Frames<Machine>, _: &mut dyn FnMut(FrameViolation)) {}
}

type CacheCell = UnsafeCell<MaybeUninit<Empty>>;

const NAMES: [&str; 2] = ["first", "second"];

/// The caches of a model that ends before they do.
struct Caches {
    places: [Box<CacheCell>; 2],
    list: CacheList<Machine>,
    /// What each thread writes before it adds its cache: loom complains where another thread finds a cache
    /// but not that.
    before: [Watched<bool>; 2],
}

// SAFETY: place `n` is written by thread `n` of the model alone, before it adds the cache to the list.
unsafe impl Sync for Caches {}
// SAFETY: the places and the list belong to no thread.
unsafe impl Send for Caches {}

impl Caches {
    fn new() -> Arc<Self> {
        let place = || Box::new(UnsafeCell::new(MaybeUninit::uninit()));
        let before = || Watched::new(false);
        Arc::new(Self { places: [place(), place()], list: CacheList::new(), before: [before(), before()] })
    }

    /// Makes cache `number` and adds it.
    fn add(&self, number: usize) {
        let place = NonNull::new(self.places[number].get()).unwrap().cast::<Empty>();
        let lock = SpinLock::new(LockClass::Slab, ());
        // SAFETY: the place is this thread's. The model ends before the place does, so no thread sees how
        // long the reference is said to live.
        let cache: &'static Empty = unsafe {
            place.write(Empty { name: NAMES[number], node: CacheNode::new(place), lock });
            place.as_ref()
        };
        // Loom treats the creation of an atomic as a release. Writes after a further step are not covered by
        // it.
        drop(cache.lock.lock());
        self.before[number].set(true);
        // SAFETY: the cache is complete, is added once, and stays until the model ends.
        unsafe { self.list.add(&cache.node) };
    }

    /// The names on the list, the newest first. Each cache must be complete.
    fn names(&self) -> Vec<&'static str> {
        let caches = self.list.iter().map(|cache| <dyn Any>::downcast_ref::<Empty>(cache).unwrap());
        let names: Vec<_> = caches.map(|cache| cache.name).collect();
        for name in &names {
            let number = NAMES.iter().position(|known| known == name).unwrap();
            assert!(self.before[number].get());
        }
        names
    }

    /// Ends a model in which all caches were added.
    fn end(mut caches: Arc<Self>) {
        let mut names = caches.names();
        names.sort_unstable();
        assert_eq!(names, NAMES, "each cache is on the list, once");
        for place in &mut Arc::get_mut(&mut caches).unwrap().places {
            // SAFETY: the cache was made there, and no other thread has the list any more.
            unsafe { place.get_mut().assume_init_drop() };
        }
    }
}

/// Two CPUs make a cache each, while a third one walks the list: none is lost, and what is found is complete.
#[test]
fn loom_caches_that_are_added_at_once_are_all_found_complete() {
    loom::model(|| {
        let caches = Caches::new();
        let other = {
            let caches = Arc::clone(&caches);
            thread::spawn(move || caches.add(0))
        };
        // The walker comes last in the first interleaving. Loom remembers only the last access to a word,
        // which hides a load that comes before another thread's load and exchange.
        let walker = {
            let caches = Arc::clone(&caches);
            thread::spawn(move || {
                let found = caches.names();
                assert!(found.len() < 2 || found[0] != found[1]);
            })
        };
        caches.add(1);
        other.join().unwrap();
        walker.join().unwrap();
        Caches::end(caches);
    });
}

/// The same where exchanges fail without a cause.
#[test]
fn loom_a_cache_is_added_though_exchanges_fail_for_no_reason() {
    loom::model(|| {
        force_failures(2);
        let caches = Caches::new();
        let other = {
            let caches = Arc::clone(&caches);
            thread::spawn(move || caches.add(0))
        };
        caches.add(1);
        other.join().unwrap();
        Caches::end(caches);
    });
}
