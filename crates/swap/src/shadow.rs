//! Shadows: when a page was evicted, and from which memcg.
//!
//! | bits | holds |
//! |---|---|
//! | 0 | *workingset*: the page was active before |
//! | 1..4 | its node |
//! | 4..19 | its memcg |
//! | 19..36 | its list's age at the eviction, in buckets ([`Ages`]), modulo their number |

use quire_arch::{MAX_NODES, NodeId};

const AGE_BITS: u32 = Shadow::BITS - GROUP_BITS - NODE_BITS - 1;
const GROUP_BITS: u32 = 15;
const NODE_BITS: u32 = 3;
const NODE_SHIFT: u32 = 1;
const GROUP_SHIFT: u32 = NODE_SHIFT + NODE_BITS;
const AGE_SHIFT: u32 = GROUP_SHIFT + GROUP_BITS;

const _: () = assert!(MAX_NODES <= 1 << NODE_BITS);

/// A shadow: which list a page was evicted from, and the list's age then. Packed into [`BITS`](Self::BITS)
/// bits of the slot's word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shadow(u64);

impl Shadow {
    /// Bits of a packed shadow.
    pub const BITS: u32 = 36;
    /// The largest memcg that fits.
    pub const MAX_GROUP: u16 = (1 << GROUP_BITS) - 1;
    /// Buckets of ages are kept modulo one more than this.
    pub const MAX_AGE: u64 = (1 << AGE_BITS) - 1;

    /// The shadow of a page of `memcg` on `node`. Only the low bits of the age are kept
    /// ([`MAX_AGE`](Self::MAX_AGE)); it is counted in buckets ([`Ages::shadow`]).
    #[inline]
    pub const fn new(node: NodeId, memcg: u16, workingset: bool, age: u64) -> Self {
        debug_assert!(memcg <= Self::MAX_GROUP);
        Self(
            workingset as u64
                | (node.index() as u64) << NODE_SHIFT
                | ((memcg & Self::MAX_GROUP) as u64) << GROUP_SHIFT
                | (age & Self::MAX_AGE) << AGE_SHIFT,
        )
    }

    /// Whether the page was active before.
    #[inline]
    pub const fn workingset(self) -> bool {
        self.0 & 1 != 0
    }

    /// The node that the page was on.
    #[inline]
    pub fn node(self) -> NodeId {
        // The field holds what `new` put there, which was a node.
        NodeId::new((self.0 >> NODE_SHIFT) as usize & ((1 << NODE_BITS) - 1)).unwrap_or(NodeId::FIRST)
    }

    /// The memcg that it was charged to.
    #[inline]
    pub const fn memcg(self) -> u16 {
        (self.0 >> GROUP_SHIFT) as u16 & Self::MAX_GROUP
    }

    /// The age of its list at eviction, in buckets.
    #[inline]
    pub const fn age(self) -> u64 {
        self.0 >> AGE_SHIFT
    }

    #[inline]
    pub(crate) const fn pack(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) const fn unpack(packed: u64) -> Self {
        Self(packed & ((1 << Self::BITS) - 1))
    }
}

/// How ages are kept in shadows: in buckets of a power of two, as Linux does where a shadow has fewer bits
/// than memory has pages.
///
/// A refault distance is compared with the sizes of lists, which are below the size of memory. Buckets are as
/// large as it takes to tell distances up to a multiple of that: a page that was evicted longer ago is taken
/// for a younger one by chance. A larger multiple would make this rarer, and distances less exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ages {
    order: u32,
}

impl Ages {
    /// Distances are told apart up to so many times the size of memory.
    const MEMORIES: u64 = 8;

    /// For a machine with so many frames.
    pub const fn for_memory(frames: u64) -> Self {
        let span = frames.saturating_mul(Self::MEMORIES);
        let bits = u64::BITS - span.saturating_sub(1).leading_zeros();
        Self { order: bits.saturating_sub(AGE_BITS) }
    }

    /// The shadow of a page that is evicted when its list has the age `age`, in pages.
    #[inline]
    pub const fn shadow(self, node: NodeId, memcg: u16, workingset: bool, age: u64) -> Shadow {
        Shadow::new(node, memcg, workingset, age >> self.order)
    }

    /// The refault distance: by how many pages the list with the shadow's page has aged, to `now`. It is less
    /// than a bucket off, up or down with the same chance: so also where lists are shorter than a bucket,
    /// more pages are found near the sooner they come back.
    #[inline]
    pub const fn distance(self, now: u64, shadow: Shadow) -> u64 {
        ((now >> self.order).wrapping_sub(shadow.age()) & Shadow::MAX_AGE) << self.order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_field_survives_the_packing(
            node in 0..MAX_NODES,
            memcg in 0..=Shadow::MAX_GROUP,
            workingset: bool,
            age: u64,
        ) {
            let node = NodeId::new(node).unwrap();
            let shadow = Shadow::unpack(Shadow::new(node, memcg, workingset, age).pack());
            prop_assert_eq!((shadow.node(), shadow.memcg()), (node, memcg));
            prop_assert_eq!((shadow.workingset(), shadow.age()), (workingset, age & Shadow::MAX_AGE));
            prop_assert_eq!(shadow.pack() >> Shadow::BITS, 0);
        }
    }

    const OLD_BOUND: u64 = 1 << 17;

    fn distance(ages: Ages, then: u64, now: u64) -> u64 {
        let shadow = Shadow::unpack(ages.shadow(NodeId::FIRST, 7, true, then).pack());
        ages.distance(now, shadow)
    }

    /// The fewest ages in a bucket with which distances of eight memories fit into the bits.
    #[test]
    fn buckets_are_as_large_as_memory_demands() {
        for (mib, order) in [
            (1, 0),
            (64, 0),
            (65, 1),
            (128, 1),
            (512, 3),
            (513, 4),
            (1 << 10, 4),
            (64 << 10, 10),
            (1 << 20, 14),
        ] {
            let frames = (mib << 20) / quire_arch::PAGE_SIZE;
            assert_eq!(Ages::for_memory(frames), Ages { order }, "{mib} MiB");
            assert!(frames * Ages::MEMORIES <= (Shadow::MAX_AGE + 1) << order, "{mib} MiB");
        }
        assert_eq!(Ages::for_memory(0), Ages { order: 0 });
        assert!(Ages::for_memory(u64::MAX).order < u64::BITS);
    }

    #[test]
    fn a_distance_beyond_512_mib_is_not_taken_for_a_short_one() {
        for mib in [1u64 << 10, 4 << 10, 1 << 20] {
            let frames = (mib << 20) / quire_arch::PAGE_SIZE;
            let ages = Ages::for_memory(frames);
            let bucket = 1 << ages.order;
            for then in [0, 5, u64::MAX - OLD_BOUND, u64::MAX - 1] {
                for far in [OLD_BOUND - 1, OLD_BOUND, OLD_BOUND + 1, 140_000, 270_000, frames, 4 * frames] {
                    let found = distance(ages, then, then.wrapping_add(far));
                    assert!(found.abs_diff(far) < bucket, "{far} is found as {found} with {mib} MiB");
                }
            }
        }
    }

    proptest! {
        /// Against ages that never wrap.
        #[test]
        fn distances_agree_with_exact_ages(
            frames in 1..1u64 << 32,
            start: u64,
            part in 0..1u64 << 20,
            steps in prop::collection::vec(0..1u64 << 20, 1..20),
        ) {
            let ages = Ages::for_memory(frames);
            let (bucket, span) = (1u128 << ages.order, (u128::from(Shadow::MAX_AGE) + 1) << ages.order);
            let scale = |pages: u64| (u128::from(pages) * span) >> 20;
            let then = u128::from(start) + scale(part);
            let mut now = then;
            for step in steps {
                // Half the way round at most in one step, several times round in all.
                now += scale(step) / 2;
                let found = u128::from(distance(ages, then as u64, now as u64));
                let exact = (now - then) % span;
                // Near the end of the round it may be found at its beginning, and the other way.
                let off = found.abs_diff(exact);
                prop_assert!(off.min(span - off) < bucket, "{} is found as {}", exact, found);
                if bucket == 1 {
                    prop_assert_eq!(found, exact);
                }
            }
        }
    }
}
