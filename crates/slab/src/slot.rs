//! Slots: room for one object, and the word that links it while it is free.
//!
//! A typed cache has the word beside the object, so that a retired object stays intact for its readers, and
//! marks it while the object is in use. The heap's caches have it in the object's first bytes: nothing is
//! lost there, and what is in use is what is on no list.

use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, offset_of};
use core::ptr::{self, NonNull};
use quire_sync::atomic::raw::{AtomicPtr, Ordering};

/// An object's place in a typed cache. The object comes first, so that a pointer to it is one to the slot.
#[repr(C)]
pub(crate) struct ObjectSlot<T> {
    value: UnsafeCell<MaybeUninit<T>>,
    link: AtomicPtr<u8>,
}

impl<T> ObjectSlot<T> {
    pub(crate) const LINK: usize = offset_of!(Self, link);
}

/// A slot of some cache, by its first byte.
pub(crate) type SlotPtr = NonNull<u8>;

/// What the link beside an object holds while that is in use. No slot begins there.
const LIVE: *mut u8 = ptr::without_provenance_mut(1);

/// # Safety
///
/// A link word lies `offset` bytes into the slot. The caller owns the slot's link: the object in it is its to
/// free, or the slot is on a list that it holds.
unsafe fn link<'s>(slot: SlotPtr, offset: usize) -> &'s AtomicPtr<u8> {
    // SAFETY: the caller's promise; the word was written when the slab was made.
    unsafe { slot.add(offset).cast().as_ref() }
}

/// # Safety
///
/// As for [`link`].
pub(crate) unsafe fn set_next(slot: SlotPtr, offset: usize, next: Option<SlotPtr>) {
    let next = next.map_or(ptr::null_mut(), NonNull::as_ptr);
    // SAFETY: the caller's promise. Relaxed: lists of slots change under locks.
    unsafe { link(slot, offset) }.store(next, Ordering::Relaxed);
}

/// # Safety
///
/// As for [`link`], and the slot is on a list.
pub(crate) unsafe fn next(slot: SlotPtr, offset: usize) -> Option<SlotPtr> {
    // SAFETY: the caller's promise.
    NonNull::new(unsafe { link(slot, offset) }.load(Ordering::Relaxed))
}

/// Notes that the slot's object is in use.
///
/// # Safety
///
/// As for [`link`]; the word lies beside the object.
pub(crate) unsafe fn mark_live(slot: SlotPtr, offset: usize) {
    // SAFETY: the caller's promise.
    unsafe { link(slot, offset) }.store(LIVE, Ordering::Relaxed);
}

/// Whether the slot's object is in use.
///
/// # Safety
///
/// A link word lies `offset` bytes into the slot, beside the object; no thread changes it meanwhile.
pub(crate) unsafe fn is_live(slot: SlotPtr, offset: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { link(slot, offset) }.load(Ordering::Relaxed) == LIVE
}

/// Slots in a row, through their links. Last in, first out.
#[derive(Debug, Default)]
pub(crate) struct SlotList {
    first: Option<SlotPtr>,
    count: u32,
}

// SAFETY: a list owns the slots on it, which are plain memory of the machine that any CPU can reach.
unsafe impl Send for SlotList {}

impl SlotList {
    pub(crate) const EMPTY: Self = Self { first: None, count: 0 };

    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn first(&self) -> Option<SlotPtr> {
        self.first
    }

    /// # Safety
    ///
    /// The list takes the slot over: it belongs to the same cache as all others on the list, whose links are
    /// at `offset`, and is used by no other thread.
    #[inline]
    pub(crate) unsafe fn push(&mut self, slot: SlotPtr, offset: usize) {
        // SAFETY: the caller hands the slot over.
        unsafe { set_next(slot, offset, self.first) };
        self.first = Some(slot);
        self.count += 1;
    }

    /// # Safety
    ///
    /// `offset` is that of the cache that the slots belong to.
    #[inline]
    pub(crate) unsafe fn pop(&mut self, offset: usize) -> Option<SlotPtr> {
        let first = self.first?;
        // SAFETY: the list owns its slots.
        self.first = unsafe { next(first, offset) };
        self.count -= 1;
        Some(first)
    }

    /// Moves all of `other`, whose last slot is `last`, to the front, in constant time.
    ///
    /// # Safety
    ///
    /// Both lists hold slots of the cache whose links are at `offset`.
    pub(crate) unsafe fn prepend(&mut self, other: &mut Self, last: SlotPtr, offset: usize) {
        let Self { first, count } = core::mem::take(other);
        // SAFETY: the lists own their slots.
        unsafe { set_next(last, offset, self.first) };
        self.first = first;
        self.count += count;
    }

    /// Takes up to `limit` slots from the front.
    ///
    /// # Safety
    ///
    /// As for [`pop`](Self::pop).
    pub(crate) unsafe fn split(&mut self, limit: u32, offset: usize) -> Self {
        if self.count <= limit {
            return core::mem::take(self);
        }
        let mut taken = Self::EMPTY;
        while taken.count < limit {
            // SAFETY: the caller's promise; what was popped has no owner.
            unsafe {
                let Some(slot) = self.pop(offset) else { break };
                taken.push(slot, offset);
            }
        }
        taken
    }
}
