//! A general-purpose heap.

use crate::geometry::Geometry;
use crate::place::{CLASSES, SlabPlace};
use crate::slot::Slot;
use crate::untyped::{CacheCore, CacheSpec};
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use quire_arch::{Order, PAGE_SIZE, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, FailSite, FrameCache, Frames, MachineId};

/// Memory of any size on the frames of a machine: up to 8 KiB from caches of Linux's `kmalloc` sizes, more as
/// blocks of frames, up to the largest order.
///
/// An object is aligned as its layout says, and in a cache also to the largest power of two that divides the
/// cache's size. Layouts of no bytes get an object too. What a heap holds lives as long as the machine, as
/// for [`SlabCache`](crate::SlabCache).
///
/// Debug builds assert that what is freed is an object of this layout, and not one that was just freed on
/// this CPU.
pub struct Heap<P: Platform> {
    classes: [NonNull<CacheCore<P>>; CLASSES.len()],
    machine: MachineId,
}

// SAFETY: a heap hands out plain memory; its own data are behind locks.
unsafe impl<P: Platform> Send for Heap<P> {}
// SAFETY: as for `Send`.
unsafe impl<P: Platform> Sync for Heap<P> {}

impl<P: Platform> Heap<P> {
    /// The site of blocks that are larger than the caches' objects, which have their cache's name as their
    /// site.
    pub const SITE: FailSite = FailSite::new("kmalloc");

    /// A heap. It takes one block for its caches, and frames for objects as they are needed.
    ///
    /// # Errors
    ///
    /// As for [`Frames::allocate`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn new(frames: &Frames<P>, pin: &Pin<'_, P>) -> Result<Self, AllocError> {
        let cpus = frames.platform().cpu_count();
        let each = CacheCore::<P>::bytes(cpus);
        let (pfn, order) = CacheCore::allocate_area(frames, pin, CLASSES.len())?;
        let base = frames.platform().direct_map(pfn);
        let classes = core::array::from_fn(|number| {
            let (size, name) = CLASSES[number];
            let align = (1 << size.trailing_zeros()).min(PAGE_SIZE as usize);
            // SAFETY: a power of two that divides the size.
            let layout = unsafe { Layout::from_size_align_unchecked(size, align) };
            let geometry = Geometry::of(layout, None, cpus);
            let area = (number == 0).then_some((pfn, order));
            // SAFETY: the block is this call's, page aligned, and large enough for all cores, which are a
            // multiple of their padding. It is never freed, so the cache lasts as long as the machine:
            // `Heap` checks that it is used with that machine only.
            unsafe {
                let spec = CacheSpec { name, geometry, drop: None, area };
                CacheCore::install(frames, base.add(number * each), spec)
            }
        });
        Ok(Self { classes, machine: frames.id() })
    }

    /// A cache, if `frames` is the machine that it lies on.
    #[inline]
    fn class(&self, frames: &Frames<P>, number: usize) -> Option<&CacheCore<P>> {
        if self.machine != frames.id() {
            return None;
        }
        // SAFETY: the machine is alive, since `frames` is borrowed, and it is the one that the cache was made
        // on: identities are never used twice.
        Some(unsafe { self.classes[number].as_ref() })
    }

    /// Uninitialised memory for `layout`.
    ///
    /// Takes locks of class Slab, and what [`Frames::allocate`] takes.
    ///
    /// # Errors
    ///
    /// As for [`Frames::allocate`], with [`AllocError::OutOfMemory`] also where no block is that large, and
    /// [`AllocError::ForeignCache`] with another machine's frames.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(
        &self,
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        layout: Layout,
    ) -> Result<NonNull<u8>, AllocError> {
        match SlabPlace::of(layout) {
            Some(SlabPlace::Class(number)) => {
                let slot =
                    self.class(frames, number).ok_or(AllocError::ForeignCache)?.allocate(frames, pin)?;
                // SAFETY: the caches of a heap have their links there.
                Ok(unsafe { slot.start(Geometry::IN_OBJECT) })
            }
            Some(SlabPlace::Block(order)) => {
                self.allocate_block(frames, pin, layout, AllocRequest::new(order, Self::SITE))
            }
            None => Err(AllocError::OutOfMemory),
        }
    }

    /// As [`allocate`](Self::allocate), filled with zeros.
    ///
    /// # Errors
    ///
    /// As for [`allocate`](Self::allocate).
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate_zeroed(
        &self,
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        layout: Layout,
    ) -> Result<NonNull<u8>, AllocError> {
        if let Some(SlabPlace::Block(order)) = SlabPlace::of(layout) {
            let request = AllocRequest::new(order, Self::SITE).zeroed();
            return self.allocate_block(frames, pin, layout, request);
        }
        let object = self.allocate(frames, pin, layout)?;
        // SAFETY: the object is this call's and has that many bytes.
        unsafe { object.write_bytes(0, layout.size()) };
        Ok(object)
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_block(
        &self,
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        layout: Layout,
        request: AllocRequest,
    ) -> Result<NonNull<u8>, AllocError> {
        if self.machine != frames.id() {
            return Err(AllocError::ForeignCache);
        }
        let pfn = frames.allocate(pin, request)?;
        let base = frames.platform().direct_map(pfn);
        let offset = base.addr().get().wrapping_neg() & (layout.align() - 1);
        // SAFETY: a block has room for the size after its first aligned byte (`SlabPlace::of`).
        Ok(unsafe { base.add(offset) })
    }

    /// Frees memory. Never allocates.
    ///
    /// # Safety
    ///
    /// The object was allocated from this heap on this machine, with this layout or one that it
    /// [fits](Self::fits_in_place) in place of, and has not been freed; no thread uses it any more.
    #[inline]
    pub unsafe fn free(&self, frames: &Frames<P>, pin: &Pin<'_, P>, object: NonNull<u8>, layout: Layout) {
        match SlabPlace::of(layout) {
            Some(SlabPlace::Class(number)) => {
                let Some(core) = self.class(frames, number) else {
                    debug_assert!(false, "an object is freed on another machine");
                    return;
                };
                // SAFETY: the caches of a heap have their links there, and the object is the caller's to end.
                let slot = unsafe { Slot::at(object, Geometry::IN_OBJECT) };
                debug_assert!(core.can_free(frames, pin, &slot), "{} is not given {object:?}", core.name);
                core.free(frames, pin, slot);
            }
            Some(SlabPlace::Block(order)) => Self::free_block(frames, pin, object, order),
            None => debug_assert!(false, "an object is freed that no heap can have given out"),
        }
    }

    fn free_block(frames: &Frames<P>, pin: &Pin<'_, P>, object: NonNull<u8>, order: Order) {
        // A block is aligned to its size in frames, so its start is found from anywhere in it.
        let block = frames.map().pfn_of_address(object.addr().get()).map(|pfn| pfn.block_start(order));
        let freed = block.map(|block| frames.free(pin, block, order));
        debug_assert!(freed == Some(Ok(())), "a block of the heap, order {order}: {freed:?}");
    }

    /// Gives back every frame that no object needs, those that CPUs keep included, and returns how many.
    pub fn shrink(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> u64 {
        let classes = (0..CLASSES.len()).filter_map(|number| self.class(frames, number));
        classes.map(|core| core.shrink(frames, pin)).sum()
    }

    /// Whether an object that was allocated with `old` can be taken as one of `new`, which has the same
    /// alignment, without being moved.
    pub fn fits_in_place(old: Layout, new: Layout) -> bool {
        debug_assert_eq!(old.align(), new.align());
        SlabPlace::of(old) == SlabPlace::of(new)
    }
}

impl<P: Platform> fmt::Debug for Heap<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("machine", &self.machine).finish_non_exhaustive()
    }
}
