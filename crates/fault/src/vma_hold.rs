//! Finding a VMA, and holding it by its own lock, without the mmap lock.

use quire_arch::{Platform, VirtAddr};
use quire_sync::EpochGuard;
use quire_vma::{SpaceCore, Vma};

/// Retries of a VMA lookup during a change of mappings.
const LOOKS: u32 = 32;

/// Why a lock-free VMA lookup failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LookupMiss {
    /// It is about to change, or to be removed.
    Changing,
    /// There is none, or the tree was changing during the lookup.
    NotFoundOrRaced,
}

/// A VMA held shared by its own lock.
pub(crate) struct VmaHold<'s, P: Platform> {
    platform: &'s P,
    vma: &'s Vma,
}

impl<P: Platform> Drop for VmaHold<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.vma.lock.unlock_read(|| self.platform.unpark(self.vma.lock_key()));
    }
}

impl<'s, P: Platform> VmaHold<'s, P> {
    /// Finds the VMA of `addr` and holds it. `None` if that takes the mmap lock.
    #[inline]
    pub(crate) fn find(
        platform: &'s P,
        core: &'s SpaceCore,
        epoch: &'s EpochGuard<'_>,
        addr: VirtAddr,
    ) -> Option<Self> {
        match Self::look(platform, core, epoch, addr) {
            Ok(hold) => Some(hold),
            Err(missed) => Self::look_again(platform, core, epoch, addr, missed),
        }
    }

    /// The VMA.
    #[inline]
    pub(crate) fn vma(&self) -> &Vma {
        self.vma
    }

    /// A change of other mappings that disturbed the lookup ends soon, while the mmap lock may be held for
    /// long.
    #[cold]
    fn look_again(
        platform: &'s P,
        core: &'s SpaceCore,
        epoch: &'s EpochGuard<'_>,
        addr: VirtAddr,
        mut missed: LookupMiss,
    ) -> Option<Self> {
        let mut attempt = 0;
        while missed == LookupMiss::NotFoundOrRaced && attempt < LOOKS && core.mmap_lock.is_write_locked() {
            P::relax(attempt);
            attempt += 1;
            match Self::look(platform, core, epoch, addr) {
                Ok(hold) => return Some(hold),
                Err(again) => missed = again,
            }
        }
        None
    }

    // Always: as a call of its own it costs each fault twenty instructions.
    #[inline(always)]
    fn look(
        platform: &'s P,
        core: &'s SpaceCore,
        epoch: &'s EpochGuard<'_>,
        addr: VirtAddr,
    ) -> Result<Self, LookupMiss> {
        // SAFETY: nodes are retired through the epoch of the page-frame allocator, which the guards of this
        // crate are of.
        let found = unsafe { core.vmas.find_lockless(addr, epoch) }.ok_or(LookupMiss::NotFoundOrRaced)?;
        // SAFETY: a VMA that was found under the epoch is not reused before the section of the epoch ends,
        // and one that is held shared is not retired before its lock is released.
        let vma: &Vma = unsafe { &*found.as_ptr() };
        let locked = vma.lock.try_read(&core.sequence, || platform.unpark(vma.lock_key()));
        // What the lookup saw may have been torn: only now, under the lock, is the range valid.
        let holds = vma.range().contains(addr);
        if locked {
            let hold = Self { platform, vma };
            if holds { Ok(hold) } else { Err(LookupMiss::NotFoundOrRaced) }
        } else if holds {
            Err(LookupMiss::Changing)
        } else {
            Err(LookupMiss::NotFoundOrRaced)
        }
    }
}
