//! The rmap walk: every mapping that may map a folio.
//!
//! A walker starts with only a frame, so it has to get hold of the tree before it can take its lock:
//!
//! 1. In a section of the epoch it sees that the folio is mapped, and then reads which anon_vma owns it. Of a
//!    folio that is mapped the anon_vma is not freed: [`Emptied`](super::Emptied) frees it only after the
//!    entries are gone. If the folio is unmapped concurrently, or even reused, the anon_vma that was read was
//!    freed after the section began: had its epoch passed before, the walker would have seen the folio
//!    unmapped. So its memory stays an anon_vma until the section ends.
//! 2. It takes a reference to the root, unless the last one is gone. Then it may sleep.
//! 3. Under the root lock it looks again, as in 1. If the folio is mapped and owned by the same anon_vma of
//!    the same tree, that anon_vma stays until the lock is released.
//!
//! Under the lock a walker finds each mapping whole, before or after a change; `mremap` moves pages under the
//! lock. Only pages that are being unmapped may be missed: their mapping is removed before they are.

use super::Rmap;
use super::owned::RootRef;
use crate::space_core::{AnonVma, SpaceCore, VmaSnapshot};
use core::fmt;
use core::ops::ControlFlow;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering;
use quire_arch::{Entry, Leaf, LeafFlags, PAGE_SIZE, Pfn, Platform, VirtAddr, VirtRange};
use quire_frame::{Frame, Kind};
use quire_pagetable::{MemoryCore, SpaceId, Tables, Walker};
use quire_sync::{EpochGuard, RwSleepLock, RwSleepReadGuard};

impl<'s, P: Platform> Rmap<'s, P> {
    /// Calls `visit` for each mapping that may map pages of `folio`, the first frame of a folio of any order,
    /// with the range in that mapping where they would be. The mappings of the anon_vma that owns the folio
    /// come first. A `visit` that breaks ends the walk.
    ///
    /// The root lock is held shared meanwhile, so the mappings stay; entries may change under the lock of
    /// their table, and tables may be freed, but a `visit` is in a section of the epoch. File pages and
    /// shared memory have no rmap yet. The caller is not pinned and holds no lock of class Rmap or later.
    pub fn walk<B>(self, folio: Pfn, visit: impl FnMut(&Mapped<'_, P>) -> ControlFlow<B>) -> ControlFlow<B> {
        self.hold(folio, |held| held.walk(visit)).unwrap_or(ControlFlow::Continue(()))
    }

    /// Calls `inside` with the root lock of `folio` held shared, so that its mappings stay and the walk can
    /// be made with other locks held. `None` where the folio is not mapped, or has no rmap. The caller is as
    /// for [`walk`](Self::walk).
    pub fn hold<R>(self, folio: Pfn, inside: impl FnOnce(&HeldMappings<'s, P>) -> R) -> Option<R> {
        self.hold_by(folio, |lock, platform| Some(lock.read(platform)), inside)
    }

    /// As [`hold`](Self::hold), for a caller that may hold locks of mappings, and perhaps the root
    /// lock: it is only tried. `None` also where another thread has it.
    pub fn try_hold<R>(self, folio: Pfn, inside: impl FnOnce(&HeldMappings<'s, P>) -> R) -> Option<R> {
        self.hold_by(folio, RwSleepLock::try_read, inside)
    }

    /// The same, with the root lock taken by `lock`.
    #[inline]
    fn hold_by<R>(
        self,
        folio: Pfn,
        lock: impl for<'l> FnOnce(&'l RwSleepLock, &'l P) -> Option<RwSleepReadGuard<'l, P>>,
        inside: impl FnOnce(&HeldMappings<'s, P>) -> R,
    ) -> Option<R> {
        let frame = self.memory.frames().frame(folio)?;
        let (anon_vma, kept) = self.get_root(frame)?;
        let _guard = lock(&kept.root().lock, self.memory.platform())?;
        if self.owner_of(frame) != Some((anon_vma, NonNull::from(kept.root()))) {
            return None;
        }
        Some(inside(&HeldMappings { memory: self.memory, frame, anon_vma }))
    }

    /// The anon_vma that owns what `frame` holds, and a reference to its root.
    fn get_root(self, frame: &Frame) -> Option<(NonNull<AnonVma>, RootRef<'s, P>)> {
        let pin = self.memory.platform().pin();
        let section = self.memory.frames().epoch().enter(&pin);
        let anon_vma = self.owner_in(&section, frame)?;
        Some((NonNull::from(anon_vma), RootRef::try_new(self, anon_vma.root())?))
    }

    /// The anon_vma that owns the private page in `frame`, and the root of its tree, if the page is mapped
    /// just now.
    fn owner_of(self, frame: &Frame) -> Option<(NonNull<AnonVma>, NonNull<AnonVma>)> {
        let pin = self.memory.platform().pin();
        let section = self.memory.frames().epoch().enter(&pin);
        let anon_vma = self.owner_in(&section, frame)?;
        Some((NonNull::from(anon_vma), NonNull::from(anon_vma.root())))
    }

    /// The anon_vma that owns the private page in `frame`, if the page is mapped now, for as long as the
    /// section of the epoch is open.
    fn owner_in<'e>(self, _section: &'e EpochGuard<'_>, frame: &Frame) -> Option<&'e AnonVma> {
        // First the count, then the owner; acquire pairs with the releases in `init_page`.
        if frame.as_folio().maps() == 0 || frame.kind() != Kind::Anonymous {
            return None;
        }
        let anon_vma = AnonVma::of_owner(frame.as_folio().anon_vma()?)?;
        // SAFETY: see the head of this file.
        Some(unsafe { anon_vma.as_ref() })
    }

    /// Calls `visit` with each place where a page of `folio`, the first frame of one of any order, is mapped:
    /// the space and the address. Returns how many mappings were visited; the walk ends when all that existed
    /// at its start are found.
    ///
    /// A page that stays mapped is found, also while it moves. File pages and shared memory are not found
    /// yet. `visit` is called with the lock of a table held, and takes no locks.
    pub fn for_each_map(self, folio: Pfn, mut visit: impl FnMut(SpaceId, VirtAddr)) -> usize {
        let Some(frame) = self.memory.frames().frame(folio) else { return 0 };
        let mut missing = frame.as_folio().maps();
        let mut looked_at = 0;
        let _ = self.walk(folio, |mapped| {
            let Mapped { tables, vma: snapshot, range, .. } = *mapped;
            looked_at += 1;
            let first = snapshot.page_offset_at(range.start()) - frame.as_folio().index();
            Walker::new(&tables).look(range, |part, entry| {
                let page = Pfn(folio.0 + first + (part.start().0 - range.start().0) / PAGE_SIZE);
                let is_it = |leaf: Leaf| leaf.pfn == page && !leaf.flags.contains(LeafFlags::SPECIAL);
                if matches!(entry, Entry::Leaf(leaf) if is_it(leaf)) {
                    visit(mapped.space.id(), part.start());
                    missing = missing.saturating_sub((part.len() / PAGE_SIZE) as u32);
                }
            });
            if missing == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        looked_at
    }
}

/// One mapping that may map pages of a folio, as visited by a walk.
#[derive(Clone, Copy)]
pub struct Mapped<'a, P: Platform> {
    /// The tables of its space.
    pub tables: Tables<'a, P>,
    /// Its space.
    pub space: &'a SpaceCore,
    /// The mapping.
    pub vma: &'a VmaSnapshot,
    /// Where in the mapping the pages would be.
    pub range: VirtRange,
}

/// The mappings that may map a folio, with the root lock of their tree held shared.
pub struct HeldMappings<'s, P: Platform> {
    memory: &'s MemoryCore<P>,
    frame: &'s Frame,
    anon_vma: NonNull<AnonVma>,
}

impl<P: Platform> HeldMappings<'_, P> {
    /// As [`Rmap::walk`].
    pub fn walk<B>(&self, visit: impl FnMut(&Mapped<'_, P>) -> ControlFlow<B>) -> ControlFlow<B> {
        self.walk_pages(self.frame.word().order().pages(), visit)
    }

    /// The same for the folio and what follows it, `pages` pages together: the parts of a folio that was
    /// split meanwhile.
    pub fn walk_pages<B>(
        &self,
        pages: u64,
        mut visit: impl FnMut(&Mapped<'_, P>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let first = self.frame.as_folio().index();
        // SAFETY: it owns a mapped page under the lock of its tree; see the head of this file.
        let start = unsafe { self.anon_vma.as_ref() };
        debug_assert_ne!(start.refs.load(Ordering::Relaxed), 0, "a walk from an anon_vma that was freed");
        let mut at = start;
        loop {
            for vma in at.vmas_holding(first, first.saturating_add(pages - 1)) {
                let Some(core) = vma.membership().core() else { continue };
                // SAFETY: a VMA in an anon_vma belongs to a space of this machine, which lives until its VMAs
                // are gone.
                let core = unsafe { core.as_ref() };
                let snapshot = vma.snapshot();
                if let Some(range) = snapshot.range_of(first, pages) {
                    // Its tables may be freed meanwhile.
                    let pin = self.memory.platform().pin();
                    let _epoch = self.memory.frames().epoch().enter(&pin);
                    let tables = Tables::new(self.memory, &core.tables);
                    visit(&Mapped { tables, space: core, vma: &snapshot, range })?;
                }
            }
            // The next anon_vma in the subtree below `start`: no recursion, since programs decide its depth.
            let Some(next) = next_below(at, start) else { return ControlFlow::Continue(()) };
            at = next;
        }
    }
}

/// The anon_vma after `at` in the subtree at `top`: parents come before their children. The root lock is
/// held.
fn next_below<'g>(at: &'g AnonVma, top: &'g AnonVma) -> Option<&'g AnonVma> {
    if let Some(child) = at.first_child() {
        return Some(child);
    }
    let mut at = at;
    while !ptr::eq(at, top) {
        if let Some(sibling) = at.next_sibling() {
            return Some(sibling);
        }
        at = at.parent()?;
    }
    None
}

impl<P: Platform> fmt::Debug for Mapped<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped").field("vma", self.vma).field("range", &self.range).finish_non_exhaustive()
    }
}

impl<P: Platform> fmt::Debug for HeldMappings<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldMappings").finish_non_exhaustive()
    }
}
