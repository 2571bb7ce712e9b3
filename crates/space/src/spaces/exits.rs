//! Spaces that lost their last handle in the depth of reclaim, and exit when that has returned; and killed
//! ones that exit.

use super::Spaces;
use core::ptr::{self, NonNull};
use quire_arch::Platform;
use quire_memcg::MemcgId;
use quire_rmap::SpaceCore;
use quire_sync::atomic::{AtomicPtr, Ordering};

/// The spaces, as a stack through [`SpaceCore::next_exit`]. All are taken at once, so none can come back
/// beside a thread that takes one.
#[derive(Debug)]
pub(super) struct Exits(AtomicPtr<SpaceCore>);

impl Exits {
    /// None.
    pub(super) fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<P: Platform> Spaces<P> {
    /// Leaves the exit of a space to the next thread that [takes](Self::take_exits) it.
    ///
    /// # Safety
    ///
    /// The caller has dropped its last handle.
    pub(crate) unsafe fn exit_later(&self, core: NonNull<SpaceCore>) {
        let head = &self.exits.0;
        let mut first = head.load(Ordering::Relaxed);
        loop {
            // SAFETY: without handles it is the caller's, until it is on the stack.
            unsafe { core.as_ref() }.next_exit.store(first, Ordering::Relaxed);
            // Release: pairs with the acquire of the thread that takes it, which sees what was done through
            // every handle.
            match head.compare_exchange_weak(first, core.as_ptr(), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// All spaces that are to exit, linked; they are the caller's now.
    pub(crate) fn take_exits(&self) -> Option<NonNull<SpaceCore>> {
        let head = &self.exits.0;
        if head.load(Ordering::Relaxed).is_null() {
            return None;
        }
        // Acquire: pairs with the release of `exit_later`.
        NonNull::new(head.swap(ptr::null_mut(), Ordering::Acquire))
    }

    /// A program in `memcg` is being killed. The caller has a handle, so it has not exited.
    pub(crate) fn note_killed(&self, memcg: MemcgId) {
        self.killed.fetch_add(1, Ordering::Relaxed);
        self.memcgs().tree().count_killed(memcg, true);
    }

    /// A killed program in `memcg` has exited: its memory is free.
    pub(crate) fn note_victim_gone(&self, memcg: MemcgId) {
        // Before it is counted no more: what looks at the counts looks at this next. Release: what finds it
        // counted no more finds that its exit was noted.
        self.oom_turns.note_exit(self.platform());
        self.killed.fetch_sub(1, Ordering::Release);
        self.memcgs().tree().count_killed(memcg, false);
    }

    /// Whether a killed program has exited since the thread that chooses another one began to look for
    /// memory: then it does not kill. Called by that thread.
    pub fn victim_has_exited(&self) -> bool {
        self.oom_turns.has_come()
    }

    /// Killed programs in `memcg` and below it that have not exited, those that are exiting included: no walk
    /// finds these, since they have no handles, and their memory is coming back. Acquire: pairs with the
    /// release of an exit.
    pub fn victims(&self, memcg: MemcgId) -> u64 {
        if memcg.is_root() {
            self.killed.load(Ordering::Acquire)
        } else {
            u64::from(self.memcgs().tree().killed(memcg))
        }
    }
}
