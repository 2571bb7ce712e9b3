//! Creating anon_vmas, adding and removing VMAs, and freeing anon_vmas.

use super::Rmap;
use super::owned::{FreshAnonVma, RootRef};
use crate::space_core::{AnonVma, AnonVmaRef, DepartedList, EmptiedList, SpaceCore, Vma, VmaSnapshot};
use core::fmt;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering;
use quire_arch::Platform;
use quire_file::ClosingStack;
use quire_frame::AllocError;
use quire_sync::RwSleepWriteGuard;

/// The root lock, held exclusively by a thread that changes VMAs of one tree. It may be empty: then no lock
/// is held.
///
/// The holder's VMAs, or what it has [emptied](Emptied), keep the root from being freed for longer than the
/// lock is held.
#[must_use = "the lock is released when the guard is dropped"]
pub(super) struct AnonVmaTree<'s, P: Platform> {
    held: Option<(&'s AnonVma, RwSleepWriteGuard<'s, P>)>,
}

impl<'s, P: Platform> AnonVmaTree<'s, P> {
    /// Takes the lock of the tree of the first of `anon_vmas` that is one. The others are of the same tree,
    /// since mappings that may merge have one anon_vma.
    pub(super) fn hold(platform: &'s P, anon_vmas: impl IntoIterator<Item = AnonVmaRef>) -> Self {
        let held = anon_vmas.into_iter().find_map(AnonVmaRef::get).map(|anon_vma| {
            let root = anon_vma.root();
            (root, root.lock.write(platform))
        });
        Self { held }
    }

    /// The anon_vma that a VMA has or gets, which is one of this tree.
    fn anon_vma(&self, anon: AnonVmaRef) -> Option<&'s AnonVma> {
        let anon_vma: &'s AnonVma = anon.get()?;
        let root = self.held.as_ref().map(|&(root, _)| ptr::from_ref(root));
        debug_assert_eq!(root, Some(ptr::from_ref(anon_vma.root())), "the root lock is not held");
        Some(anon_vma)
    }

    /// Moves `vma`, which belongs to `space`, to the anon_vma and the page offsets of `snapshot`. An anon_vma
    /// that becomes empty is added to `emptied`.
    pub(super) fn place(
        &self,
        space: &SpaceCore,
        vma: &Vma,
        snapshot: &VmaSnapshot,
        emptied: &Emptied<'s, P>,
    ) {
        let old = if vma.membership().is_linked() { self.anon_vma(vma.anon()) } else { None };
        match (old, self.anon_vma(snapshot.anon)) {
            (Some(old), Some(new)) if ptr::eq(old, new) => old.change(vma, snapshot),
            (old, new) => {
                if let Some(old) = old
                    && old.leave(vma)
                {
                    emptied.list.add(old);
                }
                if let Some(new) = new {
                    vma.membership().set_core(space);
                    new.enter(vma, snapshot);
                }
            }
        }
    }

    /// Takes `vma`, which is about to be freed, out of its anon_vma, if it has one, and returns who frees it.
    pub(super) fn leave(&self, vma: &Vma, emptied: &Emptied<'s, P>) -> Freed {
        let Some(anon_vma) = self.anon_vma(vma.anon()) else { return Freed::ByCaller };
        if anon_vma.leave(vma) {
            emptied.list.add(anon_vma);
        } else if anon_vma.is_joined() {
            // Another space may empty it, and finish, while the VMA's pages are still in the tables.
            anon_vma.hold_for_departed();
            emptied.departed.add(vma);
            return Freed::AtTheEnd;
        }
        Freed::ByCaller
    }

    /// The same for a VMA that holds more than an anon_vma, and so is freed at the end in any case.
    #[cold]
    pub(super) fn leave_later(&self, vma: &Vma, emptied: &Emptied<'s, P>) {
        if let Some(anon_vma) = self.anon_vma(vma.anon()) {
            if anon_vma.leave(vma) {
                emptied.list.add(anon_vma);
            }
            anon_vma.hold_for_departed();
        }
        emptied.departed.add(vma);
    }
}

/// Who frees a VMA that has left its trees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a VMA that is freed at the end is on a list until then"]
pub enum Freed {
    /// The caller, now. The VMA continues to name its anon_vma.
    ByCaller,
    /// [`Emptied::take_departed`] returns it.
    AtTheEnd,
}

/// What VMAs have left. Pages may still name the anon_vmas, or be in the caches of the open files, so these
/// are released only at the end: after the pages are out of the tables. The section that took the last VMA
/// out of an anon_vma releases for all of its space; a section that left VMAs of another space behind has a
/// reference for each VMA that it took out. Each VMA that maps an open file goes on to hold it.
pub struct Emptied<'s, P: Platform> {
    rmap: Rmap<'s, P>,
    list: EmptiedList,
    departed: DepartedList,
    closing: &'s ClosingStack<Vma>,
}

impl<'s, P: Platform> Emptied<'s, P> {
    /// No anon_vma yet. Open files that lose their last holder come to `closing`.
    pub fn new(rmap: Rmap<'s, P>, closing: &'s ClosingStack<Vma>) -> Self {
        Self { rmap, list: EmptiedList::default(), departed: DepartedList::default(), closing }
    }

    /// Takes off a VMA that is freed at the end, and drops what it holds: its pages are out of the tables.
    /// The caller frees it.
    #[inline]
    pub fn take_departed(&self) -> Option<NonNull<Vma>> {
        let vma = self.departed.take()?;
        // SAFETY: it has been on the list until now, so it is not freed.
        self.release_departed(unsafe { vma.as_ref() });
        Some(vma)
    }

    #[cold]
    fn release_departed(&self, vma: &Vma) {
        if let Some(anon_vma) = vma.anon().get() {
            self.release(anon_vma);
        }
        // SAFETY: the VMA is a holder until here.
        if let Some(opening) = unsafe { vma.backing().opening() } {
            // SAFETY: the VMA is a holder, and is freed now.
            if unsafe { opening.let_go() } {
                // SAFETY: it was the last one.
                unsafe { self.closing.push(NonNull::from(opening)) };
            }
        }
    }

    /// Drops a reference to `anon_vma` that a list had, and frees what nothing holds any more: the anon_vma,
    /// then those above it.
    // Not a part of the drop, which most of the time has nothing to do.
    #[inline(never)]
    fn release(&self, anon_vma: &AnonVma) {
        let root = anon_vma.root();
        if ptr::eq(root, anon_vma) {
            // SAFETY: the reference was the list's, which has given it up.
            drop(unsafe { RootRef::from_counted(self.rmap, root) });
            return;
        }
        // The root must outlive the lock in it.
        let kept = RootRef::new(self.rmap, root);
        let guard = kept.root().lock.write(self.rmap.memory.platform());
        let mut at = anon_vma;
        while at.put()
            && let Some(parent) = at.parent()
        {
            at.unlink_child(parent);
            let empty = &at.root().stats.empty;
            empty.store(empty.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            // SAFETY: the last reference, and it is off its parent's list.
            unsafe { self.rmap.retire_anon_vma(NonNull::from(at)) };
            at = parent;
        }
        drop(guard);
    }
}

impl<P: Platform> Drop for Emptied<'_, P> {
    fn drop(&mut self) {
        debug_assert!(self.departed.is_empty(), "VMAs that left are freed before");
        while let Some(anon_vma) = self.list.take() {
            self.release(anon_vma);
        }
    }
}

/// The anon_vma that a child's VMA will have. If it was made for that and is not used, it is freed when this
/// is dropped.
#[must_use]
pub struct Branch<'s, P: Platform> {
    anon: AnonVmaRef,
    fresh: Option<FreshAnonVma<'s, P>>,
}

impl<P: Platform> Branch<'_, P> {
    /// What the child's VMA gets.
    pub fn anon(&self) -> AnonVmaRef {
        self.anon
    }

    /// A VMA has entered.
    pub fn keep(self) {
        if let Some(fresh) = self.fresh {
            fresh.keep();
        }
    }
}

impl<'s, P: Platform> Rmap<'s, P> {
    /// The anon_vma for a child's VMA, below `parent`, the anon_vma of the VMA that it is a copy of: none if
    /// there is none. The caller holds the parent's mmap lock.
    ///
    /// Processes that fork and exit, one after the other, would leave a chain of anon_vmas behind that have
    /// no VMAs but whose pages live on in those below. So where a tree has more anon_vmas without VMAs than
    /// VMAs, the child joins the parent's own anon_vma. That is always right, since a walk visits all VMAs of
    /// an anon_vma; it makes walks longer, but only for as many children as the tree has anon_vmas to spare.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn branch(self, parent: AnonVmaRef) -> Result<Branch<'s, P>, AllocError> {
        let mut fresh = None;
        let mut anon = AnonVmaRef::NONE;
        if let Some(shared) = parent.get() {
            let stats = &shared.root().stats;
            if stats.empty.load(Ordering::Relaxed) <= stats.vmas.load(Ordering::Relaxed) {
                fresh = Some(FreshAnonVma::new(self, Some(shared))?);
            } else {
                shared.join();
            }
            let branch = self.state.next_branch.fetch_add(1, Ordering::Relaxed);
            anon = fresh.as_ref().map_or(parent, FreshAnonVma::anon).inherited(branch);
        }
        Ok(Branch { anon, fresh })
    }

    /// Gives `vma`, which belongs to `space`, its first anon_vma: `shared` if one is given, else one of its
    /// own. Of two faults that try at once, one wins. The caller holds the mmap lock in some way, and is not
    /// pinned.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn give_first_anon_vma(
        self,
        space: &SpaceCore,
        vma: &Vma,
        shared: Option<AnonVmaRef>,
    ) -> Result<(), AllocError> {
        let fresh = if shared.is_none() { Some(FreshAnonVma::new(self, None)?) } else { None };
        let Some(anon) = shared.or(fresh.as_ref().map(FreshAnonVma::anon)) else { return Ok(()) };
        let won = {
            let tree = AnonVmaTree::hold(self.memory.platform(), [anon]);
            let won = vma.set_anon_once(anon);
            if won && let Some(anon_vma) = tree.anon_vma(anon) {
                vma.membership().set_core(space);
                anon_vma.enter(vma, &vma.snapshot());
            }
            won
        };
        if won && let Some(fresh) = fresh {
            fresh.keep();
        }
        Ok(())
    }
}

impl<P: Platform> fmt::Debug for AnonVmaTree<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnonVmaTree").field(&self.held.is_some()).finish()
    }
}

impl<P: Platform> fmt::Debug for Emptied<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Emptied").field(&!self.list.is_empty()).finish()
    }
}

impl<P: Platform> fmt::Debug for Branch<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Branch").field("fresh", &self.fresh.is_some()).finish_non_exhaustive()
    }
}
