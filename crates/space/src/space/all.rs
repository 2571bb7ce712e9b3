//! All spaces of a machine.

use super::Space;
use crate::spaces::Spaces;
use quire_arch::{PAGE_SIZE, Platform};
use quire_pagetable::SpaceId;
use quire_vma::SpaceCore;

/// Calls `visit` with every space, without a lock: each is kept by a handle meanwhile.
pub(crate) fn for_each_space<P: Platform>(spaces: &Spaces<P>, mut visit: impl FnMut(&SpaceCore)) {
    let mut next = Space::next(spaces, None);
    while let Some(space) = next {
        visit(space.core());
        next = Space::next(spaces, Some(&space));
    }
}

/// Calls `visit` with the resident pages of each space at this moment: a shared page counts for each.
#[doc(hidden)]
pub fn for_each_resident<P: Platform>(spaces: &Spaces<P>, mut visit: impl FnMut(SpaceId, Resident)) {
    for_each_space(spaces, |core| {
        let figures = core.tables.residency.figures();
        let resident = Resident {
            anonymous: figures.anonymous * PAGE_SIZE,
            file: figures.file * PAGE_SIZE,
            shmem: figures.shmem * PAGE_SIZE,
            page_tables: figures.tables * PAGE_SIZE,
            mappings: core.vmas.len() as u64,
        };
        visit(core.tables.id(), resident);
    });
}

/// Resident memory of a space, in bytes, and the number of its mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resident {
    /// Private pages (`RssAnon`).
    pub anonymous: u64,
    /// Pages of files (`RssFile`).
    pub file: u64,
    /// Pages of shared memory (`RssShmem`).
    pub shmem: u64,
    /// Page tables below the roots (`VmPTE`).
    pub page_tables: u64,
    /// The number of its mappings.
    pub mappings: u64,
}
