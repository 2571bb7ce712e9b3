//! The machine's RAM: one anonymous mapping of the process.
//!
//! The mapping covers the physical addresses from the first frame of the first range to the end of the last,
//! holes included, so that the direct map is one addition. Holes are inaccessible: a stray access there traps
//! instead of corrupting. The mapping is congruent to the physical addresses modulo 256 MiB. 2 MiB would be
//! enough for the host to back an aligned large folio of the machine with a large page of its own. But AMD's
//! processors look up L1 lines by a hash of the address bits below 2^28 (M. Lipp et al., "Take A Way", 2020),
//! and lines with the same hash evict each other: machines with other alignments would differ in speed by
//! chance (an allocation and free: 21 or 29 ns).

use crate::config::HostError;
use core::ptr::{self, NonNull};
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, Pfn, PfnRange};
use quire_sync::atomic::raw::AtomicU64;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

const CONGRUENCE: usize = 1 << 28;

/// RAM in one mapping.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Where `first` is mapped.
    base: NonNull<u8>,
    first: Pfn,
    /// Frames from `first` to the end of the last range, holes included.
    span: u64,
    ranges: Box<[PfnRange]>,
    /// The mapping as the kernel gave it, before it was aligned.
    mapping: NonNull<u8>,
    mapping_len: usize,
}

// SAFETY: the arena owns its mapping and hands out only raw pointers and atomics into it.
unsafe impl Send for Arena {}
// SAFETY: a shared arena hands out raw pointers and atomics only, and changes nothing of its own.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps RAM for `ranges`, which are sorted, disjoint and not empty (see
    /// [`HostConfig`](crate::HostConfig)).
    pub(crate) fn new(ranges: &[PfnRange], large_pages: bool, prefault: bool) -> Result<Self, HostError> {
        let (Some(low), Some(high)) = (ranges.first(), ranges.last()) else {
            return Err(HostError::NoRam);
        };
        let first = low.start();
        let span = high.end().0 - first.0;
        let len = usize::try_from(span)
            .ok()
            .and_then(|frames| frames.checked_mul(PAGE_SIZE as usize))
            .ok_or(HostError::TooMuchRam)?;
        let mapping_len = len.checked_add(CONGRUENCE).ok_or(HostError::TooMuchRam)?;
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
        let mapping = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                mapping_len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|errno| HostError::Map(errno.into()))?
        .cast::<u8>();
        let wanted = (first.to_phys().0 as usize) % CONGRUENCE;
        let shift = (wanted + CONGRUENCE - mapping.addr() % CONGRUENCE) % CONGRUENCE;
        // SAFETY: `shift` is below the slack that was added to the length.
        let base = unsafe { mapping.add(shift) };
        let (Some(mapping), Some(base)) = (NonNull::new(mapping), NonNull::new(base)) else {
            return Err(HostError::TooMuchRam);
        };
        let arena = Self { base, first, span, ranges: ranges.into(), mapping, mapping_len };
        arena.close_holes()?;
        if large_pages {
            arena.advise_large_pages();
        }
        if prefault {
            arena.prefault();
        }
        Ok(arena)
    }

    fn close_holes(&self) -> Result<(), HostError> {
        for pair in self.ranges.windows(2) {
            let hole = PfnRange::new(pair[0].end(), pair[1].start());
            if !hole.is_empty() {
                let bytes = (hole.len() << PAGE_SHIFT) as usize;
                let start = self.direct(hole.start()).as_ptr();
                // SAFETY: the hole lies in this arena's mapping, and no frame is in it.
                unsafe { rustix::mm::mprotect(start.cast(), bytes, MprotectFlags::empty()) }
                    .map_err(|errno| HostError::Map(errno.into()))?;
            }
        }
        Ok(())
    }

    fn advise_large_pages(&self) {
        for range in &self.ranges {
            let (start, bytes) = (self.direct(range.start()).as_ptr(), (range.len() << PAGE_SHIFT) as usize);
            // Only a hint: a host without large pages is slower but correct.
            // SAFETY: the range lies in this arena's mapping.
            let _ = unsafe { rustix::mm::madvise(start.cast(), bytes, Advice::LinuxHugepage) };
        }
    }

    /// Makes the host back every page now.
    fn prefault(&self) {
        for range in &self.ranges {
            let (start, bytes) = (self.direct(range.start()).as_ptr(), (range.len() << PAGE_SHIFT) as usize);
            // A host before Linux 5.14 does not know that.
            // SAFETY: the range lies in this arena's mapping, and what it holds stays.
            if unsafe { rustix::mm::madvise(start.cast(), bytes, Advice::LinuxPopulateWrite) }.is_ok() {
                continue;
            }
            for offset in (0..bytes).step_by(PAGE_SIZE as usize) {
                // SAFETY: the offset lies in the range, and the machine does not run yet.
                unsafe { start.add(offset).write_volatile(0) };
            }
        }
    }

    /// The ranges of RAM, lowest first.
    pub(crate) fn ranges(&self) -> &[PfnRange] {
        &self.ranges
    }

    /// Whether the `frames` frames from `pfn` all lie in one range of RAM.
    #[inline]
    pub(crate) fn contains(&self, pfn: Pfn, frames: u64) -> bool {
        let offset = pfn.0.wrapping_sub(self.first.0);
        if offset >= self.span || frames > self.span - offset {
            return false;
        }
        self.ranges.len() == 1
            || self.ranges.iter().any(|range| range.contains(pfn) && range.end().0 - pfn.0 >= frames)
    }

    /// Where frame `pfn` is. The pointer may be used if the frame is in RAM.
    #[inline]
    pub(crate) fn direct(&self, pfn: Pfn) -> NonNull<u8> {
        let offset = (pfn.0.wrapping_sub(self.first.0) << PAGE_SHIFT) as usize;
        NonNull::new(self.base.as_ptr().wrapping_add(offset)).unwrap_or(self.base)
    }

    /// The frame that a byte of RAM is in.
    #[inline]
    pub(crate) fn frame_of(&self, at: NonNull<u8>) -> Pfn {
        self.first.offset(((at.addr().get() - self.base.addr().get()) >> PAGE_SHIFT) as u64)
    }

    /// Entry `index` of the page table in frame `table`.
    ///
    /// # Panics
    ///
    /// When the frame is not in RAM: the tables are corrupt.
    #[inline]
    pub(crate) fn entry(&self, table: Pfn, index: usize) -> &AtomicU64 {
        assert!(self.contains(table, 1), "the page tables name {table:?} as a table, which is not in RAM");
        let at = self.direct(table).cast::<u64>();
        // SAFETY: the frame is in RAM and a table has at most 512 entries (`PagingFormat`), so the entry is
        // in the frame, aligned; all accesses to tables are atomics of this size.
        unsafe { AtomicU64::from_ptr(at.add(index & 511).as_ptr()) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is the arena's own, and every user borrowed the arena.
        // It cannot fail for a whole mapping, and there would be nothing to do about it.
        let _ = unsafe { rustix::mm::munmap(self.mapping.as_ptr().cast(), self.mapping_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_not_ram_and_do_not_shift_what_follows() {
        let ranges = [PfnRange::new(Pfn(256), Pfn(300)), PfnRange::new(Pfn(512), Pfn(600))];
        let arena = Arena::new(&ranges, true, true).expect("a small mapping");
        assert!(arena.contains(Pfn(256), 44) && arena.contains(Pfn(599), 1));
        assert!(!arena.contains(Pfn(256), 45) && !arena.contains(Pfn(400), 1));
        assert!(!arena.contains(Pfn(255), 1) && !arena.contains(Pfn(600), 1));
        let (low, high) = (arena.direct(Pfn(256)), arena.direct(Pfn(599)));
        assert_eq!(high.addr().get() - low.addr().get(), (599 - 256) << PAGE_SHIFT);
        assert_eq!(arena.direct(Pfn(512)).addr().get() % CONGRUENCE, 2 << 20);
        // SAFETY: the frame is in RAM, and only this test uses the arena.
        unsafe { high.as_ptr().write(7) };
    }
}
