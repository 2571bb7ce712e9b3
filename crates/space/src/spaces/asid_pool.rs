//! The address-space tags of a machine.

use core::ptr::NonNull;
use quire_arch::{Asid, PAGE_SHIFT};

/// Which address-space tags are free: one bit each.
pub(super) struct AsidPool {
    /// A frame of bits, a set bit for each tag in use.
    bits: NonNull<u64>,
    count: u32,
    /// Where the next search starts.
    hint: u32,
}

impl AsidPool {
    /// The most tags that one frame of bits can hold.
    const MOST: u32 = 8 << PAGE_SHIFT;

    /// A pool of `count` tags or as many as there is space for, all free.
    ///
    /// # Safety
    ///
    /// `bits` is a frame of zeros in the direct map, and the pool's alone for as long as that lives.
    pub(super) unsafe fn new(bits: NonNull<u64>, count: u32) -> Self {
        Self { bits, count: count.clamp(1, Self::MOST), hint: 1 }
    }

    fn word(&mut self, asid: u32) -> &mut u64 {
        // SAFETY: the pool owns the frame, and every tag is below `MOST`.
        unsafe { self.bits.add(asid as usize / 64).as_mut() }
    }

    /// A free tag, or [`Asid::NONE`] when all are in use.
    pub(super) fn take(&mut self) -> Asid {
        for step in 0..self.count {
            let asid = (self.hint + step) % self.count;
            let bit = 1 << (asid % 64);
            if asid != Asid::NONE.0 && *self.word(asid) & bit == 0 {
                *self.word(asid) |= bit;
                self.hint = asid + 1;
                return Asid(asid);
            }
        }
        Asid::NONE
    }

    /// Frees a tag. TLBs may still hold translations under it: each CPU drops them before it first runs the
    /// space that gets the tag next.
    pub(super) fn give(&mut self, asid: Asid) {
        if asid != Asid::NONE {
            *self.word(asid.0) &= !(1 << (asid.0 % 64));
        }
    }
}
