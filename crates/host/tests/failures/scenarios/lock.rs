//! `mlock` and its variants.

use crate::common::PAGE;
use crate::scenario::{Scenario, Undone};
use crate::scene::{BASE, Scene, filled, small};
use quire_arch::VirtAddr;
use quire_mm::{
    frame::AllocError,
    space::{Error, LockAll, MapRequest},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("mlock_returns_the_error_of_the_step_that_failed", small, |scene| {
        scene.space.mlock(VirtAddr(BASE + PAGE), 4 * PAGE, false)
    })
    .undone(Undone::Contents)
    .refused(|scene, error| {
        // The split: ENOMEM and nothing is locked. The pages: EAGAIN, and the mapping is.
        let locked = scene.space.figures().locked;
        match error {
            Error::NoFrames(AllocError::Injected) => assert_eq!(locked, 0),
            Error::TryAgain(AllocError::Injected) => assert_eq!(locked, 4 * PAGE),
            other => panic!("{other}"),
        }
    })
    .succeeded(|scene| {
        assert_eq!(scene.space.figures().locked, 4 * PAGE);
        assert_eq!(scene.space.figures().resident, 4 * PAGE);
    })
    .allocations(8..=16),
    Scenario::new("locking_on_fault_fails_whole", small, |scene| {
        scene.space.mlock(VirtAddr(BASE + PAGE), 4 * PAGE, true)
    })
    .succeeded(|scene| assert_eq!(scene.space.figures().locked, 4 * PAGE)),
    Scenario::new("unlocking_a_middle_fails_whole", locked, |scene| {
        scene.space.munlock(VirtAddr(BASE + PAGE), 4 * PAGE)
    })
    .succeeded(|scene| assert_eq!(scene.space.figures().locked, 12 * PAGE)),
    Scenario::new("locking_everything_hides_its_pages", small, |scene| {
        scene.space.mlockall(LockAll::CURRENT)
    })
    .succeeded(|scene| assert_eq!(scene.space.figures().resident, 8 * PAGE))
    .hides(|scene| {
        assert!(scene.space.figures().resident < 8 * PAGE);
        assert_eq!(scene.space.figures().locked, 8 * PAGE);
        assert_eq!(scene.write(BASE, 1), Ok(()));
    }),
    Scenario::new("mapping_into_a_locked_space_hides_its_pages", locks_the_future, |scene| {
        let addr = scene.space.mmap(&MapRequest::anonymous(8 * PAGE, crate::common::RW))?;
        scene.keep(addr);
        Ok(())
    })
    .succeeded(|scene| assert_eq!(scene.space.figures().resident, 24 * PAGE))
    .hides(|scene| {
        assert!(scene.space.figures().resident < 24 * PAGE);
        assert_eq!(scene.write(scene.returned.get().0, 1), Ok(()));
    }),
    Scenario::new("unlocking_everything_allocates_nothing", locked, |scene| {
        scene.space.munlockall();
        Ok(())
    })
    .succeeded(|scene| assert_eq!(scene.space.figures().locked, 0))
    .never(),
];

fn locked(scene: &Scene<'_>) {
    filled(scene);
    scene.space.mlock(VirtAddr(BASE), 16 * PAGE, false).expect("nothing fails yet");
}

fn locks_the_future(scene: &Scene<'_>) {
    filled(scene);
    scene.space.mlockall(LockAll::FUTURE).expect("nothing fails yet");
}
