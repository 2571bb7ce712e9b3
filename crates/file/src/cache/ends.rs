//! Freeing what large folios have past the end of their files (Linux's `shmem_unused_huge_shrink`).
//!
//! A file is noted where a large folio comes to it that goes on past the end. Where its file system has no
//! room left, or memory is short, the folio in which it ends is split into pages, which drops those past the
//! end.

use super::PageCache;
use super::split::{NotSplit, Splitter};
use crate::cached_file::UnusedPages;
use crate::error::Busy;
use crate::file_core::{FileCore, Mapping};
use crate::index::PageIndex;
use crate::source::Reserve;
use crate::users::FileUsers;
use quire_arch::{Order, PAGE_SHIFT, Platform};
use quire_frame::FolioCounter;

/// References to a locked folio that nothing maps: the caller's and the cache's.
const ALONE: u32 = 2;

/// Splits the folio in which the file ends, if there is something to gain, and returns how many pages are
/// free.
///
/// # Errors
///
/// Others have the folio, or there is no memory for nodes.
pub(super) fn free_end<P: Platform, V: Mapping>(
    cache: PageCache<'_, P, V>,
    file: &FileCore<P, V>,
    users: &dyn FileUsers<P, V>,
) -> Result<u64, Busy> {
    let nodes = file.memory().nodes(cache.frames());
    // SAFETY: the stores of a machine's files are locked with its nodes.
    let mut reserve = unsafe { Reserve::new(&nodes) };
    loop {
        let busy = Busy { pages: 1 };
        // Nothing comes, and none is cut.
        let _alone = file.invalidate.try_write(cache.platform()).ok_or(busy)?;
        let Some(index) = PageIndex::new(file.size() >> PAGE_SHIFT) else { return Ok(0) };
        let Some(head) = file.get(cache.memcgs, index) else { return Ok(0) };
        // As in Linux no lock is waited for where memory is short.
        let Some(folio) = cache.lock_found(file, (index, head), false) else { return Err(busy) };
        let (pages, kept) = (folio.range(), UnusedPages::of(file).kept());
        if kept <= pages.start() || kept >= pages.end() {
            return Ok(0);
        }
        if folio.frame().as_folio().maps() != 0 {
            users.unmap(file, pages, false);
        }
        let is_out = cache.shmem().leaves_swap_cache(folio.head());
        if !is_out || folio.frame().as_folio().maps() != 0 {
            return Err(busy);
        }
        let order = folio.order();
        let splitter = Splitter { cache, file };
        let split = splitter.split_locked((folio.head(), Order::ZERO, ALONE), kept, (&nodes, &mut reserve));
        drop(folio);
        match split {
            Ok(left) => {
                let pin = cache.platform().pin();
                cache.frames().events().count_folio(&pin, order, FolioCounter::Split, 1);
                return Ok(order.pages() - left);
            }
            Err(NotSplit::Held) => return Err(busy),
            Err(NotSplit::NeedsNodes(needs)) => {
                drop(_alone);
                reserve.fill(needs).map_err(|_| busy)?;
            }
        }
    }
}
