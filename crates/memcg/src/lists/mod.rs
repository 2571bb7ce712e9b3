//! The LRU lists.
//!
//! A listed folio has [`FrameFlags::LRU`], and a label in its descriptor that says where it is: in a CPU's
//! batch that no scan has taken in yet, or on a list of its memcg and node. Label and flag change under the
//! lock of the folio's place, under both locks if it moves between places. So to take a folio a CPU reads the
//! label, takes that lock, and reads again. The memcg of a listed folio changes in the same way.

mod label;
mod node;

pub(crate) use label::{Label, ListPlace};
pub(crate) use node::{Lists, NodeLists};

use quire_arch::named_enum;
use quire_frame::{FolioList, Frame, FrameFlags};

named_enum! {
    /// The lists of a memcg and node, by their names in `memory.stat`.
    #[repr(usize)]
    pub enum LruList {
        /// Inactive anonymous folios: the next to be swapped out.
        InactiveAnon = "inactive_anon",
        /// Active anonymous folios.
        ActiveAnon = "active_anon",
        /// Inactive file folios, and anonymous folios marked by MADV_FREE.
        InactiveFile = "inactive_file",
        /// Active file folios.
        ActiveFile = "active_file",
        /// Unevictable folios: their order has no meaning.
        Unevictable = "unevictable",
    }
}

impl LruList {
    /// Number of lists.
    pub const COUNT: usize = Self::ALL.len();

    /// The active list of the same type.
    pub const fn active(self) -> Self {
        match self {
            Self::InactiveAnon | Self::ActiveAnon => Self::ActiveAnon,
            Self::InactiveFile | Self::ActiveFile => Self::ActiveFile,
            Self::Unevictable => Self::Unevictable,
        }
    }

    /// The inactive list of the same type.
    pub const fn inactive(self) -> Self {
        match self {
            Self::InactiveAnon | Self::ActiveAnon => Self::InactiveAnon,
            Self::InactiveFile | Self::ActiveFile => Self::InactiveFile,
            Self::Unevictable => Self::Unevictable,
        }
    }

    /// The list of a folio with `flags` that would be on this one otherwise: what was freed lazily is scanned
    /// with the file pages, since it needs no swap (Linux's `folio_lru_list`).
    pub(crate) const fn for_flags(self, flags: FrameFlags) -> Self {
        match self {
            Self::InactiveAnon if flags.contains(FrameFlags::LAZY_FREE) => Self::InactiveFile,
            Self::ActiveAnon if flags.contains(FrameFlags::LAZY_FREE) => Self::ActiveFile,
            list => list,
        }
    }

    /// The list flags of a folio on it.
    pub(crate) const fn flags(self) -> FrameFlags {
        match self {
            Self::InactiveAnon | Self::InactiveFile => FrameFlags::LRU,
            Self::ActiveAnon | Self::ActiveFile => FrameFlags::LRU.union(FrameFlags::ACTIVE),
            Self::Unevictable => FrameFlags::LRU.union(FrameFlags::UNEVICTABLE),
        }
    }
}

/// The flags that say on which list a folio is.
pub(crate) const LIST_FLAGS: FrameFlags =
    FrameFlags::LRU.union(FrameFlags::ACTIVE).union(FrameFlags::UNEVICTABLE);

/// Gives the folio the flags of `list`. Returns false if it is not allocated.
#[inline]
pub(crate) fn mark(frame: &Frame, list: LruList) -> bool {
    let flags = list.flags();
    frame.change_flags(flags, LIST_FLAGS - flags).is_some()
}

/// A CPU's batch: folios that it has listed and no scan has taken in yet.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    pub(crate) folios: FolioList,
}
