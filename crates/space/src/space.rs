//! One address space: its core, and the handle that users hold.

mod calls;
mod fork;
mod huge;
mod memcg;
mod oom;
mod pagemap;
mod reclaim_handle;
mod rights;
mod smaps;

pub use memcg::MemcgChangeError;
pub use oom::{OOM_SCORE_ADJ_NEVER, Reap};
pub use pagemap::PageState;
pub use reclaim_handle::{ReclaimHandle, finish_exits};
pub use smaps::{AnonymousPlace, MappingFigures};

use crate::caller::{Caller, retry_with_reclaim};
use crate::error::Error;
use crate::mapping::Mapping;
use crate::mmap_writer::MmapWriter;
use crate::spaces::Spaces;
use arrayvec::ArrayVec;
use core::fmt;
use core::ptr::NonNull;
use quire_arch::Pin;
use quire_arch::{Asid, CpuId, PAGE_SIZE, Pfn, Platform, VirtAddr};
use quire_pagetable::SpaceId;
use quire_rmap::SpaceCore;
use quire_rmap::{Layout, Limits, Rights, SpaceFigures};
use quire_sync::atomic::{Ordering, fence};

/// Mappings that are looked at under one hold of the mmap lock, before a caller is told of them.
const MAPPINGS: usize = 16;

/// A handle to an address space. The space exits (everything is unmapped and freed) when its last handle is
/// dropped; a caller that lets a CPU run the space keeps one ([`activate`](Self::activate)).
pub struct Space<'m, P: Platform> {
    pub(crate) spaces: &'m Spaces<P>,
    core: NonNull<SpaceCore>,
    rights: Rights,
}

// SAFETY: a handle is a counted reference to a core, which is `Sync`; its methods take their own locks.
unsafe impl<P: Platform> Send for Space<'_, P> {}
// SAFETY: as above.
unsafe impl<P: Platform> Sync for Space<'_, P> {}

impl<'m, P: Platform> Space<'m, P> {
    /// A handle that the core counts already: its first one, or one from [`SpaceCore::try_hold`].
    pub(crate) fn adopt(spaces: &'m Spaces<P>, core: NonNull<SpaceCore>) -> Self {
        Self { spaces, core, rights: Rights::empty() }
    }

    /// Where the core lies, for the list of spaces.
    pub(crate) fn place(&self) -> NonNull<SpaceCore> {
        self.core
    }

    /// A new, empty address space. If memory is short some is reclaimed for it.
    ///
    /// # Errors
    ///
    /// [`Error::NoFrames`], with nothing left behind.
    #[doc(hidden)]
    pub fn create(spaces: &'m Spaces<P>, layout: Layout, limits: Limits) -> Result<Self, Error> {
        retry_with_reclaim(spaces, || false, || Self::create_once(spaces, layout, limits, 0))
    }

    /// The same without reclaim, and with an OOM adjustment from the moment on at which others find the
    /// space.
    fn create_once(
        spaces: &'m Spaces<P>,
        layout: Layout,
        limits: Limits,
        oom_score_adj: i16,
    ) -> Result<Self, Error> {
        spaces.create(layout, limits, oom_score_adj).map(|core| Self::adopt(spaces, core))
    }

    /// A handle to the space after `space` on the list of all spaces, or to the first one. Those that are
    /// exiting are skipped.
    #[doc(hidden)]
    pub fn next(spaces: &'m Spaces<P>, space: Option<&Self>) -> Option<Self> {
        spaces.hold_next(space.map(Self::core)).map(|core| Self::adopt(spaces, core))
    }

    /// A handle to the space `id`, unless it is exiting.
    #[doc(hidden)]
    pub fn with_id(spaces: &'m Spaces<P>, id: SpaceId) -> Option<Self> {
        let mut next = Self::next(spaces, None);
        while let Some(space) = next {
            if space.id() == id {
                return Some(space);
            }
            next = Self::next(spaces, Some(&space));
        }
        None
    }

    /// Calls `visit` with every space, without a lock: each is kept by a handle meanwhile.
    pub(crate) fn for_each(spaces: &'m Spaces<P>, mut visit: impl FnMut(&SpaceCore)) {
        let mut next = Self::next(spaces, None);
        while let Some(space) = next {
            visit(space.core());
            next = Self::next(spaces, Some(&space));
        }
    }

    /// Calls `visit` with the resident pages of each space at this moment: a shared page counts for each.
    #[doc(hidden)]
    pub fn for_each_resident(spaces: &'m Spaces<P>, mut visit: impl FnMut(SpaceId, Resident)) {
        Self::for_each(spaces, |core| {
            let figures = core.tables.residency.figures();
            let resident = Resident {
                anonymous: figures.anonymous * PAGE_SIZE,
                file: figures.file * PAGE_SIZE,
                page_tables: figures.tables * PAGE_SIZE,
                mappings: core.vmas.len() as u64,
            };
            visit(core.tables.id(), resident);
        });
    }

    /// What a call through this handle is made on.
    #[inline]
    pub(crate) fn caller(&self) -> Caller<'_, P> {
        Caller { spaces: self.spaces, core: self.core(), rights: self.rights }
    }

    #[inline]
    pub(crate) fn core(&self) -> &SpaceCore {
        // SAFETY: the core lives while it has handles, and this is one.
        unsafe { self.core.as_ref() }
    }

    /// Makes this space the current one of the pinned CPU, in place of the one that is.
    ///
    /// A handle must exist for as long as the CPU may walk the tables. On a machine that walks for accesses
    /// only, the threads that make the accesses have one. Where a CPU may walk at any time, as hardware that
    /// speculates does, the caller keeps one until the CPU has another space or none
    /// ([`Spaces::deactivate`]). When the last handle is dropped, the space exits and is current nowhere.
    pub fn activate(&self, pin: &Pin<'_, P>) {
        self.spaces.with_own_pin(pin, |pin| {
            self.spaces.current().activate(self.spaces.memory(), pin, &self.core().tables);
        });
    }

    /// Whether `cpu` has run this space ever since it last became the current one there. Only the CPU itself
    /// may rely on it: for platforms that look before they activate.
    #[doc(hidden)]
    #[inline]
    pub fn is_current_on(&self, cpu: CpuId) -> bool {
        self.spaces.current().is_current(cpu, &self.core().tables)
    }

    /// The machine.
    pub fn platform(&self) -> &'m P {
        self.spaces.platform()
    }

    /// The machine's spaces.
    #[cfg(feature = "internals")]
    pub fn spaces(&self) -> &'m Spaces<P> {
        self.spaces
    }

    /// The space's number.
    pub fn id(&self) -> SpaceId {
        self.core().id()
    }

    /// The frame of its topmost page table.
    pub fn root(&self) -> Pfn {
        self.core().tables.root()
    }

    /// The tag of its translations.
    #[doc(hidden)]
    pub fn asid(&self) -> Asid {
        self.core().tables.asid()
    }

    /// The fixed points of its layout.
    #[doc(hidden)]
    pub fn layout(&self) -> Layout {
        self.core().layout
    }

    /// Its limits at this moment.
    pub fn limits(&self) -> Limits {
        self.core().limits.load()
    }

    /// Changes its limits. What is already mapped stays. Limits belong to a process: where processes share a
    /// space (`vfork`), the embedder sets those of the caller's before a call.
    pub fn set_limits(&self, limits: Limits) {
        self.core().limits.store(limits);
    }

    /// The rights of calls through this handle beyond the limits. A new space's handle has no rights; a clone
    /// of a handle and the handle of a child have the same.
    #[inline]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// A handle to the same space whose calls have `rights`: for a thread that shares the space with others,
    /// or whose privileges have changed.
    #[must_use]
    pub fn acting_with(&self, rights: Rights) -> Self {
        let mut handle = self.clone();
        handle.rights = rights;
        handle
    }

    /// The usage of the space at this moment.
    pub fn figures(&self) -> SpaceFigures {
        let core = self.core();
        core.usage.figures(core.vmas.len() as u64, &core.tables.residency)
    }

    /// What [`figures`](Self::figures) has as `resident_anonymous`, for who asks at each touch.
    #[cfg(feature = "internals")]
    #[inline]
    pub fn resident_anonymous(&self) -> u64 {
        self.core().tables.residency.anonymous() * PAGE_SIZE
    }

    /// Calls `visit` with every mapping, lowest first, and with no lock held. As in Linux, mappings that
    /// change meanwhile are visited as they were before or as they are then, and what is mapped all the time
    /// is visited.
    pub fn for_each_mapping(&self, visit: impl FnMut(Mapping)) {
        self.for_each_mapping_in(VirtAddr(0), VirtAddr(u64::MAX), visit);
    }

    /// The same of mappings that meet the addresses from `start` to `end`.
    #[doc(hidden)]
    pub fn for_each_mapping_in(&self, start: VirtAddr, end: VirtAddr, mut visit: impl FnMut(Mapping)) {
        let mut next = Some(start);
        while let Some(from) = next {
            let mut some = ArrayVec::<Mapping, MAPPINGS>::new();
            {
                let mappings = self.core().read_mappings(self.spaces.platform());
                let from_here =
                    mappings.iter_from(from).take(MAPPINGS).map(|vma| Mapping::of(&vma.snapshot()));
                some.extend(from_here.take_while(|mapping| mapping.range.start() < end));
            }
            next = some.last().filter(|_| some.is_full()).map(|last| last.range.end());
            some.into_iter().for_each(&mut visit);
        }
    }

    /// Does `work` with the mmap lock held shared: for tests of what waits for it.
    #[cfg(feature = "internals")]
    pub fn with_mappings_held<R>(&self, work: impl FnOnce() -> R) -> R {
        let _mappings = self.core().read_mappings(self.spaces.platform());
        work()
    }

    /// Takes this handle off the count, and returns whether it was the last one: then the core is the
    /// caller's.
    fn was_last(&self) -> bool {
        // Release, and acquire for the last one: it sees what was done through every other handle.
        let last = self.core().handles.fetch_sub(1, Ordering::Release) == 1;
        if last {
            fence(Ordering::Acquire);
        }
        last
    }

    /// Unmaps everything. Cannot fail and allocates nothing.
    fn exit(&mut self) {
        // Without handles no thread can use the space, so no CPU has to be interrupted for what follows.
        self.spaces.current().clear::<P>(&self.core().tables);
        MmapWriter::begin(self.spaces, self.core()).unmap_everything();
    }
}

/// Resident memory of a space, in bytes, and the number of its mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resident {
    /// Private pages (`RssAnon`).
    pub anonymous: u64,
    /// Pages of files and shared memory (`RssFile` and `RssShmem`).
    pub file: u64,
    /// Page tables below the roots (`VmPTE`).
    pub page_tables: u64,
    /// The number of its mappings.
    pub mappings: u64,
}

impl<P: Platform> Clone for Space<'_, P> {
    fn clone(&self) -> Self {
        // Relaxed: a new handle is made from one, so the count cannot be falling to zero.
        self.core().handles.fetch_add(1, Ordering::Relaxed);
        Self { spaces: self.spaces, core: self.core, rights: self.rights }
    }
}

impl<P: Platform> Drop for Space<'_, P> {
    fn drop(&mut self) {
        if self.was_last() {
            self.exit();
            // SAFETY: the last handle; the space is empty and current nowhere.
            unsafe { self.spaces.destroy(self.core) };
        }
    }
}

impl<P: Platform> fmt::Debug for Space<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("id", &self.id()).finish_non_exhaustive()
    }
}
