//! All caches of a machine.

use super::census::CacheReport;
use super::core::CacheCore;
use crate::frames::Frames;
use core::ptr;
use quire_arch::{Pin, Platform};
use quire_sync::atomic::{AtomicPtr, Ordering};

/// A list that only grows: caches live as long as their machine. So it is read without a lock.
#[derive(Debug)]
pub(crate) struct CacheRegistry<P> {
    first: AtomicPtr<CacheCore<P>>,
}

impl<P: Platform> CacheRegistry<P> {
    pub(crate) fn new() -> Self {
        Self { first: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Adds a cache.
    pub(super) fn add(&self, cache: &'static CacheCore<P>)
    where
        P: 'static,
    {
        let new = ptr::from_ref(cache).cast_mut();
        let mut first = self.first.load(Ordering::Relaxed);
        loop {
            cache.next.store(first, Ordering::Relaxed);
            // Release: the cache is complete before it can be found. Pairs with the load in `iter`.
            match self.first.compare_exchange_weak(first, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => first = found,
            }
        }
    }

    /// Every cache, the newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &CacheCore<P>> {
        let mut next = self.first.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            // SAFETY: the list holds caches of this machine, whose memory is never given back.
            let cache = unsafe { next.as_ref() }?;
            next = cache.next.load(Ordering::Acquire);
            Some(cache)
        })
    }

    /// Takes back every slab that no cache needs, and returns the number of frames.
    pub(crate) fn shrink(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> u64 {
        self.iter().map(|cache| cache.shrink(frames, pin)).sum()
    }
}

impl<P: Platform> Frames<P> {
    /// Frees what was retired to any slab cache, as far as the readers are gone.
    pub fn reap_caches(&self, pin: &Pin<'_, P>) {
        for cache in self.caches().iter() {
            cache.reap(self, pin);
        }
    }

    /// Gives back every frame that no object of any slab cache needs, those that CPUs keep included, and
    /// returns how many.
    pub fn shrink_caches(&self, pin: &Pin<'_, P>) -> u64 {
        self.caches().shrink(self, pin)
    }

    /// Every slab cache in numbers, the newest first.
    pub fn caches_report(&self) -> impl Iterator<Item = CacheReport> {
        self.caches().iter().map(CacheCore::report)
    }
}
