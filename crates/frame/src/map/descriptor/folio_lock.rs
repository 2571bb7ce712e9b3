//! The folio lock, as bits of the state word. The thread that gets the lock sets LOCKED. One that does not
//! get it sets WAITERS too and sleeps while both are set. The holder clears both in one step, and wakes all
//! sleepers on the folio if WAITERS was set. They try again, and each that fails sets WAITERS again.

use super::Frame;
use crate::map::FrameFlags;

const BOTH: FrameFlags = FrameFlags::LOCKED.union(FrameFlags::WAITERS);

impl Frame {
    /// Takes the folio lock if no thread has it. The caller holds a reference.
    pub(crate) fn try_lock_folio(&self) -> bool {
        self.set_flags(FrameFlags::LOCKED).is_some_and(|before| !before.contains(FrameFlags::LOCKED))
    }

    /// Takes the folio lock. `wait` is called while another thread has it, each time with a closure that
    /// returns whether waiting is still needed. Returns false if the frame is not an allocated folio.
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

    /// Releases the folio lock, and returns whether another thread waits for it.
    pub(crate) fn unlock_folio(&self) -> bool {
        self.clear_flags(BOTH).is_some_and(|before| before.contains(FrameFlags::WAITERS))
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::kind::Kind;
    use crate::map::{FrameState, Migratetype};
    use crate::zone_id::ZoneId;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;
    use quire_arch::Order;
    use quire_sync::Watched;
    use quire_sync::atomic::Ordering;

    /// A folio, what its lock guards, and a place to sleep: `awake` is what `unpark` sets.
    struct Model {
        frame: Frame,
        value: Watched<u32>,
        awake: AtomicBool,
    }

    impl Model {
        fn add(&self) {
            let locked = self.frame.lock_folio_with(|still| {
                // A sleeper whose wake-up was lost would spin here forever, which loom reports.
                while still() && !self.awake.swap(false, Ordering::AcqRel) {
                    thread::yield_now();
                }
            });
            assert!(locked);
            self.value.set(self.value.get() + 1);
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
            frame.set_word(FrameState::given_out(Kind::Anonymous, Order::ZERO, Migratetype::Movable));
            let model = Arc::new(Model { frame, value: Watched::new(0), awake: AtomicBool::new(false) });
            let other = {
                let model = Arc::clone(&model);
                thread::spawn(move || model.add())
            };
            model.add();
            other.join().unwrap();
            assert_eq!(model.value.get(), 2);
            assert!(!model.frame.word().flags().intersects(BOTH));
        });
    }
}
