//! Frames for a kernel's own use.

use super::Frames;
use crate::error::{AllocError, FreeError};
use crate::fail_points::FailSite;
use crate::kind::Kind;
use crate::map::Frame;
use crate::request::AllocRequest;
use core::fmt;
use quire_arch::{Order, Pfn, Platform};

/// A machine's frames, for a kernel's own allocations: stacks, tables of its own half, device buffers. A
/// handle; copies refer to the same machine.
///
/// The memory management does not look into these frames, and its audit counts them as in use
/// ([`Kind::Kernel`]).
pub struct KernelFrames<'f, P: Platform> {
    frames: &'f Frames<P>,
}

impl<'f, P: Platform> KernelFrames<'f, P> {
    /// The site by which a [plan](crate::FailPlan) finds these allocations.
    pub const SITE: FailSite = FailSite::new("kernel");

    /// The frames of a machine.
    #[inline]
    #[doc(hidden)]
    pub const fn new(frames: &'f Frames<P>) -> Self {
        Self { frames }
    }

    /// A block of `order`, uninitialised.
    ///
    /// # Errors
    ///
    /// As for [`Frames::allocate`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(self, order: Order) -> Result<Pfn, AllocError> {
        self.frames
            .allocate(&self.frames.platform().pin(), AllocRequest::new(order, Self::SITE).kind(Kind::Kernel))
    }

    /// As [`allocate`](Self::allocate), filled with zeros.
    ///
    /// # Errors
    ///
    /// As for [`Frames::allocate`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate_zeroed(self, order: Order) -> Result<Pfn, AllocError> {
        let request = AllocRequest::new(order, Self::SITE).kind(Kind::Kernel).zeroed();
        self.frames.allocate(&self.frames.platform().pin(), request)
    }

    /// Frees a block.
    ///
    /// # Errors
    ///
    /// [`FreeError`] where the block is not allocated here with this order; nothing was changed.
    ///
    /// # Safety
    ///
    /// If the block is allocated here, it is the caller's, and nothing uses it any more.
    pub unsafe fn free(self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        // What the memory management has given out keeps its kind until it is freed.
        let kind = self.frames.frame(pfn).map_or(Kind::Hole, Frame::kind);
        if kind.is_for_users() && kind != Kind::Kernel {
            return Err(FreeError::NotKernel);
        }
        self.frames.free(&self.frames.platform().pin(), pfn, order)
    }

    /// The machine.
    #[doc(hidden)]
    #[inline]
    pub fn platform(self) -> &'f P {
        self.frames.platform()
    }

    /// The allocator itself.
    ///
    /// # Safety
    ///
    /// Its functions take frame numbers and trust that the caller owns these frames.
    #[doc(hidden)]
    #[inline]
    pub const unsafe fn frames(self) -> &'f Frames<P> {
        self.frames
    }
}

impl<P: Platform> Clone for KernelFrames<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for KernelFrames<'_, P> {}

impl<P: Platform> fmt::Debug for KernelFrames<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelFrames").finish_non_exhaustive()
    }
}
