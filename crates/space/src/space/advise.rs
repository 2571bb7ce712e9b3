//! `madvise`.

use super::page_range;
use crate::error::Error;
use crate::faults::PopulateError;
use crate::mmap_writer::advise::{advise, collapse_blocks};
use crate::mmap_writer::{Advice, Advised, Lacks, MmapWriter, ReachedBlock, count_without_folio};
use crate::space::Space;
use quire_arch::{Access, Platform, VirtAddr, VirtRange};
use quire_frame::AllocError;
use quire_pagetable::Tables;

impl<P: Platform> Space<'_, P> {
    /// Gives advice on the pages that `len` bytes from `addr` touch.
    ///
    /// # Errors
    ///
    /// As Linux's `madvise`: a hole is reported after the rest was done; any other failure ends the call.
    pub fn madvise(&self, addr: VirtAddr, len: u64, advice: Advice) -> Result<(), Error> {
        let Some(range) = page_range(addr, len, Error::BadArgument)? else { return Ok(()) };
        match advice {
            Advice::WillNeed => self.will_need(range),
            Advice::PopulateRead => {
                self.populate_all(range, Some(Access::Read)).map_err(PopulateError::as_advice_error)
            }
            Advice::PopulateWrite => {
                self.populate_all(range, Some(Access::Write)).map_err(PopulateError::as_advice_error)
            }
            Advice::Collapse => self.collapse(range),
            _ => self.with_reclaim(|| self.advise_once(range, advice))?,
        }
    }

    /// As [`in_turns`](Self::in_turns).
    fn advise_once(&self, range: VirtRange, advice: Advice) -> Result<Result<(), Error>, Error> {
        let mut section = MmapWriter::begin(self.spaces, self.core());
        let mut done = Advised::none(range.start());
        self.in_turns(|| {
            let result = advise(&mut section, range, advice, &mut done);
            (result, done.at.0 - range.start().0)
        })
    }

    /// As in Linux the folio for a block comes first, and only then its pages are swapped in, with no lock
    /// held for writing. A page that does not come, and a marker, end the call. One reclaim is made for each
    /// block for which there is no free one, with no lock held, and no program is killed for it.
    fn collapse(&self, range: VirtRange) -> Result<(), Error> {
        let (mut reached, mut new): (Option<ReachedBlock>, _) = (None, None);
        let mut reclaimed_for = None;
        loop {
            let result = collapse_blocks(
                &mut MmapWriter::begin(self.spaces, self.core()),
                range,
                &mut reached,
                &mut new,
            );
            let Some((block, lacks)) =
                reached.as_mut().and_then(|block| block.lacks.take().map(|it| (block, it)))
            else {
                return result;
            };
            let killed = self.is_killed();
            match (lacks, result, Tables::<P>::huge_order()) {
                (Lacks::Pages, ..) if killed => return result,
                (Lacks::Pages, ..) => {
                    if !self.swap_in_for_collapse(block.at) {
                        return Err(Error::WrongMapping);
                    }
                }
                (Lacks::Frames, Err(Error::NoFrames(AllocError::OutOfMemory)), Some(order))
                    if !killed
                        && reclaimed_for != Some(block.at)
                        && self.spaces.direct_reclaim().free_for_wish(order) =>
                {
                    reclaimed_for = Some(block.at);
                }
                (Lacks::Frames, ..) => {
                    count_without_folio(self.spaces);
                    return result;
                }
            }
        }
    }
}
