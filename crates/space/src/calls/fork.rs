//! `fork`.

use crate::cpus::FlushCause;
use crate::error::Error;
use crate::gather::Gather;
use crate::mmap_writer::MmapWriter;
use crate::rmap::Branch;
use crate::space::Space;
use crate::table::{Copying, Tables};
use crate::vma::{AnonVmaRef, VmFlags, Vma, VmaSnapshot};
use quire_arch::{Platform, VirtAddr};
use quire_frame::AllocError;
use quire_sync::atomic::Ordering;

impl<'m, P: Platform> Space<'m, P> {
    /// A copy of this space for a child process: every mapping that is not kept from it, with its pages.
    /// Private pages are shared until one of the two writes; pinned ones are copied at once.
    ///
    /// # Errors
    ///
    /// [`Error::CommitLimit`] or [`Error::NoFrames`]; nothing is left behind.
    pub fn fork(&self) -> Result<Space<'m, P>, Error> {
        self.with_reclaim(|| Ok(self.fork_once()?))
    }

    fn fork_once(&self) -> Result<Space<'m, P>, Error> {
        let core = self.core();
        // The child is dropped on every early return, which frees whatever it got so far. Locks are not
        // inherited, nor is MCL_FUTURE.
        let child = self.spaces.create(core.layout, core.limits.load())?.acting_with(self.rights());
        let section = MmapWriter::begin(self.spaces, core);
        child.core().brk.store(self.program_break().0, Ordering::Relaxed);
        child.set_huge_disable(self.huge_disable());
        child.set_exec_gain(self.exec_gain().inherited())?;
        child.set_oom_score_adj(self.oom_score_adj());
        // If the memcg is removed at this moment, the child stays in the root.
        let _ = child.set_memcg(self.memcg());
        section.copy_to(&child)?;
        Ok(child)
    }
}

impl<P: Platform> MmapWriter<'_, P> {
    fn copy_to(&self, child: &Space<'_, P>) -> Result<(), Error> {
        let mut gather = Gather::new(self.spaces, self.core, FlushCause::Fork);
        self.core.forks.begin();
        let result = self.copy_mappings(child, &mut gather);
        self.core.forks.end();
        // Also after a failure: what may be written no more must not be writable in any TLB.
        gather.finish();
        result
    }

    fn copy_mappings(&self, child: &Space<'_, P>, gather: &mut Gather<'_, P>) -> Result<(), Error> {
        let mut to = MmapWriter::begin(child.spaces, child.core());
        let mut at = VirtAddr(0);
        while let Some(vma) = self.first_ending_after(at) {
            let facts = vma.facts();
            at = facts.range.end();
            if facts.flags.contains(VmFlags::DONTCOPY) {
                continue;
            }
            let branch = self.child_group(&facts)?;
            let copy = VmaSnapshot { flags: facts.flags - VmFlags::LOCK_MASK, anon: branch.anon(), ..facts };
            to.adopt(copy)?;
            branch.keep();
            self.copy_pages(vma, &Copying { parent: &facts, child: &copy }, &child.tables(), gather)?;
        }
        Ok(())
    }

    /// The anon_vma of a child's VMA: marked, since its pages may still be shared with the parent's.
    #[cfg_attr(debug_assertions, track_caller)]
    fn child_group(&self, parent: &VmaSnapshot) -> Result<Branch<'_, P>, AllocError> {
        let wiped = parent.flags.contains(VmFlags::WIPEONFORK);
        self.spaces.branch(if wiped { AnonVmaRef::NONE } else { parent.anon })
    }

    /// Shares the pages of `vma` with the child.
    fn copy_pages(
        &self,
        vma: &Vma,
        copying: &Copying<'_>,
        child: &Tables<'_, P>,
        gather: &mut Gather<'_, P>,
    ) -> Result<(), Error> {
        // Pages of files that were never written to can be read again by the child, and what is wiped on fork
        // has no anon_vma there.
        if !copying.child.flags.contains(VmFlags::SHARED) && !copying.child.anon.is_some() {
            return Ok(());
        }
        self.lock_range(vma.range());
        self.tables().copy_to(child, copying, gather)?;
        Ok(())
    }
}
