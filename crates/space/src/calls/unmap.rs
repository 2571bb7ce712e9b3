//! `munmap`.

use crate::caller::Caller;
use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::addr::page_align_up;
use quire_arch::{PagingFormat, Platform, VirtAddr, VirtRange};
use quire_pagetable::{FlushCause, Unmapper};

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
    caller.with_reclaim(|| unmap_range(&mut caller.writer(), range))
}

/// Unmaps `range`, flushes and frees, with everything that can fail first.
#[cfg_attr(debug_assertions, track_caller)]
pub(crate) fn unmap_range<P: Platform>(
    writer: &mut MmapWriter<'_, P>,
    range: VirtRange,
) -> Result<(), Error> {
    let mut unmapper = Unmapper::new(writer.tables(), FlushCause::Unmap);
    let result = writer.unmap_checked(range, &mut unmapper);
    unmapper.finish();
    result
}
