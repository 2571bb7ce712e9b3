//! Where the heap puts a layout: a cache of a size, or a block of frames.

use core::alloc::Layout;
use quire_arch::{Order, PAGE_SIZE};

/// Sizes of the heap's caches, with the names that Linux's have.
pub(crate) const CLASSES: [(usize, &str); 13] = [
    (8, "kmalloc-8"),
    (16, "kmalloc-16"),
    (32, "kmalloc-32"),
    (64, "kmalloc-64"),
    (96, "kmalloc-96"),
    (128, "kmalloc-128"),
    (192, "kmalloc-192"),
    (256, "kmalloc-256"),
    (512, "kmalloc-512"),
    (1 << 10, "kmalloc-1k"),
    (2 << 10, "kmalloc-2k"),
    (4 << 10, "kmalloc-4k"),
    (8 << 10, "kmalloc-8k"),
];

/// Above this, classes are powers of two.
const TABLE_MAX: usize = 192;
/// The class of a size up to [`TABLE_MAX`], for each eight bytes.
const TABLE: [u8; TABLE_MAX / 8] = {
    let mut table = [0; TABLE_MAX / 8];
    let mut at = 0;
    while at < table.len() {
        while CLASSES[table[at] as usize].0 < (at + 1) * 8 {
            table[at] += 1;
        }
        at += 1;
    }
    table
};

/// Where an allocation comes from; follows from its layout alone, so a layout finds it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlabPlace {
    /// The cache with this number.
    Class(usize),
    /// A block of its own.
    Block(Order),
}

impl SlabPlace {
    /// The place of `layout`, or `None` if no block is large enough.
    #[inline]
    pub(crate) fn of(layout: Layout) -> Option<Self> {
        let align = layout.align();
        // A multiple of its alignment has a class that is one too: those that are no powers of two are three
        // times one, and only sizes with a smaller alignment get there. A layout's size can be rounded up so
        // far.
        let size = (layout.size().max(1) + align - 1) & !(align - 1);
        if size <= TABLE_MAX {
            Some(Self::Class(usize::from(TABLE[(size - 1) / 8])))
        } else if size <= CLASSES[CLASSES.len() - 1].0 && align as u64 <= PAGE_SIZE {
            // 256 is class 7 and its largest index has 8 bits.
            Some(Self::Class((usize::BITS - (size - 1).leading_zeros()) as usize - 1))
        } else {
            Self::block(layout)
        }
    }

    /// Blocks are only known to be aligned to a page where the CPU reaches them, so that a larger alignment
    /// takes a block with room to move in.
    #[cold]
    fn block(layout: Layout) -> Option<Self> {
        let room = (layout.align() as u64).saturating_sub(PAGE_SIZE);
        let bytes = layout.size().max(1) as u64 + room;
        Order::for_bytes(bytes).map(Self::Block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_gets_the_smallest_class_that_is_large_and_aligned_enough() {
        let aligns = (0..=12).map(|bits| 1usize << bits);
        for (size, align) in (0..=9000).flat_map(|size| aligns.clone().map(move |align| (size, align))) {
            let place = SlabPlace::of(Layout::from_size_align(size, align).unwrap()).unwrap();
            let fits = |&(class, _): &(usize, &str)| class >= size && class.is_multiple_of(align);
            let expected = match CLASSES.iter().position(fits) {
                Some(class) => SlabPlace::Class(class),
                None => SlabPlace::Block(Order::ALL[2]),
            };
            assert_eq!(place, expected, "{size} bytes aligned to {align}");
        }
    }

    #[test]
    fn blocks_have_room_for_the_size_and_the_alignment() {
        let block = |size, align| SlabPlace::of(Layout::from_size_align(size, align).unwrap());
        let order = |order: u8| Some(SlabPlace::Block(Order::new(order).unwrap()));
        assert_eq!(block(8193, 1), order(2));
        assert_eq!(block(16 << 10, 4096), order(2));
        assert_eq!(block((16 << 10) + 1, 8), order(3));
        // One of two pages in a row is aligned to both, and two of three.
        assert_eq!(block(1, 8192), order(1));
        assert_eq!(block(8192, 8192), order(2));
        assert_eq!(block(4 << 20, 4096), order(10));
        assert_eq!(block((4 << 20) + 1, 1), None);
        assert_eq!(block(4 << 20, 8192), None);
        assert_eq!(block(0, 1 << 40), None);
        let huge = isize::MAX as usize;
        assert_eq!(block(huge, 1), None);
        assert_eq!(block(0, 1 << 62), None);
    }
}
