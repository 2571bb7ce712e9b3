//! Objects of any size for workloads, from the heap of a machine: up to 8 KiB from slabs, above that whole
//! blocks.

use crate::error::Done;
use crate::machine::Machine;
use core::alloc::Layout;
use core::ptr::NonNull;
use quire_arch::{PAGE_SIZE, Pin};
use quire_frame::AllocError;
use quire_host::HostPlatform;
use quire_slab::Heap;

/// The largest object that comes from a slab.
pub(crate) const LARGEST: usize = 2 * PAGE_SIZE as usize;

/// An object that was allocated and not freed. Its holder owns its memory.
#[derive(Debug)]
pub(crate) struct Object {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an object owns its memory, which is plain bytes of a machine that lives longer than the threads on
// it.
unsafe impl Send for Object {}

impl Object {
    /// Copies `from` to the object's start, as much as fits.
    #[inline]
    pub(crate) fn write(&mut self, from: &[u8]) {
        let bytes = from.len().min(self.layout.size());
        // SAFETY: the object owns its bytes, and `from` is other memory.
        unsafe { self.at.copy_from_nonoverlapping(NonNull::from(from).cast(), bytes) };
    }

    /// Copies the object's first bytes, which were written before, into `to`.
    #[inline]
    pub(crate) fn read(&self, to: &mut [u8]) {
        let bytes = to.len().min(self.layout.size());
        // SAFETY: as for `write`.
        unsafe { self.at.copy_to_nonoverlapping(NonNull::from(to).cast(), bytes) };
    }
}

/// A heap of objects on a machine, which gets back every frame that no object uses when this is dropped.
#[derive(Debug)]
pub(crate) struct Objects<'m> {
    machine: &'m Machine,
    heap: Heap<HostPlatform>,
}

impl<'m> Objects<'m> {
    pub(crate) fn new(machine: &'m Machine) -> Done<Self> {
        Ok(Self { machine, heap: machine.pinned_on(0, |pin| Heap::new(machine.frames(), pin))? })
    }

    pub(crate) fn machine(&self) -> &'m Machine {
        self.machine
    }

    /// An object of `bytes` bytes.
    #[inline]
    pub(crate) fn allocate(&self, pin: &Pin<'_, HostPlatform>, bytes: usize) -> Result<Object, AllocError> {
        let layout =
            Layout::from_size_align(bytes, align_of::<u64>()).map_err(|_| AllocError::OutOfMemory)?;
        Ok(Object { at: self.heap.allocate(self.machine.frames(), pin, layout)?, layout })
    }

    /// Frees an object.
    ///
    /// # Safety
    ///
    /// The object is from this heap.
    #[expect(clippy::needless_pass_by_value, reason = "the object ends here")]
    #[inline]
    pub(crate) unsafe fn free(&self, pin: &Pin<'_, HostPlatform>, object: Object) {
        // SAFETY: the object was allocated with its layout, from this heap, and ends here.
        unsafe { self.heap.free(self.machine.frames(), pin, object.at, object.layout) };
    }

    /// Frees every frame that no object uses.
    pub(crate) fn shrink(&self) {
        self.machine.pinned_on(0, |pin| self.heap.shrink(self.machine.frames(), pin));
    }
}

impl Drop for Objects<'_> {
    fn drop(&mut self) {
        self.shrink();
    }
}
