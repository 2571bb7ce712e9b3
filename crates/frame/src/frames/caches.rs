//! Slab caches, as far as the allocator has to know them.
//!
//! A cache keeps frames that no object needs. The allocator takes them back before a request fails, and the
//! auditor recounts them. The rest is in quire-slab.

use super::Frames;
use crate::violation::FrameViolation;
use core::any::Any;
use core::ptr::{self, NonNull};
use quire_arch::{Pin, Platform};
use quire_sync::PerCpu;
use quire_sync::atomic::{AtomicPtr, Ordering};

/// CPUs whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// The number of the first one, modulo that of the CPUs.
    pub first: usize,
    /// How many at most.
    pub most: usize,
}

impl Turn {
    /// All CPUs.
    pub const ALL: Self = Self { first: 0, most: usize::MAX };

    /// Deals out work of up to `most` among the CPUs: `work` does the given part for one, and returns how
    /// much that was, which may be a little more. Each CPU gets its share first, so that one with much to do
    /// keeps none from its turn; then the others' use up what is left.
    pub fn deal<T>(self, all: &PerCpu<T>, most: u64, mut work: impl FnMut(&T, u64) -> u64) {
        let cpus = all.iter().count().min(self.most).max(1) as u64;
        let mut left = most;
        for share in [(most / cpus).max(1), most] {
            let mut has_more = false;
            for one in all.some(self.first, self.most) {
                let part = share.min(left);
                let done = work(one, part);
                left = left.saturating_sub(done);
                has_more |= done >= part;
            }
            if !has_more || left == 0 {
                return;
            }
        }
    }
}

/// A cache of objects that lies on the frames of a machine.
pub trait FrameCache<P: Platform>: Any + Send + Sync {
    /// Frees retired objects of some CPUs, as far as their readers are gone: up to `most` of all of them.
    fn reap(&self, frames: &Frames<P>, pin: &Pin<'_, P>, cpus: Turn, most: u64);

    /// Gives back every frame that no object needs, those that CPUs keep included, and returns how many.
    fn shrink(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> u64;

    /// Marks each of the cache's blocks with [`ListDemand::check`](crate::ListDemand::check), and checks what
    /// it has on them. The machine is quiet.
    fn audit(&self, frames: &Frames<P>, report: &mut dyn FnMut(FrameViolation));
}

/// The place of a cache on its machine's list.
#[derive(Debug)]
pub struct CacheNode<P> {
    cache: NonNull<dyn FrameCache<P>>,
    next: AtomicPtr<Self>,
}

// SAFETY: the pointer leads to a cache, which all threads may use.
unsafe impl<P> Send for CacheNode<P> {}
// SAFETY: as for `Send`.
unsafe impl<P> Sync for CacheNode<P> {}

impl<P: Platform> CacheNode<P> {
    /// The node of `cache`, which may still be under construction.
    pub fn new(cache: NonNull<dyn FrameCache<P>>) -> Self {
        Self { cache, next: AtomicPtr::new(ptr::null_mut()) }
    }
}

/// A list that only grows: caches live as long as their machine. So it is read without a lock.
#[derive(Debug)]
pub(crate) struct CacheList<P> {
    first: AtomicPtr<CacheNode<P>>,
}

impl<P: Platform> CacheList<P> {
    pub(super) fn new() -> Self {
        Self { first: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Adds a cache.
    ///
    /// # Safety
    ///
    /// The node is on no list. Its cache is complete, and stays as long as this list.
    pub(super) unsafe fn add(&self, node: &'static CacheNode<P>) {
        let new = ptr::from_ref(node).cast_mut();
        let mut first = self.first.load(Ordering::Relaxed);
        loop {
            node.next.store(first, Ordering::Relaxed);
            // Release: the cache is complete before it can be found. Pairs with the load in `iter`.
            match self.first.compare_exchange_weak(first, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => first = found,
            }
        }
    }

    /// Every cache, the newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &dyn FrameCache<P>> {
        // Acquire: pairs with the exchange in `add`, of every cache that is found: exchanges alone change
        // `first`, so the newest one continues the release sequences of those before.
        let mut next = self.first.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            // SAFETY: nodes stay as long as the list (`add`).
            let node = unsafe { next.as_ref() }?;
            // Relaxed: written before the node could be found, and never again.
            next = node.next.load(Ordering::Relaxed);
            // SAFETY: the cache was complete when its node was added, and stays as long as the list (`add`).
            Some(unsafe { node.cache.as_ref() })
        })
    }
}

quire_arch::part_of! {
    /// The slab caches on a machine's frames.
    pub struct FrameCaches { pub(super) frames: Frames }
}

impl<'f, P: Platform> FrameCaches<'f, P> {
    /// Adds a cache to those that the allocator shrinks and the auditor checks.
    ///
    /// # Safety
    ///
    /// The node was not added before. Its cache is complete, lies on frames of this machine, and stays there
    /// as long as the machine.
    pub unsafe fn add(self, node: &'static CacheNode<P>) {
        // SAFETY: the caller's promise; the list is a part of the machine.
        unsafe { self.frames.caches.add(node) };
    }

    /// Every cache, the newest first.
    pub fn iter(self) -> impl Iterator<Item = &'f dyn FrameCache<P>> {
        self.frames.caches.iter()
    }

    /// Frees what was retired to any cache, as far as the readers are gone.
    pub fn reap(self, pin: &Pin<'_, P>) {
        self.iter().for_each(|cache| cache.reap(self.frames, pin, Turn::ALL, u64::MAX));
    }

    /// Gives back every frame that no object of any cache needs, those that CPUs keep included, and returns
    /// how many.
    pub fn shrink(self, pin: &Pin<'_, P>) -> u64 {
        self.iter().map(|cache| cache.shrink(self.frames, pin)).sum()
    }
}
