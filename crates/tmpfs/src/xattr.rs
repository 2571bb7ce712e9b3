//! Extended attributes of an inode: a list in descending order of names, as Linux lists them.

use crate::error::Error;
use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::slice;
use quire_arch::Platform;
use quire_mm::frame::AllocError;
use quire_slab::KernelHeap;

/// The largest value, in bytes (Linux's `XATTR_SIZE_MAX`).
const LARGEST_VALUE: usize = 65536;
/// The longest name, in bytes.
const LONGEST_NAME: usize = 255;
/// What an attribute counts beside its name and value.
const SHARE: u64 = 40;

/// Whether an attribute must exist, or must not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SetMode {
    /// Either.
    #[default]
    Any,
    /// It must not exist (`XATTR_CREATE`).
    Create,
    /// It must exist (`XATTR_REPLACE`).
    Replace,
}

/// Checks the name of an attribute. Whether a program may use it is the embedder's.
///
/// # Errors
///
/// As Linux's tmpfs: [`Error::NotSupported`] outside of `user.`, `trusted.` and `security.`,
/// and [`Error::Invalid`].
pub(crate) fn check_name(name: &[u8]) -> Result<(), Error> {
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let prefix = prefixes.into_iter().find(|prefix| name.starts_with(prefix)).ok_or(Error::NotSupported)?;
    if name.len() == prefix.len() || name.contains(&0) { Err(Error::Invalid) } else { Ok(()) }
}

/// Checks the lengths of a name and a value.
///
/// # Errors
///
/// [`Error::Range`] and [`Error::ValueTooLarge`].
pub(crate) const fn check_lengths(name: &[u8], value: &[u8]) -> Result<(), Error> {
    if name.is_empty() || name.len() > LONGEST_NAME {
        Err(Error::Range)
    } else if value.len() > LARGEST_VALUE {
        Err(Error::ValueTooLarge)
    } else {
        Ok(())
    }
}

/// An attribute, with the bytes of its name and its value behind it.
#[repr(C)]
struct Attribute {
    next: Option<NonNull<Attribute>>,
    name: u32,
    value: u32,
}

/// The attributes of an inode, which owns them; they are all of one heap.
#[derive(Debug, Default)]
pub(crate) struct Xattrs {
    first: Option<NonNull<Attribute>>,
}

// SAFETY: the attributes are reached through the list only, which owns them.
unsafe impl Send for Xattrs {}
// SAFETY: as for `Send`.
unsafe impl Sync for Xattrs {}

fn layout_of(name: usize, value: usize) -> Layout {
    let size = size_of::<Attribute>() + name + value;
    // SAFETY: the alignment is a type's; a size of 64 KiB and a little does not overflow.
    unsafe { Layout::from_size_align_unchecked(size, align_of::<Attribute>()) }
}

/// What an attribute takes of the space for inodes, in bytes, as in Linux.
pub(crate) const fn share_of(name: usize, value: usize) -> u64 {
    SHARE + name as u64 + value as u64
}

/// Name and value.
///
/// # Safety
///
/// The attribute lives as long as they are used.
unsafe fn parts<'a>(place: NonNull<Attribute>) -> (&'a [u8], &'a [u8]) {
    // SAFETY: the bytes lie behind the attribute, in the same allocation, and do not change (`Xattrs::set`).
    unsafe {
        let (name, value) = (place.as_ref().name as usize, place.as_ref().value as usize);
        let bytes = place.as_ptr().add(1).cast::<u8>();
        (slice::from_raw_parts(bytes, name), slice::from_raw_parts(bytes.add(name), value))
    }
}

impl Xattrs {
    /// Name and value of each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut next = self.first;
        core::iter::from_fn(move || {
            let place = next?;
            // SAFETY: attributes live as long as the list is borrowed.
            unsafe {
                next = place.as_ref().next;
                Some(parts(place))
            }
        })
    }

    /// The value of an attribute.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    /// What they take of the space for inodes, in bytes.
    pub(crate) fn share(&self) -> u64 {
        self.iter().map(|(name, value)| share_of(name.len(), value.len())).sum()
    }

    /// The link that leads to the attribute `name`, or to the place where it would be.
    fn link_to(&mut self, name: &[u8]) -> *mut Option<NonNull<Attribute>> {
        let mut link: *mut Option<NonNull<Attribute>> = &raw mut self.first;
        // SAFETY: the links lie in the list and its attributes, which live, and it is borrowed exclusively.
        unsafe {
            while let Some(place) = *link
                && parts(place).0 > name
            {
                link = &raw mut (*place.as_ptr()).next;
            }
        }
        link
    }

    /// Sets an attribute, of which the caller has taken the share. Returns what a value that it replaced had
    /// taken.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] and [`Error::NoData`] as `mode` says, and [`Error::NoMemory`].
    pub(crate) fn set<P: Platform>(
        &mut self,
        heap: &KernelHeap<'_, P>,
        (name, value): (&[u8], &[u8]),
        mode: SetMode,
    ) -> Result<u64, Error> {
        let exists = self.get(name).is_some();
        match mode {
            SetMode::Create if exists => return Err(Error::Exists),
            SetMode::Replace if !exists => return Err(Error::NoData),
            _ => {}
        }
        let layout = layout_of(name.len(), value.len());
        let place = heap.allocate(layout).map_err(|_: AllocError| Error::NoMemory)?.cast::<Attribute>();
        // SAFETY: the memory is this call's, and has room for the attribute and the bytes behind it.
        unsafe {
            place.write(Attribute { next: None, name: name.len() as u32, value: value.len() as u32 });
            let bytes = place.as_ptr().add(1).cast::<u8>();
            ptr::copy_nonoverlapping(name.as_ptr(), bytes, name.len());
            ptr::copy_nonoverlapping(value.as_ptr(), bytes.add(name.len()), value.len());
        }
        let freed = if exists { self.remove(heap, name) } else { None };
        let link = self.link_to(name);
        // SAFETY: the link lies in the list or an attribute of it; the new one is this call's.
        unsafe {
            (*place.as_ptr()).next = *link;
            *link = Some(place);
        }
        Ok(freed.unwrap_or(0))
    }

    /// Removes an attribute, and returns what it had taken of the space for inodes.
    pub(crate) fn remove<P: Platform>(&mut self, heap: &KernelHeap<'_, P>, name: &[u8]) -> Option<u64> {
        let link = self.link_to(name);
        // SAFETY: the link lies in the list or an attribute of it. What it leads to is taken out, and was
        // allocated with this layout.
        unsafe {
            let place = (*link)?;
            let (found, value) = parts(place);
            if found != name {
                return None;
            }
            let (name, value) = (found.len(), value.len());
            *link = place.as_ref().next;
            heap.free(place.cast(), layout_of(name, value));
            Some(share_of(name, value))
        }
    }

    /// Frees all, and returns what they had taken.
    pub(crate) fn clear<P: Platform>(&mut self, heap: &KernelHeap<'_, P>) -> u64 {
        let mut freed = 0;
        while let Some(place) = self.first {
            // SAFETY: the attribute is taken out, and was allocated with this layout.
            unsafe {
                let (name, value) = (place.as_ref().name as usize, place.as_ref().value as usize);
                self.first = place.as_ref().next;
                heap.free(place.cast(), layout_of(name, value));
                freed += share_of(name, value);
            }
        }
        freed
    }
}
