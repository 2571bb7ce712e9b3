//! Objects against a map.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[allow(dead_code, reason = "each test uses a part")]
mod common;

use common::{Machine, TEST, assert_sound, frames, run_on};
use proptest::prelude::*;
use quire_arch::{Order, Platform};
use quire_frame::{AllocError, AllocRequest, Frames, FreeError, PcpTechnique, SlabCache};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn machine() -> Frames<Machine> {
    frames(&[(0, 4096)], 2, PcpTechnique::OrderZero)
}

/// Everything that a cache took comes back, but for the frames that it lies in itself.
fn gives_all_back<T: Send>(frames: &Frames<Machine>, cache: &SlabCache<T, Machine>, before: u64) {
    let pin = frames.platform().pin();
    cache.shrink(frames, &pin);
    let report = cache.report(frames).unwrap();
    assert_eq!((report.in_use, report.retired, report.slabs), (0, 0, 0));
    assert_eq!(frames.free_frames(), before);
    assert_sound(frames);
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize, u64),
    Free(usize, usize),
    Retire(usize, usize),
    Reap,
    Shrink,
}

fn step() -> impl Strategy<Value = Step> {
    let cpu = 0..2usize;
    prop_oneof![
        6 => (cpu.clone(), any::<u64>()).prop_map(|(cpu, value)| Step::Allocate(cpu, value)),
        3 => (cpu.clone(), any::<usize>()).prop_map(|(cpu, pick)| Step::Free(cpu, pick)),
        2 => (cpu, any::<usize>()).prop_map(|(cpu, pick)| Step::Retire(cpu, pick)),
        1 => Just(Step::Reap),
        1 => Just(Step::Shrink),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_agrees_with_a_map(steps in prop::collection::vec(step(), 1..400)) {
        let frames = machine();
        let cache = {
            let pin = frames.platform().pin();
            SlabCache::<[u64; 25], Machine>::new(&frames, &pin, "model").unwrap()
        };
        let before = frames.free_frames();
        let mut model: HashMap<NonNull<[u64; 25]>, u64> = HashMap::new();
        for step in steps {
            match step {
                Step::Allocate(cpu, value) => {
                    run_on(cpu);
                    let pin = frames.platform().pin();
                    let object = cache.allocate(&frames, &pin, [value; 25]).unwrap();
                    prop_assert_eq!(model.insert(object, value), None, "an object was given out twice");
                }
                Step::Free(cpu, pick) | Step::Retire(cpu, pick) => {
                    run_on(cpu);
                    let Some(&object) = model.keys().nth(pick % model.len().max(1)) else { continue };
                    let value = model.remove(&object).unwrap();
                    let pin = frames.platform().pin();
                    // SAFETY: the object is in use and this test's.
                    unsafe {
                        prop_assert_eq!(object.read(), [value; 25]);
                        if matches!(step, Step::Free(..)) {
                            cache.free(&frames, &pin, object);
                        } else {
                            cache.retire(&frames, &pin, object);
                        }
                    }
                }
                Step::Reap => cache.reap(&frames, &frames.platform().pin()),
                Step::Shrink => {
                    cache.shrink(&frames, &frames.platform().pin());
                }
            }
            prop_assert_eq!(cache.report(&frames).unwrap().in_use, model.len() as u64);
        }
        assert_sound(&frames);
        for (object, value) in model {
            // SAFETY: the object is in use and this test's.
            unsafe {
                prop_assert_eq!(object.read(), [value; 25]);
                cache.free(&frames, &frames.platform().pin(), object);
            }
        }
        gives_all_back(&frames, &cache, before);
        run_on(0);
    }
}

/// Counts how often it is dropped.
struct Dropped(Arc<AtomicUsize>, [u8; 100]);

impl Drop for Dropped {
    fn drop(&mut self) {
        assert_eq!(self.1, [7; 100], "the object was overwritten before it was dropped");
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn objects_are_dropped_once_and_retired_ones_only_after_their_readers() {
    let frames = machine();
    let pin = frames.platform().pin();
    let cache = SlabCache::<Dropped, Machine>::new(&frames, &pin, "dropped").unwrap();
    let before = frames.free_frames();
    let count = Arc::new(AtomicUsize::new(0));
    let make = || Dropped(Arc::clone(&count), [7; 100]);
    let freed = cache.allocate(&frames, &pin, make()).unwrap();
    // SAFETY: allocated above.
    unsafe { cache.free(&frames, &pin, freed) };
    assert_eq!(count.load(Ordering::Relaxed), 1);

    let retired: Vec<_> = (0..500).map(|_| cache.allocate(&frames, &pin, make()).unwrap()).collect();
    let reader = frames.epoch().enter(&pin);
    for &object in &retired {
        // SAFETY: allocated above.
        unsafe { cache.retire(&frames, &pin, object) };
    }
    cache.reap(&frames, &pin);
    assert_eq!(count.load(Ordering::Relaxed), 1, "dropped under a reader");
    for &object in &retired {
        // SAFETY: the reader's section is open, so the objects are intact.
        assert_eq!(unsafe { object.as_ref() }.1, [7; 100]);
    }
    assert_eq!(cache.report(&frames).unwrap().retired, 500);
    assert_sound(&frames);
    drop(reader);
    cache.reap(&frames, &pin);
    assert_eq!(count.load(Ordering::Relaxed), 501);
    gives_all_back(&frames, &cache, before);
    assert_eq!(count.load(Ordering::Relaxed), 501);
}

/// The places where retired objects wait are used in turn: each time an object waits for the readers of its own time.
#[test]
fn objects_that_are_retired_later_wait_for_their_readers_too() {
    let frames = machine();
    let pin = frames.platform().pin();
    let cache = SlabCache::<Dropped, Machine>::new(&frames, &pin, "turns").unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    for round in 0..12 {
        let object = cache.allocate(&frames, &pin, Dropped(Arc::clone(&count), [7; 100])).unwrap();
        let reader = frames.epoch().enter(&pin);
        // SAFETY: allocated above.
        unsafe { cache.retire(&frames, &pin, object) };
        cache.reap(&frames, &pin);
        assert_eq!(count.load(Ordering::Relaxed), round, "dropped under a reader");
        drop(reader);
        cache.reap(&frames, &pin);
        assert_eq!(count.load(Ordering::Relaxed), round + 1);
    }
}

#[test]
fn retired_objects_are_freed_as_others_are_retired() {
    let frames = machine();
    let pin = frames.platform().pin();
    let cache = SlabCache::<[u64; 8], Machine>::new(&frames, &pin, "steady").unwrap();
    for round in 0..10_000 {
        let object = cache.allocate(&frames, &pin, [round; 8]).unwrap();
        // SAFETY: allocated above.
        unsafe { cache.retire(&frames, &pin, object) };
    }
    let report = cache.report(&frames).unwrap();
    assert!(report.retired < 16 && report.slabs <= 4, "{report:?}");
}

#[test]
fn every_size_and_alignment_has_a_layout() {
    #[repr(align(64))]
    struct Aligned([u8; 65]);

    fn fill<T: Send + Clone>(value: &T) {
        let frames = machine();
        let pin = frames.platform().pin();
        let cache = SlabCache::<T, Machine>::new(&frames, &pin, "sizes").unwrap();
        let before = frames.free_frames();
        let objects: Vec<_> =
            (0..100).map(|_| cache.allocate(&frames, &pin, value.clone()).unwrap()).collect();
        let report = cache.report(&frames).unwrap();
        assert!(report.order <= Order::ALL[3] && report.in_use == 100);
        let mut slabs = 0;
        cache.for_each_frame(&frames, |pfn, order| {
            slabs += 1;
            assert_eq!(order, report.order);
            assert_eq!(frames.free(&pin, pfn, order), Err(FreeError::Slab));
        });
        assert_eq!(slabs, report.slabs);
        for object in objects {
            assert!(object.is_aligned());
            // SAFETY: allocated above.
            unsafe { cache.free(&frames, &pin, object) };
        }
        gives_all_back(&frames, &cache, before);
    }

    impl Clone for Aligned {
        fn clone(&self) -> Self {
            Self(self.0)
        }
    }

    fill(&());
    fill(&1u8);
    fill(&[1u8; 24]);
    fill(&[1u64; 24]);
    fill(&[1u8; 1000]);
    fill(&[1u8; 4096]);
    fill(&[1u64; 4095]);
    fill(&Aligned([1; 65]));
}

#[test]
fn when_memory_ends_an_object_fails_and_nothing_is_lost() {
    let frames = machine();
    let pin = frames.platform().pin();
    let cache = SlabCache::<[u64; 64], Machine>::new(&frames, &pin, "greedy").unwrap();
    let before = frames.free_frames();
    let mut objects = Vec::new();
    let error = loop {
        match cache.allocate(&frames, &pin, [objects.len() as u64; 64]) {
            Ok(object) => objects.push(object),
            Err(error) => break error,
        }
    };
    assert_eq!(error, AllocError::OutOfMemory);
    assert!(objects.len() as u64 * 512 > before * 4096 * 3 / 4);
    assert_sound(&frames);
    for (number, object) in objects.into_iter().enumerate() {
        // SAFETY: allocated above.
        unsafe {
            assert_eq!(object.read(), [number as u64; 64]);
            cache.free(&frames, &pin, object);
        }
    }
    gives_all_back(&frames, &cache, before);
}

#[test]
fn a_cache_that_empties_keeps_only_a_few_slabs() {
    let frames = machine();
    let pin = frames.platform().pin();
    let cache = SlabCache::<[u64; 64], Machine>::new(&frames, &pin, "tide").unwrap();
    let objects: Vec<_> = (0..2000).map(|_| cache.allocate(&frames, &pin, [0; 64]).unwrap()).collect();
    assert!(cache.report(&frames).unwrap().slabs > 100);
    for object in objects {
        // SAFETY: allocated above.
        unsafe { cache.free(&frames, &pin, object) };
    }
    assert!(cache.report(&frames).unwrap().slabs <= 5);
    assert_sound(&frames);
}

/// What caches and CPUs keep does not make another allocation fail.
#[test]
fn kept_slabs_are_given_back_before_an_allocation_fails() {
    let frames = machine();
    let pin = frames.platform().pin();
    let cache = SlabCache::<[u64; 64], Machine>::new(&frames, &pin, "kept").unwrap();
    let before = frames.free_frames();
    let objects: Vec<_> = (0..40).map(|_| cache.allocate(&frames, &pin, [0; 64]).unwrap()).collect();
    for object in objects {
        // SAFETY: allocated above.
        unsafe { cache.free(&frames, &pin, object) };
    }
    assert!(cache.report(&frames).unwrap().slabs > 0, "a cache keeps some slabs");
    let mut got = 0;
    while frames.allocate(&pin, AllocRequest::new(Order::ZERO, TEST)).is_ok() {
        got += 1;
    }
    assert_eq!(got, before);
    assert_sound(&frames);
}

#[test]
fn a_cache_is_not_used_with_another_machine() {
    let (ours, other) = (machine(), machine());
    let cache = SlabCache::<u64, Machine>::new(&ours, &ours.platform().pin(), "ours").unwrap();
    let pin = other.platform().pin();
    assert_eq!(cache.allocate(&other, &pin, 1), Err(AllocError::ForeignCache));
    assert_eq!(cache.report(&other), None);
    assert_eq!(cache.shrink(&other, &pin), 0);
}
