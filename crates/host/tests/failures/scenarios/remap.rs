//! `mremap`.

use crate::common::*;
use crate::scenario::{Scenario, Undone, all_is_there, is_no_frames};
use crate::scene::{BASE, Scene, filled};

/// Not congruent to the source, and across a border of tables.
const TARGET: u64 = (1 << 40) - 7 * PAGE;
const KEEP: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::DONTUNMAP);

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("a_move_fails_whole", filled, |scene| remap(scene, 0, 16, 16, MOVE, TARGET))
        .refused(all_is_there)
        .succeeded(|scene| moved(scene, 0, 16))
        .allocations(4..=14),
    // Hazard: failure half way: everything moves back, no page is lost and no page is mapped twice.
    Scenario::new("a_move_of_a_part_fails_whole", filled, |scene| remap(scene, 2, 7, 7, MOVE, TARGET))
        .refused(all_is_there)
        .succeeded(|scene| moved(scene, 2, 9))
        .allocations(4..=14),
    Scenario::new("a_move_of_an_end_fails_whole", filled, |scene| remap(scene, 2, 14, 14, MOVE, TARGET))
        .refused(all_is_there)
        .succeeded(|scene| moved(scene, 2, 16)),
    Scenario::new("a_move_that_shrinks_unmaps_first", filled, |scene| {
        // The shrunk source stays shorter.
        let cut = scene.read(BASE + 5 * PAGE) == Err(NOT_MAPPED);
        remap(scene, 2, if cut { 3 } else { 8 }, 3, MOVE, TARGET)
    })
    .undone(Undone::AsChecked)
    .refused(|scene, error| {
        is_no_frames(scene, error);
        // What is unmapped is unmapped before the move; the rest is where it was.
        scene.assert_filled((0..5).chain(10..16));
    })
    .succeeded(|scene| {
        moved(scene, 2, 5);
        assert_eq!(scene.read(BASE + 5 * PAGE), Err(NOT_MAPPED));
        scene.assert_filled(10..16);
    }),
    Scenario::new("a_move_over_a_middle_unmaps_it_first", with_target, |scene| {
        remap(scene, 0, 16, 16, MOVE, TARGET)
    })
    .undone(Undone::AsChecked)
    .refused(|scene, error| {
        all_is_there(scene, error);
        assert_eq!(scene.read(TARGET - PAGE), Ok(1));
        assert_eq!(scene.read(TARGET + 16 * PAGE), Ok(2));
        // Whole, or unmapped: what FIXED replaces is unmapped before, and stays so.
        let left = scene.read(TARGET);
        assert!(left == Ok(3) || left == Err(NOT_MAPPED), "{left:?}");
    })
    .succeeded(|scene| {
        moved(scene, 0, 16);
        assert_eq!(scene.read(TARGET - PAGE), Ok(1));
        assert_eq!(scene.read(TARGET + 16 * PAGE), Ok(2));
    }),
    // Mapping by mapping: those before the one that failed have moved, as in Linux.
    Scenario::new("a_move_of_several_stops_between_two", striped, move_what_is_left)
        .undone(Undone::AsChecked)
        .refused(|scene, error| {
            is_no_frames(scene, error);
            for at in 0..16 {
                let (old, new) = (scene.read(BASE + at * PAGE), scene.read(TARGET + at * PAGE));
                let (here, gone) = (Ok(100 + at), Err(NOT_MAPPED));
                assert!(
                    (old, new) == (here, gone) || (old, new) == (gone, here),
                    "page {at}: {old:?} {new:?}"
                );
            }
        })
        .succeeded(|scene| {
            for at in 0..16 {
                assert_eq!(scene.read(TARGET + at * PAGE), Ok(100 + at));
            }
        }),
    Scenario::new("a_move_that_keeps_its_source_fails_whole", filled, |scene| {
        remap(scene, 0, 16, 16, KEEP, 0)
    })
    .refused(all_is_there)
    .succeeded(|scene| {
        assert_eq!(scene.read(scene.returned.get().0), Ok(100));
        assert_eq!(scene.read(BASE), Ok(0));
    }),
    Scenario::new("a_move_that_keeps_a_part_as_its_source_fails_whole", filled, |scene| {
        remap(scene, 3, 5, 5, KEEP, 0)
    })
    .refused(all_is_there)
    .succeeded(|scene| {
        assert_eq!(scene.read(scene.returned.get().0), Ok(103));
        assert_eq!(scene.read(BASE + 3 * PAGE), Ok(0));
        scene.assert_filled((0..3).chain(8..16));
    }),
    Scenario::new("growing_in_place_allocates_nothing", filled, |scene| {
        remap(scene, 0, 16, 64, RemapFlags::empty(), 0)
    })
    .succeeded(|scene| scene.assert_filled(0..16))
    .never(),
    Scenario::new("growing_elsewhere_fails_whole", hemmed_in, |scene| {
        remap(scene, 0, 16, 64, RemapFlags::MAYMOVE, 0)
    })
    .refused(all_is_there)
    .succeeded(|scene| assert_eq!(scene.read(page(scene.returned.get(), 15).0), Ok(115))),
    Scenario::new("an_alias_of_shared_memory_fails_whole", shared, |scene| {
        remap(scene, 0, 0, 8, RemapFlags::MAYMOVE, 0)
    })
    .succeeded(|scene| assert_eq!(scene.space.figures().mapped, 16 * PAGE)),
    Scenario::new("shrinking_from_the_middle_fails_whole", filled, |scene| {
        remap(scene, 2, 6, 2, RemapFlags::empty(), 0)
    })
    .refused(all_is_there)
    .succeeded(|scene| {
        scene.assert_filled((0..4).chain(8..16));
        assert_eq!(scene.read(BASE + 4 * PAGE), Err(NOT_MAPPED));
    }),
    Scenario::new("shrinking_an_end_allocates_nothing", filled, |scene| {
        remap(scene, 0, 16, 4, RemapFlags::empty(), 0)
    })
    .succeeded(|scene| scene.assert_filled(0..4))
    .never(),
    Scenario::new("growing_locked_memory_in_place_hides_its_pages", locked, |scene| {
        remap(scene, 0, 16, 24, RemapFlags::empty(), 0)
    })
    .succeeded(|scene| assert_eq!(scene.space.figures().resident, 24 * PAGE))
    .hides(|scene| {
        assert!(scene.space.figures().resident < 24 * PAGE);
        scene.assert_filled(0..16);
        assert_eq!(scene.write(BASE + 23 * PAGE, 1), Ok(()));
    }),
    Scenario::new("growing_locked_memory_elsewhere_hides_its_pages", locked_and_hemmed_in, |scene| {
        remap(scene, 0, 16, 24, RemapFlags::MAYMOVE, 0)
    })
    .refused(all_is_there)
    .succeeded(|scene| assert_eq!(scene.space.figures().resident, 24 * PAGE))
    .hides(|scene| {
        assert!(scene.space.figures().resident < 24 * PAGE);
        assert_eq!(scene.read(page(scene.returned.get(), 15).0), Ok(115));
        assert_eq!(scene.write(page(scene.returned.get(), 23).0, 1), Ok(()));
    }),
];

/// Moves or resizes pages of the filled range.
fn remap(
    scene: &Scene<'_>,
    first: u64,
    old: u64,
    new: u64,
    flags: RemapFlags,
    target: u64,
) -> Result<(), Error> {
    let from = VirtAddr(BASE + first * PAGE);
    let addr = scene.space.mremap(from, old * PAGE, new * PAGE, flags, VirtAddr(target))?;
    scene.keep(addr);
    Ok(())
}

/// Pages `first..end` are at the returned address, and no longer where they were; the rest is.
fn moved(scene: &Scene<'_>, first: u64, end: u64) {
    for at in first..end {
        assert_eq!(scene.read(page(scene.returned.get(), at - first).0), Ok(100 + at));
        assert_eq!(scene.read(BASE + at * PAGE), Err(NOT_MAPPED));
    }
    scene.assert_filled(0..first);
}

/// A longer mapping lies where the pages are to go.
fn with_target(scene: &Scene<'_>) {
    filled(scene);
    map_at(&scene.space, TARGET - PAGE, 18 * PAGE, RW);
    for (at, word) in [(TARGET - PAGE, 1), (TARGET + 16 * PAGE, 2), (TARGET, 3)] {
        scene.write(at, word).expect("nothing fails yet");
    }
}

/// Three mappings in the filled range.
fn striped(scene: &Scene<'_>) {
    filled(scene);
    scene.space.mprotect(VirtAddr(BASE + 5 * PAGE), 4 * PAGE, READ, false).expect("nothing fails yet");
}

fn move_what_is_left(scene: &Scene<'_>) -> Result<(), Error> {
    let source = mappings(&scene.space).into_iter().find(|&(start, ..)| (BASE..TARGET).contains(&start));
    let first = source.map_or(0, |(start, ..)| (start - BASE) / PAGE);
    remap(scene, first, 16 - first, 16 - first, MOVE, TARGET + first * PAGE)
}

/// No free range to grow into.
fn hemmed_in(scene: &Scene<'_>) {
    filled(scene);
    map_at(&scene.space, BASE + 16 * PAGE, PAGE, NONE);
}

fn locked(scene: &Scene<'_>) {
    filled(scene);
    scene.space.mlock(VirtAddr(BASE), 16 * PAGE, false).expect("nothing fails yet");
}

fn locked_and_hemmed_in(scene: &Scene<'_>) {
    locked(scene);
    map_at(&scene.space, BASE + 16 * PAGE, PAGE, NONE);
}

fn shared(scene: &Scene<'_>) {
    let request = MapRequest::anonymous(8 * PAGE, RW).at(VirtAddr(BASE), MapFlags::FIXED | MapFlags::SHARED);
    scene.space.mmap(&request).expect("nothing fails yet");
}
