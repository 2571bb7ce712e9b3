//! One address space: its core, and the handle that users hold.

mod all;
mod calls;
mod files;
mod fork;
mod mappings;
mod memcg;
mod oom;
mod prctl;
mod reclaim_handle;

pub(crate) use all::for_each_space;
pub use all::{Resident, for_each_resident};
pub use files::SpaceFiles;
pub use mappings::{AnonymousPlace, MappingFigures, PageState, SpaceMappings};
pub use oom::{OOM_SCORE_ADJ_NEVER, Reap, SpaceOom};
pub use prctl::SpacePrctl;
pub use reclaim_handle::{ReclaimHandle, finish_exits};

use crate::caller::{Caller, retry_with_reclaim};
use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use crate::spaces::{Spaces, UnusedFiles};
use core::fmt;
use core::ptr::NonNull;
use quire_arch::{Asid, CpuId, Pfn, Pin, Platform};
use quire_file::ClosingStack;
use quire_pagetable::{FlushCause, SpaceId, Unmapper};
use quire_vma::{Layout, Limits, Rights, SpaceCore, SpaceFigures, Vma};

/// A handle to an address space. The space exits (everything is unmapped and freed) when its last handle is
/// dropped; a caller that lets a CPU run the space keeps one ([`activate`](Self::activate)).
pub struct Space<'m, P: Platform> {
    pub(crate) spaces: &'m Spaces<P>,
    core: NonNull<SpaceCore>,
    rights: Rights,
    /// Whether calls bring in what they lock or map, as Linux's do.
    populates: bool,
}

// SAFETY: a handle is a counted reference to a core, which is `Sync`; its methods take their own locks.
unsafe impl<P: Platform> Send for Space<'_, P> {}
// SAFETY: its methods take their own locks, and the core is `Sync`.
unsafe impl<P: Platform> Sync for Space<'_, P> {}

impl<'m, P: Platform> Space<'m, P> {
    /// A handle that the core counts already: its first one, or one from [`SpaceCore::try_hold`].
    pub(crate) fn adopt(spaces: &'m Spaces<P>, core: NonNull<SpaceCore>) -> Self {
        Self { spaces, core, rights: Rights::empty(), populates: true }
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

    /// What a call through this handle is made on.
    #[inline]
    pub(crate) fn caller(&self) -> Caller<'_, P> {
        let Self { spaces, rights, populates, .. } = *self;
        Caller { spaces, core: self.core(), rights, populates, closing: spaces.rmap().closing() }
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

    /// Its mappings, to be looked at.
    #[inline]
    pub fn mappings(&self) -> SpaceMappings<'_, P> {
        SpaceMappings::new(self)
    }

    /// Its program, as the OOM killer sees it.
    #[inline]
    pub fn oom(&self) -> SpaceOom<'_, P> {
        SpaceOom::new(self.spaces, self.core())
    }

    /// What its program has set for itself by `prctl`.
    #[inline]
    pub fn prctl(&self) -> SpacePrctl<'_, P> {
        SpacePrctl::new(self)
    }

    /// Its program as the one that reads and writes files.
    pub fn files(&self) -> SpaceFiles<'_, P> {
        SpaceFiles::new(self)
    }

    /// The usage of the space at this moment.
    pub fn figures(&self) -> SpaceFigures {
        self.core().figures()
    }

    /// What [`figures`](Self::figures) has as `resident_anonymous`, for who asks at each touch.
    #[cfg(feature = "internals")]
    #[inline]
    pub fn resident_anonymous(&self) -> u64 {
        self.core().tables.residency.anonymous() * quire_arch::PAGE_SIZE
    }
}

/// Unmaps everything in a space and frees it. Open files that lose their last holder come to `closing`.
/// Cannot fail and allocates nothing.
///
/// # Safety
///
/// The last handle is gone, and the core is the caller's.
unsafe fn exit<P: Platform>(spaces: &Spaces<P>, core: NonNull<SpaceCore>, closing: &ClosingStack<Vma>) {
    {
        // SAFETY: live until it is destroyed below.
        let core = unsafe { core.as_ref() };
        // Without handles no thread can use the space, so no CPU has to be interrupted for what follows.
        spaces.current().clear::<P>(&core.tables);
        let mut section = MmapWriter::begin_with((spaces, core), Rights::empty(), closing);
        let mut unmapper = Unmapper::new(section.tables(), FlushCause::Exit);
        section.unmap_everything(&mut unmapper);
        unmapper.finish();
    }
    // SAFETY: it has no handle; it is empty and current nowhere.
    unsafe { spaces.destroy(core) };
}

/// Makes a call that may be the last to need open files. They are closed when it returns, as in Linux, also
/// where other threads close files: what they had is gone then.
#[inline]
pub(crate) fn closing<P: Platform, R>(space: &Space<'_, P>, call: impl FnOnce(Caller<'_, P>) -> R) -> R {
    let unused = UnusedFiles::new(space.spaces);
    call(Caller { closing: unused.stack(), ..space.caller() })
}

/// A handle to the same space with which `mmap`, `mremap`, `brk`, `mprotect`, `mlock` and `mlockall` change
/// mappings and bring nothing in: for calls that are to be undone.
#[must_use]
pub fn without_population<'m, P: Platform>(space: &Space<'m, P>) -> Space<'m, P> {
    let mut handle = space.clone();
    handle.populates = false;
    handle
}

impl<P: Platform> Clone for Space<'_, P> {
    fn clone(&self) -> Self {
        self.core().hold();
        Self { spaces: self.spaces, core: self.core, rights: self.rights, populates: self.populates }
    }
}

impl<P: Platform> Drop for Space<'_, P> {
    fn drop(&mut self) {
        // SAFETY: this is a handle, and is not used after.
        if unsafe { self.core().let_go() } {
            let unused = UnusedFiles::new(self.spaces);
            // SAFETY: the last handle.
            unsafe { exit(self.spaces, self.core, unused.stack()) };
        }
    }
}

impl<P: Platform> fmt::Debug for Space<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("id", &self.id()).finish_non_exhaustive()
    }
}
