//! One address space: its core, and the handle that users hold.

mod huge;
mod rights;

use crate::cpus::SpaceCpus;
use crate::fork_sequence::ForkSequence;
use crate::huge::AtomicHugeDisable;
use crate::layout::{Layout, Limits};
use crate::mmap_writer::MmapWriter;
use crate::rights::{AtomicExecGain, Rights};
use crate::spaces::Spaces;
use crate::table::{EmptyTableCache, Tables};
use crate::usage::{SpaceFigures, Usage};
use crate::vma::{LockSequence, VmFlags, Vma, VmaSnapshot};
use core::cell::Cell;
use core::fmt;
use core::ptr::NonNull;
use quire_arch::{Asid, LockClass, PAGE_SIZE, Pfn, Platform, VirtAddr, VirtRange};
use quire_memcg::MemcgId;
use quire_sync::RwSleepLock;
use quire_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use quire_vma_tree::tree::RangeTree;

/// The number of an address space; never used again on the same machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct SpaceId(u64);

impl SpaceId {
    pub(crate) const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The number itself, from 1.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The word by which the frame of a table names its space: even, so that it is no anon_vma's
    /// (`rmap/walk.rs`).
    pub(crate) const fn owner_word(self) -> u64 {
        self.0 << 1
    }
}

/// A core's place on the list of all spaces. Read and written under the list's lock.
pub(crate) struct Link(Cell<Neighbour>, Cell<Neighbour>);

type Neighbour = Option<NonNull<SpaceCore>>;

impl Link {
    pub(crate) fn set_between(&self, previous: Neighbour, next: Neighbour) {
        self.0.set(previous);
        self.1.set(next);
    }

    pub(crate) fn set_previous(&self, previous: Neighbour) {
        self.0.set(previous);
    }

    pub(crate) fn set_next(&self, next: Neighbour) {
        self.1.set(next);
    }

    pub(crate) fn get(&self) -> (Neighbour, Neighbour) {
        (self.0.get(), self.1.get())
    }
}

/// What all handles of one space share.
pub(crate) struct SpaceCore {
    id: SpaceId,
    root: Pfn,
    asid: Asid,
    handles: AtomicUsize,
    /// Held for writing to change mappings, shared to rely on them as a whole.
    pub(crate) mmap_lock: RwSleepLock,
    pub(crate) sequence: LockSequence,
    pub(crate) vmas: RangeTree<Vma>,
    pub(crate) cpus: SpaceCpus,
    pub(crate) layout: Layout,
    pub(crate) limits: AtomicLimits,
    pub(crate) usage: Usage,
    /// The program break. Changed under the mmap lock.
    pub(crate) brk: AtomicU64,
    /// Flags that every new mapping gets (`mlockall(MCL_FUTURE)`). Changed under the mmap lock.
    pub(crate) default_flags: AtomicU64,
    pub(crate) huge_disable: AtomicHugeDisable,
    pub(crate) exec_gain: AtomicExecGain,
    /// The memcg that new pages are charged to.
    memcg: AtomicU64,
    pub(crate) oom_score_adj: AtomicU32,
    /// Whether the program was killed, since memory was exhausted.
    pub(crate) killed: AtomicU32,
    pub(crate) spared: EmptyTableCache,
    pub(crate) forks: ForkSequence,
    pub(crate) link: Link,
}

// SAFETY: everything is atomic or has its own lock, but for `link`, whose cells are touched only under the
// lock of the list of spaces.
unsafe impl Sync for SpaceCore {}
// SAFETY: as above; nothing in a core belongs to a thread.
unsafe impl Send for SpaceCore {}

/// [`Limits`] that can be changed while they are read.
pub(crate) struct AtomicLimits {
    address_space: AtomicU64,
    data: AtomicU64,
    stack: AtomicU64,
    locked: AtomicU64,
    mappings: AtomicU64,
}

impl AtomicLimits {
    fn new(limits: Limits) -> Self {
        let new = Self {
            address_space: AtomicU64::new(0),
            data: AtomicU64::new(0),
            stack: AtomicU64::new(0),
            locked: AtomicU64::new(0),
            mappings: AtomicU64::new(0),
        };
        new.store(limits);
        new
    }

    pub(crate) fn load(&self) -> Limits {
        Limits {
            address_space: self.address_space.load(Ordering::Relaxed),
            data: self.data.load(Ordering::Relaxed),
            stack: self.stack.load(Ordering::Relaxed),
            locked: self.locked.load(Ordering::Relaxed),
            mappings: self.mappings.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn store(&self, limits: Limits) {
        self.address_space.store(limits.address_space, Ordering::Relaxed);
        self.data.store(limits.data, Ordering::Relaxed);
        self.stack.store(limits.stack, Ordering::Relaxed);
        self.locked.store(limits.locked, Ordering::Relaxed);
        self.mappings.store(limits.mappings, Ordering::Relaxed);
    }
}

impl SpaceCore {
    pub(crate) fn new(id: SpaceId, root: Pfn, asid: Asid, layout: Layout, limits: Limits) -> Self {
        Self {
            id,
            root,
            asid,
            handles: AtomicUsize::new(1),
            mmap_lock: RwSleepLock::new(LockClass::Mmap),
            sequence: LockSequence::new(),
            vmas: RangeTree::new(),
            cpus: SpaceCpus::new(),
            layout,
            limits: AtomicLimits::new(limits),
            usage: Usage::default(),
            brk: AtomicU64::new(layout.brk.0),
            default_flags: AtomicU64::new(0),
            huge_disable: AtomicHugeDisable::default(),
            exec_gain: AtomicExecGain::default(),
            memcg: AtomicU64::new(u64::from(MemcgId::ROOT.get())),
            oom_score_adj: AtomicU32::new(0),
            killed: AtomicU32::new(0),
            spared: EmptyTableCache::default(),
            forks: ForkSequence::default(),
            link: Link(Cell::new(None), Cell::new(None)),
        }
    }

    pub(crate) fn id(&self) -> SpaceId {
        self.id
    }

    /// One more handle for a caller that has none, unless the last one is gone already.
    pub(crate) fn try_hold(&self) -> bool {
        let more = |handles: usize| if handles == 0 { None } else { Some(handles + 1) };
        // Relaxed: the core was found under the list's lock.
        self.handles.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// The memcg that new pages are charged to.
    #[inline]
    pub(crate) fn memcg(&self) -> MemcgId {
        MemcgId::from_bits(self.memcg.load(Ordering::Relaxed) as u16)
    }

    /// Notes another one, to which the caller has a reference, and returns the previous one, whose reference
    /// the caller gets.
    pub(crate) fn replace_memcg(&self, group: MemcgId) -> MemcgId {
        MemcgId::from_bits(self.memcg.swap(u64::from(group.get()), Ordering::Relaxed) as u16)
    }

    /// Whether nothing is given to this space any more.
    #[inline]
    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire) != 0
    }

    #[inline]
    pub(crate) fn root(&self) -> Pfn {
        self.root
    }

    pub(crate) fn asid(&self) -> Asid {
        self.asid
    }

    pub(crate) fn default_flags(&self) -> VmFlags {
        VmFlags::from_bits_truncate(self.default_flags.load(Ordering::Relaxed))
    }
}

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

    #[inline]
    pub(crate) fn core(&self) -> &SpaceCore {
        // SAFETY: the core lives while it has handles, and this is one.
        unsafe { self.core.as_ref() }
    }

    /// The core itself, to compare or to keep without a handle.
    #[inline]
    pub(crate) fn shared(&self) -> NonNull<SpaceCore> {
        self.core
    }

    #[inline]
    pub(crate) fn tables(&self) -> Tables<'_, P> {
        Tables::new(self.spaces, self.core())
    }

    /// The machine's spaces.
    pub fn spaces(&self) -> &'m Spaces<P> {
        self.spaces
    }

    /// The space's number.
    pub fn id(&self) -> SpaceId {
        self.core().id
    }

    /// The frame of its topmost page table.
    pub fn root(&self) -> Pfn {
        self.core().root
    }

    /// The tag of its translations.
    pub fn asid(&self) -> Asid {
        self.core().asid
    }

    /// The fixed points of its layout.
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

    /// What calls through this handle may do beyond the limits. A new space's handle has no rights; a clone
    /// of a handle and the handle of a child have the same.
    #[inline]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// A handle to the same space whose calls may do what `rights` say: for a thread that shares the space
    /// with others, or whose privileges have changed.
    #[must_use]
    pub fn acting_with(&self, rights: Rights) -> Self {
        let mut handle = self.clone();
        handle.rights = rights;
        handle
    }

    /// What the space uses at this moment.
    pub fn figures(&self) -> SpaceFigures {
        self.core().usage.figures(self.core().vmas.len() as u64)
    }

    /// Calls `visit` with every mapping, lowest first.
    pub fn for_each_mapping(&self, mut visit: impl FnMut(Mapping)) {
        let core = self.core();
        let _guard = core.mmap_lock.read(self.spaces.platform());
        // SAFETY: the mmap lock is held.
        for entry in &unsafe { core.vmas.view() } {
            // SAFETY: a VMA in the tree is live while the mmap lock is held.
            let facts = unsafe { entry.value.as_ref() }.facts();
            visit(Mapping::of(&facts));
        }
    }

    /// Unmaps everything. Cannot fail and allocates nothing.
    fn exit(&mut self) {
        // Without handles no thread can use the space, so no CPU has to be interrupted for what follows.
        self.spaces.clear_current(self.core, &self.core().cpus);
        MmapWriter::begin(self.spaces, self.core()).unmap_everything();
    }
}

/// One mapping, as `/proc/PID/maps` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its addresses.
    pub range: VirtRange,
    /// Its flags.
    pub flags: VmFlags,
    /// Offset in pages into what it maps.
    pub page_offset: u64,
    /// The embedder's number for the file, if it maps one.
    pub file: Option<u64>,
}

impl Mapping {
    /// The mapping that a VMA stands for.
    pub(crate) fn of(facts: &VmaSnapshot) -> Self {
        Self {
            range: facts.range,
            flags: facts.flags,
            page_offset: facts.page_offset,
            file: facts.backing.file_id(),
        }
    }
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
        // Release, and acquire for the last one: it sees what was done through every other handle.
        if self.core().handles.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
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

/// The page that holds `addr`.
#[inline]
pub(crate) fn page_of(addr: VirtAddr) -> VirtRange {
    let start = addr.page_start();
    VirtRange::new(start, VirtAddr(start.0 + PAGE_SIZE))
}
