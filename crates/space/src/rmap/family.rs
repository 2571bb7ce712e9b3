//! Making groups, putting VMAs in and taking them out, and letting groups go.

use super::group::Group;
use crate::space::SpaceCore;
use crate::spaces::Spaces;
use crate::vma::{AnonGroup, Vma, VmaFacts};
use core::fmt;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering;
use quire_arch::Platform;
use quire_frame::AllocError;
use quire_sync::RwSleepWriteGuard;

/// The family lock, held alone by whoever changes VMAs of one family. With nothing to hold it holds nothing.
///
/// The holder's VMAs, or what it has [emptied](Emptied), keep the root from being freed for longer than the lock is
/// held.
#[must_use = "the lock is released when the guard is dropped"]
pub(crate) struct Family<'s, P: Platform> {
    held: Option<(&'s Group, RwSleepWriteGuard<'s, P>)>,
}

impl<'s, P: Platform> Family<'s, P> {
    /// Takes the lock of the family of the first of `groups` that is one. The others are of the same family, since
    /// mappings that may merge have one group.
    pub(crate) fn hold(spaces: &'s Spaces<P>, groups: impl IntoIterator<Item = AnonGroup>) -> Self {
        let held = groups.into_iter().find_map(AnonGroup::group).map(|group| {
            // SAFETY: a VMA that the caller holds names the group, so it is live, and so is its root for as long as
            // the guard is (see the type).
            let root = unsafe { group.as_ref() }.root();
            (root, root.lock.write(spaces.platform()))
        });
        Self { held }
    }

    /// The group behind a pointer that a VMA holds.
    fn group(&self, group: NonNull<Group>) -> &'s Group {
        // SAFETY: a group is freed under its family lock, held alone here, and not while it has VMAs or children.
        let group: &'s Group = unsafe { group.as_ref() };
        let root = self.held.as_ref().map(|&(root, _)| ptr::from_ref(root));
        debug_assert_eq!(root, Some(ptr::from_ref(group.root())), "the family lock is not held");
        group
    }

    /// Moves `vma`, which belongs to `core`, to the group and the page offsets of `facts`. What it left empty is noted
    /// in `emptied`.
    pub(crate) fn place(&self, core: &SpaceCore, vma: &Vma, facts: &VmaFacts, emptied: &Emptied<'s, P>) {
        match (vma.anon().group(), facts.anon.group()) {
            (Some(old), Some(new)) if old == new && vma.membership().is_linked() => {
                self.group(old).change(vma, facts);
            }
            (old, new) => {
                if let Some(old) = old.filter(|_| vma.membership().is_linked()) {
                    let group = self.group(old);
                    if group.leave(vma) {
                        emptied.add(group);
                    }
                }
                if let Some(new) = new {
                    vma.membership().set_core(core);
                    self.group(new).enter(vma, facts);
                }
            }
        }
    }

    /// Takes `vma` out of its group, if it has one. The VMA is about to go, and goes on naming it.
    pub(crate) fn leave(&self, vma: &Vma, emptied: &Emptied<'s, P>) {
        if let Some(group) = vma.anon().group() {
            let group = self.group(group);
            if group.leave(vma) {
                emptied.add(group);
            }
        }
    }
}

/// Groups whose last VMA left. Pages may still name them, so they are released only when this is dropped: after the
/// pages are out of the tables.
pub(crate) struct Emptied<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    first: super::group::Link,
}

impl<'s, P: Platform> Emptied<'s, P> {
    pub(crate) fn new(spaces: &'s Spaces<P>) -> Self {
        Self { spaces, first: None.into() }
    }

    fn add(&self, group: &Group) {
        // The VMAs' reference is this list's now, so the link is too.
        group.next_emptied.set(self.first.replace(Some(NonNull::from(group))));
    }
}

impl<P: Platform> Drop for Emptied<'_, P> {
    fn drop(&mut self) {
        while let Some(group) = self.first.get() {
            // SAFETY: the list holds a reference to each of its groups.
            self.first.set(unsafe { group.as_ref() }.next_emptied.get());
            // SAFETY: it has no VMAs any more, and its reference is given up only here.
            unsafe { self.spaces.release_group(group) };
        }
    }
}

/// The group that a child's VMA will have. If it was made for that and is not used, it goes back when this is dropped.
#[must_use]
pub(crate) struct Branch<'s, P: Platform> {
    spaces: &'s Spaces<P>,
    anon: AnonGroup,
    fresh: Option<NonNull<Group>>,
}

impl<P: Platform> Branch<'_, P> {
    /// What the child's VMA gets.
    pub(crate) fn anon(&self) -> AnonGroup {
        self.anon
    }

    /// A VMA has entered.
    pub(crate) fn keep(mut self) {
        self.fresh = None;
    }
}

impl<P: Platform> Drop for Branch<'_, P> {
    fn drop(&mut self) {
        if let Some(group) = self.fresh {
            // SAFETY: made by `branch` and not kept, so nobody knows it.
            unsafe { self.spaces.free_group(group) };
        }
    }
}

impl<P: Platform> Spaces<P> {
    /// The group for a child's VMA, below `parent`, the group of the VMA that it is a copy of: none if there is none.
    /// The caller holds the parent's mmap lock.
    ///
    /// Processes that fork and exit, one after the other, would leave a chain of groups behind that have no VMAs but
    /// whose pages live on in those below. So where a family has more groups without VMAs than VMAs, the child joins
    /// the parent's own group. That is always right, since the VMAs of a group are all asked for its pages; it makes
    /// walks longer, but only for as many children as the family has groups to spare.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn branch(&self, parent: AnonGroup) -> Result<Branch<'_, P>, AllocError> {
        let mut fresh = None;
        let mut anon = AnonGroup::NONE;
        if let Some(group) = parent.group() {
            // SAFETY: the parent's VMA names it, and keeps it while the caller holds the mmap lock.
            let shared = unsafe { group.as_ref() };
            let census = &shared.root().census;
            if census.empty.load(Ordering::Relaxed) <= census.vmas.load(Ordering::Relaxed) {
                fresh = Some(self.allocate_group(Some(shared))?);
            }
            anon = AnonGroup::inherited(fresh.unwrap_or(group), self.new_number());
        }
        Ok(Branch { spaces: self, anon, fresh })
    }

    /// Gives `vma`, which belongs to `core`, its first group: `shared` if one is given, else one of its own. Of two
    /// faults that try at once, one wins. The caller holds the mmap lock in some way, and is not pinned.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn give_first_group(
        &self,
        core: &SpaceCore,
        vma: &Vma,
        shared: Option<AnonGroup>,
    ) -> Result<(), AllocError> {
        let fresh = if shared.is_none() { Some(self.allocate_group(None)?) } else { None };
        let Some(anon) = shared.or(fresh.map(AnonGroup::new)) else { return Ok(()) };
        let won = {
            let family = Family::hold(self, [anon]);
            let won = vma.set_anon_once(anon);
            if won && let Some(group) = anon.group() {
                vma.membership().set_core(core);
                family.group(group).enter(vma, &vma.facts());
            }
            won
        };
        if !won && let Some(fresh) = fresh {
            // SAFETY: allocated above, and no VMA names it.
            unsafe { self.free_group(fresh) };
        }
        Ok(())
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_group(&self, parent: Option<&Group>) -> Result<NonNull<Group>, AllocError> {
        let pin = self.platform().pin();
        self.groups().allocate(self.frames(), &pin, Group::new(parent))
    }

    /// Frees a group that no VMA entered.
    ///
    /// # Safety
    ///
    /// It came from [`allocate_group`](Self::allocate_group), and nobody knows it any more.
    unsafe fn free_group(&self, group: NonNull<Group>) {
        let pin = self.platform().pin();
        // SAFETY: the caller's promise.
        unsafe { self.groups().free(self.frames(), &pin, group) };
    }

    /// Frees a group that walkers in the epoch may be looking at.
    ///
    /// # Safety
    ///
    /// Its last reference is gone, and it is out of the family.
    unsafe fn retire_group(&self, group: NonNull<Group>) {
        let pin = self.platform().pin();
        // SAFETY: every group came from `allocate_group`; no VMA and no child names it, and no page that is mapped.
        unsafe { self.groups().retire(self.frames(), &pin, group) };
    }

    /// Drops the reference of a group's VMAs, and frees what nothing holds any more: the group, then those above it.
    ///
    /// # Safety
    ///
    /// The reference is the caller's, and the group has no VMAs.
    unsafe fn release_group(&self, group: NonNull<Group>) {
        // SAFETY: the caller holds a reference.
        let at = unsafe { group.as_ref() };
        let root = NonNull::from(at.root());
        if root != group {
            // The root must outlive the lock in it.
            // SAFETY: a group holds its root, until it is released below.
            unsafe { root.as_ref() }.refs.fetch_add(1, Ordering::Relaxed);
            // SAFETY: held by the line above.
            let guard = unsafe { root.as_ref() }.lock.write(self.platform());
            let mut at = at;
            while at.put()
                && let Some(parent) = at.parent()
            {
                at.unhang(parent);
                let empty = &at.root().census.empty;
                empty.store(empty.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
                // SAFETY: the last reference, and it is off its parent's list.
                unsafe { self.retire_group(NonNull::from(at)) };
                at = parent;
            }
            drop(guard);
        }
        // SAFETY: for another group the reference is the one taken above, else the caller's.
        unsafe { self.put_root(root) };
    }

    /// Drops a reference to a root, and frees it with the last one.
    ///
    /// # Safety
    ///
    /// The reference is the caller's, who does not use the root after this.
    pub(super) unsafe fn put_root(&self, root: NonNull<Group>) {
        // SAFETY: the caller holds a reference.
        if unsafe { root.as_ref() }.put() {
            // SAFETY: it was the last one: the root has no VMAs and no children, and a root is on nobody's list.
            unsafe { self.retire_group(root) };
        }
    }
}

impl<P: Platform> fmt::Debug for Family<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Family").field(&self.held.is_some()).finish()
    }
}
