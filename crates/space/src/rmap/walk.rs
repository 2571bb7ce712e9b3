//! The walk: every mapping that can show a folio.
//!
//! A walker begins with nothing but a frame, so it has to get hold of the family before it can take its lock:
//!
//! 1. In a section of the epoch it sees that the folio is mapped, and then reads which group owns it. Of a folio that is
//!    mapped the group is not freed: [`Emptied`](super::Emptied) lets it go only after the entries are gone. If the folio
//!    is unmapped in this very moment, or even used anew, the group that was read was freed later than the section
//!    began: had its epoch passed before, the walker would have seen that the folio is not mapped. So the group is
//!    memory of a group until the section ends.
//! 2. It takes a reference to the root, unless the last one is gone. Then it may sleep.
//! 3. Under the family lock it looks again, as in 1. If the folio is mapped and owned by the same group of the same
//!    family, that group stays until the lock is released.
//!
//! What a walker finds under the lock is each mapping whole, before or after a change, and `mremap` moves pages under
//! it. Only pages that are being unmapped may be missed: their mapping is gone before they are.

use super::group::Group;
use crate::space::SpaceId;
use crate::spaces::Spaces;
use crate::table::Tables;
use crate::vma::{AnonGroup, VmaFacts};
use core::ops::ControlFlow;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering;
use quire_arch::{Entry, Leaf, LeafFlags, PAGE_SIZE, Pfn, Platform, VirtAddr, VirtRange};
use quire_frame::{Frame, Kind};
use quire_sync::EpochGuard;

/// Set in the owner of a page that a group owns. Frames of other kinds are owned by other things, and the word stays
/// when a frame is given back; so a walker that meets a frame between two lives must see that this is no group.
const GROUP: u64 = 1;

/// As [`set_owner`], for a page that all of the family of `anon` may map.
pub(crate) fn set_owner_to_root(frame: &Frame, anon: AnonGroup) {
    // SAFETY: the VMA that names the group keeps it, and so its root.
    let root = anon.group().map(|group| NonNull::from(unsafe { group.as_ref() }.root()));
    // Release as above.
    frame.owner().store(owner_word(root), Ordering::Release);
}

/// Says in the descriptor of a page whose it is, before the page is mapped or becomes private.
#[inline]
pub(crate) fn set_owner(frame: &Frame, anon: AnonGroup) {
    // Release: who finds the group here sees it filled in.
    frame.owner().store(owner_word(anon.group()), Ordering::Release);
}

/// The word by which a frame names its group.
///
/// The address is exposed, and [`group_of`] makes it a pointer again, which may be used for as long as the group is not
/// freed: until then what was exposed is the only object there.
#[inline]
fn owner_word(group: Option<NonNull<Group>>) -> u64 {
    group.map_or(0, |group| group.as_ptr().expose_provenance() as u64 | GROUP)
}

/// The group that an owner names, if it names one.
pub(super) fn group_of(owner: u64) -> Option<NonNull<Group>> {
    let address = (owner & !GROUP) as usize;
    if owner & GROUP == 0 { None } else { NonNull::new(ptr::with_exposed_provenance_mut(address)) }
}

/// A family that a walker keeps from being freed.
struct Kept<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    root: NonNull<Group>,
}

impl<P: Platform> Drop for Kept<'_, P> {
    fn drop(&mut self) {
        // SAFETY: the reference was taken for this value.
        unsafe { self.spaces.put_root(self.root) };
    }
}

impl<P: Platform> Spaces<P> {
    /// Calls `visit` for each mapping that may show pages of `folio`, the first frame of one of any order, with the
    /// range in that mapping where they would be. The mappings of the group that owns the folio come first. A `visit`
    /// that breaks ends the walk.
    ///
    /// The family lock is held shared meanwhile, so the mappings stay; entries may change under the lock of their table, and
    /// tables may go, but a `visit` is in a section of the epoch. Pages of files and of shared memory are found nowhere yet. The caller is not pinned and
    /// holds no lock of class Rmap or later.
    pub(crate) fn rmap_walk<B>(
        &self,
        folio: Pfn,
        visit: impl FnMut(&Tables<'_, P>, &VmaFacts, VirtRange) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        self.rmap_hold(folio, |held| held.walk(visit)).unwrap_or(ControlFlow::Continue(()))
    }

    /// Calls `inside` with the family lock of `folio` held shared, so that its mappings stay and the walk can be made with
    /// other locks held. `None` where the folio is not mapped, or has no rmap. The caller is as for
    /// [`rmap_walk`](Self::rmap_walk).
    pub(crate) fn rmap_hold<R>(
        &self,
        folio: Pfn,
        inside: impl FnOnce(&HeldMappings<'_, P>) -> R,
    ) -> Option<R> {
        let frame = self.frames().frame(folio)?;
        let (group, kept) = self.keep_family(frame)?;
        // SAFETY: a root stays for as long as it is kept.
        let root = unsafe { kept.root.as_ref() };
        let _guard = root.lock.read(self.platform());
        if self.owner_of(frame) != Some((group, kept.root)) {
            return None;
        }
        Some(inside(&HeldMappings { spaces: self, frame, group }))
    }

    /// As [`rmap_hold`](Self::rmap_hold), for a caller that may hold locks of mappings, and perhaps the family lock: it is
    /// tried. `None` also where somebody else has it.
    pub(crate) fn rmap_try_hold<R>(
        &self,
        folio: Pfn,
        inside: impl FnOnce(&HeldMappings<'_, P>) -> R,
    ) -> Option<R> {
        let frame = self.frames().frame(folio)?;
        let (group, kept) = self.keep_family(frame)?;
        // SAFETY: a root stays for as long as it is kept.
        let root = unsafe { kept.root.as_ref() };
        let _guard = root.lock.try_read(self.platform())?;
        if self.owner_of(frame) != Some((group, kept.root)) {
            return None;
        }
        Some(inside(&HeldMappings { spaces: self, frame, group }))
    }

    /// The group that owns what `frame` holds, and a hold on its family.
    fn keep_family(&self, frame: &Frame) -> Option<(NonNull<Group>, Kept<'_, P>)> {
        let pin = self.platform().pin();
        let section = self.frames().epoch().enter(&pin);
        let (group, root) = self.owner_in(&section, frame)?;
        // SAFETY: see the head of this file.
        let held = unsafe { root.as_ref() }.try_hold();
        held.then(|| (group, Kept { spaces: self, root }))
    }

    /// The group that owns the private page in `frame`, and the root of its family, if the page is mapped just now.
    fn owner_of(&self, frame: &Frame) -> Option<(NonNull<Group>, NonNull<Group>)> {
        let pin = self.platform().pin();
        self.owner_in(&self.frames().epoch().enter(&pin), frame)
    }

    /// The same in a section of the epoch, in which both may be read.
    fn owner_in(&self, _section: &EpochGuard<'_>, frame: &Frame) -> Option<(NonNull<Group>, NonNull<Group>)> {
        // First the count, then the owner; acquire pairs with the releases in `init_page`.
        if frame.map_count().load(Ordering::Acquire) == 0 || frame.kind() != Kind::Anonymous {
            return None;
        }
        let group = group_of(frame.owner().load(Ordering::Acquire))?;
        // SAFETY: see the head of this file.
        let root = NonNull::from(unsafe { group.as_ref() }.root());
        Some((group, root))
    }

    /// Calls `visit` with each place where a page of `folio`, the first frame of one of any order, is mapped: the space
    /// and the address. Answers how many mappings were looked at; the walk ends when all are found that there were when
    /// it began.
    ///
    /// A page that is mapped all the time is found, also while it moves. Pages of files and of shared memory are not
    /// found yet. `visit` is called with the lock of a table held, and takes no locks.
    pub fn for_each_map(&self, folio: Pfn, mut visit: impl FnMut(SpaceId, VirtAddr)) -> usize {
        let Some(frame) = self.frames().frame(folio) else { return 0 };
        let mut missing = frame.map_count().load(Ordering::Relaxed);
        let mut looked_at = 0;
        let _ = self.rmap_walk(folio, |tables, facts, range| {
            looked_at += 1;
            let first = facts.page_offset_at(range.start()) - frame.index().load(Ordering::Relaxed);
            tables.look(range, |part, entry| {
                let page = Pfn(folio.0 + first + (part.start().0 - range.start().0) / PAGE_SIZE);
                let is_it = |leaf: Leaf| leaf.pfn == page && !leaf.flags.contains(LeafFlags::SPECIAL);
                if matches!(entry, Entry::Leaf(leaf) if is_it(leaf)) {
                    visit(tables.core.id(), part.start());
                    missing = missing.saturating_sub((part.len() / PAGE_SIZE) as u32);
                }
            });
            if missing == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        looked_at
    }
}

/// The mappings that can show a folio, under the lock of their family held shared.
pub(crate) struct HeldMappings<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    frame: &'s Frame,
    group: NonNull<Group>,
}

impl<P: Platform> HeldMappings<'_, P> {
    /// As [`Spaces::rmap_walk`].
    pub(crate) fn walk<B>(
        &self,
        visit: impl FnMut(&Tables<'_, P>, &VmaFacts, VirtRange) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        self.walk_pages(self.frame.word().order().pages(), visit)
    }

    /// The same for the folio and what follows it, `pages` pages together: the parts of a folio that was split meanwhile.
    pub(crate) fn walk_pages<B>(
        &self,
        pages: u64,
        mut visit: impl FnMut(&Tables<'_, P>, &VmaFacts, VirtRange) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let first = self.frame.index().load(Ordering::Relaxed);
        // SAFETY: it owns a mapped page under the lock of its family; see the head of this file.
        let start = unsafe { self.group.as_ref() };
        debug_assert_ne!(start.refs.load(Ordering::Relaxed), 0, "a walk from a group that was freed");
        let mut at = start;
        loop {
            // SAFETY: the family lock is held.
            for vma in unsafe { at.vmas.holding(first, first.saturating_add(pages - 1)) } {
                // SAFETY: a VMA that is in a group is live.
                let vma = unsafe { vma.as_ref() };
                let Some(core) = vma.membership().core() else { continue };
                // SAFETY: a VMA in a group belongs to a space of this machine, which lives until its VMAs are gone.
                let core = unsafe { core.as_ref() };
                let facts = vma.facts();
                if let Some(range) = facts.range_of(first, pages) {
                    // Its tables may go meanwhile.
                    let pin = self.spaces.platform().pin();
                    let _epoch = self.spaces.frames().epoch().enter(&pin);
                    visit(&Tables::new(self.spaces, core), &facts, range)?;
                }
            }
            // The next group in the subtree below `start`: no recursion, since programs decide its depth.
            let Some(next) = next_below(at, start) else { return ControlFlow::Continue(()) };
            at = next;
        }
    }
}

/// The group after `at` in the subtree at `top`: parents come before their children. The family lock is held.
fn next_below<'g>(at: &'g Group, top: &'g Group) -> Option<&'g Group> {
    // SAFETY: a group on its parent's list is live while the family lock is held.
    let live = |group: NonNull<Group>| unsafe { group.as_ref() };
    if let Some(child) = at.first_child.get() {
        return Some(live(child));
    }
    let mut at = at;
    while !ptr::eq(at, top) {
        if let Some(sibling) = at.next.get() {
            return Some(live(sibling));
        }
        at = at.parent()?;
    }
    None
}

impl VmaFacts {
    /// Where the `pages` pages from page offset `first` on are in this mapping, as far as they are.
    fn range_of(&self, first: u64, pages: u64) -> Option<VirtRange> {
        let from = first.max(self.page_offset);
        let to = first.saturating_add(pages).min(self.page_offset.saturating_add(self.range.pages()));
        if from >= to {
            return None;
        }
        let start = self.range.start().0 + (from - self.page_offset) * PAGE_SIZE;
        Some(VirtRange::new(VirtAddr(start), VirtAddr(start + (to - from) * PAGE_SIZE)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::vma::{AnonGroup, Backing, VmFlags};

    #[test]
    fn a_folio_is_clipped_to_each_mapping() {
        let facts = VmaFacts {
            range: VirtRange::new(VirtAddr(0x10_0000), VirtAddr(0x10_4000)),
            flags: VmFlags::READ,
            page_offset: 100,
            backing: Backing::ANONYMOUS,
            anon: AnonGroup::NONE,
        };
        let range = |start, end| Some(VirtRange::new(VirtAddr(start), VirtAddr(end)));
        assert_eq!(facts.range_of(100, 1), range(0x10_0000, 0x10_1000));
        assert_eq!(facts.range_of(96, 16), range(0x10_0000, 0x10_4000));
        assert_eq!(facts.range_of(96, 6), range(0x10_0000, 0x10_2000));
        assert_eq!(facts.range_of(103, 512), range(0x10_3000, 0x10_4000));
        assert_eq!(facts.range_of(104, 1), None);
        assert_eq!(facts.range_of(92, 8), None);
    }

    #[test]
    fn an_owner_names_a_group_or_none() {
        assert_eq!((owner_word(None), group_of(0), group_of(42)), (0, None, None));
        let group = Group::new(None);
        assert_eq!(group_of(owner_word(Some(NonNull::from(&group)))), Some(NonNull::from(&group)));
    }
}
