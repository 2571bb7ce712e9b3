//! A file with its cache and its mappings (Linux's `address_space`).

use crate::cached_file::CachedFile;
use crate::mappings::{FileMappings, OfFile};
use core::fmt;
use core::mem::offset_of;
use core::ops::Deref;
use core::ptr::{self, NonNull};
use quire_arch::{Order, Pfn, Platform};
use quire_sync::atomic::raw::{AtomicUsize, Ordering, fence};
use quire_vma_tree::intervals::Member;

/// A VMA as files know it.
pub trait Mapping: Member<OfFile> + Send + Sync + 'static {}

impl<V: Member<OfFile> + Send + Sync + 'static> Mapping for V {}

/// Places on the list of files, which its lock guards.
pub(crate) struct Neighbours<P: Platform, V> {
    pub(crate) next: Option<NonNull<FileCore<P, V>>>,
    pub(crate) previous: Option<NonNull<FileCore<P, V>>>,
}

/// The place on the list of files that may have a large folio past their end; it is on that if there is one.
pub(crate) type EndPlace<P, V> = core::cell::UnsafeCell<Option<Neighbours<P, V>>>;

/// A file with its cache and its mappings. It lives as long as openings of it do.
///
/// A folio of its cache names it by the address of its first field.
#[repr(C)]
pub struct FileCore<P: Platform, V> {
    pub(crate) cached: CachedFile<P>,
    mappings: FileMappings<V>,
    pub(crate) openings: AtomicUsize,
    /// Those that know where it lies: one for all openings together, and [`KnownFile`](crate::KnownFile)s.
    pub(crate) knowers: AtomicUsize,
    /// Where the backing lies.
    pub(crate) backing_block: (Pfn, Order),
    pub(crate) neighbours: core::cell::UnsafeCell<Neighbours<P, V>>,
    pub(crate) end_place: EndPlace<P, V>,
}

// SAFETY: both places are read and written under the lock of the lists only; all else is Send and Sync.
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
            knowers: AtomicUsize::new(1),
            backing_block,
            neighbours: core::cell::UnsafeCell::new(neighbours),
            end_place: core::cell::UnsafeCell::new(None),
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

    /// Its mappings.
    #[inline]
    pub fn mappings(&self) -> &FileMappings<V> {
        &self.mappings
    }
}

/// Counts one opening more of a file, unless it is ending. The caller has the list of files locked, or knows
/// the file.
pub(crate) fn hold<P: Platform, V>(file: &FileCore<P, V>) -> bool {
    let one_more = |openings: usize| (openings > 0).then_some(openings + 1);
    // Relaxed: the count cannot be falling to zero.
    file.openings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
}

/// Counts one opening less. Returns whether it was the last one: then the end of the file is up to the
/// caller.
///
/// # Safety
///
/// The opening is one that the file counts, and the caller's.
pub(crate) unsafe fn let_go<P: Platform, V>(core: NonNull<FileCore<P, V>>) -> bool {
    // SAFETY: the file lives as long as it has openings.
    let was = unsafe { core.as_ref() }.openings.fetch_sub(1, Ordering::Release);
    if was == 1 {
        // Acquire: what was done by all other openings.
        fence(Ordering::Acquire);
    }
    was == 1
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
