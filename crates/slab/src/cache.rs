//! The typed interface of a cache.

use crate::geometry::Geometry;
use crate::slot::{ObjectSlot, Slot, SlotPtr};
use crate::untyped::{CacheCore, CacheReport, CacheSpec};
use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use quire_arch::{Order, Pfn, Pin, Platform};
use quire_frame::{AllocError, FrameCache, Frames, MachineId, Turn};

/// Objects of type `T` on the frames of a machine.
///
/// A cache takes no frames until its first object, apart from its own few. It lives as long as the machine:
/// dropping the `SlabCache` does not free its frames or drop the objects in it.
///
/// `T` is dropped in place when an object is freed, or when the readers of a retired one are gone. This can
/// happen inside an allocation that is about to fail, so `T`'s `Drop` takes no locks. And it can happen long
/// after the caller retired it, so `T` borrows nothing.
pub struct SlabCache<T, P: Platform> {
    core: NonNull<CacheCore<P>>,
    machine: MachineId,
    objects: PhantomData<T>,
}

// SAFETY: a cache moves values of `T` between threads and shares none; its own data are behind locks.
unsafe impl<T: Send, P: Platform> Send for SlabCache<T, P> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send, P: Platform> Sync for SlabCache<T, P> {}

impl<T: Send + 'static, P: Platform> SlabCache<T, P> {
    /// A cache called `name`, which is also the site of its objects in fail plans.
    ///
    /// # Errors
    ///
    /// As for [`Frames::allocate`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn new(frames: &Frames<P>, pin: &Pin<'_, P>, name: &'static str) -> Result<Self, AllocError> {
        let layout = Layout::new::<ObjectSlot<T>>();
        const { assert!(Geometry::fits(Layout::new::<ObjectSlot<T>>()), "no slab can hold objects of this type") };
        let (pfn, order) = CacheCore::allocate_area(frames, pin, 1)?;
        let geometry = Geometry::of(layout, Some(ObjectSlot::<T>::LINK), frames.platform().cpu_count());
        let drop = core::mem::needs_drop::<T>().then_some(drop_object::<T> as unsafe fn(SlotPtr));
        let spec = CacheSpec { name, geometry, drop, area: Some((pfn, order)) };
        // SAFETY: the block is this call's, page aligned, and large enough. It is never freed, so the
        // cache lasts as long as the machine: `SlabCache` checks that it is used with that machine only.
        let core = unsafe { CacheCore::install(frames, frames.platform().direct_map(pfn), spec) };
        Ok(Self { core, machine: frames.id(), objects: PhantomData })
    }

    /// The cache, if `frames` is the machine that it lies on.
    #[inline]
    fn core(&self, frames: &Frames<P>) -> Option<&CacheCore<P>> {
        if self.machine != frames.id() {
            return None;
        }
        // SAFETY: the machine is alive, since `frames` is borrowed, and it is the one that the cache was made
        // on: identities are never used twice.
        Some(unsafe { self.core.as_ref() })
    }

    /// An object with the value `value`.
    ///
    /// Takes locks of class Slab, and what [`Frames::allocate`] takes.
    ///
    /// # Errors
    ///
    /// As for [`Frames::allocate`], and [`AllocError::ForeignCache`] with another machine's frames. The value
    /// is dropped then.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(&self, frames: &Frames<P>, pin: &Pin<'_, P>, value: T) -> Result<NonNull<T>, AllocError> {
        let core = self.core(frames).ok_or(AllocError::ForeignCache)?;
        let slot = core.allocate(frames, pin)?;
        slot.mark_live();
        // SAFETY: slots of this cache have their links there.
        let object = unsafe { slot.start(ObjectSlot::<T>::LINK) }.cast::<T>();
        // SAFETY: the slot is ours, was laid out for `T`, and holds no value.
        unsafe { object.write(value) };
        Ok(object)
    }

    /// Drops the object and frees its memory. Never allocates.
    ///
    /// # Safety
    ///
    /// The object was allocated from this cache on this machine and has not been freed or retired; no thread
    /// uses it any more.
    #[inline]
    pub unsafe fn free(&self, frames: &Frames<P>, pin: &Pin<'_, P>, object: NonNull<T>) {
        let Some(core) = self.core(frames) else {
            debug_assert!(false, "an object is freed on another machine");
            return;
        };
        // SAFETY: slots of this cache have their links there, and the object is the caller's to end.
        let slot = unsafe { Slot::at(object.cast(), ObjectSlot::<T>::LINK) };
        debug_assert!(slot.is_live(), "an object of {} is freed twice", core.name);
        // SAFETY: the object is the caller's to end.
        unsafe { object.drop_in_place() };
        core.free(frames, pin, slot);
    }

    /// Frees an object that lock-free readers may still access: it stays intact until every section of
    /// [`Frames::epoch`] that is open now is closed, then it is dropped and freed. Never allocates.
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free), except that readers inside such sections may still use the object; no
    /// other thread can find it any more.
    #[inline]
    pub unsafe fn retire(&self, frames: &Frames<P>, pin: &Pin<'_, P>, object: NonNull<T>) {
        let Some(core) = self.core(frames) else {
            debug_assert!(false, "an object is retired on another machine");
            return;
        };
        // SAFETY: slots of this cache have their links there, and the object is the caller's to end.
        let slot = unsafe { Slot::at(object.cast(), ObjectSlot::<T>::LINK) };
        debug_assert!(slot.is_live(), "an object of {} is retired twice", core.name);
        core.retire(frames, pin, slot);
    }

    /// Frees what was retired, as far as the readers are gone.
    pub fn reap(&self, frames: &Frames<P>, pin: &Pin<'_, P>) {
        if let Some(core) = self.core(frames) {
            core.reap(frames, pin, Turn::ALL, u64::MAX);
        }
    }

    /// Gives back every frame that no object needs, those that CPUs keep included, and returns how many.
    pub fn shrink(&self, frames: &Frames<P>, pin: &Pin<'_, P>) -> u64 {
        self.core(frames).map_or(0, |core| core.shrink(frames, pin))
    }

    /// Calls `visit` with every block that holds objects, pinned, under the cache's lock: it must not wait,
    /// nor use the cache.
    pub fn for_each_frame(&self, frames: &Frames<P>, mut visit: impl FnMut(Pfn, Order)) {
        if let Some(core) = self.core(frames) {
            let map = frames.map();
            core.for_each_slab(frames, |slab, _| visit(slab, map.known(slab).word().order()));
        }
    }

    /// The cache in numbers, or `None` with another machine's frames.
    pub fn report(&self, frames: &Frames<P>) -> Option<CacheReport> {
        self.core(frames).map(|core| core.report(frames))
    }
}

impl<T, P: Platform> fmt::Debug for SlabCache<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabCache").field("machine", &self.machine).finish_non_exhaustive()
    }
}

/// # Safety
///
/// The slot holds a `T` that no thread uses.
unsafe fn drop_object<T>(slot: SlotPtr) {
    // SAFETY: the caller's promise.
    unsafe { slot.cast::<T>().drop_in_place() };
}
