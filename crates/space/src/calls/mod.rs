//! The memory calls, one a file, each with Linux's results and errors.

mod advise;
mod brk;
mod fork;
mod install;
mod lock;
mod map;
mod mincore;
mod pagemap;
mod pin;
mod pin_fast;
mod placement;
mod populate;
mod protect;
mod remap;
mod smaps;
mod stack;
mod sync;
mod unmap;
mod will_need;

pub use advise::Advice;
pub use lock::LockAll;
pub use map::{MapFlags, MapRequest, MappedFile};
pub use pagemap::PageState;
pub use pin::PinnedPage;
pub use remap::RemapFlags;
pub use smaps::MappingFigures;
pub use sync::SyncFlags;

use crate::error::Error;
use quire_arch::addr::page_align_up;
use quire_arch::{VirtAddr, VirtRange};

/// The page-aligned range of a call that takes any length: `Ok(None)` for length 0, `wraps` where the end is
/// not an address.
fn page_range(addr: VirtAddr, len: u64, wraps: Error) -> Result<Option<VirtRange>, Error> {
    if !addr.is_page_aligned() {
        return Err(Error::Unaligned);
    }
    if len == 0 {
        return Ok(None);
    }
    // A length that rounds up to nothing wraps too.
    let range = page_align_up(len).and_then(|len| VirtRange::from_len(addr, len)).ok_or(wraps)?;
    if range.is_empty() { Err(wraps) } else { Ok(Some(range)) }
}
