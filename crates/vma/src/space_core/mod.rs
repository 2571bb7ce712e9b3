//! The state shared by all handles of one space: its mappings, and their anon_vmas.
//!
//! A VMA, the anon_vma that it is in and the core of its space point at one another, so they are one module.

mod mappings;
mod merge;
mod vma;

pub use mappings::Mappings;
pub use merge::Proposal;
#[cfg(all(test, not(loom)))]
pub(crate) use vma::OfAnonVma;
pub use vma::{AnonVma, AnonVmaRef, Backing, Vma, VmaSnapshot};
pub(crate) use vma::{DepartedList, EmptiedList, Scratch};

use crate::flags::VmFlags;
use crate::fork_sequence::ForkSequence;
use crate::huge_disable::AtomicHugeDisable;
use crate::layout::{AtomicLimits, Layout, Limits};
use crate::lock::LockSequence;
use crate::reap_patience::ReapPatience;
use crate::rights::AtomicExecGain;
use crate::usage::{SpaceFigures, Usage};
use core::cell::Cell;
use core::fmt;
use core::ptr::{self, NonNull};
use quire_arch::LockClass;
use quire_memcg::MemcgId;
use quire_pagetable::{SpaceId, SpaceTables};
use quire_sync::RwSleepLock;
use quire_sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use quire_vma_tree::tree::RangeTree;

/// A core's place on the list of all spaces. Its cells are read and written under the list's lock only, which
/// this cannot see, so no safe code reaches them:
///
/// ```compile_fail,E0133
/// fn unlink(core: &quire_vma::SpaceCore) {
///     core.link.set_next(None);
/// }
/// ```
///
/// ```compile_fail,E0133
/// fn next(core: &quire_vma::SpaceCore) -> bool {
///     core.link.get().1.is_some()
/// }
/// ```
pub struct SpaceLink(Cell<Neighbour>, Cell<Neighbour>);

type Neighbour = Option<NonNull<SpaceCore>>;

impl SpaceLink {
    /// Puts it between two.
    ///
    /// # Safety
    ///
    /// The caller holds the lock of the list that the core is on or comes to be on, and both are on that
    /// list.
    #[inline]
    pub unsafe fn set_between(&self, previous: Neighbour, next: Neighbour) {
        self.0.set(previous);
        self.1.set(next);
    }

    /// Changes the one before it.
    ///
    /// # Safety
    ///
    /// As for [`set_between`](Self::set_between).
    #[inline]
    pub unsafe fn set_previous(&self, previous: Neighbour) {
        self.0.set(previous);
    }

    /// Changes the one after it.
    ///
    /// # Safety
    ///
    /// As for [`set_between`](Self::set_between).
    #[inline]
    pub unsafe fn set_next(&self, next: Neighbour) {
        self.1.set(next);
    }

    /// The one before it and the one after.
    ///
    /// # Safety
    ///
    /// The caller holds the lock of the list that the core is on.
    #[inline]
    pub unsafe fn get(&self) -> (Neighbour, Neighbour) {
        (self.0.get(), self.1.get())
    }
}

impl fmt::Debug for SpaceLink {
    /// Without the cells, which are the lock holder's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpaceLink").finish_non_exhaustive()
    }
}

/// The state shared by all handles of one space.
pub struct SpaceCore {
    /// Its page tables.
    pub tables: SpaceTables,
    /// Handles; at 0 it exits.
    handles: AtomicUsize,
    /// Held for writing to change mappings, shared to rely on them as a whole.
    pub mmap_lock: RwSleepLock,
    /// The lock sequence of its mappings' writers.
    pub sequence: LockSequence,
    /// Its mappings.
    pub vmas: RangeTree<Vma>,
    /// Its layout.
    pub layout: Layout,
    /// Its limits.
    pub limits: AtomicLimits,
    /// The sizes of its mappings.
    pub usage: Usage,
    /// The program break. Changed under the mmap lock.
    pub brk: AtomicU64,
    /// Flags that every new mapping gets (`mlockall(MCL_FUTURE)`). Changed under the mmap lock.
    pub default_flags: AtomicU64,
    /// Whether it gets large folios.
    pub huge_disable: AtomicHugeDisable,
    /// Whether memory may become executable.
    pub exec_gain: AtomicExecGain,
    /// Which flags of those that keep a mapping from being split everywhere it ever had. Changed under the
    /// mmap lock.
    had_rigid: AtomicU64,
    /// Its OOM adjustment.
    pub oom_score_adj: AtomicU32,
    /// Whether the program was OOM-killed.
    pub killed: AtomicU32,
    /// How long it is still waited for if its memory cannot be freed yet.
    pub patience: ReapPatience,
    /// Whether nothing more is expected of it before it exits.
    pub reaped: AtomicU32,
    /// Its forks.
    pub forks: ForkSequence,
    /// Its place on the list of all spaces.
    pub link: SpaceLink,
    /// The next one of those that are to exit, once it has no handles.
    pub next_exit: AtomicPtr<SpaceCore>,
}

// SAFETY: everything is atomic or has its own lock, but for `link`. Its cells are touched only under the lock
// of the list of spaces, as the callers of its functions promise.
unsafe impl Sync for SpaceCore {}
// SAFETY: nothing in a core belongs to a thread; `link` as for `Sync`.
unsafe impl Send for SpaceCore {}

impl SpaceCore {
    /// A new space with these tables, without mappings, and with one handle.
    pub fn new(tables: SpaceTables, layout: Layout, limits: Limits) -> Self {
        Self {
            tables,
            handles: AtomicUsize::new(1),
            mmap_lock: RwSleepLock::new(LockClass::Mmap),
            sequence: LockSequence::new(),
            vmas: RangeTree::new(),
            layout,
            limits: AtomicLimits::new(limits),
            usage: Usage::default(),
            brk: AtomicU64::new(layout.brk.0),
            default_flags: AtomicU64::new(0),
            huge_disable: AtomicHugeDisable::default(),
            exec_gain: AtomicExecGain::default(),
            had_rigid: AtomicU64::new(0),
            oom_score_adj: AtomicU32::new(0),
            killed: AtomicU32::new(0),
            patience: ReapPatience::default(),
            reaped: AtomicU32::new(0),
            forks: ForkSequence::default(),
            link: SpaceLink(Cell::new(None), Cell::new(None)),
            next_exit: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Whether it ever had a mapping of huge pages. The caller holds the mmap lock.
    #[inline]
    pub fn had_hugetlb(&self) -> bool {
        self.had_rigid.load(Ordering::Relaxed) & VmFlags::HUGETLB.bits() != 0
    }

    /// Whether it ever had a mapping that is not split everywhere. The caller holds the mmap lock.
    #[inline]
    pub fn had_rigid(&self) -> bool {
        self.had_rigid.load(Ordering::Relaxed) != 0
    }

    /// A mapping with `flags` enters. The caller holds the mmap lock for writing.
    #[inline]
    pub fn note_flags(&self, flags: VmFlags) {
        let rigid = flags & (VmFlags::HUGETLB | VmFlags::WHOLE);
        if !rigid.is_empty() {
            self.had_rigid.store(self.had_rigid.load(Ordering::Relaxed) | rigid.bits(), Ordering::Relaxed);
        }
    }

    /// Its number.
    #[inline]
    pub fn id(&self) -> SpaceId {
        self.tables.id()
    }

    /// One more handle for a caller that has none, unless the last one is gone already.
    #[inline]
    pub fn try_hold(&self) -> bool {
        let more = |handles: usize| if handles == 0 { None } else { Some(handles + 1) };
        // Relaxed: the core was found under the lock of the list of spaces or of an rmap walk, which its exit
        // takes before it is freed.
        self.handles.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// One more handle for a caller that has one.
    #[inline]
    pub fn hold(&self) {
        // Relaxed: the count cannot be falling to zero.
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a handle off the count, and returns whether it was the last one: then the core is the caller's.
    ///
    /// # Safety
    ///
    /// The caller has a handle, and does not use it any more.
    #[inline]
    #[must_use = "who drops the last handle makes the space exit"]
    pub unsafe fn let_go(&self) -> bool {
        // Release, and acquire for the last one: it sees what was done through every other handle.
        let last = self.handles.fetch_sub(1, Ordering::Release) == 1;
        if last {
            fence(Ordering::Acquire);
        }
        last
    }

    /// The usage of the space at this moment.
    #[inline]
    pub fn figures(&self) -> SpaceFigures {
        self.usage.figures(self.vmas.len() as u64, &self.tables.residency)
    }

    /// The memcg that new pages are charged to.
    #[inline]
    pub fn memcg(&self) -> MemcgId {
        self.tables.membership.memcg()
    }

    /// Whether this space gets no more memory.
    #[inline]
    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire) != 0
    }

    /// Where a program sleeps that goes on when it is killed.
    pub fn kill_key(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Flags that every new mapping gets.
    #[inline]
    pub fn default_flags(&self) -> VmFlags {
        VmFlags::from_bits_truncate(self.default_flags.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for SpaceCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpaceCore").field("id", &self.id()).finish_non_exhaustive()
    }
}
