//! Killed programs that have not exited.

use super::Spaces;
use quire_arch::{Platform, part_of};
use quire_memcg::MemcgId;
use quire_sync::atomic::Ordering;

part_of! {
    /// The killed programs of a machine that have not exited.
    pub struct Victims { pub(super) spaces: Spaces }
}

impl<P: Platform> Victims<'_, P> {
    /// A program in `memcg` is being killed. The caller has a handle, so it has not exited.
    pub(crate) fn note_killed(self, memcg: MemcgId) {
        self.spaces.killed.fetch_add(1, Ordering::Relaxed);
        self.spaces.memcgs().tree().count_killed(memcg, true);
    }

    /// A killed program in `memcg` has exited: its memory is free.
    pub(crate) fn note_gone(self, memcg: MemcgId) {
        // Before it is counted no more: what looks at the counts looks at this next. Release: what finds it
        // counted no more finds that its exit was noted.
        self.spaces.oom_turns.note_exit(self.spaces.platform());
        self.spaces.killed.fetch_sub(1, Ordering::Release);
        self.spaces.memcgs().tree().count_killed(memcg, false);
    }

    /// Whether a killed program has exited since the thread that chooses another one began to look for
    /// memory: then it does not kill. Called by that thread.
    pub fn has_one_exited(self) -> bool {
        self.spaces.oom_turns.has_come()
    }

    /// Killed programs in `memcg` and below it that have not exited, those that are exiting included: no walk
    /// finds these, since they have no handles, and their memory is coming back. Acquire: pairs with the
    /// release of an exit.
    pub fn count(self, memcg: MemcgId) -> u64 {
        if memcg.is_root() {
            self.spaces.killed.load(Ordering::Acquire)
        } else {
            u64::from(self.spaces.memcgs().tree().killed(memcg))
        }
    }
}
