//! `munmap`.

use crate::common::*;
use crate::scenario::{Scenario, all_is_there};
use crate::scene::{BASE, filled};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("unmapping_a_middle_fails_whole", filled, |scene| {
        scene.space.munmap(VirtAddr(BASE + 2 * PAGE), 4 * PAGE)
    })
    .refused(all_is_there)
    .succeeded(|scene| scene.assert_filled((0..2).chain(6..16))),
    Scenario::new("unmapping_an_end_allocates_nothing", filled, |scene| {
        scene.space.munmap(VirtAddr(BASE + 2 * PAGE), 14 * PAGE)
    })
    .succeeded(|scene| scene.assert_filled(0..2))
    .never(),
    Scenario::new("unmapping_everything_allocates_nothing", filled, |scene| {
        scene.space.munmap(VirtAddr(0), 1 << 40)
    })
    .succeeded(|scene| assert_eq!(scene.space.figures().mapped, 0))
    .never(),
];
