//! `munmap`.

use crate::caller::Caller;
use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::addr::page_align_up;
use quire_arch::{PagingFormat, Platform, VirtAddr, VirtRange};

pub(crate) fn munmap<P: Platform>(caller: Caller<'_, P>, addr: VirtAddr, len: u64) -> Result<(), Error> {
    let user_end = P::Paging::USER_END.0;
    if !addr.is_page_aligned() {
        return Err(Error::Unaligned);
    }
    if addr.0 > user_end || len > user_end - addr.0 {
        return Err(Error::BadArgument);
    }
    let range =
        page_align_up(len).and_then(|len| VirtRange::from_len(addr, len)).ok_or(Error::BadArgument)?;
    if range.is_empty() {
        return Err(Error::ZeroLength);
    }
    caller.with_reclaim(|| MmapWriter::begin(caller.spaces, caller.core).unmap_checked(range))
}
