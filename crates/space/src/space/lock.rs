//! `mlock`, `munlock` and related calls.

use crate::error::Error;
use crate::faults::PopulateError;
use crate::mmap_writer::MmapWriter;
use crate::mmap_writer::lock::{locked_in, set_lock, set_lock_of_all};
use crate::space::Space;
use bitflags::bitflags;
use quire_arch::addr::page_align_up;
use quire_arch::{PAGE_SIZE, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_rmap::{Rights, VmFlags};
use quire_sync::atomic::Ordering;

bitflags! {
    /// What `mlockall` locks (`MCL_*`, with Linux's values).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct LockAll: u32 {
        /// What is mapped now.
        const CURRENT = 1;
        /// What will be mapped.
        const FUTURE = 2;
        /// Only as pages are faulted in.
        const ONFAULT = 4;
    }
}

/// Bytes of the pages that `len` bytes from `addr` touch; `mlock` takes any address. 0 for a length that
/// wraps when it is rounded, as in Linux.
fn touched_bytes(addr: VirtAddr, len: u64) -> u64 {
    page_align_up(len.wrapping_add(addr.page_offset())).unwrap_or(0)
}

/// The pages that `len` bytes from `addr` touch. `None` for none.
fn touched(addr: VirtAddr, len: u64) -> Result<Option<VirtRange>, Error> {
    let range = VirtRange::from_len(addr.page_start(), touched_bytes(addr, len)).ok_or(Error::BadArgument)?;
    Ok((!range.is_empty()).then_some(range))
}

impl<P: Platform> Space<'_, P> {
    /// Locks the pages that `len` bytes from `addr` touch; with `on_fault` only as they are faulted in.
    ///
    /// # Errors
    ///
    /// As Linux's `mlock`. Mappings before a hole are locked then.
    pub fn mlock(&self, addr: VirtAddr, len: u64, on_fault: bool) -> Result<(), Error> {
        self.may_lock_at_all()?;
        let wanted = if on_fault { VmFlags::LOCK_MASK } else { VmFlags::LOCKED };
        let range = self.with_reclaim(|| {
            let mut section = self.writer();
            // The limit is checked for any length; only then whether there are such addresses.
            let range = touched(addr, len);
            let pages = touched_bytes(addr, len) / PAGE_SIZE;
            let allowed = self.limits().locked / PAGE_SIZE;
            let locked = self.core().usage.locked_pages();
            if !self.rights().contains(Rights::LOCK) && locked.saturating_add(pages) > allowed {
                let to_the_end =
                    VirtRange::new(addr.page_start(), P::Paging::USER_END.max(addr.page_start()));
                let already = range.unwrap_or(Some(to_the_end)).map_or(0, |range| locked_in(&section, range));
                if locked.saturating_add(pages - already.min(pages)) > allowed {
                    return Err(Error::LockLimit);
                }
            }
            let Some(range) = range? else { return Ok(Ok(None)) };
            let locked = self.lock_once(&mut section, range, wanted)?;
            Ok(locked.map(|()| Some(range)))
        })??;
        let Some(range) = range else { return Ok(()) };
        self.populate_all(range, None).map_err(PopulateError::as_lock_error)
    }

    /// Unlocks the pages that `len` bytes from `addr` touch.
    ///
    /// # Errors
    ///
    /// As Linux's `munlock`.
    pub fn munlock(&self, addr: VirtAddr, len: u64) -> Result<(), Error> {
        let Some(range) = touched(addr, len)? else { return Ok(()) };
        self.with_reclaim(|| {
            let mut section = MmapWriter::begin(self.spaces, self.core());
            self.lock_once(&mut section, range, VmFlags::empty())
        })?
    }

    /// Gives every mapping in `range` the lock flags `wanted`, as [`in_turns`](Self::in_turns).
    fn lock_once<'s>(
        &'s self,
        section: &mut MmapWriter<'s, P>,
        range: VirtRange,
        wanted: VmFlags,
    ) -> Result<Result<(), Error>, Error> {
        let mut at = range.start();
        self.in_turns(|| (set_lock(section, range, &mut at, wanted), at.0 - range.start().0))
    }

    /// Locks everything that is or will be mapped.
    ///
    /// # Errors
    ///
    /// As Linux's `mlockall`.
    pub fn mlockall(&self, what: LockAll) -> Result<(), Error> {
        if what.is_empty() || what == LockAll::ONFAULT {
            return Err(Error::BadFlags);
        }
        self.may_lock_at_all()?;
        let wanted = if what.contains(LockAll::ONFAULT) { VmFlags::LOCK_MASK } else { VmFlags::LOCKED };
        {
            let mut section = MmapWriter::begin(self.spaces, self.core());
            if what.contains(LockAll::CURRENT)
                && !self.rights().contains(Rights::LOCK)
                && self.core().usage.mapped_pages() > self.limits().locked / PAGE_SIZE
            {
                return Err(Error::LockLimit);
            }
            let future = if what.contains(LockAll::FUTURE) { wanted } else { VmFlags::empty() };
            self.core().default_flags.store(future.bits(), Ordering::Relaxed);
            if !what.contains(LockAll::CURRENT) {
                return Ok(());
            }
            set_lock_of_all(&mut section, wanted);
        }
        self.populate(VirtRange::new(VirtAddr(0), VirtAddr(!(PAGE_SIZE - 1))));
        Ok(())
    }

    /// The lock flags of what will be mapped ([`mlockall`](Self::mlockall)).
    #[doc(hidden)]
    pub fn locks_future(&self) -> VmFlags {
        self.core().default_flags() & VmFlags::LOCK_MASK
    }

    /// Without the right and with a limit of zero, no call may lock.
    pub(crate) fn may_lock_at_all(&self) -> Result<(), Error> {
        if !self.rights().contains(Rights::LOCK) && self.limits().locked == 0 {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }

    /// Unlocks everything, and what will be mapped.
    pub fn munlockall(&self) {
        let mut section = MmapWriter::begin(self.spaces, self.core());
        self.core().default_flags.store(0, Ordering::Relaxed);
        set_lock_of_all(&mut section, VmFlags::empty());
    }
}
