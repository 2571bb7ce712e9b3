//! Splitting a folio in the cache of its file.
//!
//! As in Linux, what a folio of shared memory has past the end of its file leaves the file where it is split,
//! but for its first part; and stays where it was allocated there
//! ([`kept`](UnusedPages::kept)).

use super::PageCache;
use crate::cached_file::{CachedFile, UnusedPages};
use crate::file_core::Mapping;
use crate::index::PageIndex;
use crate::slabs::NodesOn;
use crate::source::{Needs, Reserve};
use crate::store::InsertError;
use quire_arch::{Order, Pfn, Platform};
use quire_frame::FrameFlags;

/// Why a folio was not split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotSplit {
    /// Others have it.
    Held,
    /// Nodes are needed first.
    NeedsNodes(Needs),
}

/// The splits of a file's folios.
pub(super) struct Splitter<'c, 'm, P: Platform, V> {
    pub(super) cache: PageCache<'m, P, V>,
    pub(super) file: &'c CachedFile<P>,
}

impl<P: Platform, V: Mapping> Splitter<'_, '_, P, V> {
    /// Splits the folio at `head`, which the caller has locked, and which nothing maps, into folios of order
    /// `to`. Those that begin before page `end` of the file stay there, and the first; returns how many pages
    /// they have. The caller keeps the lock on the first part, with the `refs` references that there are.
    ///
    /// # Errors
    ///
    /// Nothing has changed then.
    pub(super) fn split_locked<'n>(
        &self,
        (head, to, refs): (Pfn, Order, u32),
        end: u64,
        (nodes, reserve): (&NodesOn<'n, P>, &mut Reserve<'n, NodesOn<'n, P>>),
    ) -> Result<u64, NotSplit> {
        let Self { cache, file } = *self;
        let frame = cache.frames().known(head);
        let order = frame.word().order();
        let Some(start) = PageIndex::new(frame.as_folio().index()) else { return Err(NotSplit::Held) };
        let kept = end.saturating_sub(start.get()).clamp(1, order.pages());
        let kept = kept.next_multiple_of(to.pages());
        let gone = || (kept..order.pages()).step_by(to.pages() as usize);
        let mut missing = None;
        let is_split = file.with_store_on(nodes, cache.frames(), |store| {
            cache.memcgs.folios().split_cached(head, (to, refs, kept), || {
                match store.split(start, to, reserve) {
                    Ok(_) => {}
                    Err(InsertError::NeedsNodes(needs)) => {
                        missing = Some(needs);
                        return false;
                    }
                    Err(_) => return false,
                }
                for index in gone().map(|nth| PageIndex::known(start.get() + nth)) {
                    UnusedPages::of(file).unmark(store, index);
                    store.remove(index);
                }
                true
            })
        });
        if let Some(needs) = missing {
            return Err(NotSplit::NeedsNodes(needs));
        }
        if !is_split {
            return Err(NotSplit::Held);
        }
        file.count_split(cache.memcgs, head, order);
        for part in gone().map(|nth| head.offset(nth)) {
            debug_assert!(!cache.frames().known(part).word().flags().contains(FrameFlags::LRU));
            file.count_gone(cache.memcgs, part, to);
            cache.memcgs.folios().disown_file_page(&cache.platform().pin(), cache.frames().known(part));
            cache.memcgs.folios().release_folio(part);
        }
        if kept < order.pages() {
            // An owner may panic.
            file.give_back_pages(order.pages() - kept);
        }
        Ok(kept)
    }
}
