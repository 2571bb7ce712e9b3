//! Guard pages. What can fail comes before pages are dropped.

use crate::common::*;
use crate::scenario::{Scenario, Undone};
use crate::scene::{BASE, Scene, filled, fork_once, small};

/// A border of every level of tables.
const LARGE: u64 = 1 << 39;

pub(crate) const SCENARIOS: &[Scenario] = &[
    // Three tables below the root, and the anon_vma with frames for it.
    Scenario::new("guards_are_installed_whole_or_not_at_all", small, |scene| {
        scene.space.madvise(VirtAddr(BASE), 4 * PAGE, Advice::GuardInstall)
    })
    .undone(Undone::Contents)
    .refused(no_guards)
    .succeeded(|scene| assert_eq!(guards(scene, BASE, 8 * PAGE), 4))
    .allocations(5..=6),
    // Tables are missing for most of it.
    Scenario::new("guards_that_fail_drop_no_page", one_page_of_many, |scene| {
        scene.space.madvise(VirtAddr(LARGE), 4 * MIB2, Advice::GuardInstall)
    })
    .undone(Undone::Contents)
    .refused(|scene, error| {
        no_guards(scene, error);
        assert_eq!(scene.read(LARGE), Ok(7));
    })
    .succeeded(|scene| assert_eq!(guards(scene, LARGE, 4 * MIB2), 2048))
    .allocations(3..=3),
    Scenario::new("guards_replace_pages_without_memory", filled, |scene| {
        scene.space.madvise(VirtAddr(BASE), 4 * PAGE, Advice::GuardInstall)
    })
    .succeeded(|scene| assert_eq!(guards(scene, BASE, 8 * PAGE), 4))
    .never(),
    Scenario::new("guards_replace_a_large_leaf_without_memory", large, |scene| {
        scene.space.madvise(VirtAddr(LARGE), MIB2, Advice::GuardInstall)
    })
    .succeeded(|scene| {
        assert_eq!(guards(scene, LARGE, MIB2), 512);
        assert_eq!(scene.space.figures().resident, 0);
    })
    .never(),
    Scenario::new("guards_replace_a_part_of_a_large_leaf_without_memory", large, |scene| {
        scene.space.madvise(VirtAddr(LARGE + PAGE), PAGE, Advice::GuardInstall)
    })
    .succeeded(|scene| assert_eq!(guards(scene, LARGE, MIB2), 1))
    .never(),
    Scenario::new("guards_are_removed_without_memory", guarded, |scene| {
        scene.space.madvise(VirtAddr(LARGE), 4 * MIB2, Advice::GuardRemove)
    })
    .succeeded(|scene| assert_eq!(guards(scene, LARGE, 4 * MIB2), 0))
    .never(),
    Scenario::new("a_fork_with_guards_leaves_no_child", guarded, fork_once)
        .succeeded(|scene| assert_eq!(guards_in(&scene.others.borrow()[0], LARGE, 4 * MIB2), 2048)),
    Scenario::new("guards_move_or_stay", guarded, |scene| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        scene.space.mremap(VirtAddr(LARGE), 4 * MIB2, 4 * MIB2, flags, VirtAddr(2 * LARGE + PAGE)).map(drop)
    })
    .refused(|scene, error| {
        crate::scenario::is_no_frames(scene, error);
        assert_eq!(guards(scene, LARGE, 4 * MIB2), 2048);
    })
    .succeeded(|scene| assert_eq!(guards(scene, 2 * LARGE + PAGE, 4 * MIB2), 2048)),
];

fn guards(scene: &Scene<'_>, addr: u64, len: u64) -> u64 {
    guards_in(&scene.space, addr, len)
}

fn guards_in(space: &HostSpace<'_>, addr: u64, len: u64) -> u64 {
    let mut found = 0;
    space.mappings().pagemap(VirtRange::new(VirtAddr(addr), VirtAddr(addr + len)), |pages, state| {
        found += if state == PageState::Guard { pages.pages() } else { 0 };
    });
    found
}

fn no_guards(scene: &Scene<'_>, error: Error) {
    crate::scenario::is_no_frames(scene, error);
    let everywhere = VirtRange::new(VirtAddr(0), VirtAddr(1 << 46));
    scene.space.mappings().pagemap(everywhere, |_, state| assert_ne!(state, PageState::Guard));
    scene.space.mappings().for_each(|mapping| assert!(!mapping.flags.contains(VmFlags::MAYBE_GUARD)));
}

fn one_page_of_many(scene: &Scene<'_>) {
    map_at(&scene.space, LARGE, 4 * MIB2, RW);
    scene.write(LARGE, 7).expect("nothing fails yet");
}

fn guarded(scene: &Scene<'_>) {
    map_at(&scene.space, LARGE, 4 * MIB2, RW);
    scene.space.madvise(VirtAddr(LARGE), 4 * MIB2, Advice::GuardInstall).expect("nothing fails yet");
}

fn large(scene: &Scene<'_>) {
    map_at(&scene.space, LARGE, MIB2, RW);
    scene.space.madvise(VirtAddr(LARGE), MIB2, Advice::HugePage).expect("nothing fails yet");
    scene.write(LARGE, 7).expect("nothing fails yet");
    assert_eq!(scene.space.figures().resident, MIB2);
}
