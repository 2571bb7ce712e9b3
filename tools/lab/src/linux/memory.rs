//! Memory of the process that measures Linux: mapped, filled with folios of one size, and unmapped.

use super::controls::Control;
use super::done;
use crate::error::LabError;
use crate::folios::{Folios, pages};
use core::ffi::c_void;
use core::ops::Deref;
use core::ptr::{NonNull, null_mut, without_provenance_mut};
use core::sync::atomic::AtomicU64;
use quire_arch::{Order, PAGE_SIZE};

const PMD: usize = Order::PMD.bytes() as usize;
const PAGE: usize = PAGE_SIZE as usize;

/// Memory of this process, without a reference into it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    start: NonNull<u8>,
    bytes: usize,
}

/// New memory, anywhere or at `at`, where nothing is mapped.
pub(super) fn map(at: *mut c_void, bytes: usize, flags: i32) -> Option<NonNull<u8>> {
    let flags = libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
    // SAFETY: replaces nothing.
    let mapped = unsafe { libc::mmap(at, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { None } else { NonNull::new(mapped.cast()) }
}

impl Area {
    /// `bytes` bytes that this process has mapped from `start` on.
    pub(super) const fn new(start: NonNull<u8>, bytes: u64) -> Self {
        Self { start, bytes: bytes as usize }
    }

    /// New private memory at `start`, where nothing is mapped.
    pub(super) fn map(start: usize, bytes: u64) -> Result<Self, LabError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
        let start = map(without_provenance_mut(start), bytes as usize, flags);
        Ok(Self::new(start.ok_or(LabError::Linux)?, bytes))
    }

    /// Calls `write` with each `stride`th page of memory that is not there yet. Fails if it does not come in
    /// `folios`, of which each is written to.
    pub(super) fn fill(
        self,
        folios: Folios,
        control: &Control,
        stride: u64,
        write: impl Fn(u64, *mut [u8; PAGE]),
    ) -> Result<(), LabError> {
        let set = control.set().ok_or(LabError::Linux)?;
        let had = set.made();
        self.advise(libc::MADV_NOHUGEPAGE)?;
        if folios.order > Order::ZERO {
            if folios.order < Order::PMD {
                self.make_tables()?;
            }
            self.advise(libc::MADV_HUGEPAGE)?;
        }
        for page in (0..pages(self.bytes as u64)).step_by(stride as usize) {
            write(page, self.page(page));
        }
        // Others on the host may have made some too, but hardly of this size.
        let wanted = folios.in_bytes(self.bytes as u64);
        if folios.order > Order::ZERO && set.made().wrapping_sub(had) < wanted {
            return Err(LabError::Linux);
        }
        drop(set);
        if folios.order == Order::PMD && !folios.by_pmd {
            for block in self.blocks() {
                block.protect(libc::PROT_READ)?;
                block.protect(libc::PROT_READ | libc::PROT_WRITE)?;
            }
        }
        Ok(())
    }

    /// Where a page of it is.
    pub(super) fn page<T>(self, page: u64) -> *mut T {
        self.start.as_ptr().wrapping_add(page as usize * PAGE).cast()
    }

    /// The first page of each 2 MiB.
    fn blocks(self) -> impl Iterator<Item = Self> {
        let start = move |page| NonNull::new(self.page(page));
        let blocks = (0..pages(self.bytes as u64)).step_by(PMD / PAGE).filter_map(start);
        blocks.map(|start| Self::new(start, PAGE_SIZE))
    }

    /// Makes an empty page table for each 2 MiB: where one exists, Linux allocates no folio for a PMD entry,
    /// whatever its control for that size says.
    fn make_tables(self) -> Result<(), LabError> {
        for block in self.blocks() {
            // SAFETY: mapped, and only used here.
            unsafe { block.start.read_volatile() };
            block.unmap()?;
            // The table stays, since it is in use on both sides; the page is faulted in anew.
            Self::map(block.start.addr().get(), PAGE_SIZE)?.advise(libc::MADV_NOHUGEPAGE)?;
        }
        Ok(())
    }

    pub(super) fn advise(self, advice: i32) -> Result<(), LabError> {
        // SAFETY: the advice changes how the area's own memory is backed, and there is no reference into it.
        done(unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, advice) })
    }

    fn protect(self, protection: i32) -> Result<(), LabError> {
        // SAFETY: there is no reference into the area.
        done(unsafe { libc::mprotect(self.start.as_ptr().cast(), self.bytes, protection) })
    }

    /// Unmaps it. It is not used again.
    pub(super) fn unmap(self) -> Result<(), LabError> {
        // SAFETY: the area owns its addresses, and there is no reference into it.
        done(unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) })
    }
}

/// A word that children share with this process. It begins as 0.
#[derive(Debug)]
pub(super) struct SharedWord(NonNull<AtomicU64>);

impl SharedWord {
    pub(super) fn new() -> Option<Self> {
        map(null_mut(), size_of::<AtomicU64>(), libc::MAP_SHARED).map(|start| Self(start.cast()))
    }
}

impl Deref for SharedWord {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        // SAFETY: mapped until the drop, aligned, and only used as this word.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedWord {
    fn drop(&mut self) {
        // SAFETY: no reference outlives the word.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<AtomicU64>()) };
    }
}
