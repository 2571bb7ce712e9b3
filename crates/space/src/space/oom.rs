//! What becomes of a space when memory is exhausted.

use super::Space;
use crate::mmap_writer::MmapWriter;
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

impl<P: Platform> Space<'_, P> {
    /// How the owner of the program wants it to be judged when memory is exhausted (`oom_score_adj`, -1000 to
    /// 1000).
    pub fn oom_score_adj(&self) -> i16 {
        self.core().oom_score_adj.load(Ordering::Relaxed) as i32 as i16
    }

    /// Sets it; what lies outside of the bounds is clamped to them.
    pub fn set_oom_score_adj(&self, adjustment: i16) {
        let bounded = i32::from(adjustment.clamp(-1000, 1000));
        self.core().oom_score_adj.store(bounded as u32, Ordering::Relaxed);
    }

    /// Ends what runs in this space: whatever it faults for from now on it gets
    /// [`FaultError::Killed`](crate::FaultError::Killed). Its embedder makes it exit.
    pub fn kill(&self) {
        // Release: pairs with the load in `is_killed`; a thread that finds pages gone finds this.
        self.core().killed.store(1, Ordering::Release);
    }

    /// Whether it was [killed](Self::kill).
    pub fn is_killed(&self) -> bool {
        self.core().is_killed()
    }

    /// Frees the private pages of a killed space, if no thread is changing its mappings just now: its
    /// contents are never read again.
    pub fn reap(&self) {
        if self.is_killed()
            && let Some(mut section) = MmapWriter::try_begin(self.spaces, self.core())
        {
            section.discard_private();
        }
    }
}
