//! The peers: one adapter each.

use buddy_system_allocator::{FrameAllocator, LockedFrameAllocator};
use quire_arch::{Order, Pfn};
use quire_lab::harness::BlockAllocator;
use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

/// Its free lists are sets by order, of which a frame allocator has so many.
const ORDERS: usize = Order::COUNT;

/// `buddy_system_allocator`'s frame allocator behind its spin lock.
pub(crate) struct LockedBuddy(LockedFrameAllocator<ORDERS>);

impl LockedBuddy {
    pub(crate) const NAME: &'static str = "buddy_system_allocator, locked";

    pub(crate) fn new(frames: u64) -> Self {
        let buddy = LockedFrameAllocator::new();
        buddy.lock().add_frame(0, frames as usize);
        Self(buddy)
    }
}

impl BlockAllocator for LockedBuddy {
    type Core = ();

    fn on_core<R>(&self, _number: usize, work: impl FnOnce(&()) -> R) -> R {
        work(&())
    }

    #[inline]
    fn get(&self, _core: &(), order: Order) -> Option<Pfn> {
        self.0.lock().alloc(order.pages() as usize).map(|frame| Pfn(frame as u64))
    }

    #[inline]
    fn put(&self, _core: &(), pfn: Pfn, order: Order) -> bool {
        self.0.lock().dealloc(pfn.0 as usize, order.pages() as usize);
        true
    }
}

/// The same allocator without a lock, for one thread.
pub(crate) struct Buddy(Mutex<RefCell<FrameAllocator<ORDERS>>>);

impl Buddy {
    pub(crate) const NAME: &'static str = "buddy_system_allocator, one thread";

    pub(crate) fn new(frames: u64) -> Self {
        let mut buddy = FrameAllocator::new();
        buddy.add_frame(0, frames as usize);
        Self(Mutex::new(RefCell::new(buddy)))
    }
}

impl BlockAllocator for Buddy {
    type Core = RefCell<FrameAllocator<ORDERS>>;

    fn on_core<R>(&self, _number: usize, work: impl FnOnce(&Self::Core) -> R) -> R {
        // Held for the whole round: what is measured takes no lock.
        work(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[inline]
    fn get(&self, core: &Self::Core, order: Order) -> Option<Pfn> {
        core.borrow_mut().alloc(order.pages() as usize).map(|frame| Pfn(frame as u64))
    }

    #[inline]
    fn put(&self, core: &Self::Core, pfn: Pfn, order: Order) -> bool {
        core.borrow_mut().dealloc(pfn.0 as usize, order.pages() as usize);
        true
    }
}
