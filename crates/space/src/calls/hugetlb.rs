//! Mappings of huge pages that a program asks for (`MAP_HUGETLB`). There are no pools of such pages: a mapping is had
//! where none is reserved, and its pages are not.

use crate::error::Error;
use crate::section::Section;
use crate::vma::{VmFlags, VmaFacts};
use quire_arch::{PAGE_SHIFT, Platform, VirtAddr, VirtRange};

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
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Mib2 => 2 << 20,
            Self::Gib1 => 1 << 30,
        }
    }

    /// The size that a mapping with these flags has; `None` for ordinary pages.
    pub(crate) const fn of(flags: VmFlags) -> Option<Self> {
        match (flags.contains(VmFlags::HUGETLB), flags.contains(VmFlags::HUGETLB_GIB)) {
            (false, _) => None,
            (true, false) => Some(Self::Mib2),
            (true, true) => Some(Self::Gib1),
        }
    }

    /// The flags of a mapping of such pages. It can neither grow nor merge.
    pub(crate) fn flags(self) -> VmFlags {
        let mut flags = VmFlags::HUGETLB | VmFlags::DONTEXPAND;
        flags.set(VmFlags::HUGETLB_GIB, self == Self::Gib1);
        flags
    }

    /// `len` rounded up to whole pages; 0 if that wraps, as Linux's is.
    pub(crate) fn align_up(self, len: u64) -> u64 {
        len.checked_next_multiple_of(self.bytes()).unwrap_or(0)
    }
}

/// Whether a mapping may be split at `at`, which lies in it or at one of its ends.
pub(crate) fn may_split(facts: &VmaFacts, at: VirtAddr) -> bool {
    HugePages::of(facts.flags).is_none_or(|size| at.is_aligned(size.bytes()))
}

impl<P: Platform> Section<'_, P> {
    /// Checks that no mapping is split where its pages are not to be.
    pub(crate) fn may_cut(&self, range: VirtRange) -> Result<(), Error> {
        for at in [range.start(), range.end()] {
            let vma = self.find(at).filter(|vma| vma.range().start() < at);
            if vma.is_some_and(|vma| !may_split(&vma.facts(), at)) {
                return Err(Error::BadArgument);
            }
        }
        Ok(())
    }

    /// The last checks of a mapping of huge pages, after which Linux leaves a hole where something was replaced.
    pub(crate) fn reserve_huge(size: HugePages, page_offset: u64, flags: VmFlags) -> Result<(), Error> {
        if !page_offset.is_multiple_of(size.bytes() >> PAGE_SHIFT) {
            return Err(Error::Unaligned);
        }
        if flags.contains(VmFlags::NORESERVE) { Ok(()) } else { Err(Error::NoRoom) }
    }
}
