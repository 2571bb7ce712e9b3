//! How objects of a size are laid out on frames.

use core::alloc::Layout;
use quire_arch::Order;

/// The largest order of a slab.
const MAX_ORDER: Order = Order::ALL[3];
/// Acceptable waste, as fractions of a slab; the first that some order meets is used.
const WASTE_PARTS: [usize; 5] = [16, 8, 4, 2, 1];
/// Objects that a slab should hold for each doubling of the number of CPUs: the more CPUs take from a cache,
/// the larger its slabs.
const OBJECTS_PER_DOUBLING: usize = 4;
/// Number of lists of partial slabs, by how full they are: a power of two.
pub(crate) const QUARTERS: usize = 4;

/// How many slots a slab of an order holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) order: Order,
    pub(crate) objects: u32,
    /// Free slots less one, shifted by this, are less than [`QUARTERS`].
    quarter_shift: u32,
}

impl Shape {
    const fn new(order: Order, slot: usize) -> Self {
        let objects = order.bytes() as usize / slot;
        let bits = usize::BITS - (objects - 1).leading_zeros();
        let quarter_shift = bits.saturating_sub(QUARTERS.trailing_zeros());
        Self { order, objects: objects as u32, quarter_shift }
    }

    /// The list of a slab with `free` free slots.
    pub(crate) fn state(&self, free: u32) -> SlabState {
        match free {
            0 => SlabState::Full,
            free if free == self.objects => SlabState::Empty,
            free => SlabState::Partial(((free - 1) >> self.quarter_shift) as usize % QUARTERS),
        }
    }
}

/// The state of a slab, from its descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlabState {
    /// No slot is free.
    Full,
    /// Some are: about so many quarters, less than [`QUARTERS`].
    Partial(usize),
    /// All are.
    Empty,
}

/// The layout of one cache's slots and slabs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    /// Bytes from one slot to the next.
    pub(crate) slot: usize,
    /// Where in a slot its link word lies.
    pub(crate) link: usize,
    /// Whether it lies beside the object, and marks whether that is in use.
    pub(crate) marked: bool,
    /// The slabs that are asked for.
    pub(crate) best: Shape,
    /// Those that are taken where memory is too broken up for the best: of the smallest order that holds an
    /// object.
    pub(crate) least: Shape,
}

impl Geometry {
    /// Where the link word lies in a slot that has none beside its object.
    pub(crate) const IN_OBJECT: usize = 0;

    /// Whether some slab can hold slots of `layout`.
    pub(crate) const fn fits(layout: Layout) -> bool {
        layout.size() > 0
            && layout.size() as u64 <= MAX_ORDER.bytes()
            && layout.align() as u64 <= Order::ZERO.bytes()
    }

    /// The geometry of slots of `layout`, which fits, on a machine with `cpus` CPUs. Their links lie `beside`
    /// the objects, at that offset, or in their first bytes.
    ///
    /// The smallest order wins that holds enough objects and wastes little.
    pub(crate) fn of(layout: Layout, beside: Option<usize>, cpus: usize) -> Self {
        let slot = layout.size();
        let most = MAX_ORDER.bytes() as usize / slot;
        let doublings = (usize::BITS - cpus.leading_zeros() + 1) as usize;
        let enough = (OBJECTS_PER_DOUBLING * doublings).min(most);
        let holding = |count: usize| {
            Order::ALL
                .into_iter()
                .filter(move |order| *order <= MAX_ORDER && order.bytes() as usize >= count * slot)
        };
        let wastes = |order: Order| order.bytes() as usize % slot;
        let thrifty =
            |part: usize| holding(enough).find(move |&order| wastes(order) <= order.bytes() as usize / part);
        let best = WASTE_PARTS.into_iter().find_map(thrifty).unwrap_or(MAX_ORDER);
        let least = holding(1).next().unwrap_or(MAX_ORDER);
        Self {
            slot,
            link: beside.unwrap_or(Self::IN_OBJECT),
            marked: beside.is_some(),
            best: Shape::new(best, slot),
            least: Shape::new(least, slot),
        }
    }

    /// The shape of a slab of `order`, or `None` if no slab of the cache has it.
    pub(crate) fn shape(&self, order: Order) -> Option<Shape> {
        [self.best, self.least].into_iter().find(|shape| shape.order == order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(size: usize, cpus: usize) -> (u8, u32, u8) {
        let layout = Layout::from_size_align(size, 8).unwrap();
        assert!(Geometry::fits(layout));
        let Geometry { best, least, .. } = Geometry::of(layout, None, cpus);
        (best.order.get(), best.objects, least.order.get())
    }

    #[test]
    fn the_best_order_follows_the_size_and_the_number_of_cpus() {
        assert_eq!(of(64, 1), (0, 64, 0));
        assert_eq!(of(512, 1), (0, 8, 0));
        assert_eq!(of(512, 2), (1, 16, 0));
        assert_eq!(of(512, 8), (2, 32, 0));
        assert_eq!(of(512, 64), (2, 32, 0));
        assert_eq!(of(1024, 1), (1, 8, 0));
        assert_eq!(of(2048, 1), (2, 8, 0));
        assert_eq!(of(4096, 64), (3, 8, 0));
        assert_eq!(of(8192, 64), (3, 4, 1));
        // Order 0 holds 5 of these, and order 1 enough.
        assert_eq!(of(720, 1), (1, 11, 0));
        // Order 0 holds enough of these and loses a ninth of itself, order 1 a nineteenth.
        assert_eq!(of(456, 1), (1, 17, 0));
        // Order 3 holds the most, though too few.
        assert_eq!(of(10 << 10, 1), (3, 3, 2));
        assert_eq!(of(32 << 10, 1), (3, 1, 3));
        assert!(!Geometry::fits(Layout::from_size_align((32 << 10) + 8, 8).unwrap()));
    }

    #[test]
    fn slabs_are_told_apart_by_quarters() {
        for size in [8, 24, 64, 96, 104, 720, 1024, 4096, 8192, 12 << 10, 32 << 10] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            let Geometry { best, least, .. } = Geometry::of(layout, None, 2);
            for shape in [best, least] {
                let mut last = 0;
                assert_eq!(shape.state(0), SlabState::Full);
                for free in 1..shape.objects {
                    let SlabState::Partial(quarter) = shape.state(free) else { panic!("{shape:?}: {free}") };
                    assert!(quarter == last || quarter == last + 1, "{shape:?}: {free}");
                    last = quarter;
                }
                assert!(last < QUARTERS && (shape.objects < 6 || last > 0), "{shape:?}");
                assert!(last == QUARTERS - 1 || shape.objects < 8 || !shape.objects.is_power_of_two());
                assert_eq!(shape.state(shape.objects), SlabState::Empty);
            }
        }
    }
}
