//! `mprotect` and advice that changes mappings.

use crate::common::*;
use crate::scenario::{Scenario, Undone, is_no_frames, is_try_again};
use crate::scene::{BASE, Scene, filled};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("a_change_of_protection_fails_whole", filled, |scene| protect(scene, 2, 4))
        .refused(|scene, error| {
            is_no_frames(scene, error);
            assert_eq!(scene.write(BASE + 2 * PAGE, 102), Ok(()));
            scene.assert_filled(0..16);
        })
        .succeeded(|scene| {
            assert_eq!(scene.write(BASE + 2 * PAGE, 0), Err(DENIED));
            scene.assert_filled(0..16);
        }),
    Scenario::new("a_change_of_protection_of_a_start_fails_whole", filled, |scene| protect(scene, 0, 4))
        .succeeded(|scene| assert_eq!(scene.write(BASE, 0), Err(DENIED))),
    Scenario::new("a_change_of_protection_of_all_allocates_nothing", filled, |scene| protect(scene, 0, 16))
        .succeeded(|scene| assert_eq!(scene.write(BASE, 0), Err(DENIED)))
        .never(),
    // The first mapping changes as a whole, the second must be split: the first stays changed, as in Linux.
    Scenario::new("a_change_over_two_mappings_keeps_what_it_did", two, |scene| protect(scene, 0, 20))
        .undone(Undone::Contents)
        .refused(|scene, error| {
            is_no_frames(scene, error);
            assert_eq!(scene.write(BASE, 0), Err(DENIED));
            assert_eq!(scene.write(BASE + 18 * PAGE, 3), Ok(()));
        })
        .succeeded(|scene| {
            assert_eq!(scene.write(BASE + 18 * PAGE, 0), Err(DENIED));
            assert_eq!(scene.write(BASE + 20 * PAGE, 0), Ok(()));
        }),
    // Locked memory that becomes writable gets its pages at once, or later if there is no memory.
    Scenario::new("locked_memory_made_writable_hides_its_pages", locked_for_reading, |scene| {
        scene.space.mprotect(VirtAddr(BASE), 8 * PAGE, RW, false)
    })
    .succeeded(|scene| assert_eq!(scene.space.figures().resident, 8 * PAGE))
    .hides(|scene| {
        assert!(scene.space.figures().resident < 8 * PAGE);
        assert_eq!(scene.write(BASE + 7 * PAGE, 1), Ok(()));
    })
    .allocations(10..=10),
    Scenario::new("advice_that_splits_asks_to_try_again", filled, |scene| {
        scene.space.madvise(VirtAddr(BASE + 2 * PAGE), 4 * PAGE, Advice::DontFork)
    })
    .refused(|scene, error| {
        is_try_again(scene, error);
        scene.assert_filled(0..16);
    })
    .succeeded(|scene| scene.assert_filled(0..16)),
    Scenario::new("dropping_pages_allocates_nothing", filled, |scene| {
        scene.space.madvise(VirtAddr(BASE + 2 * PAGE), 4 * PAGE, Advice::DontNeed)
    })
    .succeeded(|scene| {
        scene.assert_filled((0..2).chain(6..16));
        assert_eq!(scene.read(BASE + 2 * PAGE), Ok(0));
    })
    .never(),
];

/// Makes pages of the filled range read-only.
fn protect(scene: &Scene<'_>, first: u64, pages: u64) -> Result<(), Error> {
    scene.space.mprotect(VirtAddr(BASE + first * PAGE), pages * PAGE, READ, false)
}

/// Two mappings side by side that cannot be merged.
fn two(scene: &Scene<'_>) {
    filled(scene);
    map_at(&scene.space, BASE + 16 * PAGE, 8 * PAGE, RW);
    let all = scene.space.madvise(VirtAddr(BASE + 16 * PAGE), 8 * PAGE, Advice::DontDump);
    all.expect("nothing fails yet");
    scene.write(BASE + 18 * PAGE, 3).expect("nothing fails yet");
}

fn locked_for_reading(scene: &Scene<'_>) {
    map_at(&scene.space, BASE, 8 * PAGE, READ);
    scene.space.mlock(VirtAddr(BASE), 8 * PAGE, false).expect("nothing fails yet");
}
