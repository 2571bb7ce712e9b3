//! The files of a machine.

use crate::backing::FileBacking;
use crate::cached_file::CachedFile;
use crate::committed::Committed;
use crate::end_list::{EndSearch, Ends};
use crate::file_core::{FileCore, Mapping, Neighbours, hold};
use crate::file_memory::{FileMemory, FileTotals};
use crate::huge::{ForcesSizes, ShmemHuge};
use crate::open_file::OpenFile;
use crate::shmem::{Shmem, ShmemName, ShmemOwner, ShmemPromise, ShmemState};
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use quire_arch::{Access, LockClass, Order, PAGE_SIZE, Pfn, Pin, Platform};
use quire_frame::{AllocError, AllocRequest, FailSite, Frames, Kind};
use quire_slab::SlabCache;
use quire_sync::SpinLock;
use quire_sync::atomic::raw::{AtomicU64, Ordering, fence};

/// The site of blocks for backings in fail plans.
const SITE: FailSite = FailSite::new("file");

/// The files of one machine: where they lie, and the list of them.
///
/// One word: what it is made of is made on a kernel's stack, and moved.
pub struct Files<P: Platform, V>(NonNull<State<P, V>>);

/// In a block of its own, for as long as the machine is.
struct State<P: Platform, V> {
    cores: SlabCache<FileCore<P, V>, P>,
    openings: SlabCache<OpenFile<P, V>, P>,
    /// Files point to it.
    memory: FileMemory<P>,
    numbers: AtomicU64,
    list: SpinLock<List<P, V>, P>,
    /// How many files are among the [ends](List::ends): changed under the lock of the list.
    ends: AtomicU64,
    /// How many are among those that were [left](List::left), likewise.
    left: AtomicU64,
}

struct List<P: Platform, V> {
    first: Option<NonNull<FileCore<P, V>>>,
    files: u64,
    ends: Ends<P, V>,
    /// Files without an opening, which wait for their ends.
    left: Ends<P, V>,
}

// SAFETY: what the list points to is Send and Sync.
unsafe impl<P: Platform, V: Mapping> Send for List<P, V> {}
// SAFETY: what the files share is Send and Sync; all else is.
unsafe impl<P: Platform, V: Mapping> Send for Files<P, V> {}
// SAFETY: as for `Send`.
unsafe impl<P: Platform, V: Mapping> Sync for Files<P, V> {}

impl<P: Platform, V: Mapping> Files<P, V> {
    /// No file yet.
    ///
    /// # Errors
    ///
    /// When there are no frames for the caches.
    #[cfg_attr(debug_assertions, track_caller)]
    // Not inlined, so that what it makes is on the stack only while it runs.
    #[inline(never)]
    pub fn new(frames: &Frames<P>) -> Result<Self, AllocError> {
        let pin = &frames.platform().pin();
        let (block, _) = block_for(frames, Layout::new::<State<P, V>>())?;
        let place = frames.platform().direct_map(block).cast::<State<P, V>>();
        let state = place.as_ptr();
        // SAFETY: it is this call's, and has that layout. Each part is written in its place, and none is read
        // before all are.
        unsafe {
            (&raw mut (*state).cores).write(SlabCache::new(frames, pin, "address_space")?);
            (&raw mut (*state).openings).write(SlabCache::new(frames, pin, "open_file")?);
            (&raw mut (*state).memory).write(FileMemory::new(frames, pin)?);
            (&raw mut (*state).numbers).write(AtomicU64::new(1));
            (&raw mut (*state).ends).write(AtomicU64::new(0));
            (&raw mut (*state).left).write(AtomicU64::new(0));
            let list = List { first: None, files: 0, ends: Ends::new(), left: Ends::new() };
            (&raw mut (*state).list).write(SpinLock::new(LockClass::Files, list));
        }
        Ok(Self(place))
    }

    fn state(&self) -> &State<P, V> {
        // SAFETY: written by `new`, and lives as long as the machine.
        unsafe { self.0.as_ref() }
    }

    /// Pages of all files.
    pub fn totals(&self) -> FileTotals {
        self.state().memory.totals()
    }

    /// Where shared memory comes in large folios.
    pub fn shmem_huge(&self) -> ShmemHuge {
        self.state().memory.shmem_orders.get()
    }

    /// Changes some of that for the pages that come from now on. No change that another thread makes
    /// meanwhile is lost.
    ///
    /// # Errors
    ///
    /// [`ForcesSizes`]; nothing is changed then.
    pub fn change_shmem_huge(
        &self,
        change: impl Fn(ShmemHuge) -> Result<ShmemHuge, ForcesSizes>,
    ) -> Result<(), ForcesSizes> {
        self.state().memory.shmem_orders.change(change)
    }

    /// How many files there are.
    pub fn count(&self, frames: &Frames<P>) -> u64 {
        let _pin = frames.platform().pin();
        self.state().list.lock().files
    }

    /// A file of `size` bytes, with one opening, whose only holder is the caller.
    ///
    /// # Errors
    ///
    /// When there is no memory for it. The backing is dropped then.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn create<B: FileBacking<P>>(
        &self,
        frames: &Frames<P>,
        backing: B,
        size: u64,
    ) -> Result<NonNull<OpenFile<P, V>>, AllocError> {
        self.create_of(frames, backing, (self.new_number(), size, Access::Write), |_| None)
    }

    /// Shared memory of `size` bytes, with one opening, whose only holder is the caller.
    ///
    /// # Errors
    ///
    /// When there is no memory for it. The owner is dropped then.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn create_shmem<O: ShmemOwner>(
        &self,
        frames: &Frames<P>,
        owner: O,
        (size, promise): (u64, ShmemPromise),
        name: ShmemName,
    ) -> Result<NonNull<OpenFile<P, V>>, AllocError> {
        let number = if name == ShmemName::None { 0 } else { self.new_number() };
        self.create_of(frames, Shmem(owner), (number, size, Access::Read), |place| {
            let owner: NonNull<dyn ShmemOwner> = place;
            // SAFETY: the backing, of which it is a part, outlives the file's cache.
            Some(unsafe { ShmemState::new(owner, promise, name) })
        })
    }

    /// Memory that is committed.
    pub fn committed(&self) -> &Committed {
        &self.state().memory.committed
    }

    fn new_number(&self) -> u64 {
        self.state().numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// A file of which `shmem` says from the place of the backing whether it is shared memory. It counts its
    /// opening, which is for writing, as one for `counted`.
    #[cfg_attr(debug_assertions, track_caller)]
    fn create_of<B: FileBacking<P>>(
        &self,
        frames: &Frames<P>,
        backing: B,
        (number, size, counted): (u64, u64, Access),
        shmem: impl FnOnce(NonNull<B>) -> Option<ShmemState>,
    ) -> Result<NonNull<OpenFile<P, V>>, AllocError> {
        const { assert!(align_of::<B>() <= PAGE_SIZE as usize, "a block is aligned to a page") };
        let platform = frames.platform();
        let layout = Layout::new::<B>();
        let block = block_for(frames, layout)?;
        let place = platform.direct_map(block.0).cast::<B>();
        // SAFETY: the block is this call's, and has room for that layout.
        unsafe { place.write(backing) };
        // SAFETY: the backing is dropped with the file, and what files share lives as long as the machine.
        let cached = unsafe {
            CachedFile::new(place, NonNull::from(&self.state().memory), (number, size), shmem(place))
        };
        let made = self.state().cores.allocate(frames, &platform.pin(), FileCore::new(cached, block));
        let core = made.inspect_err(|_| {
            // SAFETY: written above, and used nowhere.
            unsafe { self.drop_backing(frames, place, block) };
        })?;
        // Folios name it by its address.
        core.as_ptr().expose_provenance();
        // SAFETY: the file lives.
        let begun = unsafe { core.as_ref() }.access.begin(counted);
        debug_assert!(begun.is_ok(), "the file was just made");
        // SAFETY: the file counts one opening: this one.
        let opening =
            unsafe { self.opening_of(frames, core, (Access::Write, counted)) }.inspect_err(|_| {
                // SAFETY: as above, and the core was just made.
                unsafe {
                    self.state().cores.free(frames, &platform.pin(), core);
                    self.drop_backing(frames, place, block);
                }
            })?;
        self.enlist(&platform.pin(), core);
        Ok(opening)
    }

    /// An opening of a file for `access`, which counts as one for `counted`.
    ///
    /// # Errors
    ///
    /// When there is no memory for it.
    ///
    /// # Safety
    ///
    /// The file lives, and counts the opening, also as one for `counted`.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) unsafe fn opening_of(
        &self,
        frames: &Frames<P>,
        core: NonNull<FileCore<P, V>>,
        (access, counted): (Access, Access),
    ) -> Result<NonNull<OpenFile<P, V>>, AllocError> {
        // SAFETY: the caller's promise.
        let open = unsafe { OpenFile::new(core, access, counted) };
        let place = self.state().openings.allocate(frames, &frames.platform().pin(), open)?;
        // VMAs name it by its address.
        place.as_ptr().expose_provenance();
        Ok(place)
    }

    /// Frees an opening.
    ///
    /// # Safety
    ///
    /// It is one of these files, and nothing holds it any more.
    pub(crate) unsafe fn free_opening(&self, frames: &Frames<P>, open: NonNull<OpenFile<P, V>>) {
        // SAFETY: the caller's promise.
        unsafe { self.state().openings.free(frames, &frames.platform().pin(), open) };
    }

    /// Drops the backing of a file and frees the file.
    ///
    /// # Safety
    ///
    /// It is one of these files; it has no opening any more, and its cache is empty.
    pub(crate) unsafe fn free_file(&self, frames: &Frames<P>, core: NonNull<FileCore<P, V>>) {
        self.delist(&frames.platform().pin(), core);
        // SAFETY: the file lives (caller).
        if let Some(ShmemPromise::Whole(pages)) = unsafe { core.as_ref() }.shmem().map(ShmemState::promise) {
            self.committed().drop_shared(pages);
        }
        // SAFETY: the file lives, and nothing else uses it (caller).
        unsafe {
            self.drop_backing_of(frames, core);
            self.forget(frames, core);
        }
    }

    /// One less knows of a file that has ended, or is still open. The last one frees it.
    ///
    /// # Safety
    ///
    /// It is one of these files, the caller is counted as one that knows it, and is none after this.
    pub(crate) unsafe fn forget(&self, frames: &Frames<P>, core: NonNull<FileCore<P, V>>) {
        // SAFETY: the core is there as long as someone knows it (caller). Release, and acquire for the last:
        // it comes after what all others have done.
        if unsafe { core.as_ref() }.knowers.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: nothing uses it any more.
            unsafe { self.state().cores.free(frames, &frames.platform().pin(), core) };
        }
    }

    /// Drops the backing of a file.
    ///
    /// # Safety
    ///
    /// It is one of these files, and nothing uses its backing any more, or will.
    pub(crate) unsafe fn drop_backing_of(&self, frames: &Frames<P>, core: NonNull<FileCore<P, V>>) {
        // SAFETY: the file lives (caller).
        let core = unsafe { core.as_ref() };
        // SAFETY: the backing is that of the block; the caller's promise.
        unsafe { self.drop_backing(frames, core.cached.backing_place(), core.backing_block) };
    }

    /// Takes the first file off the list, for a machine that ends.
    pub(crate) fn take_first(&self, frames: &Frames<P>) -> Option<NonNull<FileCore<P, V>>> {
        let pin = frames.platform().pin();
        let first = self.state().list.lock().first?;
        self.delist(&pin, first);
        Some(first)
    }

    /// # Safety
    ///
    /// The backing lies in the block, and nothing uses it any more.
    unsafe fn drop_backing<B: FileBacking<P> + ?Sized>(
        &self,
        frames: &Frames<P>,
        backing: NonNull<B>,
        (pfn, order): (Pfn, Order),
    ) {
        // SAFETY: the caller's promise. Its `Drop` may sleep: nothing is held.
        unsafe { backing.drop_in_place() };
        let freed = frames.free(&frames.platform().pin(), pfn, order);
        debug_assert!(freed.is_ok(), "a block of the files can be freed: {freed:?}");
    }

    fn enlist(&self, _pin: &Pin<'_, P>, core: NonNull<FileCore<P, V>>) {
        let mut list = self.state().list.lock();
        let next = list.first.replace(core);
        // SAFETY: the lock is held, and files on the list live.
        unsafe {
            if let Some(next) = next {
                (*next.as_ref().neighbours.get()).previous = Some(core);
            }
            *core.as_ref().neighbours.get() = Neighbours { next, previous: None };
        }
        list.files += 1;
    }

    fn delist(&self, _pin: &Pin<'_, P>, core: NonNull<FileCore<P, V>>) {
        let mut list = self.state().list.lock();
        // SAFETY: as in `enlist`; the file is on the list until this is done.
        unsafe {
            let Neighbours { next, previous } = &*core.as_ref().neighbours.get();
            let (next, previous) = (*next, *previous);
            if let Some(next) = next {
                (*next.as_ref().neighbours.get()).previous = previous;
            }
            match previous {
                Some(previous) => (*previous.as_ref().neighbours.get()).next = next,
                None => list.first = next,
            }
            list.ends.remove(core);
        }
        list.files -= 1;
        self.state().ends.store(list.ends.files(), Ordering::Relaxed);
        // SAFETY: the lock is held, and the file lives.
        debug_assert!(unsafe { (*core.as_ref().end_place.get()).is_none() }, "a file that ends is on a list");
    }

    /// Notes that a file of shared memory may have a large folio that goes on past its end.
    pub(crate) fn note_end(&self, frames: &Frames<P>, core: &FileCore<P, V>) {
        let _pin = frames.platform().pin();
        let mut list = self.state().list.lock();
        // SAFETY: the list is locked, and the file is on it as long as it has openings.
        unsafe { list.ends.add(NonNull::from(core)) };
        self.state().ends.store(list.ends.files(), Ordering::Relaxed);
    }

    /// A search of those files, of one file system or of any.
    pub(crate) fn search_ends(&self, file_system: Option<usize>) -> EndSearch {
        // Relaxed: who misses one that comes now comes too early for it.
        EndSearch { file_system, left: self.state().ends.load(Ordering::Relaxed) }
    }

    /// The next file of a search, which is noted no more. It has one opening more: the caller's.
    pub(crate) fn hold_end(
        &self,
        frames: &Frames<P>,
        search: &mut EndSearch,
    ) -> Option<NonNull<FileCore<P, V>>> {
        while search.left > 0 {
            let _pin = frames.platform().pin();
            let mut list = self.state().list.lock();
            // SAFETY: the list is locked.
            let held = unsafe { list.ends.hold_next(search) };
            self.state().ends.store(list.ends.files(), Ordering::Relaxed);
            if held.is_some() {
                return held;
            }
        }
        None
    }

    /// Leaves the end of a file to who [takes](Self::take_left) it.
    ///
    /// # Safety
    ///
    /// It has no opening any more, and its end is up to the caller.
    pub(crate) unsafe fn leave(&self, frames: &Frames<P>, core: NonNull<FileCore<P, V>>) {
        let _pin = frames.platform().pin();
        let mut list = self.state().list.lock();
        // SAFETY: the list is locked; the file is on it until it ends, and is noted no more without openings.
        unsafe {
            list.ends.remove(core);
            list.left.add(core);
        }
        self.state().ends.store(list.ends.files(), Ordering::Relaxed);
        self.state().left.store(list.left.files(), Ordering::Relaxed);
    }

    /// A file that was left: the caller ends it.
    #[inline]
    pub(crate) fn take_left(&self, frames: &Frames<P>) -> Option<NonNull<FileCore<P, V>>> {
        // Relaxed: who misses one that is left now comes too early for it.
        if self.state().left.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let _pin = frames.platform().pin();
        let mut list = self.state().list.lock();
        let core = list.left.first()?;
        // SAFETY: the list is locked, and the file on it.
        unsafe { list.left.remove(core) };
        self.state().left.store(list.left.files(), Ordering::Relaxed);
        Some(core)
    }

    /// The first file on the list, or behind `after`, which the caller holds, that has pages on swap devices.
    /// It has one opening more: the caller's.
    pub(crate) fn hold_swapped(
        &self,
        frames: &Frames<P>,
        after: Option<NonNull<FileCore<P, V>>>,
    ) -> Option<NonNull<FileCore<P, V>>> {
        let _pin = frames.platform().pin();
        let list = self.state().list.lock();
        // SAFETY: files live while they are on the list, which is locked; and one that is held is on it.
        let next = |core: NonNull<FileCore<P, V>>| unsafe { (*core.as_ref().neighbours.get()).next };
        let mut at = after.map_or(list.first, next);
        while let Some(core) = at {
            // SAFETY: as above.
            let file = unsafe { core.as_ref() };
            if file.swapped.load(Ordering::Relaxed) > 0 && hold(file) {
                return Some(core);
            }
            at = next(core);
        }
        None
    }

    /// Calls `visit` with every file, under the lock of the list.
    pub fn for_each(&self, frames: &Frames<P>, mut visit: impl FnMut(&FileCore<P, V>)) {
        let _pin = frames.platform().pin();
        let list = self.state().list.lock();
        let mut next = list.first;
        while let Some(core) = next {
            // SAFETY: files live while they are on the list, which is locked.
            let core = unsafe { core.as_ref() };
            visit(core);
            // SAFETY: the list is locked.
            next = unsafe { (*core.neighbours.get()).next };
        }
    }
}

/// A block with room for `layout`.
#[cfg_attr(debug_assertions, track_caller)]
fn block_for<P: Platform>(frames: &Frames<P>, layout: Layout) -> Result<(Pfn, Order), AllocError> {
    let bytes = layout.size().max(layout.align()) as u64;
    let order = Order::for_bytes(bytes).ok_or(AllocError::OutOfMemory)?;
    let request = AllocRequest::new(order, SITE).kind(Kind::Kernel);
    Ok((frames.allocate(&frames.platform().pin(), request)?, order))
}

impl<P: Platform, V> fmt::Debug for Files<P, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("at", &self.0).finish_non_exhaustive()
    }
}
