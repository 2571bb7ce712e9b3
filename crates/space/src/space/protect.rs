//! `mprotect`.

use super::page_range;
use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use crate::mmap_writer::protect::{populate_locked, protect_range};
use crate::space::Space;
use quire_arch::{Platform, VirtAddr, VirtRange};
use quire_pagetable::{FlushCause, Unmapper};
use quire_rmap::Protection;

impl<P: Platform> Space<'_, P> {
    /// Changes what the program may do with the pages that `len` bytes from `addr` touch. With `grows_down`
    /// the change reaches down to the start of the stack that `addr` lies in.
    ///
    /// # Errors
    ///
    /// As Linux's `mprotect`. Mappings before the one that made it fail have changed.
    pub fn mprotect(
        &self,
        addr: VirtAddr,
        len: u64,
        protection: Protection,
        grows_down: bool,
    ) -> Result<(), Error> {
        let Some(range) = page_range(addr, len, Error::OutOfRange)? else { return Ok(()) };
        self.with_reclaim(|| self.protect_once(range, protection, grows_down))?
    }

    /// As [`in_turns`](Self::in_turns).
    fn protect_once(
        &self,
        mut range: VirtRange,
        protection: Protection,
        grows_down: bool,
    ) -> Result<Result<(), Error>, Error> {
        let mut section = MmapWriter::begin(self.spaces, self.core());
        let first = section.first_in(range).ok_or(Error::NotMapped)?;
        if grows_down {
            range = VirtRange::new(first.range().start(), range.end());
            if !first.flags().is_stack() {
                return Err(Error::BadFlags);
            }
        } else if first.range().start() > range.start() {
            return Err(Error::NotMapped);
        }
        let mut at = range.start();
        self.in_turns(|| {
            let result = loop {
                match self.protect_turn(&mut section, range, &mut at, protection) {
                    Ok(None) => break Ok(()),
                    Ok(Some(part)) => populate_locked(&section, part),
                    Err(error) => break Err(error),
                }
            };
            (result, at.0 - range.start().0)
        })
    }

    /// A turn of a call, with a frame of its own: reclaim, which comes between two turns, needs the stack.
    #[inline(never)]
    fn protect_turn<'s>(
        &'s self,
        section: &mut MmapWriter<'s, P>,
        range: VirtRange,
        at: &mut VirtAddr,
        protection: Protection,
    ) -> Result<Option<VirtRange>, Error> {
        let mut unmapper = Unmapper::new(self.tables(), FlushCause::Protect);
        let result = protect_range(section, range, at, protection, &mut unmapper);
        // Also after a failure: what has changed until then must not be in any TLB.
        unmapper.finish();
        result
    }
}
