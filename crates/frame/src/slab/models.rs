//! Loom models of the list of caches and of the global heap's state. `scripts/models.sh loom` runs them.

use super::core::{CacheCore, CacheSpec};
use super::geometry::Geometry;
use super::once::{SetOnce, Taken};
use super::registry::CacheRegistry;
use crate::testing::Machine;
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use loom::sync::Arc;
use loom::thread;
use quire_sync::CachePadded;
use quire_sync::atomic::force_failures;
use std::boxed::Box;
use std::vec::Vec;

type Core = CacheCore<Machine>;
type Place = UnsafeCell<CachePadded<MaybeUninit<Core>>>;

const NAMES: [&str; 2] = ["first", "second"];

/// The caches of a model that ends before they do.
struct Caches {
    places: [Box<Place>; 2],
    registry: CacheRegistry<Machine>,
    /// What each thread writes before it adds its cache: loom complains where another thread finds a cache
    /// but not that.
    before: [loom::cell::UnsafeCell<bool>; 2],
}

// SAFETY: place `n` is written by thread `n` of the model alone, before it adds the cache to the list.
unsafe impl Sync for Caches {}
// SAFETY: as above.
unsafe impl Send for Caches {}

impl Caches {
    fn new() -> Arc<Self> {
        let place = || Box::new(UnsafeCell::new(CachePadded(MaybeUninit::uninit())));
        let before = || loom::cell::UnsafeCell::new(false);
        Arc::new(Self {
            places: [place(), place()],
            registry: CacheRegistry::new(),
            before: [before(), before()],
        })
    }

    /// Makes cache `number` and adds it.
    fn add(&self, number: usize) {
        let spec = CacheSpec {
            name: NAMES[number],
            geometry: Geometry::of(Layout::new::<u64>(), None, 1),
            drop: None,
            area: None,
        };
        let base = NonNull::new(self.places[number].get()).unwrap().cast();
        // SAFETY: the place is as large as a cache for no CPU, and this thread's. The model ends before the
        // place does, so no thread sees how long the reference is said to live.
        let cache: &'static Core = unsafe { Core::build(base, spec, 0).as_ref() };
        // Loom takes the making of an atomic for a release. What is written after another step is not covered
        // by it.
        cache.report();
        // SAFETY: this thread's until the cache is on the list.
        self.before[number].with_mut(|at| unsafe { *at = true });
        self.registry.add(cache);
    }

    /// The names on the list, the newest first. Each cache must be complete.
    fn names(&self) -> Vec<&'static str> {
        let names: Vec<_> = self.registry.iter().map(|cache| cache.name).collect();
        for name in &names {
            let number = NAMES.iter().position(|known| known == name).unwrap();
            // SAFETY: a thread that finds the cache sees what came before it.
            assert!(self.before[number].with(|at| unsafe { *at }));
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
            unsafe { place.get_mut().0.assume_init_drop() };
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

/// Sets what `make` makes, or leaves the place empty.
fn set_with<T, E>(place: &SetOnce<T>, make: impl FnOnce() -> Result<T, E>) -> Result<Result<(), E>, Taken> {
    let turn = place.claim()?;
    Ok(make().map(|value| turn.set(value)))
}

/// Two CPUs attach the heap while a third one allocates: one of them is told that it came too late, and a
/// thread that finds a value finds the whole of it.
#[test]
fn loom_a_heap_is_attached_once_and_seen_whole() {
    loom::model(|| {
        let place = Arc::new(SetOnce::new());
        let others: Vec<_> = [[1, 1], [2, 2]]
            .into_iter()
            .map(|value| {
                let place = Arc::clone(&place);
                thread::spawn(move || set_with(&place, || Ok::<_, ()>(value)))
            })
            .collect();
        if let Some(seen) = place.get() {
            assert_eq!(seen[0], seen[1]);
        }
        let mut results: Vec<_> = others.into_iter().map(|other| other.join().unwrap()).collect();
        results.sort_by_key(Result::is_err);
        assert_eq!(results, [Ok(Ok(())), Err(Taken)]);
        assert!(place.get().is_some());
    });
}

/// One attach fails for want of memory while another CPU tries: after that the place is set or free to be
/// set, never stuck in between, and what the first one did before it failed is over.
#[test]
fn loom_an_attach_that_fails_leaves_the_place_to_the_next() {
    loom::model(|| {
        let place = Arc::new(SetOnce::new());
        let scratch = Arc::new(loom::cell::UnsafeCell::new(0));
        let other = {
            let (place, scratch) = (Arc::clone(&place), Arc::clone(&scratch));
            // SAFETY: one attach at a time gets here, or loom complains.
            thread::spawn(move || set_with(&place, || Err(scratch.with_mut(|at| unsafe { *at += 1 }))))
        };
        // SAFETY: as above.
        let mine = set_with(&place, || Ok::<_, ()>(scratch.with_mut(|at| unsafe { *at += 1 })));
        match (mine, other.join().unwrap()) {
            (Ok(Ok(())), Err(Taken) | Ok(Err(()))) => assert!(place.get().is_some()),
            (Err(Taken), Ok(Err(()))) => assert_eq!(set_with(&place, || Ok::<_, ()>(())), Ok(Ok(()))),
            ended => panic!("{ended:?}"),
        }
    });
}
