//! Blocks of the machine's memory for the metadata of devices.

use crate::SwapOnError;
use core::ptr::NonNull;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::{AllocRequest, FailSite, Frames, Kind};

const SITE: FailSite = FailSite::new("swap_device");

/// A block of the machine's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) pfn: Pfn,
    pub(super) order: Order,
}

impl Block {
    pub(super) fn allocate<P: Platform>(
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        bytes: usize,
    ) -> Result<Self, SwapOnError> {
        let order = Order::for_bytes(bytes as u64).ok_or(SwapOnError::TooLarge)?;
        let pfn = frames
            .allocate(pin, AllocRequest::new(order, SITE).kind(Kind::Swap))
            .map_err(SwapOnError::NoMemory)?;
        Ok(Self { pfn, order })
    }

    pub(super) fn base<P: Platform>(self, frames: &Frames<P>) -> NonNull<u8> {
        frames.platform().direct_map(self.pfn)
    }

    pub(super) fn free<P: Platform>(self, frames: &Frames<P>, pin: &Pin<'_, P>) {
        let freed = frames.free(pin, self.pfn, self.order);
        debug_assert!(freed.is_ok(), "memory of a swap device: {freed:?}");
    }
}
