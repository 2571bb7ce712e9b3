//! `mremap`.

use crate::error::Error;
use crate::mmap_writer::remap::remap_once;
use crate::mmap_writer::{MmapWriter, Progress, Remap, RemapFlags, Remapped};
use crate::space::Space;
use quire_arch::{Platform, VirtAddr};
use quire_pagetable::{FlushCause, Unmapper};

impl<P: Platform> Space<'_, P> {
    /// Moves or resizes the mapping at `addr` and returns its address.
    ///
    /// `target` is where it goes with [`RemapFlags::FIXED`], and a hint with [`RemapFlags::DONTUNMAP`].
    /// Without either flag it is not used, as in Linux; huge pages want it aligned nevertheless.
    ///
    /// # Errors
    ///
    /// As Linux's `mremap`; [`Error::BadFlags`] for `FIXED` without a target. If memory is short no page of
    /// the mapping for which it was has moved; those before it have.
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
            let mut progress = Progress::default();
            self.in_turns(|| {
                let result = self.remap_turn(&mut section, remap, &mut progress);
                (result, progress.steps)
            })
        })??;
        if let Some(range) = remapped.populate {
            self.populate(range);
        }
        Ok(remapped.addr)
    }

    /// A turn of a call, with a frame of its own: reclaim, which comes between two turns, needs the stack.
    #[inline(never)]
    fn remap_turn<'s>(
        &'s self,
        section: &mut MmapWriter<'s, P>,
        remap: Remap,
        progress: &mut Progress,
    ) -> Result<Remapped, Error> {
        // One flush for all that the turn moves and unmaps.
        let mut unmapper = Unmapper::new(self.tables(), FlushCause::Move);
        let remapped = remap_once(section, remap, &mut unmapper, progress);
        unmapper.finish();
        self.core().tables.cpus.end_moves();
        remapped
    }
}
