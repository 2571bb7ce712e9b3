//! Shadows: when a page was evicted, and from which memcg.

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
    /// Ages are kept modulo one more than this.
    pub const MAX_AGE: u64 = (1 << AGE_BITS) - 1;

    /// The shadow of a page of `memcg` on `node`. Only the low bits of the age are kept
    /// ([`MAX_AGE`](Self::MAX_AGE)); its meaning is defined by the code that compares ages.
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

    /// The age of its list at eviction.
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
}
