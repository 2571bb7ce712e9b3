//! The list of all spaces of a machine.

use super::asid_pool::AsidPool;
use core::ptr::NonNull;
use quire_arch::VirtAddr;
use quire_vma::SpaceCore;

/// Every space, as a list through [`SpaceCore::link`], and the tags that are in use. It lies in the lock of
/// [`Spaces`](super::Spaces): who has a reference to it holds the list's lock.
pub(super) struct SpaceList {
    first: Option<NonNull<SpaceCore>>,
    /// Where khugepaged's scan continues: the space, which is on the list, and the address in it.
    pub(super) scan: Option<(NonNull<SpaceCore>, VirtAddr)>,
    pub(super) asids: AsidPool,
    pub(super) count: usize,
    /// Spaces under construction.
    pub(super) coming: usize,
}

// SAFETY: the pointers are to space cores, which are `Sync`; they are followed only under the list's lock.
unsafe impl Send for SpaceList {}

impl SpaceList {
    /// Without a space.
    pub(super) fn new(asids: AsidPool) -> Self {
        Self { first: None, scan: None, asids, count: 0, coming: 0 }
    }

    /// Adds a space at the front: a scan of the list in progress comes to an end however many are added.
    ///
    /// # Safety
    ///
    /// It is on no list, and lives until it is [removed](Self::remove).
    pub(super) unsafe fn push(&mut self, core: NonNull<SpaceCore>) {
        // SAFETY: the caller's promise; the lock is held, and `first` is on the list.
        unsafe { core.as_ref().link.set_between(None, self.first) };
        if let Some(first) = self.first {
            // SAFETY: what is on the list is live; the lock is held, and `core` comes onto the list.
            unsafe { first.as_ref().link.set_previous(Some(core)) };
        }
        self.first = Some(core);
        self.count += 1;
    }

    /// Takes a space off.
    ///
    /// # Safety
    ///
    /// It is on the list.
    pub(super) unsafe fn remove(&mut self, core: &SpaceCore) {
        // SAFETY: it is on the list, whose lock is held.
        let (previous, next) = unsafe { core.link.get() };
        match previous {
            // SAFETY: a neighbour on the list is live; the lock is held, and `next` is on the list.
            Some(previous) => unsafe { previous.as_ref().link.set_next(next) },
            None => self.first = next,
        }
        if let Some(next) = next {
            // SAFETY: a neighbour on the list is live; the lock is held, and `previous` is on the list.
            unsafe { next.as_ref().link.set_previous(previous) };
        }
        if self.scan.is_some_and(|(at, _)| at == NonNull::from(core)) {
            self.scan = next.map(|next| (next, VirtAddr(0)));
        }
        self.count -= 1;
    }

    /// The space after `core`, which has a handle, or the first one, with a handle more. Those that are
    /// exiting are skipped.
    pub(super) fn hold_next(&self, core: Option<&SpaceCore>) -> Option<NonNull<SpaceCore>> {
        self.hold_from(match core {
            // SAFETY: it has a handle, so it is on the list, whose lock is held.
            Some(core) => unsafe { core.link.get().1 },
            None => self.first,
        })
    }

    /// The space where khugepaged's scan continues, with a handle more, and the address in it.
    pub(super) fn hold_scanned(&self) -> Option<(NonNull<SpaceCore>, VirtAddr)> {
        let (at, addr) = self.scan?;
        let held = self.hold_from(Some(at))?;
        Some((held, if held == at { addr } else { VirtAddr(0) }))
    }

    /// The first space from `next` on that is not exiting, with a handle more.
    fn hold_from(&self, mut next: Option<NonNull<SpaceCore>>) -> Option<NonNull<SpaceCore>> {
        while let Some(core) = next {
            // SAFETY: what is on the list is live while its lock is held.
            let shared = unsafe { core.as_ref() };
            if shared.try_hold() {
                return Some(core);
            }
            // SAFETY: it is on the list, whose lock is held.
            next = unsafe { shared.link.get().1 };
        }
        None
    }
}
