//! `brk`.

use crate::error::Error;
use crate::mmap_writer::MmapWriter;
use quire_arch::addr::page_align_up;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_rmap::{AnonVmaRef, Backing, Proposal, STACK_GUARD_GAP, VmFlags};
use quire_sync::atomic::Ordering;

impl<P: Platform> MmapWriter<'_, P> {
    /// Moves the break and returns the pages that were added, if any.
    pub(crate) fn move_break(&mut self, wanted: VirtAddr) -> Result<Option<VirtRange>, Error> {
        let layout = self.core.layout;
        let old = VirtAddr(self.core.brk.load(Ordering::Relaxed));
        if wanted < layout.brk_start {
            return Err(Error::OutOfRange);
        }
        let data = (wanted.0 - layout.brk_start.0).saturating_add(layout.data_bytes);
        if data > self.core.limits.load().data {
            return Err(Error::DataLimit);
        }
        let old_end = VirtAddr(page_align_up(old.0).ok_or(Error::OutOfRange)?);
        let new_end = VirtAddr(page_align_up(wanted.0).ok_or(Error::OutOfRange)?);
        if wanted <= old {
            if new_end != old_end {
                let range = VirtRange::new(new_end, old_end);
                // Another mapping may have replaced part of the heap.
                if self.first_ending_after(new_end).is_none_or(|vma| vma.range().start() >= old_end) {
                    return Err(Error::NotMapped);
                }
                self.unmap_checked(range)?;
            }
            self.core.brk.store(wanted.0, Ordering::Relaxed);
            return Ok(None);
        }
        let grown = VirtRange::new(old_end, new_end);
        if !grown.is_empty() {
            self.extend_heap(grown)?;
        }
        self.core.brk.store(wanted.0, Ordering::Relaxed);
        Ok((!grown.is_empty()).then_some(grown))
    }

    fn extend_heap(&mut self, grown: VirtRange) -> Result<(), Error> {
        let flags = VmFlags::READ
            | VmFlags::WRITE
            | VmFlags::MAY_ACCESS
            | VmFlags::ACCOUNT
            | self.core.default_flags();
        if grown.end() > P::Paging::USER_END {
            return Err(Error::OutOfRange);
        }
        if !self.may_lock_more(flags, grown.pages()) {
            return Err(Error::LockLimitAgain);
        }
        let past = grown.end().0.saturating_add(PAGE_SIZE);
        let near = VirtRange::new(grown.start(), VirtAddr(past.saturating_add(STACK_GUARD_GAP)));
        if self.first_in(near).is_some_and(|next| past > next.snapshot().start_with_guard().0) {
            return Err(Error::NoRoom);
        }
        self.may_expand(flags, grown.pages())?;
        if self.mappings() > self.core.limits.load().mappings {
            return Err(Error::MapCountLimit);
        }
        self.spaces.promise(grown.pages())?;
        let proposal = Proposal {
            range: grown,
            flags,
            page_offset: grown.start().0 >> PAGE_SHIFT,
            backing: Backing::ANONYMOUS,
            anon: AnonVmaRef::NONE,
        };
        let neighbours = self.neighbours_for(&proposal);
        match self.prepare(neighbours.vmas_needed()) {
            Ok(mut prepared) => {
                let _ = self.map(&proposal, neighbours, &mut prepared);
                Ok(())
            }
            Err(error) => {
                self.spaces.commit().release(grown.pages());
                Err(error.into())
            }
        }
    }
}
