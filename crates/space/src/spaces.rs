//! All address spaces of one machine, and what they share.

mod asid_pool;
mod held_opening;
mod list;
mod oom_turns;
mod reclaim;
mod reclaims;
mod scan;
mod shortage;
mod unused_files;
mod victims;
mod vma_store;

pub(crate) use held_opening::HeldOpening;
pub use reclaim::{NoReclaim, OomOutcome, Reclaim};
pub use reclaims::Reclaiming;
pub(crate) use reclaims::SeenReclaims;
pub(crate) use scan::Scan;
pub(crate) use shortage::{Attempts, CALL_ATTEMPTS, DirectReclaim};
pub(crate) use unused_files::UnusedFiles;
pub use victims::Victims;
pub(crate) use vma_store::VmaStore;

use crate::commit::{Commit, Overcommit};
use crate::error::Error;
use asid_pool::AsidPool;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::slice;
use list::SpaceList;
use oom_turns::OomTurns;
use quire_arch::{LockClass, Order, PagingFormat, Pfn, Pin, Platform, VirtAddr};
use quire_file::{Files, HeldFile, PageCache};
use quire_frame::{AllocError, AllocRequest, FailSite, Frames, Kind};
use quire_memcg::Memcgs;
use quire_pagetable::{
    CurrentSpaces, GatherTechnique, MemoryCore, RemapTechnique, SpaceId, SpaceTables, TablesTechnique,
    Techniques,
};
use quire_slab::{CacheReport, SlabCache};
use quire_swap::Swap;
use quire_sync::SpinLock;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_thp::{HugeConfig, HugeControls, Thp, ThpState};
use quire_vma::{Layout, Limits, Rmap, RmapState, SpaceCore, Vma};
use quire_vma_tree::tree::{Node, NodeStore, OutOfNodes};
use reclaims::Reclaims;
use unused_files::close_all;

/// Spaces at once: as many as Linux has processes (`PID_MAX_LIMIT`), and so few that a slot's count of the
/// entries that name it cannot overflow, since each space names it once at most.
const MAX_SPACES: usize = (1 << 22) - 64;

/// How the spaces of a machine are managed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpacesConfig {
    /// How much memory may be committed.
    pub overcommit: Overcommit,
    /// How mappings are torn down.
    pub gather: GatherTechnique,
    /// What happens to empty tables.
    pub tables: TablesTechnique,
    /// In which pieces pages are moved.
    pub mremap: RemapTechnique,
    /// The controls of large folios at the start.
    pub huge: HugeConfig,
    /// What happens when memory is exhausted.
    pub oom: OomAction,
}

/// What happens when a fault needs memory and nothing can be freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OomAction {
    /// The fault fails with [`FaultError::OutOfMemory`](crate::FaultError::OutOfMemory), and the embedder
    /// decides.
    #[default]
    Refuse,
    /// The program with the highest score is killed, as in Linux.
    Kill,
}

/// The address spaces of one machine. Owns the frames and all address spaces.
pub struct Spaces<P: Platform> {
    memory: MemoryCore<P>,
    vmas: SlabCache<Vma, P>,
    nodes: SlabCache<MaybeUninit<Node<Vma>>, P>,
    cores: SlabCache<SpaceCore, P>,
    rmap: RmapState<P>,
    files: Files<P, Vma>,
    thp: ThpState<P>,
    list: SpinLock<SpaceList, P>,
    khugepaged: SpinLock<Scan, P>,
    current: CurrentSpaces,
    /// The frame of the tag pool's bits.
    tags: Pfn,
    overcommit: Overcommit,
    ram_pages: u64,
    oom: OomAction,
    oom_turns: OomTurns,
    reclaims: Reclaims,
    /// Killed programs that have not exited.
    killed: AtomicU64,
    next_space: AtomicU64,
    reclaim: &'static dyn Reclaim<P>,
}

impl<P: Platform> Spaces<P> {
    /// Over the frames of `swap`, without an address space yet. `files` are [`no_files`](Self::no_files),
    /// made before: this is deep in a kernel's stack.
    ///
    /// # Errors
    ///
    /// [`Error::NoFrames`] when not even its own few frames can be allocated.
    pub fn new(
        swap: Swap<P>,
        files: Result<Files<P, Vma>, AllocError>,
        config: SpacesConfig,
        reclaim: &'static dyn Reclaim<P>,
    ) -> Result<Self, Error> {
        let SpacesConfig { overcommit, gather, tables, mremap, huge, oom } = config;
        // Moved once, at the end: it is large, and this runs on a kernel's stack.
        let made = MemoryCore::new(swap, Techniques { gather, tables, mremap });
        let memory = made.as_ref().map_err(|&error| Error::from(error))?;
        let frames = memory.frames();
        let pin = frames.platform().pin();
        let vmas = SlabCache::new(frames, &pin, "vm_area_struct")?;
        let nodes = SlabCache::new(frames, &pin, "range_node")?;
        let cores = SlabCache::new(frames, &pin, "mm_struct")?;
        let rmap = RmapState::new(memory, &pin)?;
        let files = files?;
        let tags = frames.allocate(&pin, AllocRequest::new(Order::ZERO, FailSite::new("spaces")).zeroed())?;
        let current = CurrentSpaces::new(memory, &pin)?;
        drop(pin);
        let bits = frames.platform().direct_map(tags).cast();
        // SAFETY: the frame is new, zeroed, and never freed.
        let asids = unsafe { AsidPool::new(bits, frames.platform().asid_count()) };
        if let Some(pages) = overcommit.limit() {
            files.committed().set_limit(pages);
        }
        let ram_pages = frames.reports().totals().managed;
        Ok(Self {
            vmas,
            nodes,
            cores,
            rmap,
            files,
            thp: ThpState::new(huge),
            list: SpinLock::new(LockClass::Spaces, SpaceList::new(asids)),
            khugepaged: SpinLock::new(LockClass::Khugepaged, Scan::default()),
            current,
            tags,
            overcommit,
            ram_pages,
            oom,
            oom_turns: OomTurns::new(),
            reclaims: Reclaims::new(),
            killed: AtomicU64::new(0),
            next_space: AtomicU64::new(1),
            reclaim,
            memory: made?,
        })
    }

    /// The files of a machine that has none yet.
    ///
    /// # Errors
    ///
    /// When there are no frames for their caches.
    #[inline(never)]
    pub fn no_files(swap: &Swap<P>) -> Result<Files<P, Vma>, AllocError> {
        Files::new(swap.frames())
    }

    /// Frames, memcgs and swap, and what all page tables share.
    #[inline]
    pub fn memory(&self) -> &MemoryCore<P> {
        &self.memory
    }

    /// The rmap.
    #[inline]
    pub fn rmap(&self) -> Rmap<'_, P> {
        Rmap::new(&self.memory, &self.rmap)
    }

    /// The page cache.
    #[inline]
    pub fn page_cache(&self) -> PageCache<'_, P, Vma> {
        // SAFETY: the files were made on this machine.
        unsafe { PageCache::new(&self.files, self.swap()) }
    }

    /// The large folios.
    #[inline]
    pub fn thp(&self) -> Thp<'_, P> {
        Thp::new(self.rmap(), &self.thp)
    }

    /// The page-frame allocator below this crate.
    #[inline]
    pub fn frames(&self) -> &Frames<P> {
        self.memory.frames()
    }

    /// Swap, and through it the memcgs and the frames.
    #[inline]
    pub fn swap(&self) -> &Swap<P> {
        self.memory.swap()
    }

    /// The memcgs and their LRU lists.
    #[inline]
    pub fn memcgs(&self) -> &Memcgs<P> {
        self.memory.memcgs()
    }

    /// Killed programs that have not exited.
    #[inline]
    pub fn victims(&self) -> Victims<'_, P> {
        Victims::new(self)
    }

    /// Memory for a thread that finds none.
    #[inline]
    pub(crate) fn direct_reclaim(&self) -> DirectReclaim<'_, P> {
        DirectReclaim::new(self)
    }

    /// The VMAs of all spaces.
    #[inline]
    pub(crate) fn vmas(&self) -> VmaStore<'_, P> {
        VmaStore::new(self)
    }

    /// The reclaim implementation.
    pub(crate) fn reclaim(&self) -> &'static dyn Reclaim<P> {
        self.reclaim
    }

    /// The machine.
    #[inline]
    pub fn platform(&self) -> &P {
        self.frames().platform()
    }

    /// The shared zero page, mapped for reads of untouched memory.
    #[inline]
    pub fn zero_page(&self) -> Pfn {
        self.memory.zero_page()
    }

    /// The space that each CPU runs.
    #[inline]
    pub(crate) fn current(&self) -> &CurrentSpaces {
        &self.current
    }

    /// Committed memory.
    pub fn commit(&self) -> Commit<'_> {
        Commit::new(self.overcommit, self.ram_pages, self.files.committed())
    }

    /// Commits `pages` more.
    ///
    /// # Errors
    ///
    /// [`Error::CommitLimit`].
    pub(crate) fn promise(&self, pages: u64) -> Result<(), Error> {
        self.commit().charge(pages, || self.swap().devices().total_slots())
    }

    /// Commits `pages` of shared memory that is to be made.
    ///
    /// # Errors
    ///
    /// [`Error::CommitLimit`].
    pub(crate) fn promise_shared(&self, pages: u64) -> Result<(), Error> {
        self.commit().charge_shared(pages, || self.swap().devices().total_slots())
    }

    /// What is known of khugepaged's scan.
    pub(crate) fn khugepaged(&self) -> &SpinLock<Scan, P> {
        &self.khugepaged
    }

    /// What happens when memory is exhausted.
    pub(crate) fn oom_action(&self) -> OomAction {
        self.oom
    }

    /// The turns of the OOM killer.
    pub(crate) fn oom_turns(&self) -> &OomTurns {
        &self.oom_turns
    }

    /// The controls of large folios.
    #[inline]
    pub fn huge(&self) -> &HugeControls {
        self.thp.controls()
    }

    /// Closes the open files that have lost their last holders with spaces that reclaim was the last to have,
    /// and ends the files that it was the last to have. The caller holds no lock and is not pinned; may
    /// sleep.
    #[inline]
    pub fn close_unused_files(&self) {
        close_all(self, self.rmap().closing());
        HeldFile::end_left(self.page_cache());
    }

    /// Number of spaces that exist.
    pub fn count(&self) -> usize {
        let _pin = self.platform().pin();
        self.list.lock().count
    }

    /// Takes a space off the list and frees what is left of it: the root, the tag and the core.
    ///
    /// # Safety
    ///
    /// The last handle is gone, the space is empty, and no CPU has it current.
    pub(crate) unsafe fn destroy(&self, core: NonNull<SpaceCore>) {
        let pin = self.platform().pin();
        // SAFETY: live until it is freed below.
        let shared = unsafe { core.as_ref() };
        let root = shared.tables.root();
        if shared.is_killed() {
            self.victims().note_gone(shared.memcg());
        }
        let mut list = self.list.lock();
        // SAFETY: it has been on the list since `create`.
        unsafe { list.remove(shared) };
        list.asids.give(shared.tables.asid());
        let memcg = shared.memcg();
        drop(list);
        self.memcgs().tree().release(memcg);
        // SAFETY: off the list, and the last handle is gone: nothing can reach it any more.
        unsafe { self.cores.free(self.frames(), &pin, core) };
        // Lock-free walkers of this space are gone with its handles, so the root needs no epoch.
        self.memcgs().folios().release_unused(&pin, root, Order::ZERO);
    }

    /// A new, empty address space, with one handle.
    ///
    /// # Errors
    ///
    /// [`Error::NoFrames`], with nothing left behind.
    pub(crate) fn create(
        &self,
        layout: Layout,
        limits: Limits,
        oom_score_adj: i16,
    ) -> Result<NonNull<SpaceCore>, Error> {
        let pin = self.platform().pin();
        let root = self.frames().allocate(&pin, AllocRequest::table().kind(Kind::Table))?;
        let id = SpaceId::new(self.next_space.fetch_add(1, Ordering::Relaxed));
        let asid = {
            let mut list = self.list.lock();
            if list.count + list.coming >= MAX_SPACES {
                drop(list);
                self.memcgs().folios().release_unused(&pin, root, Order::ZERO);
                return Err(AllocError::OutOfMemory.into());
            }
            list.coming += 1;
            list.asids.take()
        };
        // SAFETY: the root is a new table, and `destroy` frees it after the last handle is gone.
        let tables = unsafe { SpaceTables::new(id, root, asid) };
        tables.init_table(self.frames(), root, P::Paging::root_level(), VirtAddr(0));
        self.init_kernel_half(root);
        let core = SpaceCore::new(tables, layout, limits);
        core.oom_score_adj.store(i32::from(oom_score_adj) as u32, Ordering::Relaxed);
        let core = match self.cores.allocate(self.frames(), &pin, core) {
            Ok(core) => core,
            Err(error) => {
                let mut list = self.list.lock();
                list.asids.give(asid);
                list.coming -= 1;
                drop(list);
                self.memcgs().folios().release_unused(&pin, root, Order::ZERO);
                return Err(error.into());
            }
        };
        let mut list = self.list.lock();
        // SAFETY: just allocated, and live until its last handle is dropped: `destroy` takes it off first.
        unsafe { list.push(core) };
        list.coming -= 1;
        drop(list);
        Ok(core)
    }

    /// Lets the platform fill in the kernel's half of the new table `root`, to which nothing else refers yet.
    fn init_kernel_half(&self, root: Pfn) {
        let level = P::Paging::root_level();
        let (user, all) = (P::Paging::user_entries(level), P::Paging::entries(level));
        let entries = self.platform().direct_map(root).cast::<u64>().as_ptr();
        // SAFETY: the direct map of a frame is valid for a page, which holds all entries of a table; the
        // frame is zeroed and only known here until the space is made of it.
        let kernel_half = unsafe { slice::from_raw_parts_mut(entries.add(user), all - user) };
        self.platform().init_root(root, kernel_half);
    }

    /// The space after `core` on the list, or the first one, with a handle more. `core` has a handle. Those
    /// that are exiting are skipped.
    pub(crate) fn hold_next(&self, core: Option<&SpaceCore>) -> Option<NonNull<SpaceCore>> {
        let _pin = self.platform().pin();
        self.list.lock().hold_next(core)
    }

    /// VMAs, spaces and anon_vmas that are allocated, for the auditor.
    pub(crate) fn objects_in_use(&self) -> [u64; 3] {
        let in_use = |report: Option<CacheReport>| report.map_or(0, |report| report.in_use);
        let frames = self.frames();
        [self.vmas.report(frames), self.cores.report(frames), self.rmap.cache().report(frames)].map(in_use)
    }

    /// Whether the frame is one of the crate's own.
    pub(crate) fn owns(&self, pfn: Pfn) -> bool {
        pfn == self.tags || pfn == self.current.block()
    }

    /// Leaves the pinned CPU without a space. For a CPU that goes idle or runs the kernel's own threads:
    /// flushes skip it from now on.
    pub fn deactivate(&self, pin: &Pin<'_, P>) {
        self.with_own_pin(pin, |pin| self.current.deactivate(pin));
    }

    /// Calls `work` with `pin`, or if that is of another machine, whose CPUs are none of this one's, with a
    /// pin of the CPU of this machine that the caller is on.
    #[inline]
    pub fn with_own_pin<R>(&self, pin: &Pin<'_, P>, work: impl FnOnce(&Pin<'_, P>) -> R) -> R {
        if ptr::eq(pin.platform(), self.platform()) { work(pin) } else { work(&self.platform().pin()) }
    }
}

// SAFETY: nodes come from a slab cache and go back to it through the epoch of this machine's frames, which is
// the one that faults enter before they look a VMA up; a retired object is left as it is until the epoch has
// passed.
unsafe impl<P: Platform> NodeStore<Vma> for Spaces<P> {
    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate(&self) -> Result<NonNull<Node<Vma>>, OutOfNodes> {
        let pin = self.platform().pin();
        let node = self.nodes.allocate(self.frames(), &pin, MaybeUninit::uninit());
        node.map(NonNull::cast).map_err(OutOfNodes)
    }

    unsafe fn retire(&self, node: NonNull<Node<Vma>>) {
        let pin = self.platform().pin();
        // SAFETY: the tree's promise: it came from `allocate` and is linked nowhere.
        unsafe { self.nodes.retire(self.frames(), &pin, node.cast()) };
    }
}

impl<P: Platform> fmt::Debug for Spaces<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spaces").field("count", &self.count()).finish_non_exhaustive()
    }
}
