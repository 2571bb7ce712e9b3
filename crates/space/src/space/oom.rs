//! A program under OOM.

use crate::mmap_writer::MmapWriter;
use crate::spaces::Spaces;
use core::fmt;
use quire_arch::Platform;
use quire_pagetable::{FlushCause, Unmapper};
use quire_sync::atomic::{Ordering, fence};
use quire_vma::SpaceCore;

/// The OOM adjustment of a program that is never chosen.
pub const OOM_SCORE_ADJ_NEVER: i16 = -1000;

/// What became of the memory of a killed space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reap {
    /// It was freed now.
    Done,
    /// A thread holds the mmap lock: it may be freed later.
    Later,
    /// Nothing more is expected of it before it exits: it was freed before, or could not be.
    Over,
}

/// The program in a space, as the OOM killer sees it.
pub struct SpaceOom<'w, P: Platform> {
    spaces: &'w Spaces<P>,
    core: &'w SpaceCore,
}

// Not derived: that would ask for a platform that can be copied.
impl<P: Platform> Clone for SpaceOom<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for SpaceOom<'_, P> {}

impl<'w, P: Platform> SpaceOom<'w, P> {
    #[inline]
    pub(super) fn new(spaces: &'w Spaces<P>, core: &'w SpaceCore) -> Self {
        Self { spaces, core }
    }
}

impl<P: Platform> fmt::Debug for SpaceOom<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpaceOom").field("id", &self.core.id()).finish_non_exhaustive()
    }
}

impl<P: Platform> SpaceOom<'_, P> {
    /// The OOM adjustment of the program (`oom_score_adj`, -1000 to 1000).
    pub fn score_adj(self) -> i16 {
        self.core.oom_score_adj.load(Ordering::Relaxed) as i32 as i16
    }

    /// Sets it; what lies outside of the bounds is clamped to them.
    pub fn set_score_adj(self, adjustment: i16) {
        let bounded = i32::from(adjustment.clamp(OOM_SCORE_ADJ_NEVER, 1000));
        self.core.oom_score_adj.store(bounded as u32, Ordering::Relaxed);
    }

    /// Kills the program in this space: from now on its faults return
    /// [`FaultError::Killed`](crate::FaultError::Killed). The embedder makes it exit. Returns false if it was
    /// killed before.
    pub fn kill(self) -> bool {
        let core = self.core;
        let pin = self.spaces.platform().pin();
        // In it the number of the memcg stays, though another thread may move the space at once.
        let _section = self.spaces.frames().epoch().enter(&pin);
        let marked = core.tables.membership.mark_killed();
        if let Some(memcg) = marked {
            // Before it can be found: who finds it has it counted.
            self.spaces.victims().note_killed(memcg);
        }
        // Release: pairs with the load in `is_killed`; a thread that finds pages gone sees this.
        core.killed.store(1, Ordering::Release);
        // Pairs with the fence of a fork: what looks for other programs next finds a child, or there is none.
        fence(Ordering::SeqCst);
        self.spaces.platform().unpark(core.kill_key());
        marked.is_some()
    }

    /// Whether it was [killed](Self::kill).
    pub fn is_killed(self) -> bool {
        self.core.is_killed()
    }

    /// Frees the private pages of a killed space, if no thread is changing its mappings now: its contents are
    /// never read again. Done once; what it keeps then, shared memory, it keeps until it exits. Called by one
    /// thread at a time.
    pub fn reap(self) -> Reap {
        let core = self.core;
        if !core.is_killed() || core.reaped.load(Ordering::Relaxed) != 0 {
            return Reap::Over;
        }
        let section = MmapWriter::try_begin(self.spaces, core);
        if let Some(section) = &section {
            let mut unmapper = Unmapper::new(section.tables(), FlushCause::Discard);
            section.discard_private(&mut unmapper);
            unmapper.finish();
        } else if !core.patience.ends(self.spaces.platform().now()) {
            // That thread will find that the program was killed, but may itself wait for long.
            return Reap::Later;
        }
        core.reaped.store(1, Ordering::Relaxed);
        if section.is_some() { Reap::Done } else { Reap::Over }
    }
}
