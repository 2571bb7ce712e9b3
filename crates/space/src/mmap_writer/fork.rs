//! `fork`.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::{Platform, VirtAddr};
use quire_frame::AllocError;
use quire_pagetable::{Copying, FlushCause, Forker, Unmapper};
use quire_rmap::SpaceCore;
use quire_rmap::{AnonVmaRef, Branch, VmFlags, VmaSnapshot};

impl<P: Platform> MmapWriter<'_, P> {
    pub(crate) fn copy_to(&self, child: &SpaceCore) -> Result<(), Error> {
        let mut unmapper = Unmapper::new(self.tables(), FlushCause::Fork);
        self.core.forks.begin();
        let result = self.copy_mappings(child, &mut unmapper);
        self.core.forks.end();
        // Also after a failure: a write-protected page must not be writable in any TLB.
        unmapper.finish();
        result
    }

    fn copy_mappings(&self, child: &SpaceCore, unmapper: &mut Unmapper<'_, P>) -> Result<(), Error> {
        let mut to = MmapWriter::begin(self.spaces, child);
        let mut at = VirtAddr(0);
        while let Some(vma) = self.first_ending_after(at) {
            let snapshot = vma.snapshot();
            at = snapshot.range.end();
            if self.core.is_killed() || child.is_killed() {
                // As in Linux, before each mapping: the reaper waits for the lock of the one, or of the
                // other.
                return Err(Error::NoFrames(AllocError::OutOfMemory));
            }
            if snapshot.flags.contains(VmFlags::DONTCOPY) {
                continue;
            }
            let branch = self.child_anon_vma(&snapshot)?;
            let copy =
                VmaSnapshot { flags: snapshot.flags - VmFlags::LOCK_MASK, anon: branch.anon(), ..snapshot };
            to.adopt(copy)?;
            branch.keep();
            // Pages of files that were never written to can be read again by the child, but guard pages must
            // be there. What is wiped on fork has no anon_vma there.
            let guarded = copy.flags & (VmFlags::MAYBE_GUARD | VmFlags::WIPEONFORK) == VmFlags::MAYBE_GUARD;
            if !copy.flags.contains(VmFlags::SHARED) && !copy.anon.is_some() && !guarded {
                continue;
            }
            self.lock_range(vma.range());
            let new_page = |addr| copy.new_page(addr);
            let copying = Copying { range: snapshot.range, parent: snapshot.permissions(), child: &new_page };
            let forker = Forker { parent: &self.tables(), child: &to.tables() };
            forker.copy_to(&copying, unmapper.gather())?;
        }
        Ok(())
    }

    /// The anon_vma of a child's VMA: marked, since its pages may still be shared with the parent's.
    #[cfg_attr(debug_assertions, track_caller)]
    fn child_anon_vma(&self, parent: &VmaSnapshot) -> Result<Branch<'_, P>, AllocError> {
        let wiped = parent.flags.contains(VmFlags::WIPEONFORK);
        self.spaces.rmap().branch(if wiped { AnonVmaRef::NONE } else { parent.anon })
    }
}
