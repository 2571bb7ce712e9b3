//! Page faults, and populating by advice.

use crate::common::*;
use crate::scenario::{Scenario, Undone};
use crate::scene::{BASE, Scene, access, small};

pub(crate) const SCENARIOS: &[Scenario] = &[
    // Three tables below the root.
    Scenario::new("a_read_fails_and_can_be_repeated", small, |scene| access(scene.read(BASE)))
        .undone(Undone::Contents)
        .allocations(3..=3),
    // The same, the page, and the anon_vma with frames for it.
    Scenario::new("a_write_fails_and_can_be_repeated", small, |scene| access(scene.write(BASE, 1)))
        .undone(Undone::Contents)
        .succeeded(|scene| assert_eq!(scene.read(BASE), Ok(1)))
        .allocations(6..=6),
    Scenario::new("a_write_after_a_read_fails_whole", read_before, |scene| access(scene.write(BASE, 1)))
        .refused(|scene, error| {
            crate::scenario::is_no_frames(scene, error);
            assert_eq!(scene.read(BASE), Ok(0));
        })
        .succeeded(|scene| assert_eq!(scene.read(BASE), Ok(1)))
        .allocations(3..=3),
    Scenario::new("a_read_of_a_file_fails_and_can_be_repeated", a_file, |scene| access(scene.read(BASE)))
        .undone(Undone::Contents)
        .allocations(4..=4),
    Scenario::new("a_stack_grows_and_its_page_fails", a_stack, |scene| {
        access(scene.write(BASE - 8 * PAGE, 5))
    })
    .undone(Undone::Contents)
    .succeeded(|scene| {
        assert_eq!(scene.read(BASE - 8 * PAGE), Ok(5));
        assert_eq!(scene.space.figures().mapped, 9 * PAGE);
    })
    .allocations(1..=4),
    Scenario::new("populating_for_writing_tells", small, |scene| {
        scene.space.madvise(VirtAddr(BASE), 8 * PAGE, Advice::PopulateWrite)
    })
    .undone(Undone::Contents)
    .succeeded(|scene| assert_eq!(scene.space.figures().resident, 8 * PAGE))
    .allocations(8..=16),
    Scenario::new("populating_for_reading_tells", small, |scene| {
        scene.space.madvise(VirtAddr(BASE), 8 * PAGE, Advice::PopulateRead)
    })
    .undone(Undone::Contents)
    .allocations(3..=6),
];

fn read_before(scene: &Scene<'_>) {
    small(scene);
    assert_eq!(scene.read(BASE), Ok(0));
}

fn a_file(scene: &Scene<'_>) {
    let file = MappedFile::new(3, 5);
    let request = MapRequest { file: Some(file), ..MapRequest::anonymous(4 * PAGE, READ) };
    scene.space.mmap(&request.at(VirtAddr(BASE), MapFlags::FIXED)).expect("nothing fails yet");
}

/// A stack of one page that was written to.
fn a_stack(scene: &Scene<'_>) {
    let request = MapRequest::anonymous(PAGE, RW).at(VirtAddr(BASE), MapFlags::FIXED | MapFlags::GROWSDOWN);
    scene.space.mmap(&request).expect("nothing fails yet");
    scene.write(BASE, 4).expect("nothing fails yet");
    assert_eq!(scene.space.figures().mapped, PAGE);
}
