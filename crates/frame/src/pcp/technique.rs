//! The switch of the per-CPU lists.

use quire_arch::Order;

/// Which orders the per-CPU lists hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum PcpTechnique {
    /// None: everything takes the zone's lock.
    None,
    /// Single frames: the state before high-order lists.
    OrderZero,
    /// Orders 0 to 3, as M. Gorman posted it.
    Posted,
    /// Every order up to the PMD's, with a budget that follows the traffic and returns to the CPU that runs short.
    #[default]
    All,
}

/// The largest order that the posted lists hold.
const POSTED_ORDER: u8 = 3;

impl PcpTechnique {
    /// Every choice, from the one that holds least to the one that holds most.
    pub const ALL: [Self; 4] = [Self::None, Self::OrderZero, Self::Posted, Self::All];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OrderZero => "order0",
            Self::Posted => "posted",
            Self::All => "all",
        }
    }

    /// Whether blocks of `order` go through the per-CPU lists.
    #[inline]
    pub(crate) const fn covers(self, order: Order) -> bool {
        match self {
            Self::None => false,
            Self::OrderZero => order.get() == 0,
            Self::Posted => order.get() <= POSTED_ORDER,
            Self::All => order.get() <= Order::PMD.get(),
        }
    }

    /// Whether the budget follows the traffic, and surplus goes back to where it came from.
    #[inline]
    pub(crate) const fn tunes(self) -> bool {
        matches!(self, Self::All)
    }
}
