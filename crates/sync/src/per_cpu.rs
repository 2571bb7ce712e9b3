//! One value per CPU, in memory that the machine itself provides.

use crate::padded::CachePadded;
use core::ptr::NonNull;
use quire_arch::{CpuId, Pin, Platform};

/// An array with one padded element for each CPU of a machine.
///
/// The elements are shared: other CPUs may read them (to sum a counter, to drain a list), so `T` brings its
/// own atomics or lock. What a [`Pin`] adds is that no other thread uses the element *as its own* meanwhile.
#[derive(Debug)]
pub struct PerCpu<T> {
    first: NonNull<CachePadded<T>>,
    count: usize,
}

// SAFETY: `PerCpu` hands out only `&T`, to any thread, as a shared slice would.
unsafe impl<T: Sync> Sync for PerCpu<T> {}
// SAFETY: the elements may be reached from the thread that receives the array, so `T` must be sendable and
// shareable as in a slice reference that also owns.
unsafe impl<T: Send + Sync> Send for PerCpu<T> {}

impl<T> PerCpu<T> {
    /// An array for no CPU.
    pub const fn none() -> Self {
        Self { first: NonNull::dangling(), count: 0 }
    }

    /// Bytes that an array for `cpus` CPUs needs, aligned as [`CachePadded<T>`] is.
    pub const fn bytes(cpus: usize) -> usize {
        cpus * size_of::<CachePadded<T>>()
    }

    /// Fills the memory at `first` with one element for each of `count` CPUs.
    ///
    /// # Safety
    ///
    /// `first` points to [`bytes`](Self::bytes)`(count)` bytes, aligned for `CachePadded<T>`, owned by the
    /// array for as long as it lives.
    pub unsafe fn init(first: NonNull<u8>, count: usize, mut make: impl FnMut(CpuId) -> T) -> Self {
        let first = first.cast::<CachePadded<T>>();
        let mut made = 0;
        for cpu in (0..count).filter_map(CpuId::new) {
            // SAFETY: element `made < count` lies in the memory that the caller handed over. Without its
            // padding, which would be one more copy of it on the stack.
            unsafe { (&raw mut (*first.add(made).as_ptr()).0).write(make(cpu)) };
            made += 1;
        }
        Self { first, count: made }
    }

    /// The caller's own element.
    ///
    /// # Panics
    ///
    /// When the pin is of another machine, with more CPUs than this array was made for.
    #[inline]
    pub fn mine<P: Platform>(&self, pin: &Pin<'_, P>) -> &T {
        &self.as_slice()[pin.cpu().index()].0
    }

    /// The element of `cpu`, or `None` past the machine's CPUs.
    #[inline]
    pub fn get(&self, cpu: CpuId) -> Option<&T> {
        self.as_slice().get(cpu.index()).map(|padded| &padded.0)
    }

    /// Every element, in the order of the CPUs.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.as_slice().iter().map(|padded| &padded.0)
    }

    /// The elements of up to `most` CPUs, beginning with `first`, a number modulo that of the CPUs: for work
    /// that is bounded, and goes on with other CPUs later.
    pub fn some(&self, first: usize, most: usize) -> impl Iterator<Item = &T> {
        let (before, from) = self.as_slice().split_at(first % self.count.max(1));
        from.iter().chain(before).take(most).map(|padded| &padded.0)
    }

    #[inline]
    fn as_slice(&self) -> &[CachePadded<T>] {
        // SAFETY: `init` wrote `count` elements, and no other code uses the memory.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}
