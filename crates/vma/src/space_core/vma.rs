//! VMAs: one for each mapping of an address space. A VMA and the anon_vma that it is in point at one another.

mod anon_vma;
mod backing;
mod membership;

pub use anon_vma::AnonVma;
pub(crate) use anon_vma::{EmptiedList, Scratch};
pub use backing::Backing;
pub(crate) use membership::{DepartedList, OfAnonVma};

use crate::flags::VmFlags;
use crate::lock::VmaLock;
use crate::readahead::Readahead;
use crate::swap_window::SwapInWindow;
use core::fmt;
use core::ptr::{self, NonNull};
use membership::Membership;
use quire_arch::{LeafFlags, OrderSet, PAGE_SHIFT, PAGE_SIZE, VirtAddr, VirtRange};
use quire_file::Opening;
use quire_frame::OwnerWord;
use quire_pagetable::{NewPage, Permissions};
use quire_sync::atomic::raw::{AtomicPtr, AtomicU64, Ordering};

/// A VMA's part in an [`AnonVma`]: where its private pages belong. It is given at the first private page,
/// shared by mergeable neighbours, and decides which VMAs may merge.
///
/// A VMA in a tree keeps the anon_vma that it names, so what is read from one is good for as long as the VMA
/// is held by one of its locks. After that it can only be compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AnonVmaRef {
    anon_vma: Option<NonNull<AnonVma>>,
    /// 0 where the anon_vma was made by a fault; else the number of the copy that a fork made. Parts of one
    /// VMA of a child have one number, so they may merge again; two VMAs of a child never do, also where they
    /// are in one anon_vma.
    branch: u64,
}

impl AnonVmaRef {
    /// No private page yet.
    pub const NONE: Self = Self { anon_vma: None, branch: 0 };

    /// In an anon_vma that a fault made.
    ///
    /// # Safety
    ///
    /// The anon_vma is live for as long as the value, or a copy of it, is used for more than to compare it.
    #[inline]
    pub(crate) const unsafe fn new(anon_vma: NonNull<AnonVma>) -> Self {
        Self { anon_vma: Some(anon_vma), branch: 0 }
    }

    /// The same anon_vma as a child process has it: pages may still be shared with the parent's. `branch` is
    /// a number that no other VMA has, and not 0.
    #[inline]
    pub(crate) const fn inherited(self, branch: u64) -> Self {
        Self { anon_vma: self.anon_vma, branch }
    }

    /// Whether there is an anon_vma.
    #[inline]
    pub const fn is_some(self) -> bool {
        self.anon_vma.is_some()
    }

    /// The anon_vma. What is returned is used no longer than the value may be.
    #[inline]
    pub(crate) fn get<'a>(self) -> Option<&'a AnonVma> {
        // SAFETY: the promise of `new`, or the VMA that the value was read from keeps it (see the type).
        self.anon_vma.map(|anon_vma| unsafe { anon_vma.as_ref() })
    }

    /// The word by which a page that only VMAs of this anon_vma and of those below it may map names it.
    #[inline]
    pub fn owner_word(self) -> OwnerWord {
        self.get().map_or(OwnerWord::NONE, AnonVma::owner_word)
    }

    /// The same for a page that all of the tree may map.
    #[inline]
    pub fn root_owner_word(self) -> OwnerWord {
        self.get().map_or(OwnerWord::NONE, |anon_vma| anon_vma.root().owner_word())
    }

    /// Whether pages of this anon_vma may be shared with a parent process.
    #[inline]
    pub const fn is_inherited(self) -> bool {
        self.branch != 0
    }
}

/// A mapping. The fields are written under the mmap lock and the VMA's write lock; they may be read under
/// either, shared, or under none by a reader that checks them again under a lock.
pub struct Vma {
    /// Its own lock.
    pub lock: VmaLock,
    start: AtomicU64,
    end: AtomicU64,
    flags: AtomicU64,
    /// Offset in pages into what is mapped; for private anonymous memory the page number of the address at
    /// which it was first mapped.
    page_offset: AtomicU64,
    backing: AtomicPtr<Opening<Self>>,
    anon: AtomicPtr<AnonVma>,
    branch: AtomicU64,
    membership: Membership,
    /// Its readahead state.
    pub readahead: Readahead,
    /// How far its swap-ins reach.
    pub swap_window: SwapInWindow,
}

/// All fields of a VMA except its lock, as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmaSnapshot {
    /// Its addresses.
    pub range: VirtRange,
    /// Its flags.
    pub flags: VmFlags,
    /// The page offset of its start.
    pub page_offset: u64,
    /// What it maps.
    pub backing: Backing,
    /// Its part in an anon_vma.
    pub anon: AnonVmaRef,
}

impl VmaSnapshot {
    /// The page offset of `addr`, which may also lie outside of the range.
    #[inline]
    pub fn page_offset_at(&self, addr: VirtAddr) -> u64 {
        let pages = (addr.0 as i64).wrapping_sub(self.range.start().0 as i64) >> PAGE_SHIFT;
        self.page_offset.wrapping_add(pages as u64)
    }

    /// The first and the last page offset.
    #[inline]
    pub fn page_offsets(&self) -> (u64, u64) {
        (self.page_offset, self.page_offset.saturating_add(self.range.pages().saturating_sub(1)))
    }

    /// Those of `orders` of which an aligned block of the file is an aligned block of addresses, too.
    #[inline]
    pub fn aligned_orders(&self, orders: OrderSet) -> OrderSet {
        orders.dividing((self.range.start().0 >> PAGE_SHIFT).wrapping_sub(self.page_offset))
    }

    /// Where the `pages` pages from page offset `first` on are in this mapping, as far as they are.
    #[inline]
    pub fn range_of(&self, first: u64, pages: u64) -> Option<VirtRange> {
        let from = first.max(self.page_offset);
        let to = first.saturating_add(pages).min(self.page_offset.saturating_add(self.range.pages()));
        if from >= to {
            return None;
        }
        let start = self.range.start().0 + (from - self.page_offset) * PAGE_SIZE;
        Some(VirtRange::new(VirtAddr(start), VirtAddr(start + (to - from) * PAGE_SIZE)))
    }

    /// This VMA's anon_vma, if `other`, its neighbour, may use it too.
    #[inline]
    pub fn anon_vma_to_share(&self, other: &Self) -> Option<AnonVmaRef> {
        let (low, high) =
            if self.range.start() < other.range.start() { (self, other) } else { (other, self) };
        let alike = low.range.end() == high.range.start()
            && low.backing == high.backing
            && (low.flags ^ high.flags).difference(VmFlags::ACCESS | VmFlags::STICKY).is_empty()
            && low.page_offset_at(high.range.start()) == high.page_offset;
        (alike && self.anon.is_some() && !self.anon.is_inherited()).then_some(self.anon)
    }

    /// The mapping's attributes for a page that is about to be mapped at `addr`: a new one, or one from swap,
    /// but none of a file's cache.
    // As a call of its own it costs each fault 24 instructions.
    #[inline(always)]
    pub fn new_page(&self, addr: VirtAddr) -> NewPage {
        let is_shared_file = self.flags.contains(VmFlags::SHARED) && self.backing.is_opened();
        debug_assert!(!is_shared_file, "a new page in a shared mapping of a file");
        NewPage {
            leaf: self.flags.leaf_flags(),
            index: self.page_offset_at(addr),
            owner: self.anon.owner_word(),
            locked: self.is_locked(),
        }
    }

    /// The permissions of a page that the mapping maps for writing as much as it allows, before any write: a
    /// write to a page of a file that is shared is noticed first ([`notices_writes`](Self::notices_writes)).
    #[inline]
    pub fn leaf_flags(&self) -> LeafFlags {
        let mut flags = self.flags.leaf_flags();
        if self.notices_writes() {
            flags.remove(LeafFlags::WRITE);
        }
        flags
    }

    /// Whether the first write to a clean page faults though the mapping allows it, so that the file knows
    /// that the page is dirty (Linux's write-notify).
    #[inline]
    pub fn notices_writes(&self) -> bool {
        self.flags.contains(VmFlags::SHARED) && self.backing.is_written_back()
    }

    /// The permissions of the mapping's pages.
    #[inline]
    pub fn permissions(&self) -> Permissions {
        Permissions { leaf: self.leaf_flags(), shared: self.flags.contains(VmFlags::SHARED) }
    }

    /// Whether its pages are to stay in memory.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.flags.contains(VmFlags::LOCKED)
    }

    /// The highest address at which a new mapping below this one may end: a stack keeps a gap free.
    #[inline]
    pub fn start_with_guard(&self) -> VirtAddr {
        let gap = if self.flags.is_stack() { crate::layout::STACK_GUARD_GAP } else { 0 };
        VirtAddr(self.range.start().0.saturating_sub(gap))
    }
}

impl Vma {
    /// The key under which a writer waits for its readers.
    #[inline]
    pub fn lock_key(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// A VMA that no thread can reach yet.
    #[inline]
    pub fn new(snapshot: VmaSnapshot) -> Self {
        Self {
            lock: VmaLock::new(),
            start: AtomicU64::new(snapshot.range.start().0),
            end: AtomicU64::new(snapshot.range.end().0),
            flags: AtomicU64::new(snapshot.flags.bits()),
            page_offset: AtomicU64::new(snapshot.page_offset),
            backing: AtomicPtr::new(snapshot.backing.word()),
            anon: AtomicPtr::new(as_ptr(snapshot.anon.anon_vma)),
            branch: AtomicU64::new(snapshot.anon.branch),
            membership: Membership::new(),
            readahead: Readahead::default(),
            swap_window: SwapInWindow::default(),
        }
    }

    // The fields are relaxed where nothing else is said: the lock under which they are read orders them.

    /// Its addresses.
    #[inline]
    pub fn range(&self) -> VirtRange {
        VirtRange::new(
            VirtAddr(self.start.load(Ordering::Relaxed)),
            VirtAddr(self.end.load(Ordering::Relaxed)),
        )
    }

    /// Its flags.
    #[inline]
    pub fn flags(&self) -> VmFlags {
        VmFlags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    /// What it maps.
    #[inline]
    pub fn backing(&self) -> Backing {
        Backing::of_word(self.backing.load(Ordering::Relaxed))
    }

    /// Its part in an anon_vma.
    #[inline]
    pub fn anon(&self) -> AnonVmaRef {
        AnonVmaRef {
            // A fault may hold none of the locks that were held when the anon_vma was set: pairs with the
            // release in `set_anon_once`.
            anon_vma: NonNull::new(self.anon.load(Ordering::Acquire)),
            branch: self.branch.load(Ordering::Relaxed),
        }
    }

    /// All of it but its lock.
    #[inline]
    pub fn snapshot(&self) -> VmaSnapshot {
        VmaSnapshot {
            range: self.range(),
            flags: self.flags(),
            page_offset: self.page_offset.load(Ordering::Relaxed),
            backing: self.backing(),
            anon: self.anon(),
        }
    }

    /// Its links in its anon_vma. Used under the root lock.
    #[inline]
    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Gives the VMA its first anon_vma, one that a fault made, and returns whether it had none: of two
    /// faults that try at once, one wins.
    #[inline]
    pub(crate) fn set_anon_once(&self, anon: AnonVmaRef) -> bool {
        debug_assert!(!anon.is_inherited(), "no other process has pages of a VMA without an anon_vma");
        let anon_vma = as_ptr(anon.anon_vma);
        // Release: a thread that sees the anon_vma sees it filled in.
        self.anon.compare_exchange(ptr::null_mut(), anon_vma, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Changes the VMA to `snapshot`. The caller has write-locked it, or no other thread can reach it yet.
    #[inline]
    pub fn set(&self, snapshot: VmaSnapshot) {
        self.start.store(snapshot.range.start().0, Ordering::Relaxed);
        self.end.store(snapshot.range.end().0, Ordering::Relaxed);
        self.flags.store(snapshot.flags.bits(), Ordering::Relaxed);
        self.page_offset.store(snapshot.page_offset, Ordering::Relaxed);
        self.backing.store(snapshot.backing.word(), Ordering::Relaxed);
        self.anon.store(as_ptr(snapshot.anon.anon_vma), Ordering::Relaxed);
        self.branch.store(snapshot.anon.branch, Ordering::Relaxed);
    }
}

fn as_ptr(anon_vma: Option<NonNull<AnonVma>>) -> *mut AnonVma {
    anon_vma.map_or(ptr::null_mut(), NonNull::as_ptr)
}

impl fmt::Debug for Vma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use quire_file::FileMappings;

    /// The entries of numbered files and of the program's own memory may be writable before a write.
    #[test]
    fn only_shared_mappings_of_open_files_notice_writes() {
        let mappings = FileMappings::new();
        // SAFETY: the mappings outlive the opening.
        let opening = unsafe { Opening::new(NonNull::from(&mappings)) };
        let (opened, number) = (Backing::opened(&opening), Backing::file(1));
        let write = VmFlags::READ | VmFlags::WRITE;
        for (backing, flags, notices) in [
            (opened, write | VmFlags::SHARED, true),
            (opened, write, false),
            (opened, VmFlags::READ | VmFlags::SHARED, true),
            (number, write | VmFlags::SHARED, false),
            (Backing::shmem(&opening), write | VmFlags::SHARED, false),
            (Backing::ANONYMOUS, write, false),
        ] {
            let range = VirtRange::new(VirtAddr(0x1000), VirtAddr(0x2000));
            let snapshot = VmaSnapshot { range, flags, page_offset: 0, backing, anon: AnonVmaRef::NONE };
            let wanted = if notices { flags.leaf_flags() - LeafFlags::WRITE } else { flags.leaf_flags() };
            assert_eq!((snapshot.notices_writes(), snapshot.leaf_flags()), (notices, wanted), "{snapshot:?}");
            let permissions = snapshot.permissions();
            assert_eq!(permissions.leaf, wanted);
            assert_eq!(permissions.shared, flags.contains(VmFlags::SHARED));
            // A shared mapping of an open file has pages of its cache only.
            if !flags.contains(VmFlags::SHARED) || !backing.is_opened() {
                assert_eq!(snapshot.new_page(range.start()).leaf, wanted);
            }
        }
    }

    #[test]
    fn a_folio_is_clipped_to_each_mapping() {
        let snapshot = VmaSnapshot {
            range: VirtRange::new(VirtAddr(0x10_0000), VirtAddr(0x10_4000)),
            flags: VmFlags::READ,
            page_offset: 100,
            backing: Backing::ANONYMOUS,
            anon: AnonVmaRef::NONE,
        };
        let range = |start, end| Some(VirtRange::new(VirtAddr(start), VirtAddr(end)));
        assert_eq!(snapshot.range_of(100, 1), range(0x10_0000, 0x10_1000));
        assert_eq!(snapshot.range_of(96, 16), range(0x10_0000, 0x10_4000));
        assert_eq!(snapshot.range_of(96, 6), range(0x10_0000, 0x10_2000));
        assert_eq!(snapshot.range_of(103, 512), range(0x10_3000, 0x10_4000));
        assert_eq!(snapshot.range_of(104, 1), None);
        assert_eq!(snapshot.range_of(92, 8), None);
    }
}
