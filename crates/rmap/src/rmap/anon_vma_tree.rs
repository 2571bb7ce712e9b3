//! Making anon_vmas, putting VMAs in and taking them out, and freeing anon_vmas.

use super::Rmap;
use crate::space_core::{AnonVma, AnonVmaLink, AnonVmaRef, SpaceCore, Vma, VmaSnapshot};
use core::fmt;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering;
use quire_arch::Platform;
use quire_frame::AllocError;
use quire_sync::RwSleepWriteGuard;

/// The root lock, held exclusively by a thread that changes VMAs of one tree. It may be empty: then no lock
/// is held.
///
/// The holder's VMAs, or what it has [emptied](Emptied), keep the root from being freed for longer than the
/// lock is held.
#[must_use = "the lock is released when the guard is dropped"]
pub struct AnonVmaTree<'s, P: Platform> {
    held: Option<(&'s AnonVma, RwSleepWriteGuard<'s, P>)>,
}

impl<'s, P: Platform> AnonVmaTree<'s, P> {
    /// Takes the lock of the tree of the first of `anon_vmas` that is one. The others are of the same tree,
    /// since mappings that may merge have one anon_vma.
    pub fn hold(platform: &'s P, anon_vmas: impl IntoIterator<Item = AnonVmaRef>) -> Self {
        let held = anon_vmas.into_iter().find_map(AnonVmaRef::anon_vma).map(|anon_vma| {
            // SAFETY: a VMA that the caller holds names the anon_vma, so it is live, and so is its root for
            // as long as the guard is (see the type).
            let root = unsafe { anon_vma.as_ref() }.root();
            (root, root.lock.write(platform))
        });
        Self { held }
    }

    /// The anon_vma behind a pointer that a VMA holds.
    fn anon_vma(&self, anon_vma: NonNull<AnonVma>) -> &'s AnonVma {
        // SAFETY: an anon_vma is freed under its root lock, held exclusively here, and not while it has VMAs
        // or children.
        let anon_vma: &'s AnonVma = unsafe { anon_vma.as_ref() };
        let root = self.held.as_ref().map(|&(root, _)| ptr::from_ref(root));
        debug_assert_eq!(root, Some(ptr::from_ref(anon_vma.root())), "the root lock is not held");
        anon_vma
    }

    /// Moves `vma`, which belongs to `space`, to the anon_vma and the page offsets of `snapshot`. What it left
    /// empty is noted in `emptied`.
    pub fn place(&self, space: &SpaceCore, vma: &Vma, snapshot: &VmaSnapshot, emptied: &Emptied<'s, P>) {
        match (vma.anon().anon_vma(), snapshot.anon.anon_vma()) {
            (Some(old), Some(new)) if old == new && vma.membership().is_linked() => {
                self.anon_vma(old).change(vma, snapshot);
            }
            (old, new) => {
                if let Some(old) = old.filter(|_| vma.membership().is_linked()) {
                    let anon_vma = self.anon_vma(old);
                    if anon_vma.leave(vma) {
                        emptied.add(anon_vma);
                    }
                }
                if let Some(new) = new {
                    vma.membership().set_core(space);
                    self.anon_vma(new).enter(vma, snapshot);
                }
            }
        }
    }

    /// Takes `vma` out of its anon_vma, if it has one. The VMA is about to be freed, and continues to name
    /// it.
    pub fn leave(&self, vma: &Vma, emptied: &Emptied<'s, P>) {
        if let Some(anon_vma) = vma.anon().anon_vma() {
            let anon_vma = self.anon_vma(anon_vma);
            if anon_vma.leave(vma) {
                emptied.add(anon_vma);
            }
        }
    }
}

/// Memcgs whose last VMA left. Pages may still name them, so they are released only when this is dropped:
/// after the pages are out of the tables.
pub struct Emptied<'s, P: Platform> {
    rmap: Rmap<'s, P>,
    first: AnonVmaLink,
}

impl<'s, P: Platform> Emptied<'s, P> {
    /// No anon_vma yet.
    pub fn new(rmap: Rmap<'s, P>) -> Self {
        Self { rmap, first: None.into() }
    }

    fn add(&self, anon_vma: &AnonVma) {
        // The VMAs' reference is this list's now, so the link is too.
        anon_vma.next_emptied.set(self.first.replace(Some(NonNull::from(anon_vma))));
    }
}

impl<P: Platform> Drop for Emptied<'_, P> {
    fn drop(&mut self) {
        while let Some(anon_vma) = self.first.get() {
            // SAFETY: the list holds a reference to each of its anon_vmas.
            self.first.set(unsafe { anon_vma.as_ref() }.next_emptied.get());
            // SAFETY: it has no VMAs any more, and its reference is given up only here.
            unsafe { self.rmap.release_anon_vma(anon_vma) };
        }
    }
}

/// The anon_vma that a child's VMA will have. If it was made for that and is not used, it is freed when this
/// is dropped.
#[must_use]
pub struct Branch<'s, P: Platform> {
    rmap: Rmap<'s, P>,
    anon: AnonVmaRef,
    fresh: Option<NonNull<AnonVma>>,
}

impl<P: Platform> Branch<'_, P> {
    /// What the child's VMA gets.
    pub fn anon(&self) -> AnonVmaRef {
        self.anon
    }

    /// A VMA has entered.
    pub fn keep(mut self) {
        self.fresh = None;
    }
}

impl<P: Platform> Drop for Branch<'_, P> {
    fn drop(&mut self) {
        if let Some(anon_vma) = self.fresh {
            // SAFETY: made by `branch` and not kept, so nothing refers to it.
            unsafe { self.rmap.free_anon_vma(anon_vma) };
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
        if let Some(anon_vma) = parent.anon_vma() {
            // SAFETY: the parent's VMA names it, and keeps it while the caller holds the mmap lock.
            let shared = unsafe { anon_vma.as_ref() };
            let stats = &shared.root().stats;
            if stats.empty.load(Ordering::Relaxed) <= stats.vmas.load(Ordering::Relaxed) {
                fresh = Some(self.allocate_anon_vma(Some(shared))?);
            }
            anon = AnonVmaRef::inherited(
                fresh.unwrap_or(anon_vma),
                self.state.next_branch.fetch_add(1, Ordering::Relaxed),
            );
        }
        Ok(Branch { rmap: self, anon, fresh })
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
        let fresh = if shared.is_none() { Some(self.allocate_anon_vma(None)?) } else { None };
        let Some(anon) = shared.or(fresh.map(AnonVmaRef::new)) else { return Ok(()) };
        let won = {
            let tree = AnonVmaTree::hold(self.memory.platform(), [anon]);
            let won = vma.set_anon_once(anon);
            if won && let Some(anon_vma) = anon.anon_vma() {
                vma.membership().set_core(space);
                tree.anon_vma(anon_vma).enter(vma, &vma.snapshot());
            }
            won
        };
        if !won && let Some(fresh) = fresh {
            // SAFETY: allocated above, and no VMA names it.
            unsafe { self.free_anon_vma(fresh) };
        }
        Ok(())
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_anon_vma(self, parent: Option<&AnonVma>) -> Result<NonNull<AnonVma>, AllocError> {
        let pin = self.memory.platform().pin();
        self.state.anon_vmas.allocate(self.memory.frames(), &pin, AnonVma::new(parent))
    }

    /// Frees an anon_vma that no VMA entered.
    ///
    /// # Safety
    ///
    /// It came from [`allocate_anon_vma`](Self::allocate_anon_vma), and nothing refers to it any more.
    unsafe fn free_anon_vma(self, anon_vma: NonNull<AnonVma>) {
        let pin = self.memory.platform().pin();
        // SAFETY: the caller's promise.
        unsafe { self.state.anon_vmas.free(self.memory.frames(), &pin, anon_vma) };
    }

    /// Frees an anon_vma that walkers in the epoch may be looking at.
    ///
    /// # Safety
    ///
    /// Its last reference is gone, and it is out of the tree.
    unsafe fn retire_anon_vma(self, anon_vma: NonNull<AnonVma>) {
        let pin = self.memory.platform().pin();
        // SAFETY: every anon_vma came from `allocate_anon_vma`; no VMA and no child names it, and no page
        // that is mapped.
        unsafe { self.state.anon_vmas.retire(self.memory.frames(), &pin, anon_vma) };
    }

    /// Drops the reference of an anon_vma's VMAs, and frees what nothing holds any more: the anon_vma, then
    /// those above it.
    ///
    /// # Safety
    ///
    /// The reference is the caller's, and the anon_vma has no VMAs.
    unsafe fn release_anon_vma(self, anon_vma: NonNull<AnonVma>) {
        // SAFETY: the caller holds a reference.
        let at = unsafe { anon_vma.as_ref() };
        let root = NonNull::from(at.root());
        if root != anon_vma {
            // The root must outlive the lock in it.
            // SAFETY: an anon_vma holds its root, until it is released below.
            unsafe { root.as_ref() }.refs.fetch_add(1, Ordering::Relaxed);
            // SAFETY: held by the line above.
            let guard = unsafe { root.as_ref() }.lock.write(self.memory.platform());
            let mut at = at;
            while at.put()
                && let Some(parent) = at.parent()
            {
                at.unlink_child(parent);
                let empty = &at.root().stats.empty;
                empty.store(empty.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
                // SAFETY: the last reference, and it is off its parent's list.
                unsafe { self.retire_anon_vma(NonNull::from(at)) };
                at = parent;
            }
            drop(guard);
        }
        // SAFETY: for another anon_vma the reference is the one taken above, else the caller's.
        unsafe { self.put_root(root) };
    }

    /// Drops a reference to a root, and frees it with the last one.
    ///
    /// # Safety
    ///
    /// The reference is the caller's, and the caller does not use the root after this.
    pub(super) unsafe fn put_root(self, root: NonNull<AnonVma>) {
        // SAFETY: the caller holds a reference.
        if unsafe { root.as_ref() }.put() {
            // SAFETY: it was the last one: the root has no VMAs and no children, and a root is on no parent's
            // list.
            unsafe { self.retire_anon_vma(root) };
        }
    }
}

impl<P: Platform> fmt::Debug for AnonVmaTree<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnonVmaTree").field(&self.held.is_some()).finish()
    }
}

impl<P: Platform> fmt::Debug for Emptied<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Emptied").field(&self.first.get().is_some()).finish()
    }
}

impl<P: Platform> fmt::Debug for Branch<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Branch").field("fresh", &self.fresh.is_some()).finish_non_exhaustive()
    }
}
