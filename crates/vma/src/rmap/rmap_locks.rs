//! The locks of one change of VMAs: those of the two trees that lead from pages to them.

use super::{AnonVmaTree, Emptied, Freed};
use crate::flags::VmFlags;
use crate::space_core::{AnonVmaRef, Backing, SpaceCore, Vma, VmaSnapshot};
use core::fmt;
use core::ptr::NonNull;
use quire_arch::Platform;
use quire_file::FileMappingsWrite;

/// The lock of the mappings of a file, and then the root lock of anon_vmas, held exclusively by a thread that
/// changes VMAs. Either may be missing, where the VMAs map no file, or have no private pages.
///
/// While they are held, no walk of the rmap sees the VMAs: it finds the mappings as they were before or as
/// they are after.
#[must_use = "the locks are released when the guard is dropped"]
pub struct RmapLocks<'s, P: Platform> {
    /// `None` where both are missing: what most mappings of small programs are, so it costs one test.
    held: Option<Held<'s, P>>,
}

struct Held<'s, P: Platform> {
    // Released first.
    anon_vmas: AnonVmaTree<'s, P>,
    file: Option<FileMappingsWrite<'s, Vma, P>>,
}

impl<'s, P: Platform> RmapLocks<'s, P> {
    /// Takes the locks for VMAs that all map `backing`, and whose anon_vmas are `anon_vmas`, or will be.
    ///
    /// # Safety
    ///
    /// What `backing` names has a holder for longer than the locks are held: the caller has one, or VMAs that
    /// have, and what has [left](Self::leave) is released later.
    #[inline]
    pub unsafe fn take(
        platform: &'s P,
        backing: Backing,
        anon_vmas: impl IntoIterator<Item = AnonVmaRef>,
    ) -> Self {
        let anon = anon_vmas.into_iter().find(|anon| anon.is_some());
        if anon.is_none() && !backing.is_opened() {
            return Self { held: None };
        }
        // SAFETY: the caller's promise.
        let file = unsafe { backing.opening() }.map(|opening| opening.mappings().write(platform));
        Self { held: Some(Held { anon_vmas: AnonVmaTree::hold(platform, anon), file }) }
    }

    /// Puts `vma`, which belongs to `space`, to where `snapshot` will have it: to its anon_vma, among the
    /// mappings of its file and to its page offsets. It gets that snapshot before the locks are released. One
    /// that enters a file becomes a holder of its opening.
    #[inline]
    pub fn place(&self, space: &SpaceCore, vma: &Vma, snapshot: &VmaSnapshot, emptied: &Emptied<'s, P>) {
        if let Some(held) = &self.held {
            held.place(space, vma, snapshot, emptied);
        } else {
            let has_none = !vma.anon().is_some() && !snapshot.anon.is_some();
            debug_assert!(has_none && !snapshot.backing.is_opened(), "the locks of the rmap are not held");
        }
    }

    /// Takes `vma`, which is about to be freed, out of its trees, and returns who frees it.
    #[inline]
    pub fn leave(&self, vma: &Vma, emptied: &Emptied<'s, P>) -> Freed {
        let Some(held) = &self.held else { return Freed::ByCaller };
        match &held.file {
            Some(file) => {
                leave_file(file, vma);
                held.anon_vmas.leave_later(vma, emptied);
                Freed::AtTheEnd
            }
            None => held.anon_vmas.leave(vma, emptied),
        }
    }
}

impl<'s, P: Platform> Held<'s, P> {
    // As a part of its caller it would cost those that hold nothing twenty instructions.
    #[inline(never)]
    fn place(&self, space: &SpaceCore, vma: &Vma, snapshot: &VmaSnapshot, emptied: &Emptied<'s, P>) {
        if let Some(file) = &self.file {
            place_in_file(file, space, vma, snapshot);
        }
        self.anon_vmas.place(space, vma, snapshot, emptied);
    }
}

#[cold]
fn place_in_file<P: Platform>(
    file: &FileMappingsWrite<'_, Vma, P>,
    space: &SpaceCore,
    vma: &Vma,
    snapshot: &VmaSnapshot,
) {
    let (member, offsets) = (NonNull::from(vma), snapshot.page_offsets());
    match vma.membership().file_interval() {
        Some(now) if now == offsets => {}
        // SAFETY: a VMA that is in the tree of a file is in that of the file whose lock was taken for it.
        Some(_) => unsafe { file.change(member, offsets) },
        None => {
            // SAFETY: the caller of `take` knows of a holder.
            if let Some(opening) = unsafe { snapshot.backing.opening() } {
                debug_assert!(file.is_of(opening.mappings()), "the lock of another file is held");
                opening.hold();
            }
            vma.membership().set_core(space);
            // SAFETY: it is in none, and a VMA leaves the tree before it is retired (`leave`).
            unsafe { file.insert(member, offsets, shares_writes(snapshot.flags)) };
        }
    }
}

#[cold]
fn leave_file<P: Platform>(file: &FileMappingsWrite<'_, Vma, P>, vma: &Vma) {
    debug_assert!(vma.membership().file_interval().is_some(), "it maps a file that has it not");
    // SAFETY: it entered when it came to the tree of its space.
    unsafe { file.remove(NonNull::from(vma), shares_writes(vma.flags())) };
}

/// Whether what is written to a mapping with these flags goes to its file, or would if it became writable. No
/// call changes that.
pub(crate) fn shares_writes(flags: VmFlags) -> bool {
    flags.contains(VmFlags::SHARED | VmFlags::MAYWRITE)
}

impl<P: Platform> fmt::Debug for RmapLocks<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.held.as_ref().map(|held| (&held.anon_vmas, &held.file));
        f.debug_tuple("RmapLocks").field(&held).finish()
    }
}
