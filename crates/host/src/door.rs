//! The state word and the mailbox of one vCPU: which thread may touch its TLB, and how a flush reaches it.
//!
//! See [`shootdown`](crate::shootdown) for the protocol and the proof.

mod mailbox;

use crate::wait::{Innermost, pause};
use core::fmt;
use mailbox::Mailbox;
use quire_arch::{LockClass, TlbFlush};
use quire_sync::SpinLock;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering, UnsafeCell};

/// A thread is the vCPU now.
const OWNED: u32 = 1 << 0;
/// The owner runs program accesses; the TLB is the owner's.
const INSIDE: u32 = 1 << 1;
/// A flusher has the TLB while the vCPU is outside.
const FLUSHING: u32 = 1 << 2;

/// What a door guards: something that translations can be dropped from.
pub(crate) trait Cache {
    /// Drops what `flush` covers.
    fn apply(&mut self, flush: TlbFlush);
}

/// How a flush reached its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reached {
    /// The target was outside; the initiator flushed its TLB.
    ByProxy,
    /// The target flushed its TLB itself.
    Inside,
}

/// The state word, the mailbox and the TLB of a vCPU.
pub(crate) struct Door<C> {
    state: AtomicU32,
    /// Requests that were ever posted. Changes under the mailbox's lock.
    posted: AtomicU64,
    /// Requests that are done. Written by the holder of the cache.
    acknowledged: AtomicU64,
    mailbox: SpinLock<Mailbox, Innermost>,
    cache: UnsafeCell<C>,
}

// SAFETY: the cache is reached only by the holder of `INSIDE` or of `FLUSHING`, and the state word admits one
// of them at a time; all else is atomic or locked.
unsafe impl<C: Send> Sync for Door<C> {}
// SAFETY: a door owns its cache.
unsafe impl<C: Send> Send for Door<C> {}

impl<C: Cache> Door<C> {
    pub(crate) fn new(cache: C) -> Self {
        Self {
            state: AtomicU32::new(0),
            posted: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            // A lock needs a class, but `Innermost` does not check it: no lock is taken under this one.
            mailbox: SpinLock::new(LockClass::Zone, Mailbox::default()),
            cache: UnsafeCell::new(cache),
        }
    }

    /// One attempt at changing the state from `from` to `to`.
    ///
    /// Acquire pairs with the releases in `disown`, `exit`, `exit_and_disown` and `try_hold`: whatever the
    /// last owner or flusher did to the cache and to the owner's cells is visible.
    #[inline]
    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Makes the calling thread the owner, unless there is one.
    #[inline]
    pub(crate) fn try_own(&self) -> bool {
        // A flusher may be at work meanwhile; it sets and clears its own bit only.
        self.change(0, OWNED) || self.change(FLUSHING, FLUSHING | OWNED)
    }

    /// Makes the calling thread the owner and takes it inside, unless there is an owner or a flusher.
    #[inline]
    pub(crate) fn try_own_and_enter(&self) -> bool {
        self.change(0, OWNED | INSIDE)
    }

    /// Ends the ownership.
    ///
    /// # Safety
    ///
    /// The calling thread is the owner and is outside.
    #[inline]
    pub(crate) unsafe fn disown(&self) {
        // A flusher may set or clear its bit meanwhile, so this is no plain store.
        self.state.fetch_and(!OWNED, Ordering::Release);
    }

    /// Goes inside: the cache is the owner's until `exit`.
    ///
    /// # Safety
    ///
    /// The calling thread is the owner and is outside.
    #[inline]
    pub(crate) unsafe fn enter(&self) {
        let mut attempt = 0;
        while !self.change(OWNED, OWNED | INSIDE) {
            pause(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// Goes outside.
    ///
    /// # Safety
    ///
    /// The calling thread is the owner, is inside, and holds no reference to the cache any more.
    #[inline]
    pub(crate) unsafe fn exit(&self) {
        // While `INSIDE` is set no other thread changes the word, so a plain store loses nothing.
        self.state.store(OWNED, Ordering::Release);
    }

    /// Goes outside and ends the ownership in one step.
    ///
    /// # Safety
    ///
    /// As for [`exit`](Self::exit).
    #[inline]
    pub(crate) unsafe fn exit_and_disown(&self) {
        self.state.store(0, Ordering::Release);
    }

    /// The cache.
    ///
    /// # Safety
    ///
    /// The calling thread is the owner and is inside, and no other reference to the cache lives.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the state word gives the cache to one thread at a time")]
    pub(crate) unsafe fn cache(&self) -> &mut C {
        // SAFETY: `INSIDE` excludes every flusher, and the caller holds no other reference.
        self.cache.with_mut(|cache| unsafe { &mut *cache })
    }

    /// Whether requests wait.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        // Acquire pairs with the release in `post`: a CPU that sees a request sees the table change before
        // it.
        self.posted.load(Ordering::Acquire) != self.acknowledged.load(Ordering::Relaxed)
    }

    /// The requests that wait now.
    pub(crate) fn mail(&self) -> Mailbox {
        *self.mailbox.lock()
    }

    /// Does what the mailbox asks for. The caller holds `cache`, which is this door's.
    pub(crate) fn serve(&self, cache: &mut C) {
        if !self.has_mail() {
            return;
        }
        let (mail, upto) = {
            let mut mailbox = self.mailbox.lock();
            (mailbox.take(), self.posted.load(Ordering::Relaxed))
        };
        for &flush in mail.requests() {
            cache.apply(flush);
        }
        // Release pairs with the acquire in `has_acknowledged`: the initiator continues only after every
        // access through the dropped translations.
        self.acknowledged.store(upto, Ordering::Release);
    }

    /// Posts a request and returns its number, and whether it found a place of its own.
    pub(crate) fn post(&self, flush: TlbFlush) -> (u64, bool) {
        let mut mailbox = self.mailbox.lock();
        let separate = mailbox.push(flush);
        let number = self.posted.load(Ordering::Relaxed) + 1;
        // Release pairs with the acquire in `has_mail`.
        self.posted.store(number, Ordering::Release);
        (number, separate)
    }

    /// The number of the newest request.
    pub(crate) fn newest(&self) -> u64 {
        self.posted.load(Ordering::Relaxed)
    }

    #[inline]
    fn has_acknowledged(&self, number: u64) -> bool {
        // Acquire pairs with the release in `serve`.
        self.acknowledged.load(Ordering::Acquire) >= number
    }

    /// Calls `action` with the cache, mail done, if the vCPU is outside and has no other flusher.
    pub(crate) fn try_hold<R>(&self, action: impl FnOnce(&mut C) -> R) -> Option<R> {
        if !self.change(0, FLUSHING) && !self.change(OWNED, OWNED | FLUSHING) {
            return None;
        }
        let release = Release(&self.state);
        let result = self.cache.with_mut(|cache| {
            // SAFETY: `FLUSHING` was set by this thread and keeps the owner and other flushers out.
            let cache = unsafe { &mut *cache };
            self.serve(cache);
            action(cache)
        });
        drop(release);
        Some(result)
    }

    /// Calls `action` with the cache, mail done, as soon as the vCPU is outside.
    pub(crate) fn hold<R>(&self, mut action: impl FnMut(&mut C) -> R) -> R {
        let mut attempt = 0;
        loop {
            if let Some(result) = self.try_hold(&mut action) {
                return result;
            }
            pause(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    /// Waits until request `number` is done; flushes itself when the target turns out to be outside.
    pub(crate) fn await_acknowledgement(&self, number: u64) -> Reached {
        let mut attempt = 0;
        loop {
            if self.has_acknowledged(number) {
                return Reached::Inside;
            }
            if self.try_hold(|_| ()).is_some() {
                return Reached::ByProxy;
            }
            pause(attempt);
            attempt = attempt.saturating_add(1);
        }
    }
}

/// Releases the cache when dropped, also when a flush panics.
struct Release<'d>(&'d AtomicU32);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        // The owner may come or go meanwhile, so only the own bit is cleared.
        self.0.fetch_and(!FLUSHING, Ordering::Release);
    }
}

impl<C> fmt::Debug for Door<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door")
            .field("state", &self.state)
            .field("posted", &self.posted)
            .field("acknowledged", &self.acknowledged)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::{Arc, Weak};

    /// While it flushes for the first time, one more request comes.
    struct Disturbed(Option<Weak<Door<Self>>>);

    impl Cache for Disturbed {
        fn apply(&mut self, _flush: TlbFlush) {
            if let Some(door) = self.0.take().and_then(|door| door.upgrade()) {
                door.post(TlbFlush::All);
            }
        }
    }

    #[test]
    fn a_request_that_comes_while_others_are_served_is_not_acknowledged_with_them() {
        let door = Arc::new(Door::new(Disturbed(None)));
        door.hold(|cache| cache.0 = Some(Arc::downgrade(&door)));
        door.post(TlbFlush::All);
        door.hold(|_| ());
        assert!(door.has_mail());
        door.hold(|_| ());
        assert!(!door.has_mail());
    }
}
