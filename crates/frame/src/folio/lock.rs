//! The folio lock: for long work on one folio, e.g. splitting it. A thread that waits for it sleeps.
//!
//! It is two bits of the state word. LOCKED is set by the thread that gets the lock. One that does not sets
//! WAITERS too and sleeps while both are set. The holder clears both in one step, and wakes all that sleep on
//! the folio if WAITERS was set: they try again, and who loses says so again. Between the look at the bits
//! and the sleep no wake-up is lost, since [`Platform::park`] looks once more under the lock that `unpark`
//! takes.

use crate::frames::Frames;
use crate::map::{Frame, FrameFlags};
use core::fmt;
use core::marker::PhantomData;
use core::ptr;
use quire_arch::{Pfn, Platform};

const BOTH: FrameFlags = FrameFlags::LOCKED.union(FrameFlags::WAITERS);

impl Frame {
    /// Takes the folio lock if no thread has it. The caller holds a reference.
    pub(crate) fn try_lock_folio(&self) -> bool {
        self.set_flags(FrameFlags::LOCKED).is_some_and(|before| !before.contains(FrameFlags::LOCKED))
    }

    /// Takes the folio lock. `wait` is called while another thread has it, each time with a closure that
    /// tells whether it is still worth waiting. Returns false if the frame is no folio that is given out.
    pub(crate) fn lock_folio_with(&self, mut wait: impl FnMut(&mut dyn FnMut() -> bool)) -> bool {
        loop {
            match self.set_flags(FrameFlags::LOCKED) {
                None => return false,
                Some(before) if !before.contains(FrameFlags::LOCKED) => return true,
                Some(_) => {}
            }
            // If the holder unlocks before this, the next attempt gets the lock, and the unlock wakes no
            // sleeper for it.
            if self.set_flags(FrameFlags::WAITERS).is_some_and(|before| before.contains(FrameFlags::LOCKED)) {
                wait(&mut || self.word().flags().contains(BOTH));
            }
        }
    }

    /// Gives the folio lock back, and tells whether another thread waits for it.
    pub(crate) fn unlock_folio(&self) -> bool {
        self.clear_flags(BOTH).is_some_and(|before| before.contains(FrameFlags::WAITERS))
    }
}

/// A folio under its folio lock.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct FolioGuard<'m, P: Platform> {
    frames: &'m Frames<P>,
    frame: &'m Frame,
    not_send: PhantomData<*const ()>,
}

impl<P: Platform> Frames<P> {
    /// Takes the folio lock of the folio that starts at `head`, to which the caller holds a reference. Sleeps
    /// while another thread else has it, so the caller is not pinned. `None` if no folio starts there.
    pub fn lock_folio_long(&self, head: Pfn) -> Option<FolioGuard<'_, P>> {
        let frame = self.frame(head)?;
        let key = ptr::from_ref(frame).addr();
        let locked = frame.lock_folio_with(|still| self.platform().park(key, still));
        locked.then(|| FolioGuard { frames: self, frame, not_send: PhantomData })
    }

    /// As [`lock_folio_long`](Self::lock_folio_long), but does not wait.
    pub fn try_lock_folio_long(&self, head: Pfn) -> Option<FolioGuard<'_, P>> {
        let frame = self.frame(head)?;
        // A guard that is made and dropped because the lock was not had would unlock another thread's.
        frame.try_lock_folio().then(|| FolioGuard { frames: self, frame, not_send: PhantomData })
    }
}

impl<P: Platform> FolioGuard<'_, P> {
    /// The lock stays held, until a thread [adopts](Frames::adopt_folio_lock) it.
    pub fn leave_held(self) {
        core::mem::forget(self);
    }
}

impl<P: Platform> Frames<P> {
    /// The folio lock of the folio at `head`, which another thread [left held](FolioGuard::leave_held) for
    /// the caller alone.
    pub fn adopt_folio_lock(&self, head: Pfn) -> FolioGuard<'_, P> {
        let frame = self.known(head);
        debug_assert!(
            frame.word().flags().contains(FrameFlags::LOCKED),
            "the lock of {head:?} was not left held"
        );
        FolioGuard { frames: self, frame, not_send: PhantomData }
    }
}

impl<P: Platform> Drop for FolioGuard<'_, P> {
    fn drop(&mut self) {
        if self.frame.unlock_folio() {
            self.frames.platform().unpark(ptr::from_ref(self.frame).addr());
        }
    }
}

impl<P: Platform> fmt::Debug for FolioGuard<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolioGuard").field("word", &self.frame.word()).finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::map::{Kind, Migratetype, Word};
    use crate::zone::ZoneId;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;
    use quire_arch::Order;
    use quire_sync::atomic::{Ordering, UnsafeCell};

    /// A folio, what its lock guards, and a place to sleep: `awake` is what `unpark` sets.
    struct Model {
        frame: Frame,
        value: UnsafeCell<u32>,
        awake: AtomicBool,
    }

    // SAFETY: the cell is what the model checks: loom reports any access that the lock does not order.
    unsafe impl Sync for Model {}
    // SAFETY: as above.
    unsafe impl Send for Model {}

    impl Model {
        fn add(&self) {
            let locked = self.frame.lock_folio_with(|still| {
                // A sleeper that no thread wakes though it may go on would spin here for ever, which loom
                // reports.
                while still() && !self.awake.swap(false, Ordering::AcqRel) {
                    thread::yield_now();
                }
            });
            assert!(locked);
            // SAFETY: the folio lock is held.
            self.value.with_mut(|value| unsafe { *value += 1 });
            if self.frame.unlock_folio() {
                self.awake.store(true, Ordering::Release);
            }
        }
    }

    #[test]
    fn loom_the_folio_lock_admits_one_and_forgets_no_sleeper() {
        let mut bounds = loom::model::Builder::new();
        bounds.preemption_bound = Some(3);
        bounds.check(|| {
            let frame = Frame::new(Kind::Tail, ZoneId::default());
            frame.set_word(Word::given_out(Kind::Anonymous, Order::ZERO, Migratetype::Movable));
            let model = Arc::new(Model { frame, value: UnsafeCell::new(0), awake: AtomicBool::new(false) });
            let other = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.add())
            };
            model.add();
            other.join().unwrap();
            // SAFETY: both are done.
            assert_eq!(model.value.with(|value| unsafe { *value }), 2);
            assert!(!model.frame.word().flags().intersects(BOTH));
        });
    }
}
