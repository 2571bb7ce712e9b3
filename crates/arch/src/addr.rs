//! Byte addresses and ranges of them.

use core::fmt;

/// Log2 of the size of a base page. Every supported paging format has a 4 KiB base page.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a base page.
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;

/// A physical byte address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct PhysAddr(pub u64);

/// A virtual byte address. It may be any 64-bit value: whether it is canonical and in user space is asked of
/// the [`PagingFormat`](crate::PagingFormat), not assumed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct VirtAddr(pub u64);

impl VirtAddr {
    /// The start of the page that holds this address.
    #[doc(hidden)]
    #[inline]
    pub const fn page_start(self) -> Self {
        Self(self.0 & !(PAGE_SIZE - 1))
    }

    /// The byte offset within the page.
    #[inline]
    pub const fn page_offset(self) -> u64 {
        self.0 & (PAGE_SIZE - 1)
    }

    /// Whether the address is a multiple of the page size: its [`page_offset`](Self::page_offset) is 0.
    #[doc(hidden)]
    #[inline]
    pub const fn is_page_aligned(self) -> bool {
        self.page_offset() == 0
    }

    /// Whether the address is a multiple of `align`, a power of two.
    #[doc(hidden)]
    #[inline]
    pub const fn is_aligned(self, align: u64) -> bool {
        self.0 & (align - 1) == 0
    }

    /// The address `bytes` further, or `None` past the end of the address type.
    #[inline]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

/// Rounds `bytes` up to whole pages, or `None` on overflow.
#[inline]
pub const fn page_align_up(bytes: u64) -> Option<u64> {
    match bytes.checked_add(PAGE_SIZE - 1) {
        Some(sum) => Some(sum & !(PAGE_SIZE - 1)),
        None => None,
    }
}

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PhysAddr({:#x})", self.0)
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtAddr({:#x})", self.0)
    }
}

impl fmt::LowerHex for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// A half-open range of virtual addresses, `start <= end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VirtRange {
    start: VirtAddr,
    end: VirtAddr,
}

impl VirtRange {
    /// The range from `start` up to `end`; a range that would run backwards is empty at `start`.
    #[inline]
    pub const fn new(start: VirtAddr, end: VirtAddr) -> Self {
        if end.0 < start.0 { Self { start, end: start } } else { Self { start, end } }
    }

    /// The range of `len` bytes from `start`, or `None` when it would wrap.
    #[inline]
    pub const fn from_len(start: VirtAddr, len: u64) -> Option<Self> {
        match start.checked_add(len) {
            Some(end) => Some(Self { start, end }),
            None => None,
        }
    }

    /// First address.
    #[inline]
    pub const fn start(self) -> VirtAddr {
        self.start
    }

    /// First address past the range.
    #[inline]
    pub const fn end(self) -> VirtAddr {
        self.end
    }

    /// Length in bytes.
    #[inline]
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether the range holds no address.
    #[doc(hidden)]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// Whole base pages in the range, counted from its length.
    #[doc(hidden)]
    #[inline]
    pub const fn pages(self) -> u64 {
        self.len() >> PAGE_SHIFT
    }

    /// Whether `addr` lies in the range.
    #[inline]
    pub const fn contains(self, addr: VirtAddr) -> bool {
        self.start.0 <= addr.0 && addr.0 < self.end.0
    }

    /// Whether all of `other` lies in this range.
    #[doc(hidden)]
    #[inline]
    pub const fn covers(self, other: Self) -> bool {
        self.start.0 <= other.start.0 && other.end.0 <= self.end.0
    }

    /// Whether both ranges share an address.
    #[doc(hidden)]
    #[inline]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start.0 < other.end.0 && other.start.0 < self.end.0
    }

    /// The addresses that both ranges hold; empty where they share none.
    #[doc(hidden)]
    #[inline]
    pub fn intersect(self, other: Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }
}

impl fmt::Debug for VirtRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start.0, self.end.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_would_wrap_is_refused() {
        assert!(VirtRange::from_len(VirtAddr(u64::MAX - 4095), 4096).is_none());
        assert!(page_align_up(u64::MAX - 5).is_none());
        assert_eq!(page_align_up(1), Some(PAGE_SIZE));
    }

    #[test]
    fn neighbours_do_not_overlap() {
        let low = VirtRange::new(VirtAddr(0x1000), VirtAddr(0x3000));
        let high = VirtRange::new(VirtAddr(0x3000), VirtAddr(0x4000));
        assert!(!low.overlaps(high));
        assert!(low.intersect(high).is_empty());
        assert!(low.contains(VirtAddr(0x2fff)) && !low.contains(VirtAddr(0x3000)));
    }
}
