//! `fork`.

use crate::calls::fork::copy_to;
use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use crate::space::OOM_SCORE_ADJ_NEVER;
use crate::space::Space;
use quire_arch::Platform;
use quire_frame::AllocError;
use quire_sync::atomic::{Ordering, fence};

impl<'m, P: Platform> Space<'m, P> {
    /// A copy of this space for a child process: every mapping without DONTCOPY, with its pages. Private
    /// pages are shared until one of the two writes; pinned ones are copied at once.
    ///
    /// # Errors
    ///
    /// [`Error::CommitLimit`] or [`Error::NoFrames`], as also after a [kill](super::SpaceOom::kill), or one
    /// meanwhile; nothing is left behind.
    pub fn fork(&self) -> Result<Space<'m, P>, Error> {
        self.caller().with_reclaim(|| self.fork_once())
    }

    fn fork_once(&self) -> Result<Space<'m, P>, Error> {
        let core = self.core();
        // The child is dropped on every early return, which frees what it got so far. Locks are not
        // inherited, nor is MCL_FUTURE. Until the end the OOM killer does not choose it: no program runs in it.
        let child = Self::create_once(self.spaces, core.layout, core.limits.load(), OOM_SCORE_ADJ_NEVER)?
            .acting_with(self.rights());
        let section = MmapWriter::begin(self.spaces, core);
        if core.is_killed() {
            // Pages may have been removed already, and the child would read zeros. On Linux the signal ends
            // the call.
            return Err(Error::NoFrames(AllocError::OutOfMemory));
        }
        child.core().brk.store(self.program_break().0, Ordering::Relaxed);
        child.prctl().set_huge_disable(self.prctl().huge_disable());
        child.prctl().set_exec_gain(self.prctl().exec_gain().inherited())?;
        // What is copied at once is charged there.
        child.follow_memcg(self);
        copy_to(&section, child.core())?;
        // The parent may have changed it since. As in Linux, the child is where its parent is in the end.
        child.follow_memcg(self);
        child.oom().set_score_adj(self.oom().score_adj());
        // Pairs with the fence of a kill: the thread that kills all of a memcg finds that the child may be
        // chosen, or this finds that the parent was killed. A child of it would keep its memory, too.
        fence(Ordering::SeqCst);
        if core.is_killed() {
            return Err(Error::NoFrames(AllocError::OutOfMemory));
        }
        Ok(child)
    }
}
