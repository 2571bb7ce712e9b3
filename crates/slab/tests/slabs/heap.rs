//! The heap against a map, by itself and as Rust's allocator.

use crate::support::*;
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::mpsc;

const SIZES: [usize; 13] = [8, 16, 32, 64, 96, 128, 192, 256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10];

fn new_heap(frames: &Frames<Machine>) -> Heap<Machine> {
    Heap::new(frames, &frames.platform().pin()).unwrap()
}

/// A machine, its heap, and how many frames are free then.
fn machine_with_heap() -> (Audited, Heap<Machine>, u64) {
    let frames = machine();
    let heap = new_heap(&frames);
    let before = frames.reports().free_frames();
    (frames, heap, before)
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// An object with its layout, filled with a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Object {
    at: NonNull<u8>,
    layout: Layout,
    number: u8,
}

// SAFETY: an object is plain memory that its holder alone uses.
unsafe impl Send for Object {}

impl Object {
    fn new(heap: &Heap<Machine>, frames: &Frames<Machine>, layout: Layout, number: u8) -> Option<Self> {
        let at = heap.allocate(frames, &frames.platform().pin(), layout).ok()?;
        assert!(at.addr().get().is_multiple_of(layout.align()), "{at:?} for {layout:?}");
        // SAFETY: the object is new.
        unsafe { at.write_bytes(number, layout.size()) };
        Some(Self { at, layout, number })
    }

    /// Looks at every byte and frees it.
    fn end(self, heap: &Heap<Machine>, frames: &Frames<Machine>) {
        // SAFETY: the object is this test's, and was filled when it was made.
        unsafe {
            let bytes = core::slice::from_raw_parts(self.at.as_ptr(), self.layout.size());
            assert!(bytes.iter().all(|&byte| byte == self.number), "{self:?} was overwritten");
            heap.free(frames, &frames.platform().pin(), self.at, self.layout);
        }
    }
}

/// Nothing is in use, and all that the heap took comes back.
fn gives_all_back(frames: &Frames<Machine>, before: u64) {
    assert_sound(frames);
    let pin = frames.platform().pin();
    let kept = before - frames.reports().free_frames();
    assert_eq!(frames.caches().shrink(&pin), kept);
    for cache in cache_reports(frames) {
        assert_eq!((cache.in_use, cache.slabs, cache.pages, cache.in_depot), (0, 0, 0, 0), "{cache:?}");
    }
    assert_eq!(frames.reports().free_frames(), before);
    assert_sound(frames);
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { machine: usize, cpu: usize, layout: Layout, number: u8 },
    Free { cpu: usize, pick: usize },
    Shrink { machine: usize },
}

/// Mostly small objects, as kernels have them; some of each class, and some blocks.
fn any_layout() -> impl Strategy<Value = Layout> {
    let size = prop_oneof![4 => 0..=256usize, 2 => 0..=9000usize, 1 => 0..=40_000usize];
    (size, 0..=12u32).prop_map(|(size, align)| layout(size, 1 << align))
}

fn step() -> impl Strategy<Value = Step> {
    let (machine, cpu) = (0..2usize, 0..2usize);
    prop_oneof![
        6 => (machine.clone(), cpu.clone(), any_layout(), any::<u8>())
            .prop_map(|(machine, cpu, layout, number)| Step::Allocate { machine, cpu, layout, number }),
        4 => (cpu, any::<usize>()).prop_map(|(cpu, pick)| Step::Free { cpu, pick }),
        1 => machine.prop_map(|machine| Step::Shrink { machine }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_on_two_machines_agrees_with_a_map(steps in prop::collection::vec(step(), 1..300)) {
        let machines = [machine(), machine()];
        let heaps = machines.each_ref().map(|frames| new_heap(frames));
        let before = machines.each_ref().map(|frames| frames.reports().free_frames());
        let mut model: HashMap<(usize, NonNull<u8>), Object> = HashMap::new();
        for step in steps {
            match step {
                Step::Allocate { machine, cpu, layout, number } => {
                    run_on(cpu);
                    let object = Object::new(&heaps[machine], &machines[machine], layout, number).unwrap();
                    prop_assert_eq!(model.insert((machine, object.at), object), None, "given out twice");
                }
                Step::Free { cpu, pick } => {
                    run_on(cpu);
                    let Some(&(machine, at)) = model.keys().nth(pick % model.len().max(1)) else { continue };
                    let object = model.remove(&(machine, at)).unwrap();
                    object.end(&heaps[machine], &machines[machine]);
                }
                Step::Shrink { machine } => {
                    machines[machine].caches().shrink(&machines[machine].platform().pin());
                }
            }
        }
        for machine in &machines {
            assert_sound(machine);
        }
        for ((machine, _), object) in model {
            object.end(&heaps[machine], &machines[machine]);
        }
        run_on(0);
        for (machine, before) in machines.iter().zip(before) {
            gives_all_back(machine, before);
        }
    }
}

#[test]
fn each_size_has_its_cache_and_no_space_is_lost() {
    let (frames, heap, before) = machine_with_heap();
    let in_use = |name: &str| cache_reports(&frames).find(|cache| cache.name == name).unwrap().in_use;
    for (class, size) in SIZES.into_iter().enumerate() {
        let name = match size {
            1024.. => format!("kmalloc-{}k", size / 1024),
            _ => format!("kmalloc-{size}"),
        };
        let smallest = class.checked_sub(1).map_or(0, |below| SIZES[below] + 1);
        let align = 1 << size.trailing_zeros().min(12);
        let layouts = [layout(smallest, 1), layout(size, 1), layout(size, align)];
        let objects = layouts.map(|layout| Object::new(&heap, &frames, layout, 3).unwrap());
        assert_eq!(in_use(&name), 3, "{name}");
        let report = cache_reports(&frames).find(|cache| cache.name == name).unwrap();
        assert_eq!(report.object_bytes, size);
        let slab = report.order.bytes() as usize;
        assert_eq!(report.objects_per_slab as usize, slab / size);
        assert!(slab % size <= slab / 16, "{name} wastes a part of {slab} bytes");
        objects.into_iter().for_each(|object| object.end(&heap, &frames));
        assert_eq!(in_use(&name), 0, "{name}");
    }
    let report = cache_reports(&frames).find(|cache| cache.name == "kmalloc-4k").unwrap();
    assert_eq!((report.objects_per_slab, report.order.get()), (8, 3));
    gives_all_back(&frames, before);
}

#[test]
fn more_than_a_class_is_a_block_of_frames() {
    let (frames, heap, before) = machine_with_heap();
    for (size, align, pages) in [
        (8193, 1, 4),
        (16 << 10, 4096, 4),
        (1, 8192, 2),
        (8192, 8192, 4),
        (1 << 20, 8, 256),
        (5, 1 << 16, 16),
    ] {
        let object = Object::new(&heap, &frames, layout(size, align), 9).unwrap();
        assert_eq!(before - frames.reports().free_frames(), pages, "{size} bytes aligned to {align}");
        assert_sound(&frames);
        object.end(&heap, &frames);
        assert_eq!(frames.reports().free_frames(), before);
    }
    let pin = frames.platform().pin();
    for (size, align) in [((4 << 20) + 1, 1), (1, 8 << 20), (isize::MAX as usize, 1), (0, 1 << 62)] {
        assert_eq!(heap.allocate(&frames, &pin, layout(size, align)), Err(AllocError::OutOfMemory));
    }
    gives_all_back(&frames, before);
}

#[test]
fn zeroed_memory_is_zero() {
    let (frames, heap, _) = machine_with_heap();
    let pin = frames.platform().pin();
    for size in SIZES.into_iter().chain([20 << 10]) {
        let layout = layout(size, 8);
        for number in 0..4 {
            let object = heap.allocate_zeroed(&frames, &pin, layout).unwrap();
            // SAFETY: the object is new and was filled with zeros.
            let bytes = unsafe { core::slice::from_raw_parts_mut(object.as_ptr(), size) };
            assert!(bytes.iter().all(|&byte| byte == 0), "{size} bytes, round {number}");
            bytes.fill(0xaa);
            // SAFETY: allocated above.
            unsafe { heap.free(&frames, &pin, object, layout) };
        }
    }
}

#[test]
fn each_failure_of_an_allocation_leaves_nothing() {
    let frames = machine();
    let untouched = frames.reports().free_frames();
    let pin = frames.platform().pin();
    frames.fail_points().set(FailPlan::nth(1));
    assert_eq!(Heap::new(&frames, &pin).map(drop), Err(AllocError::Injected));
    assert_eq!((frames.reports().free_frames(), cache_reports(&frames).count()), (untouched, 0));
    assert_sound(&frames);
    frames.fail_points().set(FailPlan::OFF);
    let heap = new_heap(&frames);
    let before = frames.reports().free_frames();
    for size in SIZES.into_iter().chain([20 << 10]) {
        frames.caches().shrink(&pin);
        frames.fail_points().set(FailPlan::COUNT);
        Object::new(&heap, &frames, layout(size, 1), 1).unwrap().end(&heap, &frames);
        let asked = frames.fail_points().seen();
        // The object and its slab, or the block.
        assert_eq!(asked, if size > 8 << 10 { 1 } else { 2 });
        for turn in 1..=asked {
            frames.caches().shrink(&pin);
            frames.fail_points().set(FailPlan::nth(turn));
            assert_eq!(heap.allocate(&frames, &pin, layout(size, 1)), Err(AllocError::Injected));
            assert_eq!(frames.reports().free_frames(), before);
            Object::new(&heap, &frames, layout(size, 1), 1).unwrap().end(&heap, &frames);
            assert_sound(&frames);
        }
    }
    // By name, as Linux's caches have them.
    frames.fail_points().set(FailPlan::every(1).at(FailAim::Site(FailSite::new("kmalloc-96"))));
    assert_eq!(heap.allocate(&frames, &pin, layout(90, 1)), Err(AllocError::Injected));
    frames.fail_points().set(FailPlan::every(1).at(FailAim::Site(Heap::<Machine>::SITE)));
    assert_eq!(heap.allocate(&frames, &pin, layout(9000, 1)), Err(AllocError::Injected));
    frames.fail_points().set(FailPlan::every(1).at(FailAim::Class(FailClass::Object)));
    Object::new(&heap, &frames, layout(9000, 1), 1).unwrap().end(&heap, &frames);
    frames.fail_points().set(FailPlan::OFF);
    gives_all_back(&frames, before);
}

#[test]
fn when_memory_ends_nothing_is_lost() {
    for size in [8, 96, 4096, 8192, 40_000] {
        let frames = frames(&[(0, 1024)], 2, PcpTechnique::OrderZero);
        let heap = new_heap(&frames);
        let before = frames.reports().free_frames();
        let make = |number: usize| Object::new(&heap, &frames, layout(size, 8), number as u8);
        let objects: Vec<_> = (0..).map_while(make).collect();
        // Blocks of 64 KiB hold 40 000 bytes; slabs fall back to smaller ones where memory is broken up.
        let part = if size > 8192 { 2 } else { 10 };
        let used = objects.len() * size;
        assert!(used >= before as usize * 4096 / 11 * part, "{size}: {used} bytes");
        assert_sound(&frames);
        objects.into_iter().for_each(|object| object.end(&heap, &frames));
        gives_all_back(&frames, before);
    }
}

/// Threads on two CPUs that hand objects to each other: each is freed by the thread that has it.
#[test]
fn threads_hand_objects_over() {
    let seed = 11;
    println!("seed {seed}");
    let (frames, heap, before) = machine_with_heap();
    let (to_second, from_first) = mpsc::channel();
    let (to_first, from_second) = mpsc::channel();
    let run = |cpu: usize, to: mpsc::Sender<Object>, from: mpsc::Receiver<Object>| {
        run_on(cpu);
        let mut random = Random(seed + cpu as u64);
        let mut mine = Vec::new();
        for number in 0..20_000 {
            if random.below(3) > 0 {
                let size = if random.below(50) == 0 { random.below(20_000) } else { random.below(300) };
                let layout = layout(size as usize, 1 << random.below(8));
                mine.push(Object::new(&heap, &frames, layout, number as u8).unwrap());
            }
            mine.extend(from.try_recv());
            while mine.len() > 100 {
                let object = mine.swap_remove(random.below(mine.len() as u64) as usize);
                match random.below(2) {
                    // A thread that has ended receives nothing.
                    0 => to.send(object).unwrap_or_else(|back| back.0.end(&heap, &frames)),
                    _ => object.end(&heap, &frames),
                }
            }
        }
        drop(to);
        mine.extend(from);
        mine.into_iter().for_each(|object| object.end(&heap, &frames));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(0, to_second, from_second));
        scope.spawn(|| run(1, to_first, from_first));
    });
    gives_all_back(&frames, before);
}

/// The marks of the slabs' own caches are not there: what is in use is what is on no list. Damage to a list
/// shows.
#[test]
fn a_write_to_a_free_object_is_found() {
    let (frames, heap, _) = machine_with_heap();
    let objects = [1, 2, 3].map(|number| Object::new(&heap, &frames, layout(64, 8), number).unwrap());
    objects.into_iter().for_each(|object| object.end(&heap, &frames));
    assert_sound(&frames);
    let word = objects[2].at.cast::<u64>();
    for damage in [0, 1, 0xdead_beef] {
        // SAFETY: a word of the machine's RAM. It is free, so this is the planted bug; it is undone below.
        let link = unsafe { word.replace(damage) };
        let found = violations(&frames);
        let wrong = |violation: &FrameViolation| {
            matches!(violation, FrameViolation::WrongCount { what: Counted::SlabInUse("kmalloc-64"), .. })
        };
        assert!(found.iter().any(wrong), "{damage:#x}: {found:?}");
        // SAFETY: the same word of a free object, which gets its link back.
        unsafe { word.write(link) };
    }
    assert_sound(&frames);
    // On the list of a slab: one object is in use, all others went back there.
    let kept = Object::new(&heap, &frames, layout(1024, 8), 5).unwrap();
    frames.caches().shrink(&frames.platform().pin());
    assert_sound(&frames);
    let beside: isize = if kept.at.addr().get().is_multiple_of(4096) { 1024 } else { -1024 };
    // SAFETY: the object beside it on its page, which is free: the planted bug.
    unsafe {
        let word = kept.at.offset(beside).cast::<u64>();
        let link = word.replace(2);
        let wrong = |violation: &FrameViolation| {
            matches!(violation, FrameViolation::WrongCount { what: Counted::SlabFree("kmalloc-1k"), .. })
        };
        assert!(violations(&frames).iter().any(wrong));
        word.write(link);
    }
    kept.end(&heap, &frames);
}

#[cfg(debug_assertions)]
mod misuse {
    use super::*;

    #[test]
    #[should_panic(expected = "kmalloc-8 is not given")]
    fn a_double_free_is_noticed() {
        let (frames, heap, _) = machine_with_heap();
        let object = Object::new(&heap, &frames, layout(8, 8), 1).unwrap();
        Object::new(&heap, &frames, layout(8, 8), 1).unwrap().end(&heap, &frames);
        object.end(&heap, &frames);
        Object { number: 0, layout: layout(0, 1), ..object }.end(&heap, &frames);
    }

    #[test]
    #[should_panic(expected = "kmalloc-128 is not given")]
    fn another_size_is_noticed() {
        let (frames, heap, _) = machine_with_heap();
        let object = Object::new(&heap, &frames, layout(64, 8), 1).unwrap();
        Object { layout: layout(0, 128), ..object }.end(&heap, &frames);
    }

    #[test]
    #[should_panic(expected = "kmalloc-64 is not given")]
    fn the_inside_of_an_object_is_noticed() {
        let (frames, heap, _) = machine_with_heap();
        let object = Object::new(&heap, &frames, layout(64, 8), 1).unwrap();
        // SAFETY: within the object.
        let at = unsafe { object.at.add(8) };
        Object { at, layout: layout(50, 1), ..object }.end(&heap, &frames);
    }

    #[test]
    #[should_panic(expected = "a block of the heap")]
    fn a_block_that_is_freed_twice_is_noticed() {
        let (frames, heap, _) = machine_with_heap();
        let object = Object::new(&heap, &frames, layout(10_000, 8), 1).unwrap();
        object.end(&heap, &frames);
        object.end(&heap, &frames);
    }
}

#[test]
fn a_heap_is_not_used_with_another_machine() {
    let (ours, other) = (machine(), machine());
    let heap = new_heap(&ours);
    let pin = other.platform().pin();
    for size in [8, 10_000] {
        assert_eq!(heap.allocate(&other, &pin, layout(size, 1)), Err(AllocError::ForeignCache));
        assert_eq!(heap.allocate_zeroed(&other, &pin, layout(size, 1)), Err(AllocError::ForeignCache));
    }
    Object::new(&heap, &ours, layout(8, 1), 1).unwrap().end(&heap, &ours);
    assert_eq!(heap.shrink(&other, &pin), 0);
    assert_eq!(heap.shrink(&ours, &ours.platform().pin()), 1);
}

/// A machine that lives as long as the process, as a kernel's.
fn for_ever() -> &'static Frames<Machine> {
    Box::leak(Box::new(machine()))
}

#[test]
fn a_global_heap_serves_from_when_it_is_attached() {
    static HEAP: GlobalHeap<Machine> = GlobalHeap::new();
    let layout = layout(100, 8);
    // SAFETY: the layouts have a size; what is reallocated and freed was allocated here.
    unsafe {
        assert!(HEAP.alloc(layout).is_null() && HEAP.alloc_zeroed(layout).is_null());
        let frames = for_ever();
        frames.fail_points().set(FailPlan::nth(1));
        assert_eq!(HEAP.attach(KernelFrames::new(frames)), Err(AttachError::NoFrames(AllocError::Injected)));
        assert!(HEAP.alloc(layout).is_null());
        assert_eq!(HEAP.attach(KernelFrames::new(frames)), Ok(()));
        assert_eq!(HEAP.attach(KernelFrames::new(frames)), Err(AttachError::AlreadyAttached));
        assert_eq!(HEAP.attach(KernelFrames::new(for_ever())), Err(AttachError::AlreadyAttached));
        let before = frames.reports().free_frames();

        let object = HEAP.alloc_zeroed(layout);
        assert!((0..100).all(|at| object.add(at).read() == 0));
        for at in 0..100 {
            object.add(at).write(at as u8);
        }
        // Inside the class, to larger ones, to a block, inside the block, and back.
        assert_eq!(HEAP.realloc(object, layout, 128), object);
        let mut moved = object;
        let mut old = Layout::from_size_align_unchecked(128, 8);
        for size in [129, 5000, 9000, 12_000, 200_000, 110] {
            let next = HEAP.realloc(moved, old, size);
            assert_eq!(next == moved, (old.size(), size) == (9000, 12_000), "{size}");
            assert!((0..100).all(|at| next.add(at).read() == at as u8), "{size}");
            (moved, old) = (next, Layout::from_size_align_unchecked(size, 8));
        }
        // An object that cannot grow stays as it is.
        frames.fail_points().set(FailPlan::every(1));
        assert!(HEAP.realloc(moved, old, 500).is_null());
        assert!(HEAP.alloc(old).is_null());
        frames.fail_points().set(FailPlan::OFF);
        assert!(HEAP.alloc(Layout::from_size_align_unchecked(5 << 20, 8)).is_null());
        assert!((0..100).all(|at| moved.add(at).read() == at as u8));
        HEAP.dealloc(moved, old);
        let wide = Layout::from_size_align_unchecked(24, 16 << 10);
        let aligned = HEAP.alloc(wide);
        assert!(!aligned.is_null() && aligned.addr().is_multiple_of(16 << 10));
        HEAP.dealloc(aligned, wide);
        gives_all_back(frames, before);
    }
}
