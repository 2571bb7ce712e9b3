//! Damage to slabs, planted, is found.

use crate::support::*;

#[track_caller]
fn finds(frames: &Frames<Machine>, wanted: impl Fn(&FrameViolation) -> bool) {
    let found = violations(frames);
    assert!(found.iter().any(wanted), "{found:#?}");
}

#[test]
fn slabs_that_contradict_themselves() {
    // What is planted last stays.
    let frames = crate::common::frames(&[(0, 2048)], 1, PcpTechnique::None);
    let pin = frames.platform().pin();
    let cache = cache::<[u64; 100]>(&frames, "planted");
    let objects: Vec<_> = (0..12).map(|_| cache.allocate(&frames, &pin, [0; 100]).unwrap()).collect();
    assert_sound(&frames);
    let mut slabs = Vec::new();
    cache.for_each_frame(&frames, |pfn, _| slabs.push(pfn));
    let full = slabs.into_iter().map(|pfn| (pfn, frames.known(pfn)));
    let (pfn, slab) = full.into_iter().find(|(_, frame)| frame.as_slab().free() == 0).unwrap();
    // A count without a slot, a slab without an owner.
    slab.as_slab().set_free(1);
    finds(&frames, |found| *found == FrameViolation::BadSlab { cache: "planted", pfn });
    slab.as_slab().set_free(0);
    let owner = slab.as_slab().cache();
    slab.as_slab().set_cache(0);
    finds(&frames, |found| *found == FrameViolation::BadSlab { cache: "planted", pfn });
    slab.as_slab().set_cache(owner);
    // A full slab whose list of free slots is not empty.
    slab.as_slab().set_first_free(1);
    finds(&frames, |found| matches!(found, FrameViolation::WrongCount { what: Counted::SlabFree(_), .. }));
    slab.as_slab().set_first_free(0);
    assert_sound(&frames);
    // An object that is overwritten past its end.
    // SAFETY: the object is this test's; its link word follows it.
    unsafe { objects[0].cast::<u64>().add(100).write(0) };
    finds(&frames, |found| matches!(found, FrameViolation::WrongCount { what: Counted::SlabInUse(_), .. }));
    finds(&frames, |found| matches!(found, FrameViolation::WrongCount { what: Counted::SlabSlots(_), .. }));
}
