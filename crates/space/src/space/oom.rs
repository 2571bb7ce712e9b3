//! A space under OOM.

use super::Space;
use crate::mmap_writer::MmapWriter;
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

impl<P: Platform> Space<'_, P> {
    /// The OOM adjustment of the program (`oom_score_adj`, -1000 to 1000).
    pub fn oom_score_adj(&self) -> i16 {
        self.core().oom_score_adj.load(Ordering::Relaxed) as i32 as i16
    }

    /// Sets it; what lies outside of the bounds is clamped to them.
    pub fn set_oom_score_adj(&self, adjustment: i16) {
        let bounded = i32::from(adjustment.clamp(-1000, 1000));
        self.core().oom_score_adj.store(bounded as u32, Ordering::Relaxed);
    }

    /// Kills the program in this space: from now on its faults return
    /// [`FaultError::Killed`](crate::FaultError::Killed). The embedder makes it exit.
    pub fn kill(&self) {
        // Release: pairs with the load in `is_killed`; a thread that finds pages gone sees this.
        self.core().killed.store(1, Ordering::Release);
    }

    /// Whether it was [killed](Self::kill).
    pub fn is_killed(&self) -> bool {
        self.core().is_killed()
    }

    /// Frees the private pages of a killed space, if no thread is changing its mappings now: its contents are
    /// never read again.
    pub fn reap(&self) {
        if self.is_killed()
            && let Some(mut section) = MmapWriter::try_begin(self.spaces, self.core())
        {
            section.discard_private();
        }
    }
}
