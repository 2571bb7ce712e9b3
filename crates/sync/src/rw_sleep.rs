//! A sleeping reader-writer lock: the kind that an address space's mmap lock is.

use crate::atomic::{AtomicU32, Ordering};
use core::ptr;
use quire_arch::{LockClass, Platform};

const WRITER: u32 = 1 << 31;
/// A thread sleeps. New readers wait while it is set, so that writers are not starved.
const WAITERS: u32 = 1 << 30;
/// A thread was woken and overtaken [`PATIENCE`] times. Only a thread that has slept may take the lock.
const STARVED: u32 = 1 << 29;
const READERS: u32 = STARVED - 1;
/// Wake-ups after which an overtaken sleeper insists. Without a limit it could wait as long as other threads
/// retake the lock at once; with a low limit every second hold would be a context switch.
const PATIENCE: u32 = if cfg!(any(loom, shuttle)) { 1 } else { 4 };
/// Attempts before a waiter goes to sleep: a holder that runs is usually done within this.
const SPINS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 64 };

/// A reader-writer lock whose waiters sleep on [`Platform::park`]. It guards no value of its own: what it
/// orders is documented where it is used.
///
/// A new thread may overtake waiters that were just woken, which saves context switches, but not without
/// limit: a waiter that was overtaken several times keeps out all threads that have not slept. This ends when
/// it gets the lock; other waiters that were overtaken as often then do the same.
///
/// Acquire on the way in pairs with release on the way out, on the one word.
#[derive(Debug)]
pub struct RwSleepLock {
    word: AtomicU32,
    class: LockClass,
}

impl RwSleepLock {
    /// A free lock of `class`.
    pub fn new(class: LockClass) -> Self {
        Self { word: AtomicU32::new(0), class }
    }

    /// Takes the lock shared.
    #[inline]
    pub fn read<'l, P: Platform>(&'l self, platform: &'l P) -> RwSleepReadGuard<'l, P> {
        self.enter(platform, |word, insists| {
            let against = if insists { WRITER } else { WRITER | WAITERS | STARVED };
            (word & against == 0).then_some((word + 1) & !STARVED)
        });
        RwSleepReadGuard { lock: self, platform }
    }

    /// Takes the lock exclusively.
    #[inline]
    pub fn write<'l, P: Platform>(&'l self, platform: &'l P) -> RwSleepWriteGuard<'l, P> {
        self.enter(platform, |word, insists| {
            let against = if insists { WRITER | READERS } else { WRITER | READERS | STARVED };
            (word & against == 0).then_some((word | WRITER) & !STARVED)
        });
        RwSleepWriteGuard { lock: self, platform }
    }

    /// Takes the lock shared if that is possible at once, and no thread waits for it.
    pub fn try_read<'l, P: Platform>(&'l self, platform: &'l P) -> Option<RwSleepReadGuard<'l, P>> {
        let free = |word: u32| (word & (WRITER | WAITERS | STARVED) == 0).then_some(word + 1);
        self.try_enter::<P>(free).then(|| RwSleepReadGuard { lock: self, platform })
    }

    /// Takes the lock exclusively if that is possible at once, and no thread waits for it.
    pub fn try_write<'l, P: Platform>(&'l self, platform: &'l P) -> Option<RwSleepWriteGuard<'l, P>> {
        let free = |word: u32| (word == 0).then_some(WRITER);
        self.try_enter::<P>(free).then(|| RwSleepWriteGuard { lock: self, platform })
    }

    fn try_enter<P: Platform>(&self, next: impl Fn(u32) -> Option<u32>) -> bool {
        let taken = self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, next).is_ok();
        if taken && cfg!(debug_assertions) {
            P::lock_taken(self.class);
        }
        taken
    }

    /// Whether a writer holds the lock now.
    pub fn is_write_locked(&self) -> bool {
        self.word.load(Ordering::Relaxed) & WRITER != 0
    }

    fn key(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    #[inline]
    fn enter<P: Platform>(&self, platform: &P, next: impl Fn(u32, bool) -> Option<u32>) {
        if cfg!(debug_assertions) {
            P::lock_taken(self.class);
        }
        let word = self.word.load(Ordering::Relaxed);
        let taken = next(word, false).is_some_and(|new| {
            self.word.compare_exchange(word, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
        });
        if !taken {
            self.wait(platform, next);
        }
    }

    #[cold]
    fn wait<P: Platform>(&self, platform: &P, next: impl Fn(u32, bool) -> Option<u32>) {
        let (mut attempt, mut slept) = (0, 0);
        loop {
            let insists = slept >= PATIENCE;
            let word = self.word.load(Ordering::Relaxed);
            if let Some(new) = next(word, insists) {
                if self.word.compare_exchange_weak(word, new, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return;
                }
            } else if attempt != SPINS {
                P::relax(attempt);
                attempt += 1;
            } else {
                // Announce the sleeper under the bucket's lock; the release sees the bit and wakes this
                // thread, or released before, and then `still` sees a word that can be taken.
                platform.park(self.key(), &mut || {
                    let word = self.word.load(Ordering::Relaxed);
                    let noted = word | WAITERS | if insists { STARVED } else { 0 };
                    next(word, insists).is_none()
                        && (word == noted
                            || self
                                .word
                                .compare_exchange(word, noted, Ordering::Relaxed, Ordering::Relaxed)
                                .is_ok())
                });
                slept += 1;
            }
        }
    }

    #[inline]
    fn leave<P: Platform>(&self, platform: &P, held: u32) {
        let before = self.word.fetch_sub(held, Ordering::Release);
        if before & WAITERS != 0 && before & (READERS | WRITER) == held {
            // Cleared before the wake-up: a sleeper that must sleep again sets it again.
            self.word.fetch_and(!WAITERS, Ordering::Relaxed);
            platform.unpark(self.key());
        }
        if cfg!(debug_assertions) {
            P::lock_dropped(self.class);
        }
    }
}

/// The lock held shared, until dropped.
#[must_use = "the lock is released when the guard is dropped"]
#[derive(Debug)]
pub struct RwSleepReadGuard<'l, P: Platform> {
    lock: &'l RwSleepLock,
    platform: &'l P,
}

impl<P: Platform> Drop for RwSleepReadGuard<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.lock.leave(self.platform, 1);
    }
}

/// The lock held exclusively, until dropped.
#[must_use = "the lock is released when the guard is dropped"]
#[derive(Debug)]
pub struct RwSleepWriteGuard<'l, P: Platform> {
    lock: &'l RwSleepLock,
    platform: &'l P,
}

impl<P: Platform> Drop for RwSleepWriteGuard<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.lock.leave(self.platform, WRITER);
    }
}
