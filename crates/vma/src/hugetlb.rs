//! Mappings of huge pages that a program asks for (`MAP_HUGETLB`). There are no pools of such pages: a
//! mapping succeeds where no page is reserved, and its faults fail.

use crate::flags::VmFlags;
use crate::space_core::VmaSnapshot;
use quire_arch::VirtAddr;

/// The size of the huge pages of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HugePages {
    /// 2 MiB.
    Mib2,
    /// 1 GiB.
    Gib1,
}

impl HugePages {
    /// Bytes of one.
    #[doc(hidden)]
    #[inline]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Mib2 => 2 << 20,
            Self::Gib1 => 1 << 30,
        }
    }

    /// The size that a mapping with these flags has; `None` for ordinary pages.
    #[doc(hidden)]
    #[inline]
    pub const fn of(flags: VmFlags) -> Option<Self> {
        match (flags.contains(VmFlags::HUGETLB), flags.contains(VmFlags::HUGETLB_GIB)) {
            (false, _) => None,
            (true, false) => Some(Self::Mib2),
            (true, true) => Some(Self::Gib1),
        }
    }

    /// The flags of a mapping of such pages. It can neither grow nor merge.
    #[doc(hidden)]
    #[inline]
    pub fn flags(self) -> VmFlags {
        let mut flags = VmFlags::HUGETLB | VmFlags::DONTEXPAND;
        flags.set(VmFlags::HUGETLB_GIB, self == Self::Gib1);
        flags
    }

    /// `len` rounded up to whole pages; 0 if that wraps, as Linux's is.
    #[doc(hidden)]
    #[inline]
    pub fn align_up(self, len: u64) -> u64 {
        len.checked_next_multiple_of(self.bytes()).unwrap_or(0)
    }
}

/// Whether a mapping may be split at `at`, which lies in it or at one of its ends.
pub fn may_split(snapshot: &VmaSnapshot, at: VirtAddr) -> bool {
    if snapshot.flags.contains(VmFlags::WHOLE) {
        return at == snapshot.range.start() || at == snapshot.range.end();
    }
    HugePages::of(snapshot.flags).is_none_or(|size| at.is_aligned(size.bytes()))
}
