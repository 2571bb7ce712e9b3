//! The huge page of zeros: a block of the PMD's order that one entry of a PMD table maps where a program
//! reads memory that it never wrote to.
//!
//! It is allocated by the first fault that wants it. [`Spaces`] holds one reference to it and each entry that
//! maps it one more. So a thread that has such an entry under the lock of its table can take another
//! reference without further locks, and only [`Spaces::shrink_huge_zero`] drops the last. An entry's
//! reference is dropped when no TLB can have the entry any more. The entries are
//! [`SPECIAL`](quire_arch::LeafFlags::SPECIAL), as those of the small page of zeros: there is no folio, the
//! rmap does not know them, and no program is charged for them.

use crate::spaces::Spaces;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, FaultSite, Kind, VmEvent};

impl<P: Platform> Spaces<P> {
    /// Takes a reference to the huge page of zeros, which is of `order`, for an entry to come. Allocates the
    /// page if there is none.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn hold_huge_zero(&self, pin: &Pin<'_, P>, order: Order) -> Result<Pfn, AllocError> {
        let held = |zero: Pfn| self.hold_huge_zero_again(zero).then_some(zero).ok_or(AllocError::OutOfMemory);
        if let Some(zero) = *self.huge_zero().lock() {
            // The reference of `Spaces` cannot be dropped while the lock is held.
            return held(zero);
        }
        let request = AllocRequest::new(order, FaultSite::new("huge_zero")).zeroed().kind(Kind::ZeroPage);
        let events = self.frames().events();
        let new = self.frames().allocate(pin, request).inspect_err(|_| {
            events.add(pin, VmEvent::ThpZeroPageAllocFailed, 1);
        })?;
        let mut slot = self.huge_zero().lock();
        if let Some(zero) = *slot {
            // Another CPU was faster.
            let held = held(zero);
            drop(slot);
            self.memcgs().release_unused(pin, new, order);
            return held;
        }
        *slot = Some(new);
        events.add(pin, VmEvent::ThpZeroPageAlloc, 1);
        held(new)
    }

    /// Takes one more reference to the huge page of zeros `zero`, of which an entry is held in its place.
    /// Returns false past the most references.
    pub(crate) fn hold_huge_zero_again(&self, zero: Pfn) -> bool {
        self.frames().known(zero).get(1)
    }

    /// The huge page of zeros, if there is one at this moment.
    pub fn huge_zero_page(&self) -> Option<Pfn> {
        let _pin = self.platform().pin();
        *self.huge_zero().lock()
    }

    /// Drops the references of `entries` entries that mapped the huge page of zeros `zero`, and that are in
    /// no TLB.
    pub(crate) fn put_huge_zero(&self, zero: Pfn, entries: u32) {
        let last = self.frames().known(zero).put(entries);
        debug_assert!(!last, "the huge page of zeros lost the reference of `Spaces`");
    }

    /// Frees the huge page of zeros if no entry maps it, and returns the number of frames freed: what Linux's
    /// shrinker does when memory runs short. The caller holds no lock of class
    /// [`HugeZero`](quire_arch::LockClass::HugeZero) or later.
    pub fn shrink_huge_zero(&self) -> u64 {
        let pin = self.platform().pin();
        let unused = {
            let mut slot = self.huge_zero().lock();
            // With the reference of `Spaces` alone there is no entry that a fork could copy, and faults take
            // the lock.
            slot.take_if(|zero| self.frames().known(*zero).refs() == 1)
        };
        unused.map_or(0, |zero| {
            let order = self.frames().known(zero).word().order();
            self.memcgs().release_unused(&pin, zero, order);
            order.pages()
        })
    }
}
