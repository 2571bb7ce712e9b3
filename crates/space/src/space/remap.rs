//! `mremap`.

use crate::error::Error;
use crate::mmap_writer::{Remap, RemapFlags};
use crate::space::Space;
use quire_arch::{Platform, VirtAddr};
use quire_pagetable::{FlushCause, Gather};

impl<P: Platform> Space<'_, P> {
    /// Moves or resizes the mapping at `addr` and returns its address.
    ///
    /// `target` is where it goes with [`RemapFlags::FIXED`], and a hint with [`RemapFlags::DONTUNMAP`].
    /// Without either flag it is not used, as in Linux; huge pages want it aligned nevertheless.
    ///
    /// # Errors
    ///
    /// As Linux's `mremap`; [`Error::BadFlags`] for `FIXED` without a target. If memory is short no page has
    /// moved.
    pub fn mremap(
        &self,
        addr: VirtAddr,
        old_len: u64,
        new_len: u64,
        flags: RemapFlags,
        target: impl Into<Option<VirtAddr>>,
    ) -> Result<VirtAddr, Error> {
        let target = target.into();
        let remapped = self.with_reclaim(|| {
            let remap = Remap::new::<P>(addr, old_len, new_len, flags, target)?;
            let mut section = self.writer();
            let mut changed = false;
            // One flush for all that the call moves and unmaps.
            let mut gather = Gather::new(self.spaces.memory(), &self.core().tables, FlushCause::Move);
            let remapped = section.remap(remap, &mut gather, &mut changed);
            self.tables().finish(&mut gather);
            self.core().tables.cpus.end_moves();
            match remapped {
                Err(error) if !changed => Err(error),
                done => Ok(done),
            }
        })??;
        if let Some(range) = remapped.populate {
            self.populate(range);
        }
        Ok(remapped.addr)
    }
}
