//! The page tables of one space, apart from its mappings.

mod empty;
mod flush;

pub(crate) use empty::EmptyTableCache;

use crate::cpus::{Pageouts, SpaceCpus};
use crate::residency::ResidencyCounts;
use quire_arch::{Asid, Level, Pfn, Platform, VirtAddr};
use quire_frame::Frames;
use quire_memcg::Membership;

/// The number of an address space; never used again on the same machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct SpaceId(u64);

impl SpaceId {
    /// The number as an identity, from 1.
    #[doc(hidden)]
    #[inline]
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The number itself, from 1.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The page tables of one space: their root, the CPUs that use them, and what is counted of them.
#[derive(Debug)]
pub struct SpaceTables {
    id: SpaceId,
    root: Pfn,
    asid: Asid,
    /// The CPUs that a flush has to reach.
    pub cpus: SpaceCpus,
    /// Page-outs that are not flushed yet.
    pub pageouts: Pageouts,
    /// Pages and tables, as they are counted.
    pub residency: ResidencyCounts,
    pub(crate) kept: EmptyTableCache,
    /// The memcg of the program.
    pub membership: Membership,
}

impl SpaceTables {
    /// The tables of a new space. It is in the root memcg.
    ///
    /// # Safety
    ///
    /// `root` is a zeroed frame of kind `Table`, which is not freed while this, or what is made from it, is
    /// in use.
    #[inline]
    pub unsafe fn new(id: SpaceId, root: Pfn, asid: Asid) -> Self {
        Self {
            id,
            root,
            asid,
            cpus: SpaceCpus::new(),
            pageouts: Pageouts::default(),
            residency: ResidencyCounts::default(),
            kept: EmptyTableCache::default(),
            membership: Membership::default(),
        }
    }

    /// The number of the space.
    #[inline]
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// The frame of the topmost table.
    #[inline]
    pub fn root(&self) -> Pfn {
        self.root
    }

    /// The tag of the translations.
    #[inline]
    pub fn asid(&self) -> Asid {
        self.asid
    }

    /// Fills in the descriptor of a table that is not linked yet. `start` is maintained only for tables above
    /// the bottom: the address of a bottom table is never needed.
    #[inline]
    pub fn init_table<P: Platform>(&self, frames: &Frames<P>, table: Pfn, level: Level, start: VirtAddr) {
        let frame = frames.known(table).as_table();
        frame.set_place(level, start);
        frame.set_space(self.id.get());
        frame.set_live(0);
        frame.set_deposit(None);
    }
}
