//! All address spaces of one machine, and what they share.

mod deferred;
mod reclaim;
mod scan;

pub(crate) use deferred::DeferredSplits;
pub use reclaim::{Need, NoReclaim, Reclaim};
pub(crate) use scan::Cursor;

use crate::commit::{Commit, Overcommit};
use crate::cpus::{CurrentSpaces, Slot};
use crate::error::Error;
use crate::huge::{HugeConfig, HugeControls};
use crate::layout::{Layout, Limits};
use crate::rmap::{AnonVma, set_owner};
use crate::space::{Space, SpaceCore, SpaceId};
use crate::table::{GatherTechnique, RemapTechnique, TablesTechnique};
use crate::vma::{AnonVmaRef, Vma, VmaSnapshot};
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use quire_arch::{Asid, LockClass, Order, PAGE_SHIFT, PagingFormat, Pfn, Platform, VirtAddr};
use quire_frame::{AllocError, AllocRequest, FaultSite, FrameFlags, Frames, Kind};
use quire_memcg::Memcgs;
use quire_slab::{CacheReport, SlabCache};
use quire_swap::Swap;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{PerCpu, SpinLock};
use quire_vma_tree::tree::{Node, NodeStore, OutOfNodes};

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
    /// What becomes of empty tables.
    pub tables: TablesTechnique,
    /// In which pieces pages are moved.
    pub mremap: RemapTechnique,
    /// The controls of large folios at the start.
    pub huge: HugeConfig,
    /// What happens when memory is exhausted.
    pub oom: OomAction,
}

/// What happens when a fault needs memory and nothing can be freed any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OomAction {
    /// The fault fails with [`FaultError::OutOfMemory`](crate::FaultError::OutOfMemory), and the embedder
    /// decides.
    #[default]
    Refuse,
    /// The program with the highest score is killed, as in Linux.
    Kill,
}

/// The address spaces of one machine: owns the frames and keeps every address space.
pub struct Spaces<P: Platform> {
    swap: Swap<P>,
    vmas: SlabCache<Vma, P>,
    nodes: SlabCache<MaybeUninit<Node<Vma>>, P>,
    cores: SlabCache<SpaceCore, P>,
    anon_vmas: SlabCache<AnonVma, P>,
    list: SpinLock<SpaceList, P>,
    deferred: SpinLock<DeferredSplits, P>,
    khugepaged: SpinLock<Cursor, P>,
    zero_page: Pfn,
    /// The huge one, while there is one, with a reference of its own.
    huge_zero: SpinLock<Option<Pfn>, P>,
    current: CurrentSpaces,
    /// The frame of the tag pool's bits, and the first of what `current` lies in.
    own: [Pfn; 2],
    commit: Commit,
    gather: GatherTechnique,
    tables: TablesTechnique,
    mremap: RemapTechnique,
    huge: HugeControls,
    oom: OomAction,
    next_space: AtomicU64,
    next_number: AtomicU64,
    reclaim: &'static dyn Reclaim<P>,
}

/// Every space, as a list through [`SpaceCore::link`], and the tags that are in use.
struct SpaceList {
    first: Option<NonNull<SpaceCore>>,
    asids: AsidPool,
    count: usize,
    /// Spaces that are being made.
    coming: usize,
}

// SAFETY: the pointers are to space cores, which are `Sync`; they are followed only under the list's lock.
unsafe impl Send for SpaceList {}

/// Which address-space tags are free: one bit each.
struct AsidPool {
    /// A frame of bits, a set bit for each tag in use.
    bits: NonNull<u64>,
    count: u32,
    /// Where the next search starts.
    hint: u32,
}

impl AsidPool {
    /// The most tags that one frame of bits tells apart.
    const MOST: u32 = 8 << PAGE_SHIFT;

    fn word(&mut self, asid: u32) -> &mut u64 {
        // SAFETY: the pool owns the frame, and every tag is below `MOST`.
        unsafe { self.bits.add(asid as usize / 64).as_mut() }
    }

    /// A free tag, or [`Asid::NONE`] when all are in use.
    fn take(&mut self) -> Asid {
        for step in 0..self.count {
            let asid = (self.hint + step) % self.count;
            let bit = 1 << (asid % 64);
            if asid != Asid::NONE.0 && *self.word(asid) & bit == 0 {
                *self.word(asid) |= bit;
                self.hint = asid + 1;
                return Asid(asid);
            }
        }
        Asid::NONE
    }

    /// Frees a tag. TLBs may still hold translations under it: each CPU drops them before it first runs the
    /// space that gets the tag next.
    fn give(&mut self, asid: Asid) {
        if asid != Asid::NONE {
            *self.word(asid.0) &= !(1 << (asid.0 % 64));
        }
    }
}

impl<P: Platform> Spaces<P> {
    /// Over the frames of `swap`, without an address space yet.
    ///
    /// # Errors
    ///
    /// [`Error::NoFrames`] when not even its own few frames can be allocated.
    pub fn new(swap: Swap<P>, config: SpacesConfig, reclaim: &'static dyn Reclaim<P>) -> Result<Self, Error> {
        let frames = swap.frames();
        let pin = frames.platform().pin();
        let vmas = SlabCache::new(frames, &pin, "vm_area_struct")?;
        let nodes = SlabCache::new(frames, &pin, "range_node")?;
        let cores = SlabCache::new(frames, &pin, "mm_struct")?;
        let anon_vmas = SlabCache::new(frames, &pin, "anon_vma")?;
        let own = AllocRequest::new(Order::ZERO, FaultSite::new("spaces")).zeroed();
        let zero_page = frames.allocate(&pin, own)?;
        let bits = frames.allocate(&pin, own)?;
        let cpus = frames.platform().cpu_count();
        let bytes = CurrentSpaces::bytes(cpus) as u64;
        let order = Order::ALL.into_iter().find(|order| order.bytes() >= bytes).unwrap_or(Order::MAX);
        let slots = frames.allocate(&pin, AllocRequest::new(order, FaultSite::new("spaces")))?;
        drop(pin);
        // SAFETY: the block holds the slots (the largest order holds those of `MAX_CPUS`, as `current.rs`
        // asserts) and is aligned to a page; it belongs to `Spaces` and is never freed.
        let current = unsafe { PerCpu::init(frames.platform().direct_map(slots), cpus, |_| Slot::new()) };
        let _ = frames.known(zero_page).classify(Kind::ZeroPage);
        let asids = AsidPool {
            bits: frames.platform().direct_map(bits).cast(),
            count: frames.platform().asid_count().clamp(1, AsidPool::MOST),
            hint: 1,
        };
        let commit = Commit::new(config.overcommit, frames.totals().managed);
        Ok(Self {
            vmas,
            nodes,
            cores,
            anon_vmas,
            list: SpinLock::new(LockClass::Spaces, SpaceList { first: None, asids, count: 0, coming: 0 }),
            deferred: SpinLock::new(LockClass::DeferredSplit, DeferredSplits::default()),
            khugepaged: SpinLock::new(LockClass::Khugepaged, Cursor::default()),
            zero_page,
            huge_zero: SpinLock::new(LockClass::HugeZero, None),
            current,
            own: [bits, slots],
            commit,
            gather: config.gather,
            tables: config.tables,
            mremap: config.mremap,
            huge: HugeControls::new(config.huge),
            oom: config.oom,
            next_space: AtomicU64::new(1),
            next_number: AtomicU64::new(1),
            reclaim,
            swap,
        })
    }

    /// The page-frame allocator below this crate.
    #[inline]
    pub fn frames(&self) -> &Frames<P> {
        self.swap.frames()
    }

    /// Swap, and through it the memcgs and the frames.
    #[inline]
    pub fn swap(&self) -> &Swap<P> {
        &self.swap
    }

    /// The memcgs and their LRU lists.
    #[inline]
    pub fn memcgs(&self) -> &Memcgs<P> {
        self.swap.memcgs()
    }

    /// What frees memory when it is short.
    pub(crate) fn reclaim(&self) -> &'static dyn Reclaim<P> {
        self.reclaim
    }

    /// The machine.
    #[inline]
    pub fn platform(&self) -> &P {
        self.frames().platform()
    }

    /// The page of zeros that reads of untouched memory share.
    #[inline]
    pub fn zero_page(&self) -> Pfn {
        self.zero_page
    }

    /// The huge page of zeros, if there is one.
    pub(crate) fn huge_zero(&self) -> &SpinLock<Option<Pfn>, P> {
        &self.huge_zero
    }

    /// The space that each CPU runs.
    #[inline]
    pub(crate) fn current(&self) -> &CurrentSpaces {
        &self.current
    }

    /// Committed memory.
    pub fn commit(&self) -> &Commit {
        &self.commit
    }

    /// Folios that wait to be split.
    pub(crate) fn deferred(&self) -> &SpinLock<DeferredSplits, P> {
        &self.deferred
    }

    /// Where khugepaged goes on.
    pub(crate) fn khugepaged(&self) -> &SpinLock<Cursor, P> {
        &self.khugepaged
    }

    /// How mappings are torn down.
    #[inline]
    pub(crate) fn gather_technique(&self) -> GatherTechnique {
        self.gather
    }

    /// What becomes of empty tables.
    pub(crate) fn tables_technique(&self) -> TablesTechnique {
        self.tables
    }

    /// In which pieces pages are moved.
    pub(crate) fn remap_technique(&self) -> RemapTechnique {
        self.mremap
    }

    /// What happens when memory is exhausted.
    pub(crate) fn oom_action(&self) -> OomAction {
        self.oom
    }

    /// The controls of large folios.
    #[inline]
    pub fn huge(&self) -> &HugeControls {
        &self.huge
    }

    /// Number of spaces that exist.
    pub fn count(&self) -> usize {
        let _pin = self.platform().pin();
        self.list.lock().count
    }

    /// Bytes of anonymous memory that is mapped, summed over all spaces at this moment.
    pub fn resident_anonymous(&self) -> u64 {
        let mut bytes = 0;
        self.for_each(|core| bytes += core.usage.figures(0).resident_anonymous);
        bytes
    }

    /// A new, empty address space.
    ///
    /// # Errors
    ///
    /// [`Error::NoFrames`], with nothing left behind.
    pub fn create(&self, layout: Layout, limits: Limits) -> Result<Space<'_, P>, Error> {
        let pin = self.platform().pin();
        let root = self.frames().allocate(&pin, AllocRequest::table().kind(Kind::Table))?;
        let id = SpaceId::new(self.next_space.fetch_add(1, Ordering::Relaxed));
        let asid = {
            let mut list = self.list.lock();
            if list.count + list.coming >= MAX_SPACES {
                drop(list);
                self.memcgs().release_unused(&pin, root, Order::ZERO);
                return Err(AllocError::OutOfMemory.into());
            }
            list.coming += 1;
            list.asids.take()
        };
        let core = SpaceCore::new(id, root, asid, layout, limits);
        let core = match self.cores.allocate(self.frames(), &pin, core) {
            Ok(core) => core,
            Err(error) => {
                let mut list = self.list.lock();
                list.asids.give(asid);
                list.coming -= 1;
                drop(list);
                self.memcgs().release_unused(&pin, root, Order::ZERO);
                return Err(error.into());
            }
        };
        // SAFETY: just allocated, and live until its last handle is dropped.
        let shared = unsafe { core.as_ref() };
        self.init_table(root, P::Paging::root_level(), VirtAddr(0), shared);
        let mut list = self.list.lock();
        shared.link.set_between(None, list.first);
        if let Some(first) = list.first {
            // SAFETY: what is on the list is live, and its links change under the list's lock.
            unsafe { first.as_ref() }.link.set_previous(Some(core));
        }
        list.first = Some(core);
        list.count += 1;
        list.coming -= 1;
        drop(list);
        Ok(Space::adopt(self, core))
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
        let root = shared.root();
        let mut list = self.list.lock();
        let (previous, next) = shared.link.get();
        match previous {
            // SAFETY: a neighbour on the list is live.
            Some(previous) => unsafe { previous.as_ref() }.link.set_next(next),
            None => list.first = next,
        }
        if let Some(next) = next {
            // SAFETY: as above.
            unsafe { next.as_ref() }.link.set_previous(previous);
        }
        list.asids.give(shared.asid());
        list.count -= 1;
        let group = shared.memcg();
        drop(list);
        self.memcgs().release(group);
        // SAFETY: off the list, and the last handle is gone: nothing can reach it any more.
        unsafe { self.cores.free(self.frames(), &pin, core) };
        // Lock-free walkers of this space are gone with its handles, so the root needs no epoch.
        self.memcgs().release_unused(&pin, root, Order::ZERO);
    }

    /// Calls `visit` with every space, without a lock: each is kept by a handle meanwhile.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&SpaceCore)) {
        let mut next = self.space_after(None);
        while let Some(space) = next {
            visit(space.core());
            next = self.space_after(Some(&space));
        }
    }

    /// A handle to the space after `space` on the list, or to the first one. Those that are exiting are
    /// skipped.
    pub(crate) fn space_after(&self, space: Option<&Space<'_, P>>) -> Option<Space<'_, P>> {
        let _pin = self.platform().pin();
        let list = self.list.lock();
        let mut next = match space {
            // It has a handle, so it is on the list.
            Some(space) => space.core().link.get().1,
            None => list.first,
        };
        while let Some(core) = next {
            // SAFETY: what is on the list is live while its lock is held.
            let shared = unsafe { core.as_ref() };
            if shared.try_hold() {
                return Some(Space::adopt(self, core));
            }
            next = shared.link.get().1;
        }
        None
    }

    /// VMAs, spaces and anon_vmas that are allocated, for the auditor.
    pub(crate) fn objects_in_use(&self) -> [u64; 3] {
        let in_use = |report: Option<CacheReport>| report.map_or(0, |report| report.in_use);
        let frames = self.frames();
        [self.vmas.report(frames), self.cores.report(frames), self.anon_vmas.report(frames)].map(in_use)
    }

    /// Whether the frame is one of the crate's own.
    pub(crate) fn owns(&self, pfn: Pfn) -> bool {
        self.own.contains(&pfn)
    }

    /// The slab cache of anon_vmas.
    pub(crate) fn anon_vmas(&self) -> &SlabCache<AnonVma, P> {
        &self.anon_vmas
    }

    /// A number that this machine never uses again, from 1: for a piece of shared anonymous memory, or for a
    /// VMA that a fork copies.
    pub(crate) fn new_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Says in the descriptor of a page that is about to be mapped once where it belongs.
    #[inline]
    pub(crate) fn init_page(&self, pfn: Pfn, vma: &VmaSnapshot, addr: VirtAddr) {
        let frame = self.frames().known(pfn);
        frame.index().store(vma.page_offset_at(addr), Ordering::Relaxed);
        set_owner(frame, if frame.kind() == Kind::Anonymous { vma.anon } else { AnonVmaRef::NONE });
        // Release, after the owner: a walker that sees that the page is mapped sees its owner
        // (`rmap/walk.rs`).
        frame.map_count().store(1, Ordering::Release);
    }

    /// The same for a new large folio that is about to be mapped from `start` on, `pages` of it, by one
    /// space.
    pub(crate) fn init_folio(&self, head: Pfn, pages: u32, vma: &VmaSnapshot, start: VirtAddr) {
        let frame = self.frames().known(head);
        frame.index().store(vma.page_offset_at(start), Ordering::Relaxed);
        set_owner(frame, vma.anon);
        frame.live().store(0, Ordering::Relaxed);
        frame.set_flags(FrameFlags::ANONYMOUS_EXCLUSIVE);
        // Release as above.
        frame.map_count().store(pages, Ordering::Release);
    }

    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn allocate_vma(&self, vma: Vma) -> Result<NonNull<Vma>, AllocError> {
        let pin = self.platform().pin();
        self.vmas.allocate(self.frames(), &pin, vma)
    }

    /// Frees a VMA that was never in a tree.
    ///
    /// # Safety
    ///
    /// It came from [`allocate_vma`](Self::allocate_vma), nothing else refers to it, and it is not used
    /// again.
    pub(crate) unsafe fn free_vma(&self, vma: NonNull<Vma>) {
        let pin = self.platform().pin();
        // SAFETY: the caller's promise.
        unsafe { self.vmas.free(self.frames(), &pin, vma) };
    }

    /// Frees a VMA that was in a tree, once no lock-free reader can be looking at it.
    ///
    /// # Safety
    ///
    /// It came from [`allocate_vma`](Self::allocate_vma), is detached and out of its tree, and the caller
    /// does not use it again.
    pub(crate) unsafe fn retire_vma(&self, vma: NonNull<Vma>) {
        let pin = self.platform().pin();
        // SAFETY: the caller's promise.
        unsafe { self.vmas.retire(self.frames(), &pin, vma) };
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
