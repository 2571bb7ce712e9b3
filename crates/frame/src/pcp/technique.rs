//! The switch of the per-CPU lists.

use quire_arch::Order;

/// Which orders the per-CPU lists hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum PcpTechnique {
    /// None: everything takes the zone's lock. For tests that look at a zone alone; no state of Linux.
    None,
    /// Single frames: the state before high-order lists (before).
    OrderZero,
    /// Orders 0 to 3, as M. Gorman posted it.
    Posted,
    /// Every order up to the PMD's, with a budget that follows the traffic and returns to the CPU that runs
    /// short.
    #[default]
    All,
}

/// The largest order that the posted lists hold.
const POSTED_ORDER: u8 = 3;

impl PcpTechnique {
    /// Every choice, from the one that holds least to the one that holds most.
    pub const ALL: [Self; 4] = [Self::None, Self::OrderZero, Self::Posted, Self::All];

    /// The choices that are compared with each other.
    pub const COMPARED: [Self; 3] = [Self::OrderZero, Self::Posted, Self::All];

    /// Name on the command line.
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OrderZero => "order0",
            Self::Posted => "posted",
            Self::All => "all",
        }
    }

    /// The orders whose blocks go through the per-CPU lists.
    const fn orders(self) -> OrderSet {
        match self {
            Self::None => OrderSet::below(0),
            Self::OrderZero => OrderSet::below(1),
            Self::Posted => OrderSet::below(POSTED_ORDER + 1),
            Self::All => OrderSet::below(Order::PMD.get() + 1),
        }
    }

    /// The switch as the allocator reads it.
    pub(crate) const fn switch(self) -> PcpSwitch {
        PcpSwitch { technique: self, orders: self.orders(), tunes: self.tunes() }
    }

    /// Whether the budget follows the traffic, and surplus is returned to the CPU it came from.
    const fn tunes(self) -> bool {
        matches!(self, Self::All)
    }
}

/// Orders, as bits.
#[derive(Clone, Copy, Debug)]
struct OrderSet(u16);

impl OrderSet {
    const fn below(order: u8) -> Self {
        Self((1 << order) - 1)
    }
}

/// A technique as bits, which are cheaper to test on the allocation and free paths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PcpSwitch {
    technique: PcpTechnique,
    orders: OrderSet,
    tunes: bool,
}

impl PcpSwitch {
    /// Its name.
    pub(crate) const fn technique(self) -> PcpTechnique {
        self.technique
    }

    /// Whether blocks of `order` go through the per-CPU lists.
    #[inline]
    pub(crate) const fn covers(self, order: Order) -> bool {
        self.orders.0 >> order.get() & 1 != 0
    }

    /// Whether the budget follows the traffic, and surplus is returned to the CPU it came from.
    #[inline]
    pub(crate) const fn tunes(self) -> bool {
        self.tunes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_technique_covers_its_orders() {
        let covered = PcpTechnique::ALL.map(|technique| {
            Order::ALL.into_iter().filter(|&order| technique.switch().covers(order)).count()
        });
        assert_eq!(covered, [0, 1, 4, 10]);
    }
}
