//! Reading ahead: with a page that is missing come those around it.
//!
//! Their folios are allocated with nothing held, and come into the cache locked, under one hold of
//! Invalidate. Who has them locked waits for the backing only. A page that could not be read with others
//! leaves the cache, and no one is told: who needs it reads it alone, and gets the error of that.

use super::PageCache;
use super::new_folio::{Fill, NewFolio};
use super::unfilled::Unfilled;
use crate::backing::{FileError, READAHEAD};
use crate::cached_file::{CachedFile, CachedPages};
use crate::error::PageError;
use crate::file_core::Mapping;
use crate::index::{IndexRange, PageIndex};
use crate::locked_folio::LockedFolio;
use crate::slabs::NodesOn;
use crate::source::{Needs, Reserve};
use crate::store::InsertError;
use arrayvec::ArrayVec;
use quire_arch::{Order, Platform};
use quire_frame::{AllocRequest, FailSite};
use quire_memcg::Membership;

/// The site of the pages that come with another one in fail plans.
const SITE: FailSite = FailSite::new("file_ahead");

/// Locked folios that were just put into the cache.
type Inserted<'m, P> = ArrayVec<LockedFolio<'m, P>, READAHEAD>;

/// Pages of a block that are missing in the cache, and one of them that a program waits for.
#[derive(Clone, Copy)]
struct Missing {
    first: u64,
    /// A bit for each page, from the first one on.
    pages: u32,
    wanted: PageIndex,
}

impl Missing {
    fn count(self) -> usize {
        self.pages.count_ones() as usize
    }

    /// At most so many of them: the one that is wanted, and those nearest to it.
    fn at_most(self, most: usize) -> Self {
        let mut pages = self.pages;
        let wanted = (self.wanted.get() - self.first) as u32;
        while pages.count_ones() as usize > most.max(1) {
            let (first, last) = (pages.trailing_zeros(), pages.ilog2());
            pages &= !(1 << if wanted - first > last - wanted { first } else { last });
        }
        Self { pages, ..self }
    }

    /// All, the last one first.
    fn backwards(self) -> impl Iterator<Item = PageIndex> {
        let is_one = move |nth: &u64| self.pages >> nth & 1 != 0;
        (0..u64::from(u32::BITS)).rev().filter(is_one).map(move |nth| PageIndex::known(self.first + nth))
    }
}

/// A file of which a page is missing.
pub(super) struct ReadAround<'c, 'm, P: Platform, V> {
    pub(super) cache: PageCache<'m, P, V>,
    pub(super) file: &'c CachedFile<P>,
}

impl<'c, 'm, P: Platform, V: Mapping> ReadAround<'c, 'm, P, V> {
    /// Reads a page that is not cached with those `around` it that are missing, too, and returns it. `None`
    /// if it did not come: it is to be read alone, or another thread was faster. Nothing is held.
    ///
    /// # Errors
    ///
    /// The file ends before it; there is no memory for it; or it was read alone, and could not be.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn read_around(
        &self,
        (wanted, around): (PageIndex, IndexRange),
        program: &Membership,
    ) -> Result<Option<LockedFolio<'m, P>>, PageError> {
        let Self { cache, file } = *self;
        let Some(missing) = self.missing((wanted, around)) else { return Ok(None) };
        let mut new = ArrayVec::<_, READAHEAD>::new();
        new.push(NewFolio::allocate_page((cache.memcgs, file), program)?);
        let ahead = core::iter::from_fn(|| {
            let request = AllocRequest::new(Order::ZERO, SITE).without_drain();
            NewFolio::allocate_charged((cache.memcgs, file), request, Order::ZERO, program).ok()
        });
        new.extend(ahead.take(missing.count() - 1));
        let missing = missing.at_most(new.len());
        let nodes = file.memory().nodes(cache.frames());
        // SAFETY: the stores of a machine's files are locked with its nodes.
        let mut reserve = unsafe { Reserve::new(&nodes) };
        // The page alone may need none.
        let fill = |reserve: &mut Reserve<'_, _>, needs| reserve.fill(needs).is_ok();
        loop {
            let needs = {
                let _shared = file.invalidate.read(cache.platform());
                if file.ends_before(wanted) {
                    return Err(PageError::PastEnd);
                }
                match self.insert(missing, (&mut new, &nodes, &mut reserve)) {
                    Ok(inserted) => return Ok(self.read_inserted(wanted, inserted)?),
                    Err(needs) => needs,
                }
            };
            if !fill(&mut reserve, needs) {
                return Ok(None);
            }
        }
    }

    /// What is missing around a page, if that is more than the page. A snapshot.
    fn missing(&self, (wanted, around): (PageIndex, IndexRange)) -> Option<Missing> {
        let Self { cache, file } = *self;
        let order = file.limits().readahead_order();
        let block = IndexRange::block(wanted.block_start(order), order);
        let block = block.intersect(around).intersect(CachedFile::<P>::pages_of(0..file.size()));
        if block.pages() < 2 || !block.contains(wanted) {
            return None;
        }
        let pages = CachedPages::of(file).missing(cache.frames(), block);
        let is_missing = pages >> (wanted.get() - block.start()) & 1 != 0;
        let missing = Missing { first: block.start(), pages, wanted };
        (is_missing && missing.count() > 1).then_some(missing)
    }

    /// Puts folios for what is missing still into the cache, in order. Invalidate is held.
    ///
    /// # Errors
    ///
    /// It needs so many nodes, and nothing was put in.
    fn insert<'n>(
        &self,
        missing: Missing,
        (new, nodes, reserve): (
            &mut ArrayVec<NewFolio<'c, 'm, P>, READAHEAD>,
            &NodesOn<'n, P>,
            &mut Reserve<'_, NodesOn<'n, P>>,
        ),
    ) -> Result<Inserted<'m, P>, Needs> {
        let Self { cache, file } = *self;
        let mut inserted = Inserted::new();
        // With the last one come the nodes of all.
        for start in missing.backwards().filter(|&page| !file.ends_before(page)) {
            let Some(folio) = new.pop() else { break };
            let head = folio.head;
            let Some(guard) = cache.frames().folios().try_lock_folio(head) else {
                // A thread that looked for what the frame was before has locked it for a moment.
                new.insert(0, folio);
                continue;
            };
            match folio.insert(start, Fill::Read, (nodes, &mut *reserve)) {
                Ok(()) => inserted.push(LockedFolio::new(cache.memcgs, folio.into_head(), guard)),
                Err(refusal) => {
                    drop(guard);
                    new.push(folio);
                    if let (InsertError::NeedsNodes(needs), true) = (refusal, inserted.is_empty()) {
                        return Err(needs);
                    }
                }
            }
        }
        inserted.reverse();
        Ok(inserted)
    }

    /// Reads folios that were just put in, by as few requests as can be, and returns the one that is wanted.
    /// Those that cannot be read leave the cache.
    fn read_inserted(
        &self,
        wanted: PageIndex,
        inserted: Inserted<'m, P>,
    ) -> Result<Option<LockedFolio<'m, P>>, FileError> {
        let Self { cache, file } = *self;
        let mut came = Ok(false);
        let mut unfilled: ArrayVec<_, READAHEAD> =
            inserted.iter().map(|folio| Unfilled::new(cache, file, folio)).collect();
        while !unfilled.is_empty() {
            let folios = unfilled.iter().map(|one| (one.folio().range(), one.folio().head()));
            let fits = cache.transfers(file).fits(folios);
            let mut run: ArrayVec<_, READAHEAD> = unfilled.drain(..fits).collect();
            let has_wanted = run.iter().any(|one| one.folio().start() == wanted);
            match Unfilled::read_run(&mut run) {
                Ok(()) => {
                    run.into_iter().for_each(Unfilled::filled);
                    came = came.map(|came| came || has_wanted);
                }
                // Alone: it is its own error.
                Err(error) if has_wanted && run.len() == 1 => came = Err(error),
                Err(_) => run.into_iter().for_each(Unfilled::given_up),
            }
        }
        drop(unfilled);
        let came = came?;
        Ok(inserted.into_iter().find(|folio| came && folio.start() == wanted))
    }
}
