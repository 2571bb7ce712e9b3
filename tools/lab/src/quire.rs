//! Quire as an allocator of the harness.

use crate::harness::BlockAllocator;
use crate::machine::Machine;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::{AllocRequest, FailSite, Migratetype};
use quire_host::HostPlatform;

/// What the lab allocates itself.
pub(crate) const LAB: FailSite = FailSite::new("lab");

fn request(order: Order) -> AllocRequest {
    AllocRequest::new(order, LAB).movability(Migratetype::Movable)
}

/// Quire, with the pin held for a phase of a round: for comparison with allocators that get the core's
/// number.
#[derive(Clone, Copy, Debug)]
pub struct PinHeld<'m>(pub &'m Machine);

impl<'m> BlockAllocator for PinHeld<'m> {
    type Core = Pin<'m, HostPlatform>;

    fn on_core<R>(&self, number: usize, work: impl FnOnce(&Self::Core) -> R) -> R {
        self.0.pinned_on(number, work)
    }

    #[inline]
    fn get(&self, pin: &Self::Core, order: Order) -> Option<Pfn> {
        self.0.frames().allocate(pin, request(order)).ok()
    }

    #[inline]
    fn put(&self, pin: &Self::Core, pfn: Pfn, order: Order) -> bool {
        self.0.frames().free(pin, pfn, order).is_ok()
    }
}

/// Quire, with a pin for each operation: the cost for a caller that is not pinned.
#[derive(Clone, Copy, Debug)]
pub struct PinEach<'m>(pub &'m Machine);

impl BlockAllocator for PinEach<'_> {
    type Core = ();

    fn on_core<R>(&self, number: usize, work: impl FnOnce(&()) -> R) -> R {
        self.0.on_cpu(number, || work(&()))
    }

    #[inline]
    fn get(&self, _core: &(), order: Order) -> Option<Pfn> {
        let frames = self.0.frames();
        frames.allocate(&frames.platform().pin(), request(order)).ok()
    }

    #[inline]
    fn put(&self, _core: &(), pfn: Pfn, order: Order) -> bool {
        let frames = self.0.frames();
        frames.free(&frames.platform().pin(), pfn, order).is_ok()
    }
}
