//! The huge zero page: a block of the PMD's order that one PMD entry maps where a program reads memory that
//! it never wrote to.
//!
//! The first fault that needs it allocates it. [`ThpState`](super::ThpState) holds one reference to it and
//! each entry that maps it one more. So a thread that has such an entry under the lock of its table can take
//! another reference without further locks, and only [`Thp::shrink_huge_zero`] drops the last. An entry's
//! reference is dropped when no TLB can hold the entry any more. The entries are
//! [`SPECIAL`](quire_arch::LeafFlags::SPECIAL), as those of the small zero page: there is no folio, no rmap
//! and no memcg charge.

use super::Thp;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, FailSite, Kind, VmEvent};

impl<P: Platform> Thp<'_, P> {
    /// Takes a reference to the huge zero page, which is of `order`, for a new entry. Allocates the page if
    /// there is none.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn hold_huge_zero(self, pin: &Pin<'_, P>, order: Order) -> Result<Pfn, AllocError> {
        let held = |zero: Pfn| {
            self.memory().hold_huge_zero_again(zero).then_some(zero).ok_or(AllocError::OutOfMemory)
        };
        if let Some(zero) = *self.state.huge_zero.lock() {
            // That of the state cannot be dropped while the lock is held.
            return held(zero);
        }
        let request = AllocRequest::new(order, FailSite::new("huge_zero")).zeroed().kind(Kind::ZeroPage);
        let events = self.memory().frames().events();
        let new = self.memory().frames().allocate(pin, request).inspect_err(|_| {
            events.add(pin, VmEvent::ThpZeroPageAllocFailed, 1);
        })?;
        let mut slot = self.state.huge_zero.lock();
        if let Some(zero) = *slot {
            // Another CPU was faster.
            let held = held(zero);
            drop(slot);
            self.memory().memcgs().folios().release_unused(pin, new, order);
            return held;
        }
        *slot = Some(new);
        events.add(pin, VmEvent::ThpZeroPageAlloc, 1);
        held(new)
    }

    /// The huge zero page, if there is one at this moment.
    pub fn huge_zero_page(self) -> Option<Pfn> {
        let _pin = self.memory().platform().pin();
        *self.state.huge_zero.lock()
    }

    /// Frees the huge zero page if no entry maps it, and returns the number of frames freed: what Linux's
    /// shrinker does when memory runs short. The caller holds no lock of class
    /// [`HugeZero`](quire_arch::LockClass::HugeZero) or later.
    pub fn shrink_huge_zero(self) -> u64 {
        let pin = self.memory().platform().pin();
        let unused = {
            let mut slot = self.state.huge_zero.lock();
            // With the reference of the state alone there is no entry that a fork could copy, and faults take
            // the lock.
            slot.take_if(|zero| self.memory().frames().known(*zero).refs() == 1)
        };
        unused.map_or(0, |zero| {
            let order = self.memory().frames().known(zero).word().order();
            self.memory().memcgs().folios().release_unused(&pin, zero, order);
            order.pages()
        })
    }
}
