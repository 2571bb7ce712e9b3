//! Quire's page frames for the crate [`x86_64`]: its page-table code takes frames from here and gives them
//! back.
//!
//! A kernel that maps its own half with that crate passes [`X86Frames`] where a
//! [`FrameAllocator`] or a [`FrameDeallocator`] is asked for:
//!
//! ```
//! use quire_frame::{FrameConfig, Frames, KernelFrames};
//! use quire_host::{HostConfig, HostPlatform};
//! use quire_x86_64::X86Frames;
//! use x86_64::structures::paging::{FrameAllocator, FrameDeallocator, PhysFrame, Size4KiB};
//!
//! let platform: HostPlatform = HostPlatform::new(&HostConfig::with_ram(16 << 20))?;
//! let cpu = platform.vcpu(0)?;
//! let frames = Frames::new(platform, FrameConfig::default())?;
//! let mut x86 = X86Frames::new(KernelFrames::new(&frames)); // or of `Memory::kernel_frames`
//! let frame: PhysFrame<Size4KiB> = x86.allocate_frame().ok_or("no memory")?;
//! // SAFETY: nothing uses the frame.
//! unsafe { x86.deallocate_frame(frame) };
//! # drop(cpu);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![no_std]

use quire_arch::{Order, PAGE_SHIFT, Pfn, Platform};
use quire_frame::KernelFrames;
use x86_64::PhysAddr;
use x86_64::structures::paging::{FrameAllocator, FrameDeallocator, PageSize, PhysFrame, Size2MiB, Size4KiB};

/// The frames of a machine as the crate [`x86_64`] takes them. Copies are the same machine.
///
/// Only what was allocated through a [`KernelFrames`] of the machine, with the same size, is freed. A frame
/// of another origin is left as it is: the crate's `clean_up` gives back every empty table that it finds, a
/// boot loader's too.
#[derive(Debug)]
pub struct X86Frames<'f, P: Platform>(KernelFrames<'f, P>);

impl<'f, P: Platform> X86Frames<'f, P> {
    /// The frames of a machine: of `Memory::kernel_frames`, or of the allocator alone.
    pub const fn new(frames: KernelFrames<'f, P>) -> Self {
        Self(frames)
    }

    fn allocate<S: PageSize>(&self, order: Order) -> Option<PhysFrame<S>> {
        let pfn = self.0.allocate(order).ok()?;
        match PhysAddr::try_new(pfn.to_phys().0)
            .ok()
            .and_then(|addr| PhysFrame::from_start_address(addr).ok())
        {
            Some(frame) => Some(frame),
            // A frame that the crate cannot name: no x86-64 has RAM there.
            None => {
                // SAFETY: just allocated, and used by nothing.
                let _ = unsafe { self.0.free(pfn, order) };
                None
            }
        }
    }

    /// Frees a frame if it is one of a [`KernelFrames`].
    ///
    /// # Safety
    ///
    /// As for [`KernelFrames::free`].
    unsafe fn free<S: PageSize>(&self, frame: PhysFrame<S>, order: Order) {
        let pfn = Pfn(frame.start_address().as_u64() >> PAGE_SHIFT);
        // A frame of another origin is refused, and the crate has no way to be told. SAFETY: the caller's
        // promise.
        let _ = unsafe { self.0.free(pfn, order) };
    }
}

impl<P: Platform> Clone for X86Frames<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for X86Frames<'_, P> {}

// SAFETY: the allocator gives each frame to one caller until it is given back.
unsafe impl<P: Platform> FrameAllocator<Size4KiB> for X86Frames<'_, P> {
    fn allocate_frame(&mut self) -> Option<PhysFrame<Size4KiB>> {
        self.allocate(Order::ZERO)
    }
}

// SAFETY: the allocator gives each block to one caller until it is given back; it is aligned to its size.
unsafe impl<P: Platform> FrameAllocator<Size2MiB> for X86Frames<'_, P> {
    fn allocate_frame(&mut self) -> Option<PhysFrame<Size2MiB>> {
        self.allocate(Order::PMD)
    }
}

impl<P: Platform> FrameDeallocator<Size4KiB> for X86Frames<'_, P> {
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame<Size4KiB>) {
        // SAFETY: the caller's promise that the frame is unused.
        unsafe { self.free(frame, Order::ZERO) };
    }
}

impl<P: Platform> FrameDeallocator<Size2MiB> for X86Frames<'_, P> {
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame<Size2MiB>) {
        // SAFETY: the caller's promise that the frame is unused.
        unsafe { self.free(frame, Order::PMD) };
    }
}
