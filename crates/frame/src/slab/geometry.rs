//! How objects of a size are laid out on frames.

use core::alloc::Layout;
use quire_arch::Order;

/// The largest order of a slab.
const MAX_ORDER: Order = Order::ALL[3];
/// A slab of an order is good enough when no more than this part of it is lost.
const WASTE_PART: usize = 16;
/// A slab should hold this many objects at least, if the largest order can.
const MIN_OBJECTS: usize = 8;

/// The layout of one cache's slots and slabs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Geometry {
    /// Bytes from one slot to the next.
    pub(super) slot: usize,
    /// Where in a slot its link word lies.
    pub(super) link: usize,
    /// Order of a slab.
    pub(super) order: Order,
    /// Slots in a slab.
    pub(super) objects: u32,
}

impl Geometry {
    /// The geometry of slots of `layout` with the link word at `link`, or `None` where no slab can hold one.
    ///
    /// The smallest order wins that holds enough objects and wastes little; failing that the one that wastes least.
    pub(super) const fn of(layout: Layout, link: usize) -> Option<Self> {
        let slot = layout.size();
        if slot == 0 || layout.align() as u64 > Order::ZERO.bytes() {
            return None;
        }
        let mut best: Option<(Self, usize)> = None;
        let mut number = 0;
        while number <= MAX_ORDER.index() {
            let order = Order::ALL[number];
            let bytes = order.bytes() as usize;
            let objects = bytes / slot;
            let geometry = Self { slot, link, order, objects: objects as u32 };
            if objects > 0 {
                let waste = bytes - objects * slot;
                if objects >= MIN_OBJECTS && waste * WASTE_PART <= bytes {
                    return Some(geometry);
                }
                // Compared as parts of their slabs: waste / bytes.
                let better = match best {
                    None => true,
                    Some((found, wasted)) => waste * (found.order.bytes() as usize) < wasted * bytes,
                };
                if better {
                    best = Some((geometry, waste));
                }
            }
            number += 1;
        }
        match best {
            Some((geometry, _)) => Some(geometry),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(size: usize) -> Option<(u8, u32)> {
        let layout = Layout::from_size_align(size, 8).unwrap();
        Geometry::of(layout, 0).map(|geometry| (geometry.order.get(), geometry.objects))
    }

    #[test]
    fn the_best_order_follows_the_size() {
        assert_eq!(of(64), Some((0, 64)));
        assert_eq!(of(512), Some((0, 8)));
        assert_eq!(of(1024), Some((1, 8)));
        assert_eq!(of(2048), Some((2, 8)));
        // Order 0 holds too few.
        assert_eq!(of(720), Some((1, 11)));
        assert_eq!(of(32 << 10), Some((3, 1)));
        assert_eq!(of((32 << 10) + 8), None);
    }
}
