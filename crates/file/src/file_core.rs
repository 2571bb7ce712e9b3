//! A file with its cache and its mappings (Linux's `address_space`).

use crate::cached_file::CachedFile;
use crate::error::PageError;
use crate::mappings::{FileMappings, OfFile};
use crate::seals::{Entering, Seals};
use core::fmt;
use core::mem::offset_of;
use core::ops::Deref;
use core::ptr::{self, NonNull};
use quire_arch::{Order, Pfn, Platform};
use quire_sync::atomic::raw::{AtomicUsize, Ordering};
use quire_vma_tree::intervals::Member;

/// A VMA as files know it.
pub trait Mapping: Member<OfFile> + Send + Sync + 'static {}

impl<V: Member<OfFile> + Send + Sync + 'static> Mapping for V {}

/// Places on the list of files, which its lock guards.
pub(crate) struct Neighbours<P: Platform, V> {
    pub(crate) next: Option<NonNull<FileCore<P, V>>>,
    pub(crate) previous: Option<NonNull<FileCore<P, V>>>,
}

/// A file with its cache and its mappings. It lives as long as openings of it do.
///
/// A folio of its cache names it by the address of its first field.
#[repr(C)]
pub struct FileCore<P: Platform, V> {
    pub(crate) cached: CachedFile<P>,
    mappings: FileMappings<V>,
    pub(crate) openings: AtomicUsize,
    /// Where the backing lies.
    pub(crate) backing_block: (Pfn, Order),
    pub(crate) neighbours: core::cell::UnsafeCell<Neighbours<P, V>>,
}

// SAFETY: the neighbours are read and written under the lock of the list only; all else is Send and Sync.
unsafe impl<P: Platform, V: Mapping> Send for FileCore<P, V> {}
// SAFETY: as for `Send`.
unsafe impl<P: Platform, V: Mapping> Sync for FileCore<P, V> {}

impl<P: Platform, V: Mapping> FileCore<P, V> {
    /// A file that nothing maps, with one opening.
    pub(crate) fn new(cached: CachedFile<P>, backing_block: (Pfn, Order)) -> Self {
        let neighbours = Neighbours { next: None, previous: None };
        Self {
            cached,
            mappings: FileMappings::new(),
            openings: AtomicUsize::new(1),
            backing_block,
            neighbours: core::cell::UnsafeCell::new(neighbours),
        }
    }

    /// The file that this is the first part of.
    ///
    /// # Safety
    ///
    /// The file is a `FileCore<P, V>` of these types, as all are that [`PageCache`] makes, and lives as long
    /// as the result is used.
    ///
    /// [`PageCache`]: crate::PageCache
    #[inline]
    pub unsafe fn of_cached(cached: &CachedFile<P>) -> &Self {
        const { assert!(offset_of!(Self, cached) == 0, "a cached file leads to its core") };
        // SAFETY: it is the first field of one (caller), whose provenance was exposed when it was made.
        unsafe { &*ptr::with_exposed_provenance::<Self>(ptr::from_ref(cached).addr()) }
    }

    /// How many openings it has, at a moment.
    pub fn openings(&self) -> usize {
        self.openings.load(Ordering::Relaxed)
    }

    /// Counts a shared mapping that may write to the file, or become writable, until the result is dropped: by
    /// then it is among the [mappings](Self::mappings). `None` if a seal keeps it from ever writing: then it
    /// is no such mapping. If it `writes` it is writable from the start. May sleep.
    ///
    /// # Errors
    ///
    /// [`PageError::Sealed`].
    pub fn enter_writer(&self, platform: &P, writes: bool) -> Result<Option<Entering<'_>>, PageError> {
        let Some(state) = self.cached.seal_state() else { return Ok(Some(Entering::FREE)) };
        let refused = |seals: Seals| match seals.intersects(Seals::NO_WRITES) {
            true if writes => Some(Err(PageError::Sealed)),
            true => Some(Ok(None)),
            // Of what may not be sealed any more.
            false => seals.contains(Seals::SEAL).then_some(Ok(Some(Entering::FREE))),
        };
        if let Some(result) = refused(state.get()) {
            return result;
        }
        let _mappings = self.mappings.write(platform);
        match refused(state.get()) {
            Some(result) => result,
            None if state.denies_writers() => Err(PageError::Sealed),
            None => Ok(Some(state.begin_to_enter())),
        }
    }

    /// Its mappings.
    #[inline]
    pub fn mappings(&self) -> &FileMappings<V> {
        &self.mappings
    }
}

impl<P: Platform, V> Deref for FileCore<P, V> {
    type Target = CachedFile<P>;

    fn deref(&self) -> &CachedFile<P> {
        &self.cached
    }
}

impl<P: Platform, V> fmt::Debug for FileCore<P, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.cached, f)
    }
}
