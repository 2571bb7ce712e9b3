//! VMAs: one for each mapping of an address space.

mod flags;
mod hugetlb;
mod lock;
mod merge;
mod readahead;
mod swap_window;

pub use flags::{Protection, SMAPS_MNEMONICS, VmFlags};
pub use hugetlb::HugePages;
pub(crate) use hugetlb::may_split;
pub(crate) use lock::{LockSequence, VmaLock};
pub(crate) use merge::Proposal;
pub(crate) use readahead::{READAHEAD_MOST, Readahead};
pub(crate) use swap_window::SwapInWindow;

use crate::rmap::{AnonVma, Membership};
use core::fmt;
use core::ptr::{self, NonNull};
use quire_arch::{PAGE_SHIFT, VirtAddr, VirtRange};
use quire_sync::atomic::raw::{AtomicPtr, AtomicU64, Ordering};

/// What a mapping shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub(crate) struct Backing(u64);

impl Backing {
    /// Zero-filled memory of the program's own.
    pub(crate) const ANONYMOUS: Self = Self(0);
    const SHARED_ANONYMOUS: u64 = 1 << 63;

    /// The file that the embedder knows as `id`, below 2^63 - 1.
    pub(crate) const fn file(id: u64) -> Self {
        Self((id & (Self::SHARED_ANONYMOUS - 1)).saturating_add(1))
    }

    /// Memory without a file that is shared with children, number `id`.
    pub(crate) const fn shared_anonymous(id: u64) -> Self {
        Self(id | Self::SHARED_ANONYMOUS)
    }

    /// Whether pages belong to the program alone and start as zeros.
    #[inline]
    pub(crate) const fn is_anonymous(self) -> bool {
        self.0 == 0
    }

    /// The embedder's number for the file, if a file it is.
    pub(crate) const fn file_id(self) -> Option<u64> {
        if self.0 == 0 || self.0 & Self::SHARED_ANONYMOUS != 0 { None } else { Some(self.0 - 1) }
    }
}

/// A VMA's part in an [`AnonVma`]: where its private pages belong. It is given at the first private page,
/// shared by mergeable neighbours, and decides which VMAs may merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AnonVmaRef {
    anon_vma: Option<NonNull<AnonVma>>,
    /// 0 where the anon_vma was made by a fault; else the number of the copy that a fork made. Parts of one
    /// VMA of a child have one number, so they may merge again; two VMAs of a child never do, also where they
    /// are in one anon_vma.
    branch: u64,
}

impl AnonVmaRef {
    /// No private page yet.
    pub(crate) const NONE: Self = Self { anon_vma: None, branch: 0 };

    /// In an anon_vma that a fault made.
    pub(crate) const fn new(anon_vma: NonNull<AnonVma>) -> Self {
        Self { anon_vma: Some(anon_vma), branch: 0 }
    }

    /// In an anon_vma as a child process has it: pages may still be shared with the parent's. `branch` is a
    /// number that no other VMA has, and not 0.
    pub(crate) const fn inherited(anon_vma: NonNull<AnonVma>, branch: u64) -> Self {
        Self { anon_vma: Some(anon_vma), branch }
    }

    /// Whether there is an anon_vma.
    #[inline]
    pub(crate) const fn is_some(self) -> bool {
        self.anon_vma.is_some()
    }

    /// The anon_vma. It is live for as long as a VMA in a tree names it.
    #[inline]
    pub(crate) const fn anon_vma(self) -> Option<NonNull<AnonVma>> {
        self.anon_vma
    }

    /// Whether pages of this anon_vma may be shared with a parent process.
    pub(crate) const fn is_inherited(self) -> bool {
        self.branch != 0
    }
}

/// A mapping. The fields are written under the mmap lock and the VMA's write lock; they may be read under
/// either, shared, or under none by a reader that checks them again under a lock.
pub(crate) struct Vma {
    pub(crate) lock: VmaLock,
    start: AtomicU64,
    end: AtomicU64,
    flags: AtomicU64,
    /// Offset in pages into what is mapped; for private anonymous memory the page number of the address at
    /// which it was first mapped.
    page_offset: AtomicU64,
    backing: AtomicU64,
    anon: AtomicPtr<AnonVma>,
    branch: AtomicU64,
    membership: Membership,
    /// What is guessed about the next pages.
    pub(crate) readahead: Readahead,
    pub(crate) swap_window: SwapInWindow,
}

/// Everything about a VMA but its lock, as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct VmaSnapshot {
    pub(crate) range: VirtRange,
    pub(crate) flags: VmFlags,
    pub(crate) page_offset: u64,
    pub(crate) backing: Backing,
    pub(crate) anon: AnonVmaRef,
}

impl VmaSnapshot {
    /// The page offset of `addr`, which may also lie outside of the range.
    pub(crate) fn page_offset_at(&self, addr: VirtAddr) -> u64 {
        let pages = (addr.0 as i64).wrapping_sub(self.range.start().0 as i64) >> PAGE_SHIFT;
        self.page_offset.wrapping_add(pages as u64)
    }

    /// The lowest address that a new mapping above which this one lies may end at: a stack keeps a gap free.
    pub(crate) fn start_with_guard(&self) -> VirtAddr {
        let gap = if self.flags.is_stack() { crate::layout::STACK_GUARD_GAP } else { 0 };
        VirtAddr(self.range.start().0.saturating_sub(gap))
    }
}

impl Vma {
    pub(crate) fn new(facts: VmaSnapshot) -> Self {
        Self {
            lock: VmaLock::new(),
            start: AtomicU64::new(facts.range.start().0),
            end: AtomicU64::new(facts.range.end().0),
            flags: AtomicU64::new(facts.flags.bits()),
            page_offset: AtomicU64::new(facts.page_offset),
            backing: AtomicU64::new(facts.backing.0),
            anon: AtomicPtr::new(as_ptr(facts.anon.anon_vma)),
            branch: AtomicU64::new(facts.anon.branch),
            membership: Membership::new(),
            readahead: Readahead::default(),
            swap_window: SwapInWindow::default(),
        }
    }

    // The fields are relaxed where nothing else is said: the lock under which they are read orders them.

    #[inline]
    pub(crate) fn range(&self) -> VirtRange {
        VirtRange::new(
            VirtAddr(self.start.load(Ordering::Relaxed)),
            VirtAddr(self.end.load(Ordering::Relaxed)),
        )
    }

    #[inline]
    pub(crate) fn flags(&self) -> VmFlags {
        VmFlags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn backing(&self) -> Backing {
        Backing(self.backing.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn anon(&self) -> AnonVmaRef {
        AnonVmaRef {
            // A fault may hold none of the locks that were held when the anon_vma was set: pairs with the
            // release in `set_anon_once`.
            anon_vma: NonNull::new(self.anon.load(Ordering::Acquire)),
            branch: self.branch.load(Ordering::Relaxed),
        }
    }

    #[inline]
    pub(crate) fn facts(&self) -> VmaSnapshot {
        VmaSnapshot {
            range: self.range(),
            flags: self.flags(),
            page_offset: self.page_offset.load(Ordering::Relaxed),
            backing: self.backing(),
            anon: self.anon(),
        }
    }

    /// Its links in its anon_vma. Used under the root lock.
    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Gives the VMA its first anon_vma, one that a fault made, and returns whether it had none: of two
    /// faults that try at once, one wins.
    pub(crate) fn set_anon_once(&self, anon: AnonVmaRef) -> bool {
        debug_assert!(!anon.is_inherited(), "no other process has pages of a VMA without an anon_vma");
        let anon_vma = as_ptr(anon.anon_vma);
        // Release: a thread that sees the anon_vma sees it filled in.
        self.anon.compare_exchange(ptr::null_mut(), anon_vma, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Changes the VMA to `facts`. The caller has write-locked it, or no other thread can reach it yet.
    pub(crate) fn set(&self, facts: VmaSnapshot) {
        self.start.store(facts.range.start().0, Ordering::Relaxed);
        self.end.store(facts.range.end().0, Ordering::Relaxed);
        self.flags.store(facts.flags.bits(), Ordering::Relaxed);
        self.page_offset.store(facts.page_offset, Ordering::Relaxed);
        self.backing.store(facts.backing.0, Ordering::Relaxed);
        self.anon.store(as_ptr(facts.anon.anon_vma), Ordering::Relaxed);
        self.branch.store(facts.anon.branch, Ordering::Relaxed);
    }
}

fn as_ptr(anon_vma: Option<NonNull<AnonVma>>) -> *mut AnonVma {
    anon_vma.map_or(ptr::null_mut(), NonNull::as_ptr)
}

impl fmt::Debug for Vma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.facts().fmt(f)
    }
}
