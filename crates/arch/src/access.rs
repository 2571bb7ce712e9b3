//! Accesses to memory, and permissions.

use crate::paging::LeafFlags;

/// One kind of access to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Execute,
}

impl Access {
    /// The permission that a leaf needs for this access.
    #[inline]
    pub const fn needs(self) -> LeafFlags {
        match self {
            Self::Read => LeafFlags::READ,
            Self::Write => LeafFlags::READ.union(LeafFlags::WRITE),
            Self::Execute => LeafFlags::READ.union(LeafFlags::EXECUTE),
        }
    }
}
