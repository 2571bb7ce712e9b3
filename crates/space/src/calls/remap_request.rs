//! The arguments of `mremap`.

use crate::error::Error;
use bitflags::bitflags;
use quire_arch::addr::page_align_up;
use quire_arch::{PAGE_SIZE, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_vma::HugePages;

bitflags! {
    /// How a mapping may be moved (`MREMAP_*`, with Linux's values).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct RemapFlags: u32 {
        /// It may get another address.
        const MAYMOVE = 1;
        /// It gets the address that is given.
        const FIXED = 2;
        /// The old range stays mapped, without its pages.
        const DONTUNMAP = 4;
    }
}

/// The arguments of one call, checked and rounded.
#[derive(Clone, Copy)]
pub(crate) struct Remap {
    pub(crate) old: VirtRange,
    pub(crate) new_len: u64,
    pub(crate) flags: RemapFlags,
    pub(crate) target: VirtAddr,
}

impl Remap {
    pub(crate) fn new<P: Platform>(
        addr: VirtAddr,
        old_len: u64,
        new_len: u64,
        flags: RemapFlags,
        target: Option<VirtAddr>,
    ) -> Result<Self, Error> {
        if target.is_none() && flags.contains(RemapFlags::FIXED) {
            return Err(Error::BadFlags);
        }
        // No hint is a hint of 0, as in `mmap`.
        let target = target.unwrap_or(VirtAddr(0));
        let user_end = P::Paging::USER_END.0;
        if !addr.is_page_aligned() {
            return Err(Error::Unaligned);
        }
        // A length that wraps when it is rounded becomes zero, as Linux's does.
        let old_len = page_align_up(old_len).unwrap_or(0);
        let new_len = page_align_up(new_len).unwrap_or(0);
        if new_len == 0 {
            return Err(Error::ZeroLength);
        }
        if new_len > user_end {
            return Err(Error::BadArgument);
        }
        // A length that wraps ends beyond every mapping: the address is checked first, and the truncation
        // fails.
        let end = addr.0.checked_add(old_len);
        let old = VirtRange::new(addr, VirtAddr(end.unwrap_or(!(PAGE_SIZE - 1))));
        let remap = Self { old, new_len, flags, target };
        if !remap.names_target() {
            return Ok(remap);
        }
        if target.0 > user_end - new_len {
            return Err(Error::BadArgument);
        }
        if !target.is_page_aligned() {
            return Err(Error::Unaligned);
        }
        let resized = old_len != new_len;
        if !flags.contains(RemapFlags::MAYMOVE) || flags.contains(RemapFlags::DONTUNMAP) && resized {
            return Err(Error::BadFlags);
        }
        if addr.0.wrapping_add(old_len) > target.0 && target.0 + new_len > addr.0 {
            return Err(Error::BadArgument);
        }
        Ok(remap)
    }

    /// Whether the call says where the mapping goes.
    pub(crate) fn names_target(&self) -> bool {
        self.flags.intersects(RemapFlags::FIXED | RemapFlags::DONTUNMAP)
    }

    /// Rounds the lengths to whole huge pages. A mapping of those cannot grow.
    pub(crate) fn round_to(&mut self, size: HugePages) -> Result<(), Error> {
        let old_len = size.align_up(self.old.len());
        self.new_len = size.align_up(self.new_len);
        // The target is checked even if it is not used.
        let aligned = self.addr().is_aligned(size.bytes()) && self.target.is_aligned(size.bytes());
        if !aligned || self.new_len > old_len {
            return Err(Error::BadArgument);
        }
        self.old = VirtRange::from_len(self.addr(), old_len).ok_or(Error::BadArgument)?;
        Ok(())
    }

    pub(crate) fn addr(&self) -> VirtAddr {
        self.old.start()
    }

    pub(crate) fn grown(&self) -> u64 {
        self.new_len.saturating_sub(self.old.len())
    }
}
