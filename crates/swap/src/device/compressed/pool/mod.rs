//! Objects of any size up to four fifths of a page, with little waste.
//!
//! Sizes are rounded up to one of some dozens of classes. Objects of a class lie in chains of one to four
//! frames ([`zspage`]), whichever wastes least. A chain without objects is freed at once. A partly used one
//! is on one of its class's lists, by how full it is: new objects go to the fullest, compaction empties the
//! sparsest.
//!
//! An object knows its owner, and the owner knows where the object is. So an object can be moved: a thread
//! that has the class's lock asks the [`Referrer`], which may refuse.

mod class;
mod compact;
#[cfg(all(test, not(loom)))]
mod tests;
mod zspage;

pub(super) use compact::{EmptyChain, Referrer};

use super::super::DeviceError;
use super::super::memory::{frame_for_contents, give_back, own_block};
use super::super::slots::Location;
use arrayvec::ArrayVec;
use class::{CLASS_COUNT, CLASSES, Class, MAX_CHAIN, MAX_SIZE, class_for};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{LockClass, Order, PAGE_SIZE, Pfn, Pin, Platform};
use quire_frame::{AllocError, FailSite, FolioList, Frames};
use quire_sync::SpinLock;
use zspage::{HEADER, Pieces, Zspage};

/// The most bytes that an object has.
pub(super) const MAX_OBJECT: usize = MAX_SIZE - HEADER;
/// Owners are numbers below this.
pub(super) const MAX_OWNERS: u64 = 1 << 31;
/// Frames for contents, as fail plans know them.
pub(super) const SITE: FailSite = FailSite::new("zsmalloc");

/// Lists for each class: chains that are used by a quarter at most, and so on.
const GROUPS: usize = 4;

/// The chains of one class.
#[derive(Debug)]
struct Chains {
    /// By quarters of their objects that are in use. A full chain is on no list.
    partial: [FolioList; GROUPS],
    /// In all.
    count: u32,
    /// Objects in use, in all.
    live: u32,
}

impl Chains {
    /// The list for a chain with `live` objects in use, if it belongs on one.
    fn group(class: Class, live: u32) -> Option<usize> {
        (live < class.objects).then(|| (live * GROUPS as u32 / class.objects) as usize)
    }

    /// Moves a chain from the list where it is, as long as `before` objects are in use, to where it belongs
    /// now.
    fn regroup<P: Platform>(&mut self, frames: &Frames<P>, class: Class, chain: &Zspage<'_, P>, before: u32) {
        let after = chain.live();
        let (from, to) = (Self::group(class, before), Self::group(class, after));
        self.live = self.live + after - before;
        if from != to || after == 0 {
            if let Some(from) = from {
                self.partial[from].remove(frames.map(), chain.head());
            }
            self.enlist(frames, class, chain);
        }
    }

    /// Puts a chain that is on no list where it belongs: on none, if it is full or empty.
    fn enlist<P: Platform>(&mut self, frames: &Frames<P>, class: Class, chain: &Zspage<'_, P>) {
        if chain.live() == 0 {
            self.count -= 1;
        } else if let Some(to) = Self::group(class, chain.live()) {
            self.partial[to].push_front(frames.map(), chain.head());
        }
    }

    /// An object of the fullest chain that has one.
    fn take<P: Platform>(&mut self, frames: &Frames<P>, class: Class, owner: u32) -> Option<Location> {
        let head = self.partial.iter().rev().find_map(|list| list.first(frames.map()))?;
        let chain = Zspage::at(frames, head);
        let before = chain.live();
        let location = chain.take(owner)?;
        self.regroup(frames, class, &chain, before);
        Some(location)
    }

    /// Frees an object, and returns its chain if that is empty now: it is on no list any more.
    fn put<'f, P: Platform>(
        &mut self,
        frames: &'f Frames<P>,
        class: Class,
        location: Location,
    ) -> Option<Zspage<'f, P>> {
        let chain = Zspage::of(frames, location);
        let before = chain.live();
        chain.put(location);
        self.regroup(frames, class, &chain, before);
        (chain.live() == 0).then_some(chain)
    }
}

/// A pool of objects.
pub(super) struct Pool<P: Platform> {
    /// Its classes, in a block of their own.
    block: (Pfn, Order),
    classes: NonNull<[SpinLock<Chains, P>; CLASS_COUNT]>,
    /// Frames that hold contents: chains, and whole pages.
    used: AtomicU64,
    peak: AtomicU64,
    /// Frames that may hold contents; `u64::MAX` if there is no limit.
    limit: AtomicU64,
    /// Frames that compaction freed.
    compacted: AtomicU64,
}

// SAFETY: the pointer is to the pool's own block, whose contents are `Sync` and `Send` by their locks.
unsafe impl<P: Platform> Send for Pool<P> {}
// SAFETY: as for `Send`.
unsafe impl<P: Platform> Sync for Pool<P> {}

impl<P: Platform> Pool<P> {
    /// An empty pool, without a limit.
    pub(super) fn new(frames: &Frames<P>, pin: &Pin<'_, P>, site: FailSite) -> Result<Self, AllocError> {
        let bytes = size_of::<[SpinLock<Chains, P>; CLASS_COUNT]>();
        let block = own_block(frames, pin, bytes as u64, site)?;
        let classes = frames.platform().direct_map(block.0).cast();
        let chains = || Chains { partial: [const { FolioList::new() }; GROUPS], count: 0, live: 0 };
        let first = classes.cast::<SpinLock<Chains, P>>();
        for number in 0..CLASS_COUNT {
            // SAFETY: the block is this call's and has room for that many.
            unsafe { first.add(number).write(SpinLock::new(LockClass::CompressedPool, chains())) };
        }
        Ok(Self {
            block,
            classes,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            compacted: AtomicU64::new(0),
        })
    }

    fn chains(&self, number: usize) -> &SpinLock<Chains, P> {
        // SAFETY: `new` wrote them, and the block stays until `close`.
        unsafe { &self.classes.as_ref()[number] }
    }

    /// Bytes of RAM that hold contents.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed) * PAGE_SIZE
    }

    /// The most that it was.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed) * PAGE_SIZE
    }

    /// Forgets the peak.
    pub(super) fn reset_peak(&self) {
        self.peak.store(self.used.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The most that it may be; none without a limit.
    pub(super) fn limit_bytes(&self) -> Option<u64> {
        let limit = self.limit.load(Ordering::Relaxed);
        (limit != u64::MAX).then(|| limit * PAGE_SIZE)
    }

    /// Sets the limit, in whole pages. What is there already stays.
    pub(super) fn set_limit(&self, bytes: Option<u64>) {
        self.limit.store(bytes.map_or(u64::MAX, |bytes| bytes / PAGE_SIZE), Ordering::Relaxed);
    }

    /// Frames that compaction freed.
    pub(super) fn compacted(&self) -> u64 {
        self.compacted.load(Ordering::Relaxed)
    }

    /// Counts `frames` more, if the limit allows.
    fn reserve(&self, frames: u64) -> Result<(), DeviceError> {
        let limit = self.limit.load(Ordering::Relaxed);
        let used = self.used.fetch_add(frames, Ordering::Relaxed) + frames;
        if used > limit {
            self.used.fetch_sub(frames, Ordering::Relaxed);
            return Err(DeviceError::NoSpace);
        }
        self.peak.fetch_max(used, Ordering::Relaxed);
        Ok(())
    }

    /// Frames for contents, `N` at most.
    fn allocate<const N: usize>(
        &self,
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        count: usize,
    ) -> Result<ArrayVec<Pfn, N>, DeviceError> {
        self.reserve(count as u64)?;
        let mut all = ArrayVec::new();
        for _ in 0..count {
            match frames.allocate(pin, frame_for_contents(SITE)) {
                Ok(pfn) if pfn.0 < Location::PFNS => all.push(pfn),
                other => {
                    all.extend(other.ok());
                    self.release(frames, pin, all.into_iter());
                    self.used.fetch_sub(count as u64, Ordering::Relaxed);
                    return Err(DeviceError::NoSpace);
                }
            }
        }
        Ok(all)
    }

    fn release(&self, frames: &Frames<P>, pin: &Pin<'_, P>, all: impl Iterator<Item = Pfn>) -> u64 {
        all.map(|pfn| give_back(frames, pin, pfn, Order::ZERO)).count() as u64
    }

    /// Frees the frames of a chain that is empty and on no list.
    fn release_chain(&self, frames: &Frames<P>, pin: &Pin<'_, P>, chain: &Zspage<'_, P>) -> u64 {
        // Gathered first: what a frame's descriptor says is the next user's from when it is free.
        let all = chain.chain().collect::<ArrayVec<Pfn, MAX_CHAIN>>();
        let released = self.release(frames, pin, all.into_iter());
        self.used.fetch_sub(released, Ordering::Relaxed);
        released
    }

    /// A frame for a whole page.
    pub(super) fn take_whole(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> Result<Pfn, DeviceError> {
        Ok(self.allocate::<1>(frames, pin, 1)?[0])
    }

    /// Frees it.
    pub(super) fn put_whole(&self, frames: &Frames<P>, pin: &Pin<'_, P>, pfn: Pfn) {
        let released = self.release(frames, pin, core::iter::once(pfn));
        self.used.fetch_sub(released, Ordering::Relaxed);
    }

    /// A new object with these contents, at most [`MAX_OBJECT`] bytes. It stays where it is until its owner
    /// says, as a [`Referrer`], that it is there.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NoSpace`] at the limit or without memory. Nothing was changed.
    pub(super) fn insert(
        &self,
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        owner: u32,
        contents: &[u8],
    ) -> Result<Location, DeviceError> {
        let number = class_for(HEADER + contents.len());
        let class = CLASSES[number];
        let location = self.chains(number).lock().take(frames, class, owner);
        let location = match location {
            Some(location) => location,
            None => {
                let all = self.allocate::<MAX_CHAIN>(frames, pin, class.frames as usize)?;
                let chain = Zspage::build(frames, &all, number);
                let mut chains = self.chains(number).lock();
                // A chain without objects is no chain of the class, so it takes the first before it is one.
                let location = chain.take(owner).ok_or(DeviceError::NoSpace)?;
                chains.count += 1;
                chains.live += 1;
                chains.enlist(frames, class, &chain);
                location
            }
        };
        let from = NonNull::from(contents).cast();
        // SAFETY: the object is this call's: it was just allocated, and no thread moves it before its owner
        // agrees.
        unsafe { Pieces::of(frames, location, HEADER, contents.len()).copy_from(from) };
        Ok(location)
    }

    /// Calls `use_it` with the first `length` bytes of an object's contents. Where these do not lie in one
    /// piece they are put together in `room`.
    ///
    /// # Safety
    ///
    /// The object is in use, has that many bytes, and neither moves nor goes meanwhile. `room` has as many
    /// bytes.
    pub(super) unsafe fn with<R>(
        &self,
        frames: &Frames<P>,
        (location, length): (Location, usize),
        room: &mut [u8],
        use_it: impl FnOnce(&[u8]) -> R,
    ) -> R {
        let pieces = Pieces::of(frames, location, HEADER, length);
        if pieces.second.1 == 0 {
            // SAFETY: the piece is the object's, which stays, and no thread writes it.
            return use_it(unsafe { NonNull::slice_from_raw_parts(pieces.first.0, length).as_ref() });
        }
        let room = &mut room[..length];
        // SAFETY: no thread writes the object, which stays; `room` has `length` bytes, and is no object.
        unsafe { pieces.copy_to(NonNull::from(&mut *room).cast()) };
        use_it(room)
    }

    /// Frees an object that nothing refers to any more.
    pub(super) fn remove(&self, frames: &Frames<P>, pin: &Pin<'_, P>, location: Location) {
        let number = Zspage::of(frames, location).class_number();
        let empty = self.chains(number).lock().put(frames, CLASSES[number], location);
        if let Some(chain) = empty {
            self.release_chain(frames, pin, &chain);
        }
    }

    /// Frees the pool's own memory. The pool is empty, and no thread uses it again.
    pub(super) fn close(&self, frames: &Frames<P>, pin: &Pin<'_, P>) {
        debug_assert_eq!(self.used_bytes(), 0, "a pool is closed that is not empty");
        give_back(frames, pin, self.block.0, self.block.1);
    }
}

impl<P: Platform> fmt::Debug for Pool<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("used", &self.used).field("limit", &self.limit).finish_non_exhaustive()
    }
}
