//! Objects against a map.

use crate::support::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Everything that a cache took comes back, but for the frames that it lies in itself.
fn gives_all_back<T: Send + 'static>(frames: &Frames<Machine>, cache: &SlabCache<T, Machine>, before: u64) {
    let pin = frames.platform().pin();
    cache.shrink(frames, &pin);
    let report = cache.report(frames).unwrap();
    assert_eq!((report.in_use, report.retired, report.slabs), (0, 0, 0));
    assert_eq!(frames.reports().free_frames(), before);
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
            cache::<[u64; 25]>(&frames, "model")
        };
        let before = frames.reports().free_frames();
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
    let cache = cache::<Dropped>(&frames, "dropped");
    let before = frames.reports().free_frames();
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

/// The places where retired objects wait are used in turn: each time an object waits for the readers of its
/// own time.
#[test]
fn objects_that_are_retired_later_wait_for_their_readers_too() {
    let frames = machine();
    let pin = frames.platform().pin();
    let cache = cache::<Dropped>(&frames, "turns");
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

/// Hazard: one CPU retires so much that the objects of the others have no turn.
#[test]
fn a_cpu_that_retires_much_keeps_no_other_from_its_turn() {
    let frames = machine();
    let cache = cache::<Dropped>(&frames, "busy");
    let counts = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    run_on(0);
    let reader_pin = frames.platform().pin();
    let reader = frames.epoch().enter(&reader_pin);
    for (cpu, objects) in [(0, 100), (1, 1)] {
        run_on(cpu);
        let pin = frames.platform().pin();
        for _ in 0..objects {
            let object = cache.allocate(&frames, &pin, Dropped(Arc::clone(&counts[cpu]), [7; 100])).unwrap();
            // SAFETY: allocated above.
            unsafe { cache.retire(&frames, &pin, object) };
        }
    }
    run_on(0);
    drop(reader);
    let pin = frames.platform().pin();
    frames.caches().iter().for_each(|cache| cache.reap(&frames, &pin, Turn { first: 0, most: 2 }, 8));
    let dropped = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert_eq!(dropped, [7, 1]);
}

#[test]
fn retired_objects_are_freed_as_others_are_retired() {
    let frames = machine();
    let pin = frames.platform().pin();
    let cache = cache::<[u64; 8]>(&frames, "steady");
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

    fn fill<T: Send + Clone + 'static>(value: &T) {
        let frames = machine();
        let pin = frames.platform().pin();
        let cache = cache::<T>(&frames, "sizes");
        let before = frames.reports().free_frames();
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
    let cache = cache::<[u64; 64]>(&frames, "greedy");
    let before = frames.reports().free_frames();
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
    let cache = cache::<[u64; 64]>(&frames, "tide");
    let objects: Vec<_> = (0..2000).map(|_| cache.allocate(&frames, &pin, [0; 64]).unwrap()).collect();
    let full = cache.report(&frames).unwrap();
    assert!(full.slabs > 100 && full.slabs == full.active_slabs && full.pages >= full.slabs, "{full:?}");
    assert_eq!(full.objects, full.slabs * u64::from(full.objects_per_slab));
    free_all(&frames, &cache, objects);
    let report = cache.report(&frames).unwrap();
    // What the CPU and the depot keep lies together, as it was freed in order.
    let kept = u64::from(report.front_limit + report.batch * report.depot_limit);
    let lies_on = kept.div_ceil(u64::from(report.objects_per_slab)) + 2;
    assert!(report.active_slabs <= lies_on && report.slabs <= report.active_slabs + 2, "{report:?}");
    assert_sound(&frames);
    let free = frames.reports().free_frames();
    assert_eq!(cache.shrink(&frames, &pin), report.pages);
    assert_eq!(frames.reports().free_frames(), free + report.pages);
}

/// One CPU allocates and another one frees: batches go through the depot as they are.
#[test]
fn objects_that_are_handed_over_take_the_lock_once_a_batch() {
    let frames = machine();
    let pin = frames.platform().pin();
    let cache = cache::<[u64; 15]>(&frames, "handed over");
    let before = frames.reports().free_frames();
    drop(pin);
    let hand_over = |count: u64| {
        for number in 0..count {
            run_on(0);
            let object = cache.allocate(&frames, &frames.platform().pin(), [number; 15]).unwrap();
            run_on(1);
            // SAFETY: allocated above.
            unsafe { cache.free(&frames, &frames.platform().pin(), object) };
        }
    };
    hand_over(1000);
    let warm = cache.report(&frames).unwrap();
    hand_over(1000);
    let report = cache.report(&frames).unwrap();
    // Once to get a batch and once to give it, and the report's own.
    let most = 2 * 1000_u64.div_ceil(u64::from(report.batch)) + 3;
    let takes = report.lock.takes - warm.lock.takes;
    assert!(takes <= most, "{takes} takes for 1000 objects, batches of {}", report.batch);
    assert!(report.in_depot <= u64::from(report.batch), "what is in the depot is not taken: {report:?}");
    assert!(report.front_locks.takes - warm.front_locks.takes >= 2000);
    assert_eq!((report.slabs, report.lock.contended), (warm.slabs, 0), "{report:?}");
    run_on(0);
    gives_all_back(&frames, &cache, before);
}

/// Where no block of the best order is free, objects lie on smaller slabs of the same cache.
#[test]
fn broken_up_memory_holds_smaller_slabs() {
    let frames = frames(&[(0, 512)], 2, PcpTechnique::None);
    let pin = frames.platform().pin();
    let cache = cache::<[u64; 128]>(&frames, "broken up");
    let mut objects: Vec<_> = (0..40).map(|_| cache.allocate(&frames, &pin, [0; 128]).unwrap()).collect();
    let orders = |frames: &Frames<Machine>| {
        let mut orders = Vec::new();
        cache.for_each_frame(frames, |_, order| orders.push(order.get()));
        orders
    };
    let best = cache.report(&frames).unwrap().order;
    assert!(best > Order::ZERO && orders(&frames).iter().all(|&order| order == best.get()));
    let one = ONE;
    let mut singles: Vec<_> = std::iter::from_fn(|| frames.allocate(&pin, one).ok()).collect();
    singles.sort_unstable();
    // Every other frame is free, so no block of two.
    let (given, kept): (Vec<_>, Vec<_>) = singles.into_iter().partition(|pfn| pfn.0 % 2 == 0);
    put_all(&frames, given, Order::ZERO);
    let before = frames.reports().free_frames();
    while let Ok(object) = cache.allocate(&frames, &pin, [objects.len() as u64; 128]) {
        objects.push(object);
    }
    assert!(objects.len() as u64 >= before * 3, "{} objects on {before} frames", objects.len());
    assert!(orders(&frames).contains(&0) && orders(&frames).contains(&best.get()));
    let report = cache.report(&frames).unwrap();
    assert_eq!(report.pages, orders(&frames).iter().map(|order| 1 << order).sum::<u64>());
    assert!(report.objects < report.slabs * u64::from(report.objects_per_slab));
    assert_sound(&frames);
    // Back in another order than they came.
    for half in [0, 1] {
        for &object in objects.iter().skip(half).step_by(2) {
            // SAFETY: allocated above.
            unsafe { cache.free(&frames, &pin, object) };
        }
        assert_sound(&frames);
    }
    put_all(&frames, kept, Order::ZERO);
    cache.shrink(&frames, &pin);
    let report = cache.report(&frames).unwrap();
    assert_eq!((report.in_use, report.slabs, report.pages, report.objects), (0, 0, 0, 0));
}

/// New objects go to the fullest slabs, so that the emptiest can go.
#[test]
fn fuller_slabs_are_used_first() {
    let frames = machine();
    let pin = frames.platform().pin();
    let cache = cache::<[u64; 31]>(&frames, "fuller first");
    let objects: Vec<_> = (0..160).map(|_| cache.allocate(&frames, &pin, [0; 31]).unwrap()).collect();
    let per_slab = u64::from(cache.report(&frames).unwrap().objects_per_slab) as usize;
    let order = cache.report(&frames).unwrap().order;
    let slab_of = |object: NonNull<[u64; 31]>| {
        let pfn = frames.map().iter().map(|(pfn, _)| pfn);
        let at = object.addr().get();
        let mut holds = pfn.filter(|&pfn| {
            let start = frames.platform().direct_map(pfn).addr().get();
            (start..start + 4096).contains(&at)
        });
        holds.next().unwrap().block_start(order)
    };
    let mut by_slab: HashMap<_, Vec<_>> = HashMap::new();
    objects.into_iter().for_each(|object| by_slab.entry(slab_of(object)).or_default().push(object));
    let mut full: Vec<_> = by_slab.into_iter().filter(|(_, objects)| objects.len() == per_slab).collect();
    full.sort_unstable_by_key(|&(slab, _)| slab);
    assert!(full.len() >= 4, "{} full slabs of {per_slab}", full.len());
    // The second slab lacks one object, all others keep one.
    for (number, (_, objects)) in full.iter().enumerate() {
        let gone = if number == 1 { 1 } else { per_slab - 1 };
        for &object in &objects[..gone] {
            // SAFETY: allocated above.
            unsafe { cache.free(&frames, &pin, object) };
        }
    }
    cache.shrink(&frames, &pin);
    let free = |slab| frames.known(slab).as_slab().free() as usize;
    assert!(
        full.iter().enumerate().all(|(at, &(slab, _))| free(slab) == if at == 1 { 1 } else { per_slab - 1 })
    );
    // The CPU takes a batch, from more than one slab under one hold of the lock (and one is the report's).
    let before = cache.report(&frames).unwrap();
    for _ in 0..before.batch {
        cache.allocate(&frames, &pin, [0; 31]).unwrap();
    }
    assert_eq!(cache.report(&frames).unwrap().lock.takes - before.lock.takes, 2);
    assert_eq!(free(full[1].0), 0);
    let untouched = full.iter().filter(|&&(slab, _)| free(slab) == per_slab - 1).count();
    assert!(untouched >= full.len() - 3, "{untouched} of {} slabs were left alone", full.len());
}

/// What caches and CPUs keep does not make another allocation fail.
#[test]
fn kept_slabs_are_given_back_before_an_allocation_fails() {
    let frames = machine();
    let pin = frames.platform().pin();
    let cache = cache::<[u64; 64]>(&frames, "kept");
    let before = frames.reports().free_frames();
    let objects: Vec<_> = (0..40).map(|_| cache.allocate(&frames, &pin, [0; 64]).unwrap()).collect();
    free_all(&frames, &cache, objects);
    assert!(cache.report(&frames).unwrap().slabs > 0, "a cache keeps some slabs");
    let mut got = 0;
    while frames.allocate(&pin, ONE).is_ok() {
        got += 1;
    }
    assert_eq!(got, before);
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
