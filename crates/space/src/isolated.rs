//! What reclaim does with folios that it isolated from their LRU lists, each with a reference.

use crate::mmap_writer::MmapWriter;
use crate::space::{Space, SpaceId};
use crate::spaces::Spaces;
use core::fmt;
use quire_arch::{Order, Pfn, Platform};
use quire_frame::SplitError;
use quire_memcg::{MemcgError, MemcgId};
use quire_sync::atomic::Ordering;

impl<P: Platform> Spaces<P> {
    /// Splits the large folio at `head` into folios of order `to`. The caller has the folio lock and one
    /// reference, which is to the first part then.
    ///
    /// # Errors
    ///
    /// [`SplitError`]; then the folio is as it was.
    pub fn split_isolated(&self, head: Pfn, to: Order) -> Result<u64, SplitError> {
        let order = self.frames().folio(head).order();
        let freed = self.split_locked(head, to, false)?;
        // The folio is on no list, and neither are its parts.
        for part in (head.0..head.0 + order.pages()).step_by(to.pages() as usize).skip(1) {
            self.memcgs().list_if_mapped(Pfn(part));
        }
        Ok(freed)
    }

    /// A handle to the space after `space`, or to the first one. Those that are exiting are skipped.
    pub fn next_space(&self, space: Option<&Space<'_, P>>) -> Option<Space<'_, P>> {
        self.space_after(space)
    }

    /// A handle to the space `id`, unless it is exiting.
    pub fn space(&self, id: SpaceId) -> Option<Space<'_, P>> {
        let mut next = self.space_after(None);
        while let Some(space) = next {
            if space.id() == id {
                return Some(space);
            }
            next = self.space_after(Some(&space));
        }
        None
    }
}

/// Why a space could not change its memcg.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemcgChangeError(pub MemcgError);

impl fmt::Display for MemcgChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the space cannot enter the memcg: {}", self.0)
    }
}

impl core::error::Error for MemcgChangeError {}

impl<P: Platform> Space<'_, P> {
    /// The memcg that new pages of this space are charged to.
    pub fn memcg(&self) -> MemcgId {
        self.core().memcg()
    }

    /// Moves the space to another memcg. What it has stays charged to the old one, as in Linux; the root,
    /// which a space begins in unless its parent was elsewhere, charges nothing.
    ///
    /// # Errors
    ///
    /// [`MemcgChangeError`], when there is no such memcg.
    pub fn set_memcg(&self, group: MemcgId) -> Result<(), MemcgChangeError> {
        let groups = self.spaces.memcgs();
        groups.hold(group).map_err(MemcgChangeError)?;
        groups.release(self.core().replace_memcg(group));
        Ok(())
    }

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
