//! The lists of free blocks that each CPU keeps for itself, one set a zone.
//!
//! Most allocations and frees end here and never see the zone's lock. A set is behind a lock of its own, which its
//! CPU takes without contention, so that any other CPU can drain it (M. Gorman, "High-order pages on the per-CPU
//! lists", 2016; the lock in place of interrupts off came with remote draining in Linux 5.19).
//!
//! Sizes are counted in base pages whatever the order of the blocks.

use crate::chain::FrameStack;
use crate::map::{FrameIndex, Kind, MemoryMap, Migratetype, Word};
use crate::zone::ZoneKind;
use quire_arch::{LockClass, Order, Platform};
use quire_sync::SpinLock;

/// Which orders the per-CPU lists hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum PcpTechnique {
    /// None: everything takes the zone's lock.
    None,
    /// Single frames: the state before high-order lists.
    OrderZero,
    /// Orders 0 to 3, as M. Gorman posted it.
    Posted,
    /// Every order up to the PMD's.
    #[default]
    All,
}

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
            Self::Posted => order.get() <= COSTLY_ORDER,
            Self::All => order.get() <= Order::PMD.get(),
        }
    }
}

/// The largest order that the posted lists hold.
const COSTLY_ORDER: u8 = 3;

/// The lists of one CPU for one zone.
#[derive(Debug)]
pub(crate) struct PcpLists {
    lists: [[FrameStack; Migratetype::COUNT]; Order::COUNT],
    /// Base pages on all lists.
    pages: u64,
    limits: PcpLimits,
}

/// When lists are refilled and drained, in base pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PcpLimits {
    /// More than this is not kept.
    pub(crate) high: u64,
    /// What moves under one hold of the zone's lock.
    pub(crate) batch: u64,
}

/// Most bytes that one batch moves.
const BATCH_BYTES: u64 = 1 << 20;
/// Batches that fit into the lists at least.
const HIGH_IN_BATCHES: u64 = 4;

impl PcpLimits {
    /// The limits for a zone of `managed` frames with low watermark `low`, on a machine of `cpus` CPUs.
    ///
    /// Linux's rule: a batch is about a quarter of a thousandth of the zone, a quarter of 1 MiB at most, and one
    /// less than a power of two; the lists of all CPUs together hold what lies below the low watermark.
    pub(crate) fn new(managed: u64, low: u64, cpus: u64) -> Self {
        let share = (managed / 1024).min(BATCH_BYTES / Order::ZERO.bytes()) / 4;
        let share = share.max(1);
        let power = 1 << (share + share / 2).ilog2();
        let batch = (power - 1u64).max(1);
        Self { high: (low / cpus.max(1)).max(batch * HIGH_IN_BATCHES), batch }
    }
}

impl PcpLists {
    pub(crate) fn new(limits: PcpLimits) -> Self {
        Self { lists: [[FrameStack::EMPTY; Migratetype::COUNT]; Order::COUNT], pages: 0, limits }
    }

    #[inline]
    pub(crate) fn limits(&self) -> PcpLimits {
        self.limits
    }

    /// Base pages on the lists.
    #[inline]
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// The list of one order and type.
    #[inline]
    pub(crate) fn list(&self, order: Order, migratetype: Migratetype) -> &FrameStack {
        &self.lists[order.index()][migratetype.index()]
    }

    #[inline]
    pub(crate) fn pop(
        &mut self,
        map: &MemoryMap,
        order: Order,
        migratetype: Migratetype,
    ) -> Option<FrameIndex> {
        let index = self.lists[order.index()][migratetype.index()].pop(map)?;
        self.pages -= order.pages();
        Some(index)
    }

    /// The block that [`pop`](Self::pop) would give.
    #[inline]
    pub(crate) fn peek(&self, order: Order, migratetype: Migratetype) -> Option<FrameIndex> {
        self.lists[order.index()][migratetype.index()].top()
    }

    /// Adds a block whose word says [`Kind::Pcp`] already.
    #[inline]
    pub(crate) fn push(
        &mut self,
        map: &MemoryMap,
        index: FrameIndex,
        order: Order,
        migratetype: Migratetype,
    ) {
        self.lists[order.index()][migratetype.index()].push(map, index);
        self.pages += order.pages();
    }

    /// Adds a block that was given back, on the list of its page block's type. The type may change while the block
    /// is here; whoever drains the list asks again.
    #[inline]
    pub(crate) fn push_released(&mut self, map: &MemoryMap, index: FrameIndex, order: Order) {
        let migratetype = map.block_migratetype(map.pfn(index));
        map.at(index).set_word(Word::new(Kind::Pcp, order, migratetype));
        self.push(map, index, order, migratetype);
    }

    /// The list that holds the most base pages, if any holds one.
    pub(crate) fn fullest(&self) -> Option<(Order, Migratetype)> {
        let lists = Order::ALL
            .into_iter()
            .flat_map(|order| Migratetype::ALL.into_iter().map(move |migratetype| (order, migratetype)));
        lists
            .map(|(order, migratetype)| {
                (u64::from(self.list(order, migratetype).count()) << order.get(), order, migratetype)
            })
            .max_by_key(|&(pages, ..)| pages)
            .filter(|&(pages, ..)| pages > 0)
            .map(|(_, order, migratetype)| (order, migratetype))
    }
}

/// The lists of one CPU for all zones.
#[derive(Debug)]
pub(crate) struct PcpSet<P>([SpinLock<PcpLists, P>; ZoneKind::COUNT]);

impl<P: Platform> PcpSet<P> {
    pub(crate) fn new(limits: [PcpLimits; ZoneKind::COUNT]) -> Self {
        Self(limits.map(|limits| SpinLock::new(LockClass::Pcp, PcpLists::new(limits))))
    }

    #[inline]
    pub(crate) fn zone(&self, zone: ZoneKind) -> &SpinLock<PcpLists, P> {
        &self.0[zone.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_the_size_of_the_zone() {
        // 4 GiB and 4 CPUs: the batch of a large zone; tiny zones still move something.
        assert_eq!(PcpLimits::new(1 << 20, 3000, 4), PcpLimits { high: 750, batch: 63 });
        assert_eq!(PcpLimits::new(4096, 40, 2), PcpLimits { high: 20, batch: 1 });
        assert_eq!(PcpLimits::new(0, 0, 1), PcpLimits { high: 4, batch: 1 });
    }
}
