//! `mmap`.

use crate::common::*;
use crate::scenario::{Scenario, all_is_there};
use crate::scene::{BASE, Scene, empty, filled};

pub(crate) const SCENARIOS: &[Scenario] = &[
    // A VMA and a node of the tree, and the frames of both.
    Scenario::new("a_new_mapping_fails_whole", empty, |scene| map(scene, MapRequest::anonymous(PAGE, RW)))
        .succeeded(|scene| assert_eq!(scene.read(scene.returned.get().0), Ok(0)))
        .allocations(4..=4),
    Scenario::new("a_mapping_of_a_file_fails_whole", filled, |scene| {
        let file = MappedFile::new(3, 5);
        map(scene, MapRequest { file: Some(file), ..MapRequest::anonymous(4 * PAGE, READ) })
    }),
    Scenario::new("a_shared_mapping_fails_whole", filled, |scene| {
        map(scene, MapRequest { flags: MapFlags::SHARED, ..MapRequest::anonymous(4 * PAGE, RW) })
    }),
    Scenario::new("a_mapping_that_splits_a_node_fails_whole", full_node, |scene| {
        map(scene, MapRequest::anonymous(PAGE, READ).at(VirtAddr(BASE + PAGE), MapFlags::FIXED))
    })
    .allocations(3..=6),
    Scenario::new("a_mapping_beside_its_like_allocates_nothing", filled, |scene| {
        map(scene, MapRequest::anonymous(PAGE, RW).at(VirtAddr(BASE + 16 * PAGE), MapFlags::FIXED))
    })
    .never(),
    Scenario::new("a_fixed_mapping_over_a_middle_fails_whole", filled, |scene| {
        map(scene, MapRequest::anonymous(2 * PAGE, READ).at(VirtAddr(BASE + 3 * PAGE), MapFlags::FIXED))
    })
    .refused(all_is_there)
    .succeeded(|scene| scene.assert_filled((0..3).chain(5..16)))
    .allocations(2..=8),
    Scenario::new("a_fixed_mapping_over_several_fails_whole", striped, |scene| {
        map(scene, MapRequest::anonymous(6 * PAGE, READ).at(VirtAddr(BASE + 3 * PAGE), MapFlags::FIXED))
    })
    .succeeded(|scene| scene.assert_filled((0..3).chain(9..16))),
    // Linux has unmapped the old range when the file's own operation is called.
    Scenario::new("a_fixed_mapping_that_its_file_refuses_leaves_a_hole_or_fails_whole", filled, |scene| {
        let (file, objection) = (Some(MappedFile::new(3, 0)), Some(Error::RefusedByFile(Errno::EINVAL)));
        let request = MapRequest { file, objection, ..MapRequest::anonymous(2 * PAGE, READ) };
        match map(scene, request.at(VirtAddr(BASE + 3 * PAGE), MapFlags::FIXED)) {
            Err(Error::RefusedByFile(_)) => Ok(()),
            other => other,
        }
    })
    .refused(all_is_there)
    .succeeded(|scene| scene.assert_filled((0..3).chain(5..16))),
    Scenario::new("populating_stops_without_an_error_at_mmap", empty, |scene| {
        map(scene, MapRequest::anonymous(8 * PAGE, RW).at(VirtAddr(BASE), MapFlags::POPULATE))
    })
    .succeeded(|scene| assert_eq!(scene.space.figures().resident, 8 * PAGE))
    .hides(partly_resident),
    Scenario::new("locking_stops_without_an_error_at_mmap", empty, |scene| {
        map(scene, MapRequest::anonymous(8 * PAGE, RW).at(VirtAddr(BASE), MapFlags::LOCKED))
    })
    .succeeded(|scene| assert_eq!(scene.space.figures().resident, 8 * PAGE))
    .hides(partly_resident),
];

fn map(scene: &Scene<'_>, request: MapRequest) -> Result<(), Error> {
    scene.space.mmap(&request).map(|addr| scene.keep(addr))
}

/// The mapping is there, and each of its pages can still be faulted in.
fn partly_resident(scene: &Scene<'_>) {
    let figures = scene.space.figures();
    assert!(figures.mapped == 8 * PAGE && figures.resident < 8 * PAGE);
    for at in 0..8 {
        assert_eq!(scene.write(scene.returned.get().0 + at * PAGE, at), Ok(()));
    }
}

/// As many mappings as a node of the tree holds, with holes between them.
fn full_node(scene: &Scene<'_>) {
    for at in 0..15 {
        map_at(&scene.space, BASE + 2 * at * PAGE, PAGE, RW);
    }
}

/// Three mappings in the filled range.
fn striped(scene: &Scene<'_>) {
    filled(scene);
    scene.space.mprotect(VirtAddr(BASE + 5 * PAGE), 2 * PAGE, READ, false).expect("nothing fails yet");
}
