//! Memory of the process that measures Linux: mapped, filled with folios of one size, and unmapped.

use super::controls::Control;
use crate::folios::{Folios, pages};
use core::ffi::c_void;
use core::ops::Deref;
use core::ptr::{NonNull, null_mut, without_provenance_mut};
use core::sync::atomic::AtomicU64;
use quire_arch::{Order, PAGE_SIZE};

const PMD: usize = Order::PMD.bytes() as usize;
const PAGE: usize = PAGE_SIZE as usize;

/// Mapped memory that starts at a border of 2 MiB. The owner unmaps it; a process that exits need not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: addresses, of which no reference is made; holders of a copy read and write whole words there.
unsafe impl Sync for Area {}

fn map(at: *mut c_void, bytes: usize, flags: i32) -> Option<NonNull<u8>> {
    let flags = libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
    // SAFETY: anywhere, or over an address that the caller owns.
    let mapped = unsafe { libc::mmap(at, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { None } else { NonNull::new(mapped.cast()) }
}

/// Private memory at an address where nothing is mapped.
fn map_at(start: usize, bytes: usize) -> Option<NonNull<u8>> {
    map(without_provenance_mut(start), bytes, libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE)
}

impl Area {
    fn new(bytes: usize) -> Option<Self> {
        let loose = Self { start: map(null_mut(), bytes + PMD, libc::MAP_PRIVATE)?, bytes: bytes + PMD };
        let before = loose.start.align_offset(PMD);
        loose.part(0, before).unmap();
        loose.part(before + bytes, PMD - before).unmap();
        Some(loose.part(before, bytes))
    }

    /// New memory of single pages, none of which is there yet.
    pub(crate) fn empty(bytes: u64) -> Option<Self> {
        let area = Self::new(bytes as usize)?;
        area.advise(libc::MADV_NOHUGEPAGE)?;
        Some(area)
    }

    /// New memory of `bytes` bytes at `start`, where nothing is mapped.
    pub(crate) fn at(start: usize, bytes: u64) -> Option<Self> {
        let start = map_at(start, bytes as usize)?;
        Some(Self { start, bytes: bytes as usize })
    }

    /// Writes to every `stride`th page of new memory. `None` if it did not come in `folios`, of which each is
    /// written to.
    pub(crate) fn fill(self, folios: Folios, control: &Control, stride: u64) -> Option<()> {
        let set = control.set()?;
        let had = set.made();
        self.advise(libc::MADV_NOHUGEPAGE)?;
        if folios.order > Order::ZERO {
            if folios.order < Order::PMD {
                self.make_tables()?;
            }
            self.advise(libc::MADV_HUGEPAGE)?;
        }
        for page in (0..pages(self.bytes as u64) as usize).step_by(stride as usize) {
            // SAFETY: mapped, writable, and only used here.
            unsafe { self.start.add(page * PAGE).cast::<usize>().write_volatile(page) };
        }
        // Others on the host may have made some too, but hardly of this size.
        let wanted = folios.in_bytes(self.bytes as u64);
        if folios.order > Order::ZERO && set.made().wrapping_sub(had) < wanted {
            return None;
        }
        drop(set);
        if folios.order == Order::PMD && !folios.by_pmd {
            for block in self.blocks() {
                block.part(0, PAGE).protect(libc::PROT_READ)?;
                block.part(0, PAGE).protect(libc::PROT_READ | libc::PROT_WRITE)?;
            }
        }
        Some(())
    }

    /// `bytes` bytes from the byte `from` on.
    pub(crate) fn part(self, from: usize, bytes: usize) -> Self {
        assert!(from + bytes <= self.bytes, "not a part of the area");
        // SAFETY: in the area, or at its end.
        Self { start: unsafe { self.start.add(from) }, bytes }
    }

    fn blocks(self) -> impl Iterator<Item = Self> {
        (0..self.bytes / PMD).map(move |nth| self.part(nth * PMD, PMD))
    }

    /// Makes an empty page table for each 2 MiB: where one exists, Linux allocates no folio for a PMD entry,
    /// whatever its control for that size says.
    fn make_tables(self) -> Option<()> {
        for block in self.blocks() {
            // SAFETY: mapped, and only used here.
            unsafe { block.start.read_volatile() };
            block.part(0, PAGE).unmap();
            // The table stays, since it is in use on both sides; the page is faulted in anew.
            map_at(block.start.addr().get(), PAGE)?;
            block.part(0, PAGE).advise(libc::MADV_NOHUGEPAGE)?;
        }
        Some(())
    }

    /// Calls `fill` for each page, with its number.
    pub(crate) fn write_pages(self, fill: impl Fn(u64, &mut [u8; PAGE])) {
        for page in 0..pages(self.bytes as u64) {
            // SAFETY: mapped, writable, aligned, and only used here; the reference is gone before the next
            // one is made.
            fill(page, unsafe { &mut *self.start.as_ptr().add(page as usize * PAGE).cast() });
        }
    }

    /// Reads a word of each page.
    pub(crate) fn read(self) {
        for page in 0..pages(self.bytes as u64) as usize {
            // SAFETY: mapped, and only used here.
            unsafe { self.start.add(page * PAGE).cast::<u64>().read_volatile() };
        }
    }

    pub(crate) fn advise(self, advice: i32) -> Option<()> {
        // SAFETY: the advice changes how the area's own memory is backed, and no contents.
        (unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, advice) } == 0).then_some(())
    }

    fn protect(self, protection: i32) -> Option<()> {
        // SAFETY: there is no reference into the area.
        (unsafe { libc::mprotect(self.start.as_ptr().cast(), self.bytes, protection) } == 0).then_some(())
    }

    /// Unmaps it. Neither it nor a part of it is used again.
    pub(crate) fn unmap(self) {
        if self.bytes > 0 {
            // SAFETY: the area owns its addresses, and there is no reference into it.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
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
