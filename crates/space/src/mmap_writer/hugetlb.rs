//! Checks of mappings that are not split everywhere: those of huge pages (`MAP_HUGETLB`) and special ones.

use super::MmapWriter;
use crate::error::Error;
use quire_arch::{PAGE_SHIFT, Platform, VirtRange};
use quire_vma::{HugePages, VmFlags, may_split};

impl<P: Platform> MmapWriter<'_, P> {
    /// Checks that no hugetlb mapping is split inside a huge page, and no special one at all.
    #[inline]
    pub(crate) fn may_cut(&self, range: VirtRange) -> Result<(), Error> {
        if !self.core.had_rigid() {
            return Ok(());
        }
        for at in [range.start(), range.end()] {
            let vma = self.find(at).filter(|vma| vma.range().start() < at);
            if vma.is_some_and(|vma| !may_split(&vma.snapshot(), at)) {
                return Err(Error::BadArgument);
            }
        }
        Ok(())
    }

    /// The last checks of a mapping of huge pages, after which Linux leaves a hole where something was
    /// replaced.
    pub(crate) fn reserve_huge(size: HugePages, page_offset: u64, flags: VmFlags) -> Result<(), Error> {
        if !page_offset.is_multiple_of(size.bytes() >> PAGE_SHIFT) {
            return Err(Error::Unaligned);
        }
        if flags.contains(VmFlags::NORESERVE) { Ok(()) } else { Err(Error::NoRoom) }
    }
}
