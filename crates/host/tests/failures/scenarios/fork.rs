//! `fork`, and the first faults after it.

use crate::common::*;
use crate::scenario::{Scenario, Undone, is_no_frames};
use crate::scene::{BASE, Scene, access, filled, fork_once};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("a_fork_fails_and_leaves_no_child", filled, fork_once)
        .refused(no_child)
        .succeeded(|scene| {
            let children = scene.others.borrow();
            assert_eq!(children[0].figures().resident, scene.space.figures().resident);
            is_a_copy(scene, &children[0]);
        })
        // The tables of both sides of the border and the child's own objects, and no page: pages are shared.
        .allocations(6..=15),
    Scenario::new("a_fork_of_many_mappings_leaves_no_child", many, fork_once).refused(no_child).succeeded(
        |scene| {
            let children = scene.others.borrow();
            is_a_copy(scene, &children[0]);
            // DONTFORK for one mapping, WIPEONFORK for another.
            assert_eq!(children[0].figures().mappings + 1, scene.space.figures().mappings);
            assert_eq!(scene.read_in(&children[0], BASE + 24 * PAGE), Ok(0));
        },
    ),
    // A pinned page is copied at once.
    Scenario::new("a_fork_with_pinned_pages_leaves_no_child", pinned, fork_once).refused(no_child).succeeded(
        |scene| {
            let children = scene.others.borrow();
            is_a_copy(scene, &children[0]);
        },
    ),
    // Pinning a shared page copies it.
    Scenario::new("a_shared_page_cannot_be_pinned", with_child, |scene| {
        match scene.space.pin_page(VirtAddr(BASE + PAGE), Access::Read) {
            Ok(page) => scene.pins.borrow_mut().push(page),
            Err(FaultError::OutOfMemory(cause)) => return Err(Error::NoFrames(cause)),
            Err(other) => panic!("{other}"),
        }
        Ok(())
    })
    .undone(Undone::Contents)
    .succeeded(|scene| scene.assert_filled(0..16)),
    Scenario::new("a_tree_of_forks_fails_branch_by_branch", filled, |scene| {
        let child = scene.space.fork()?;
        access(scene.write_in(&child, BASE, 1))?;
        let grandchild = child.fork()?;
        access(scene.write_in(&grandchild, BASE, 2))?;
        let second = scene.space.fork()?;
        scene.others.borrow_mut().extend([child, grandchild, second]);
        Ok(())
    })
    .refused(no_child)
    .succeeded(|scene| {
        scene.assert_filled(0..16);
        for (space, word) in scene.others.borrow().iter().zip([1, 2, 100]) {
            assert_eq!(scene.read_in(space, BASE), Ok(word));
            assert_eq!(scene.read_in(space, BASE + 15 * PAGE), Ok(115));
        }
    }),
    // The first write to memory that neither had touched; and to memory that both have.
    Scenario::new("a_first_write_of_a_child_fails_and_can_be_repeated", with_child, |scene| {
        let children = scene.others.borrow();
        access(scene.write_in(&children[0], BASE + 20 * PAGE, 5))?;
        access(scene.write_in(&children[0], BASE + PAGE, 6))
    })
    .undone(Undone::Contents)
    .succeeded(|scene| {
        assert_eq!(scene.read_in(&scene.others.borrow()[0], BASE + 20 * PAGE), Ok(5));
        assert_eq!(scene.read(BASE + 20 * PAGE), Ok(0));
        scene.assert_filled(0..16);
    }),
    Scenario::new("a_first_write_of_a_parent_fails_and_can_be_repeated", with_child, |scene| {
        access(scene.write(BASE + 20 * PAGE, 5))?;
        access(scene.write(BASE + PAGE, 101))
    })
    .undone(Undone::Contents)
    .succeeded(|scene| {
        let children = scene.others.borrow();
        assert_eq!(scene.read_in(&children[0], BASE + 20 * PAGE), Ok(0));
        is_a_copy(scene, &children[0]);
    }),
    Scenario::new("a_child_fails_to_split_what_it_inherited", with_child, |scene| {
        scene.others.borrow()[0].munmap(VirtAddr(BASE + 4 * PAGE), 4 * PAGE)
    })
    .succeeded(|scene| scene.assert_filled(0..16)),
];

fn no_child(scene: &Scene<'_>, error: Error) {
    is_no_frames(scene, error);
    scene.assert_filled(0..16);
    assert_eq!(scene.machine.memory().spaces().count(), 1);
}

/// The filled range is in the child as it is here.
fn is_a_copy(scene: &Scene<'_>, child: &HostSpace<'_>) {
    for at in 0..16 {
        assert_eq!(scene.read_in(child, BASE + at * PAGE), Ok(100 + at), "page {at}");
    }
}

/// The filled range with two pages that a device uses.
fn pinned(scene: &Scene<'_>) {
    filled(scene);
    for at in [3, 4] {
        let page =
            scene.space.pin_page(VirtAddr(BASE + at * PAGE), Access::Write).expect("nothing fails yet");
        scene.pins.borrow_mut().push(page);
    }
}

/// The filled range in three mappings, and beside it one of each other kind that fork handles.
fn many(scene: &Scene<'_>) {
    filled(scene);
    let advise = |at, advice| {
        map_at(&scene.space, BASE + at * PAGE, 4 * PAGE, RW);
        scene.write(BASE + at * PAGE, at).expect("nothing fails yet");
        scene.space.madvise(VirtAddr(BASE + at * PAGE), 4 * PAGE, advice).expect("nothing fails yet");
    };
    advise(24, Advice::WipeOnFork);
    advise(32, Advice::DontFork);
    scene.space.mprotect(VirtAddr(BASE + 5 * PAGE), 4 * PAGE, READ, false).expect("nothing fails yet");
}

/// The filled range, more behind it that is untouched, and a child.
fn with_child(scene: &Scene<'_>) {
    filled(scene);
    map_at(&scene.space, BASE + 16 * PAGE, 8 * PAGE, RW);
    let child = scene.space.fork().expect("nothing fails yet");
    scene.others.borrow_mut().push(child);
}
