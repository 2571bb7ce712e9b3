//! What all page tables of a machine share: frames, memcgs and swap, the zero page, and the
//! techniques.

mod technique;

pub use technique::{GatherTechnique, RemapTechnique, TablesTechnique, Techniques};

use core::fmt;
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{AllocError, AllocRequest, FailSite, Frames, Kind};
use quire_memcg::Memcgs;
use quire_swap::Swap;

/// Frames, memcgs and swap of one machine, and what its page tables share. It knows no address space.
pub struct MemoryCore<P: Platform> {
    swap: Swap<P>,
    zero_page: Pfn,
    techniques: Techniques,
}

impl<P: Platform> MemoryCore<P> {
    /// Over the frames of `swap`; allocates the zero page.
    ///
    /// # Errors
    ///
    /// When there is no frame for that.
    // Not inlined: what is passed by value here is large, and would be on the caller's stack twice.
    #[inline(never)]
    pub fn new(swap: Swap<P>, techniques: Techniques) -> Result<Self, AllocError> {
        let frames = swap.frames();
        let pin = frames.platform().pin();
        let request = AllocRequest::new(Order::ZERO, FailSite::new("spaces")).zeroed();
        let zero_page = frames.allocate(&pin, request)?;
        drop(pin);
        let _ = frames.known(zero_page).classify(Kind::ZeroPage);
        Ok(Self { zero_page, techniques, swap })
    }

    /// The page-frame allocator.
    #[inline]
    pub fn frames(&self) -> &Frames<P> {
        self.swap.frames()
    }

    /// The memcgs and their LRU lists.
    #[inline]
    pub fn memcgs(&self) -> &Memcgs<P> {
        self.swap.memcgs()
    }

    /// Swap.
    #[inline]
    pub fn swap(&self) -> &Swap<P> {
        &self.swap
    }

    /// The machine.
    #[inline]
    pub fn platform(&self) -> &P {
        self.frames().platform()
    }

    /// The shared zero page, mapped for reads of untouched memory.
    #[inline]
    pub fn zero_page(&self) -> Pfn {
        self.zero_page
    }

    /// How the page tables are managed.
    #[inline]
    pub fn techniques(&self) -> Techniques {
        self.techniques
    }

    /// Takes one more reference to the huge zero page `zero`, an entry of which is kept in place. Returns
    /// false if the refcount would overflow.
    pub fn hold_huge_zero_again(&self, zero: Pfn) -> bool {
        self.frames().known(zero).get(1)
    }

    /// Drops the references of `entries` entries that mapped the huge zero page `zero`, and that are in no
    /// TLB.
    pub fn put_huge_zero(&self, zero: Pfn, entries: u32) {
        let last = self.frames().known(zero).put(entries);
        debug_assert!(!last, "the huge page of zeros lost the reference of its owner");
    }
}

impl<P: Platform> fmt::Debug for MemoryCore<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCore").field("techniques", &self.techniques).finish_non_exhaustive()
    }
}
