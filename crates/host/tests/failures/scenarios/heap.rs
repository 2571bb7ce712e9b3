//! `brk`, which returns the old break instead of an error.

use crate::common::{PAGE, RW, map_at};
use crate::scenario::Scenario;
use crate::scene::{Scene, empty, filled};
use quire_arch::VirtAddr;
use quire_mm::space::{Error, LockAll};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("brk_returns_the_old_break", empty, |scene| move_break(scene, 10 * PAGE + 5))
        .refused(is_refused)
        .succeeded(|scene| assert_eq!(scene.read(scene.space.program_break().0 - 8), Ok(0))),
    Scenario::new("growing_the_heap_further_allocates_nothing", four_pages, |scene| {
        move_break(scene, 10 * PAGE + 5)
    })
    .never(),
    Scenario::new("shrinking_the_heap_allocates_nothing", four_pages, |scene| move_break(scene, PAGE))
        .never(),
    // What lies behind the heap may be merged with it: then shrinking the heap splits the mapping.
    Scenario::new("shrinking_a_heap_in_use_returns_the_old_break", goes_on, |scene| move_break(scene, PAGE))
        .refused(is_refused)
        .succeeded(|scene| assert_eq!(scene.read(scene.space.layout().brk.0 + 4 * PAGE), Ok(44))),
    Scenario::new("a_locked_heap_hides_its_pages", locks_the_future, |scene| move_break(scene, 8 * PAGE))
        .refused(is_refused)
        .succeeded(|scene| assert_eq!(scene.space.figures().resident, 24 * PAGE))
        .hides(|scene| {
            assert!(scene.space.figures().resident < 24 * PAGE);
            assert_eq!(scene.write(scene.space.layout().brk.0, 1), Ok(()));
        }),
];

/// Moves the break to `len` behind its start; an unchanged break stands for the error.
fn move_break(scene: &Scene<'_>, len: u64) -> Result<(), Error> {
    let old = scene.space.program_break();
    let wanted = VirtAddr(scene.space.layout().brk.0 + len);
    let now = scene.space.brk(wanted);
    if now == wanted {
        return Ok(());
    }
    assert_eq!(now, old);
    Err(Error::NoRoom)
}

fn is_refused(_: &Scene<'_>, error: Error) {
    assert_eq!(error, Error::NoRoom);
}

fn four_pages(scene: &Scene<'_>) {
    move_break(scene, 4 * PAGE).expect("nothing fails yet");
}

fn goes_on(scene: &Scene<'_>) {
    four_pages(scene);
    let end = scene.space.program_break().0;
    map_at(&scene.space, end, PAGE, RW);
    scene.write(end, 44).expect("nothing fails yet");
    assert_eq!(scene.space.figures().mappings, 1, "the mapping and the heap are one");
}

fn locks_the_future(scene: &Scene<'_>) {
    filled(scene);
    scene.space.mlockall(LockAll::FUTURE).expect("nothing fails yet");
}
