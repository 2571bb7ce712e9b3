//! An entry of a directory: a name and what it leads to, with its links in the directory's trees.

use core::alloc::Layout;
use core::marker::PhantomData;
use core::mem;
use core::ptr::{self, NonNull};
use quire_arch::Platform;
use quire_mm::frame::AllocError;
use quire_slab::KernelHeap;

/// The longest name, in bytes.
pub(crate) const LONGEST_NAME: usize = 255;

/// The left and the right entry below one, in one of the trees.
pub(crate) type Sides<T> = [Option<Place<T>>; 2];

/// An entry, with the bytes of its name behind it.
#[repr(C)]
pub(crate) struct Entry<T> {
    /// By tree.
    pub(crate) links: [Sides<T>; 2],
    /// An entry has at least the priority of those below it.
    pub(crate) priority: u64,
    pub(crate) hash: u64,
    pub(crate) offset: u64,
    pub(crate) child: T,
    length: u8,
}

/// An entry of a directory, by its place in memory.
pub(crate) struct Place<T>(NonNull<Entry<T>>);

impl<T> Clone for Place<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Place<T> {}

impl<T> PartialEq for Place<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Place<T> {
    pub(crate) const fn as_ptr(self) -> *mut Entry<T> {
        self.0.as_ptr()
    }
}

/// Spreads the bits of a word.
pub(crate) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The hash of a name. Who chooses names can make it the same for many: it orders names, with the bytes
/// behind it, and so saves comparisons only.
pub(crate) fn hash_of(name: &[u8]) -> u64 {
    let (words, rest) = name.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let start = name.len() as u64;
    words.iter().chain([&last]).fold(start, |hash, word| mix(hash ^ u64::from_le_bytes(*word)))
}

/// An entry that is in no directory. It is freed when dropped.
pub(crate) struct LooseEntry<'h, T, P: Platform> {
    place: Place<T>,
    heap: &'h KernelHeap<'h, P>,
    owns: PhantomData<Entry<T>>,
}

fn layout_of<T>(length: usize) -> Layout {
    let size = size_of::<Entry<T>>() + length;
    // SAFETY: the alignment is a type's; a size of less than a page does not overflow.
    unsafe { Layout::from_size_align_unchecked(size, align_of::<Entry<T>>()) }
}

impl<'h, T: Copy, P: Platform> LooseEntry<'h, T, P> {
    /// An entry for `name`, of at most [`LONGEST_NAME`] bytes.
    ///
    /// # Errors
    ///
    /// As for [`KernelHeap::allocate`].
    pub(crate) fn new(heap: &'h KernelHeap<'h, P>, name: &[u8], child: T) -> Result<Self, AllocError> {
        debug_assert!(name.len() <= LONGEST_NAME, "a name of {} bytes", name.len());
        let length = name.len().min(LONGEST_NAME);
        let place = heap.allocate(layout_of::<T>(length))?.cast::<Entry<T>>();
        let entry = Entry {
            links: [[None; 2]; 2],
            priority: 0,
            hash: hash_of(name),
            offset: 0,
            child,
            length: length as u8,
        };
        // SAFETY: the memory is this call's, and has room for the entry and the name behind it.
        unsafe {
            place.write(entry);
            ptr::copy_nonoverlapping(name.as_ptr(), place.add(1).cast::<u8>().as_ptr(), length);
        }
        Ok(Self { place: Place(place), heap, owns: PhantomData })
    }

    /// An entry that a directory had.
    ///
    /// # Safety
    ///
    /// The entry came from this heap, and is in no directory any more.
    pub(crate) const unsafe fn from_place(heap: &'h KernelHeap<'h, P>, place: Place<T>) -> Self {
        Self { place, heap, owns: PhantomData }
    }

    /// Gives it to a directory.
    pub(crate) const fn into_place(self) -> Place<T> {
        let place = self.place;
        mem::forget(self);
        place
    }
}

impl<T, P: Platform> Drop for LooseEntry<'_, T, P> {
    fn drop(&mut self) {
        // SAFETY: the entry is this one's, and was allocated with this layout from this heap (`new`,
        // `from_place`). What it leads to is `Copy`.
        unsafe {
            let length = (*self.place.as_ptr()).length;
            self.heap.free(self.place.0.cast(), layout_of::<T>(length.into()));
        }
    }
}

/// The name of an entry.
///
/// # Safety
///
/// The entry lives, and is not freed as long as the name is used.
pub(crate) unsafe fn name_of<'e, T>(place: Place<T>) -> &'e [u8] {
    // SAFETY: the bytes lie behind the entry, in the same allocation, and do not change (`LooseEntry::new`).
    unsafe {
        let length = (*place.as_ptr()).length;
        core::slice::from_raw_parts(place.as_ptr().add(1).cast::<u8>(), length.into())
    }
}
