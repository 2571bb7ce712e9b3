//! `mmap`.

use crate::error::Error;
use crate::mmap_writer::MapFlags;
use crate::mmap_writer::MapRequest;
use crate::mmap_writer::map::{check_map_count, map_request};
use crate::mmap_writer::placement::place;
use crate::space::Space;
use quire_arch::addr::page_align_up;
use quire_arch::{Platform, VirtAddr, VirtRange};
use quire_rmap::VmFlags;

impl<P: Platform> Space<'_, P> {
    /// Maps memory and returns its address.
    ///
    /// # Errors
    ///
    /// As Linux's `mmap`, and [`Error::BadFlags`] for a FIXED flag without an address; nothing is changed
    /// then.
    pub fn mmap(&self, request: &MapRequest) -> Result<VirtAddr, Error> {
        let len = request.huge_pages.map_or(request.len, |(size, _)| size.align_up(request.len));
        if len == 0 {
            return Err(Error::ZeroLength);
        }
        let len = page_align_up(len).filter(|&len| len != 0).ok_or(Error::OutOfRange)?;
        let layout = &self.core().layout;
        let hint = match request.addr {
            None if request.flags.is_fixed() => return Err(Error::BadFlags),
            Some(addr) if request.flags.is_fixed() => addr,
            None => VirtAddr(0),
            Some(addr) => match addr.page_start() {
                VirtAddr(0) => VirtAddr(0),
                start => start.max(layout.mmap_min),
            },
        };
        let (range, flags) = self.with_reclaim(|| self.map_once(request, hint, len))?;
        let populate = request.flags & (MapFlags::POPULATE | MapFlags::NONBLOCK) == MapFlags::POPULATE;
        if populate || flags.contains(VmFlags::LOCKED) {
            self.populate(range);
        }
        Ok(range.start())
    }

    /// One attempt, without reclaim: returns where the mapping is, and its flags.
    #[inline(never)]
    fn map_once(
        &self,
        request: &MapRequest,
        hint: VirtAddr,
        len: u64,
    ) -> Result<(VirtRange, VmFlags), Error> {
        let mut section = self.writer();
        check_map_count(&section)?;
        let addr = place(&section, request, hint, len)?;
        let range = VirtRange::new(addr, VirtAddr(addr.0 + len));
        Ok((range, map_request(&mut section, request, range)?))
    }
}
