//! Linux's calls, and faults: a file for each, from its arguments to what it changes under the mmap lock.
//!
//! A call has one door in [`Space`](crate::Space). Where it changes mappings it takes the mmap lock as an
//! [`MmapWriter`](crate::mmap_writer::MmapWriter), makes the [`Unmapper`](quire_pagetable::Unmapper) that
//! collects what it removes, and finishes that before it releases the lock.

pub(crate) mod advise;
pub(crate) mod brk;
pub(crate) mod collapse;
pub(crate) mod collapse_file;
pub(crate) mod detach;
pub(crate) mod fault;
pub(crate) mod fork;
pub(crate) mod install;
pub(crate) mod lock;
pub(crate) mod map;
pub(crate) mod map_request;
pub(crate) mod mincore;
pub(crate) mod pin;
pub(crate) mod placement;
pub(crate) mod populate;
pub(crate) mod protect;
pub(crate) mod remap;
pub(crate) mod remap_request;
pub(crate) mod remove;
pub(crate) mod split;
pub(crate) mod stack;
pub(crate) mod swap_in;
pub(crate) mod sync;
pub(crate) mod unmap;
pub(crate) mod will_need;

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
