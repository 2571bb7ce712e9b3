//! The scenarios, by what the call is about.

mod access;
mod files;
mod fork;
mod guard;
mod heap;
mod large;
mod lock;
mod map;
mod protect;
mod remap;
mod space;
mod swap;
mod unmap;

use crate::scenario::Scenario;

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Scenario> {
    let lists = [
        space::SCENARIOS,
        map::SCENARIOS,
        access::SCENARIOS,
        unmap::SCENARIOS,
        protect::SCENARIOS,
        lock::SCENARIOS,
        heap::SCENARIOS,
        remap::SCENARIOS,
        fork::SCENARIOS,
        large::SCENARIOS,
        guard::SCENARIOS,
        swap::SCENARIOS,
        files::SCENARIOS,
    ];
    lists.into_iter().flatten()
}
