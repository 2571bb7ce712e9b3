//! Kinds of frames.

/// Declares the enum, and the list of its variants in the order of their numbers.
macro_rules! kinds {
    ($(#[$meta:meta])+ pub enum $enum:ident { $($(#[$kind_meta:meta])+ $kind:ident,)+ }) => {
        $(#[$meta])+
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $enum {
            $($(#[$kind_meta])+ $kind,)+
        }

        impl $enum {
            /// Every kind, in the order of its number.
            pub const ALL: [Self; [$(Self::$kind),+].len()] = [$(Self::$kind),+];
        }
    };
}

kinds! {
    /// What a frame is used for now. Every frame of the memory map has exactly one kind.
    #[repr(u8)]
    pub enum Kind {
        /// No RAM is here.
        Hole,
        /// The memory map itself and other boot memory; never allocated.
        Reserved,
        /// First frame of a free block on one of its zone's lists.
        Free,
        /// First frame of a free block on one of a CPU's lists.
        Pcp,
        /// Inside a block, free or allocated; the block's first frame says which.
        Tail,
        /// Freed, but not on a list yet: in a [`FrameChain`](crate::FrameChain) or held by the allocator.
        Gathered,
        /// Freed, but lock-free readers may still access it: waits for an epoch.
        Limbo,
        /// Offline with the range that it lies in.
        Offline,
        /// Allocated; its user has not said what for.
        Allocated,
        /// Holds objects of a slab cache.
        Slab,
        /// Holds a slab cache's own data with its per-CPU parts.
        CacheArea,
        /// A page table.
        Table,
        /// Anonymous memory of a program.
        Anonymous,
        /// The shared zero page.
        ZeroPage,
        /// A page of a file.
        File,
        /// A page of shared memory.
        Shmem,
        /// Swap's slot tables, and the data of devices in RAM.
        Swap,
        /// Memcgs' own data.
        Memcg,
        /// For a kernel's own use ([`KernelFrames`](crate::KernelFrames)).
        Kernel,
    }
}

impl Kind {
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

    /// Whether it is a page of a file, or of shared memory, which has its pages as a file has.
    #[inline]
    pub const fn is_of_file(self) -> bool {
        matches!(self, Self::File | Self::Shmem)
    }

    /// Whether its pages are paged out to a swap device: private and shared memory.
    #[inline]
    pub const fn is_swap_backed(self) -> bool {
        matches!(self, Self::Anonymous | Self::Shmem)
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
