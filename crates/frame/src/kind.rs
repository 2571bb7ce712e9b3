//! Kinds of frames.

/// What a frame is used for now. Every frame of the memory map has exactly one kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// No RAM is here.
    Hole = 0,
    /// The memory map itself and other boot memory; never allocated.
    Reserved = 1,
    /// First frame of a free block on one of its zone's lists.
    Free = 2,
    /// First frame of a free block on one of a CPU's lists.
    Pcp = 3,
    /// Inside a block, free or allocated; the block's first frame says which.
    Tail = 4,
    /// Freed, but not on a list yet: in a [`FrameChain`](crate::FrameChain) or held by the allocator.
    Gathered = 5,
    /// Freed, but lock-free readers may still access it: waits for an epoch.
    Limbo = 6,
    /// Offline with the range that it lies in.
    Offline = 7,
    /// Allocated; its user has not said what for.
    Allocated = 8,
    /// Holds objects of a slab cache.
    Slab = 9,
    /// Holds a slab cache's own data with its per-CPU parts.
    CacheArea = 10,
    /// A page table.
    Table = 11,
    /// Anonymous memory of a program.
    Anonymous = 12,
    /// The shared zero page.
    ZeroPage = 13,
    /// A page of a file or of shared memory that a program maps.
    File = 14,
    /// Swap's slot tables, and the data of devices in RAM.
    Swap = 15,
    /// Memcgs' own data.
    Memcg = 16,
    /// For a kernel's own use ([`KernelFrames`](crate::KernelFrames)).
    Kernel = 17,
}

impl Kind {
    /// Every kind, in the order of its number.
    pub const ALL: [Self; 18] = [
        Self::Hole,
        Self::Reserved,
        Self::Free,
        Self::Pcp,
        Self::Tail,
        Self::Gathered,
        Self::Limbo,
        Self::Offline,
        Self::Allocated,
        Self::Slab,
        Self::CacheArea,
        Self::Table,
        Self::Anonymous,
        Self::ZeroPage,
        Self::File,
        Self::Swap,
        Self::Memcg,
        Self::Kernel,
    ];

    /// Whether the frame is allocated.
    #[inline]
    pub const fn is_given_out(self) -> bool {
        self as u8 >= Self::Allocated as u8
    }

    /// Whether a block starts at a frame of this kind, so that its word's order counts.
    #[inline]
    pub const fn is_head(self) -> bool {
        !matches!(self, Self::Hole | Self::Reserved | Self::Tail | Self::Offline)
    }

    /// Whether a user of frames may set the kind.
    #[inline]
    pub(crate) const fn is_for_users(self) -> bool {
        self.is_given_out() && !self.is_slab_internal()
    }

    /// Whether the kind belongs to the slabs, which alone set and clear it.
    #[inline]
    pub(crate) const fn is_slab_internal(self) -> bool {
        matches!(self, Self::Slab | Self::CacheArea)
    }

    /// The kind with this number.
    #[inline]
    pub(crate) const fn from_number(number: usize) -> Self {
        // A number past the last kind is never stored.
        if number < Self::ALL.len() { Self::ALL[number] } else { Self::Hole }
    }
}
