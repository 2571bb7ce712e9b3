//! A file's cache, apart from the VMAs that map it: what the code below VMAs needs of a file.

mod find;
mod kept;
mod only_read;
mod orders;
mod space;
mod swapped;
mod unused;

pub(crate) use find::Is;
pub use find::{CachedPages, Lookup};
pub use kept::KeptFolio;
pub use only_read::OnlyRead;
pub use orders::NewFolioOrders;
pub(crate) use space::Prepared;
pub use swapped::{CameAsZeros, SwappedPages};
pub(crate) use unused::UNUSED;
pub use unused::UnusedPages;

use crate::backing::{FileBacking, IoLimits};
use crate::entry::Entry;
use crate::error_sequence::ErrorSequence;
use crate::file_memory::FileMemory;
use crate::index::{IndexRange, PageIndex};
use crate::requests::Requests;
use crate::shmem::ShmemState;
use crate::slabs::NodesOn;
use crate::store::{FolioStore, LockedStore, Tag};
use crate::write_access::WriteAccess;
use core::fmt;
use core::ops::Range;
use core::ptr::{self, NonNull};
use quire_arch::{LockClass, Order, PAGE_SHIFT, PAGE_SIZE, Pfn, Platform};
use quire_frame::{Frame, FrameFlags, Frames, Kind, OwnerWord};
use quire_memcg::{MemcgId, MemcgStat, Memcgs};
use quire_sync::RwSleepLock;
use quire_sync::atomic::raw::{AtomicU64, Ordering};

/// The most bytes of a file.
pub const MAX_FILE_BYTES: u64 = (PageIndex::MAX.get() << PAGE_SHIFT) | (PAGE_SIZE - 1);

/// Pages of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileFigures {
    /// Pages that are cached.
    pub cached: u64,
    /// Of these, pages that are to be written back.
    pub dirty: u64,
    /// Of these, pages that are being written back.
    pub writeback: u64,
    /// Pages of shared memory that are on swap devices.
    pub swapped: u64,
    /// Requests to write that failed.
    pub failed_writes: u64,
}

/// A file: its cache, its size, and where its bytes are when they are not in RAM.
///
/// In the cache and not locked means that the contents of a folio are good. A folio that could not be read
/// leaves the cache before it is unlocked. The cache holds one reference to each folio.
#[repr(C, align(8))]
pub struct CachedFile<P: Platform> {
    pub(crate) store: FolioStore<P>,
    /// Read to add a folio, written to remove what a range has.
    pub(crate) invalidate: RwSleepLock,
    /// Bytes. Stored with release before the cache is truncated, loaded with acquire after a folio was
    /// locked.
    pub(crate) size: AtomicU64,
    /// Change under the store's lock.
    dirty: AtomicU64,
    writeback: AtomicU64,
    pub(crate) swapped: AtomicU64,
    /// Pages that were allocated ahead, and not used yet.
    pub(crate) unused: AtomicU64,
    pub(crate) failed_writes: AtomicU64,
    pub(crate) access: WriteAccess,
    pub(crate) errors: ErrorSequence,
    pub(crate) requests: Requests,
    /// Times that completions were reaped.
    pub(crate) reaps: AtomicU64,
    /// Times that what is stored of it was freed.
    cuts: AtomicU64,
    number: u64,
    /// What the backing said when the file was made.
    limits: IoLimits,
    backing: NonNull<dyn FileBacking<P>>,
    memory: NonNull<FileMemory<P>>,
    /// If it is shared memory.
    shmem: Option<ShmemState>,
}

// SAFETY: the backing is Send and Sync, and so is what the files of a machine share; all else is atomic or
// behind a lock of its own.
unsafe impl<P: Platform> Send for CachedFile<P> {}
// SAFETY: as for `Send`.
unsafe impl<P: Platform> Sync for CachedFile<P> {}

/// Whether a tag is set or cleared, with its flag, and how that is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    On,
    Off,
}

impl<P: Platform> CachedFile<P> {
    /// A file of `size` bytes with an empty cache.
    ///
    /// # Safety
    ///
    /// All pointers are valid as long as this is used.
    pub(crate) unsafe fn new(
        backing: NonNull<dyn FileBacking<P>>,
        memory: NonNull<FileMemory<P>>,
        (number, size): (u64, u64),
        shmem: Option<ShmemState>,
    ) -> Self {
        // SAFETY: the backing is valid (caller).
        let limits = unsafe { backing.as_ref() }.limits();
        Self {
            store: FolioStore::new(),
            invalidate: RwSleepLock::new(LockClass::Invalidate),
            size: AtomicU64::new(size),
            dirty: AtomicU64::new(0),
            writeback: AtomicU64::new(0),
            swapped: AtomicU64::new(0),
            unused: AtomicU64::new(0),
            failed_writes: AtomicU64::new(0),
            access: WriteAccess::default(),
            errors: ErrorSequence::default(),
            requests: Requests::default(),
            reaps: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            number,
            limits,
            backing,
            memory,
            shmem,
        }
    }

    /// Its number: no other file of the machine has it, or had. Shared memory without a name has 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its size in bytes. A thread that has locked a folio, and finds that the file does not end before it,
    /// may map it: who makes the file smaller after that waits for the folio.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Whether the file ends before page `index`.
    #[inline]
    pub fn ends_before(&self, index: PageIndex) -> bool {
        index.get() << PAGE_SHIFT >= self.size()
    }

    /// Whether it has more pages than those of `range`, so that all of these are wholly in it. As in Linux,
    /// only then is a folio mapped as a whole, since no entry may be made for a page that is past the end.
    #[inline]
    pub fn goes_past(&self, range: IndexRange) -> bool {
        self.size().div_ceil(PAGE_SIZE) > range.end()
    }

    /// Whether Linux maps a folio of these pages as one that may be large: on tmpfs also the last one.
    #[inline]
    pub fn is_mapped_large(&self, folio: IndexRange) -> bool {
        self.goes_past(folio) || self.limits.tail_stays
    }

    /// Whether all of the pages of `range` are in it, at least in part.
    #[inline]
    pub fn reaches(&self, range: IndexRange) -> bool {
        self.size().div_ceil(PAGE_SIZE) >= range.end()
    }

    /// Whether a folio of these pages may be mapped as a whole: where no page of it is past the end; or in
    /// shared memory, as in Linux.
    #[inline]
    pub fn may_map_whole(&self, folio: IndexRange) -> bool {
        self.is_shmem() || self.reaches(folio)
    }

    /// What its backing can take, as it said when the file was made.
    pub(crate) fn limits(&self) -> IoLimits {
        self.limits
    }

    /// From where on a file of `size` bytes has zeros once it is larger. In shared memory all stays that a
    /// program wrote to the folio in which it ends, as in Linux.
    pub(crate) fn zeros_from(&self, size: u64) -> u64 {
        if self.is_shmem() {
            return u64::MAX;
        }
        if self.limits.tail_stays { size.next_multiple_of(PAGE_SIZE) } else { size }
    }

    /// Its pages.
    pub fn figures(&self, frames: &Frames<P>) -> FileFigures {
        self.with_store(frames, |store| FileFigures {
            cached: store.figures().cached_pages,
            dirty: self.dirty.load(Ordering::Relaxed),
            writeback: self.writeback.load(Ordering::Relaxed),
            swapped: self.swapped.load(Ordering::Relaxed),
            failed_writes: self.failed_writes.load(Ordering::Relaxed),
        })
    }

    /// Whether it is shared memory: its pages are swapped, and never written back.
    #[inline]
    pub fn is_shmem(&self) -> bool {
        self.shmem.is_some()
    }

    /// What it is beside a file, if it is shared memory.
    #[inline]
    pub fn shmem(&self) -> Option<&ShmemState> {
        self.shmem.as_ref()
    }

    /// The kind of its folios.
    pub(crate) fn kind(&self) -> Kind {
        if self.is_shmem() { Kind::Shmem } else { Kind::File }
    }

    /// Counts a folio of `order` that has come to its cache, charged to what its descriptor says.
    pub(crate) fn count_came(&self, memcgs: &Memcgs<P>, head: Pfn, order: Order) {
        self.memory().count_came(self.kind(), order);
        self.count_charged(memcgs, head, order, order.pages() as i64);
    }

    /// Counts a folio of `order` that has gone.
    pub(crate) fn count_gone(&self, memcgs: &Memcgs<P>, head: Pfn, order: Order) {
        self.memory().count_gone(self.kind(), order);
        self.count_charged(memcgs, head, order, -(order.pages() as i64));
    }

    /// Counts that the folio of `order` at `head` was split. The caller still has the lock of the first part,
    /// which has the memcg that the folio had.
    pub(crate) fn count_split(&self, memcgs: &Memcgs<P>, head: Pfn, order: Order) {
        self.memory().count_split(self.kind(), order);
        self.count_huge(memcgs, head, order, -(order.pages() as i64));
    }

    /// Counts what of a folio is not counted where it is charged. It is locked, so its memcg stays.
    fn count_charged(&self, memcgs: &Memcgs<P>, head: Pfn, order: Order, pages: i64) {
        if self.is_shmem() {
            add_stat(memcgs, head, MemcgStat::Shmem, pages);
        }
        self.count_huge(memcgs, head, order, pages);
    }

    fn count_huge(&self, memcgs: &Memcgs<P>, head: Pfn, order: Order, pages: i64) {
        if order == Order::PMD {
            let stat = if self.is_shmem() { MemcgStat::ShmemThp } else { MemcgStat::FileThp };
            add_stat(memcgs, head, stat, pages);
        }
        if pages < 0 && OnlyRead::of(self).limits(order) {
            self.access.end_large();
        }
    }

    /// Whether a program may write by a mapping to a locked folio with these flags: it is dirty, and is not
    /// being written where the backing wants its pages to stay the same meanwhile.
    pub fn may_be_written(&self, flags: FrameFlags) -> bool {
        let is_stable = flags.contains(FrameFlags::WRITEBACK) && self.limits.stable_writes;
        flags.contains(FrameFlags::DIRTY) && !is_stable
    }

    /// Whether programs may make holes in it by their mappings.
    pub fn has_holes(&self) -> bool {
        self.limits.holes
    }

    pub(crate) fn backing(&self) -> &dyn FileBacking<P> {
        // SAFETY: it is valid as long as this is used (contract of `new`).
        unsafe { self.backing.as_ref() }
    }

    /// The backing, for its end.
    pub(crate) fn backing_place(&self) -> NonNull<dyn FileBacking<P>> {
        self.backing
    }

    pub(crate) fn memory(&self) -> &FileMemory<P> {
        // SAFETY: it is valid as long as this is used (contract of `new`).
        unsafe { self.memory.as_ref() }
    }

    /// The address by which folios name it.
    pub(crate) fn address(&self) -> usize {
        ptr::from_ref(self).expose_provenance()
    }

    /// The word by which folios name it.
    pub(crate) fn owner_word(&self) -> OwnerWord {
        // SAFETY: the file stays as long as folios are in its cache, and they lose the word when they leave.
        unsafe { OwnerWord::of_file(self.address()) }
    }

    /// The file in whose cache the folio at `head` is.
    ///
    /// # Safety
    ///
    /// The caller holds the folio's lock, or an entry that maps it in a table whose lock it holds; and what
    /// it finds is used no longer than that. The folio is of `frames`.
    pub unsafe fn of_folio(frames: &Frames<P>, head: Pfn) -> Option<&Self> {
        let frame = frames.frame(head)?;
        if !frame.kind().is_of_file() {
            return None;
        }
        let file = NonNull::new(ptr::with_exposed_provenance_mut::<Self>(frame.as_folio().file()?))?;
        // SAFETY: the word is a file's as long as the folio is in its cache. It leaves that under the folio
        // lock, when it is not mapped; and the file stays as long as folios are in its cache.
        Some(unsafe { file.as_ref() })
    }

    /// Whether the folio of `frame`, which the caller has locked, is this file's and has page `index`.
    #[inline]
    pub fn has(&self, frame: &Frame, index: PageIndex) -> bool {
        let (word, folio) = (frame.word(), frame.as_folio());
        let nth = index.get().wrapping_sub(folio.index());
        word.kind().is_of_file() && folio.file() == Some(self.address()) && nth < word.order().pages()
    }

    /// Calls `work` with the store's lock held, pinned.
    #[inline]
    pub(crate) fn with_store<R>(
        &self,
        frames: &Frames<P>,
        work: impl FnOnce(&mut LockedStore<'_, P, NodesOn<'_, P>>) -> R,
    ) -> R {
        self.with_store_on(&self.memory().nodes(frames), frames, work)
    }

    /// The same, for a caller with a reserve of these nodes, which are those of the machine.
    #[inline]
    pub(crate) fn with_store_on<'n, R>(
        &self,
        nodes: &NodesOn<'n, P>,
        frames: &Frames<P>,
        work: impl FnOnce(&mut LockedStore<'_, P, NodesOn<'n, P>>) -> R,
    ) -> R {
        let _pin = frames.platform().pin();
        // SAFETY: the stores of a machine's files are all locked here, with the nodes of the machine.
        work(&mut unsafe { self.store.lock(nodes) })
    }

    /// Marks a folio dirty, in its flags and in the store, and returns whether it was clean. The folio stays
    /// in the cache meanwhile: the caller has locked it, or holds an entry that maps it and whose table it
    /// has locked. May be called pinned, under the lock of a table.
    pub fn mark_dirty(&self, frames: &Frames<P>, head: Pfn) -> bool {
        if self.is_shmem() {
            // From now on it is dirty for good, without a tag.
            let frame = frames.known(head);
            if !frame.word().flags().contains(FrameFlags::DIRTY) {
                frame.set_flags(FrameFlags::DIRTY);
            }
            return false;
        }
        self.with_store(frames, |store| {
            let index = frames.frame(head).and_then(|frame| PageIndex::new(frame.as_folio().index()));
            index.is_some_and(|index| self.turn(frames, store, (index, head), Tag::Dirty, Turn::On))
        })
    }

    /// Sets or clears a tag together with its flag, and counts it. Returns whether that changed anything: not
    /// if the folio is not the file's at this page.
    pub(crate) fn turn(
        &self,
        frames: &Frames<P>,
        store: &mut LockedStore<'_, P, NodesOn<'_, P>>,
        (index, head): (PageIndex, Pfn),
        tag: Tag,
        turn: Turn,
    ) -> bool {
        if store.get(index).is_none_or(|stored| stored.entry != Entry::Folio(head)) {
            debug_assert!(false, "{head:?} is not in the cache at {index:?}");
            return false;
        }
        if self.is_shmem() {
            return false;
        }
        let total = self.memory();
        let (flag, own, all) = match tag {
            Tag::Dirty => (FrameFlags::DIRTY, &self.dirty, &total.dirty),
            Tag::Writeback => (FrameFlags::WRITEBACK, &self.writeback, &total.writeback),
            // Of this one there is no flag.
            Tag::ToWrite => {
                let had = store.has_tag(index, tag);
                return match turn {
                    Turn::On => !had && store.set_tag(index, tag),
                    Turn::Off => had && store.clear_tag(index, tag),
                };
            }
        };
        let frame = frames.known(head);
        let pages = frame.word().order().pages();
        match turn {
            Turn::On => {
                let before = frame.set_flags(flag);
                if before.is_none_or(|before| before.contains(flag)) {
                    return false;
                }
                store.set_tag(index, tag);
                own.fetch_add(pages, Ordering::Relaxed);
                all.fetch_add(pages, Ordering::Relaxed);
            }
            Turn::Off => {
                let before = frame.clear_flags(flag);
                if !before.is_some_and(|before| before.contains(flag)) {
                    return false;
                }
                store.clear_tag(index, tag);
                own.fetch_sub(pages, Ordering::Relaxed);
                all.fetch_sub(pages, Ordering::Relaxed);
            }
        }
        true
    }

    /// The pages that hold bytes from `from` up to `to`.
    pub(crate) fn pages_of(bytes: Range<u64>) -> IndexRange {
        IndexRange::new(bytes.start >> PAGE_SHIFT, bytes.end.div_ceil(PAGE_SIZE))
    }
}

/// Counts `pages` for the memcg of a locked folio.
#[inline]
fn add_stat<P: Platform>(memcgs: &Memcgs<P>, head: Pfn, stat: MemcgStat, pages: i64) {
    let memcg = MemcgId::from_bits(memcgs.frames().known(head).as_folio().memcg());
    if !memcg.is_root() {
        add_stat_of(memcgs, memcg, stat, pages);
    }
}

// Most folios are the root's, for which nothing is counted.
#[inline(never)]
fn add_stat_of<P: Platform>(memcgs: &Memcgs<P>, memcg: MemcgId, stat: MemcgStat, pages: i64) {
    memcgs.counters().add_stat(&memcgs.frames().platform().pin(), memcg, stat, pages);
}

impl<P: Platform> fmt::Debug for CachedFile<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedFile")
            .field("number", &self.number)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}
