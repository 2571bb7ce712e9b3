//! A zone in numbers.

use super::{BuddyCounts, Watermarks};
use crate::map::{Migratetype, PAGEBLOCK_ORDER};
use crate::zone_id::ZoneKind;
use quire_arch::{NodeId, Order, PfnRange};
use quire_sync::SpinStatistics;

/// A zone in numbers; frames throughout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneReport {
    /// Which kind.
    pub kind: ZoneKind,
    /// Of which node.
    pub node: NodeId,
    /// From its lowest frame to its highest, holes included.
    pub span: PfnRange,
    /// RAM in the zone, boot memory included.
    pub present: u64,
    /// Managed frames.
    pub managed: u64,
    /// On the zone's own lists.
    pub free: u64,
    /// Of these, in the high-order atomic reserve.
    pub free_reserved: u64,
    /// On the CPUs' lists; free as well.
    pub pcp: u64,
    /// The most that each CPU's lists held at a time, summed over the CPUs.
    pub pcp_peak: u64,
    /// The watermarks.
    pub watermarks: Watermarks,
    /// Reserve against requests that could use a higher zone, on top of the watermark.
    pub lowmem_reserve: u64,
    /// Free blocks by order and migratetype.
    pub blocks: BuddyCounts,
    /// Page blocks by migratetype.
    pub pageblocks: [u64; Migratetype::COUNT],
    /// Statistics of the zone's lock. How long it was held is known if the machine was built to measure it
    /// ([`FrameConfig::time_locks`](crate::FrameConfig::time_locks)).
    pub lock: SpinStatistics,
}

impl ZoneReport {
    /// Free blocks of each order, of whatever type.
    pub fn blocks_by_order(&self) -> [u64; Order::COUNT] {
        self.blocks.map(|types| types.iter().sum())
    }

    /// Frames in free blocks that are a page block or larger (Linux's `nr_free_pages_blocks`).
    pub fn free_in_page_blocks(&self) -> u64 {
        let large = Order::ALL.into_iter().filter(|&order| order >= PAGEBLOCK_ORDER);
        let free = large.map(|order| {
            let types = self.blocks[order.index()];
            let isolated = types[Migratetype::Isolate.index()];
            (types.iter().sum::<u64>() - isolated) << order.get()
        });
        free.sum()
    }

    /// Why an allocation of `order` would fail, in thousandths: towards 0 for lack of memory, towards 1000
    /// because what is free lies in small pieces. `None` if it would not fail: a block is there.
    ///
    /// The index is Linux's (`extfrag_index`; M. Gorman, 2010): with `B` free blocks, `F` free frames and `R`
    /// frames wanted it is 1 - (1 + F / R) / B.
    pub fn fragmentation_index(&self, order: Order) -> Option<i64> {
        let by_order = self.blocks_by_order();
        if by_order[order.index()..].iter().any(|&blocks| blocks > 0) {
            return None;
        }
        let blocks = by_order.iter().sum::<u64>();
        if blocks == 0 {
            return Some(0);
        }
        let frames: u64 = Order::ALL.into_iter().map(|order| by_order[order.index()] << order.get()).sum();
        Some(1000 - ((1000 + frames * 1000 / order.pages()) / blocks) as i64)
    }

    /// The part of what is free that an allocation of `order` cannot use because the pieces are too small, in
    /// thousandths (Linux's `unusable_index`).
    pub fn unusable_free_index(&self, order: Order) -> u64 {
        let by_order = self.blocks_by_order();
        let frames = |orders: &[Order]| -> u64 {
            orders.iter().map(|order| by_order[order.index()] << order.get()).sum()
        };
        let all = frames(&Order::ALL);
        let usable = frames(&Order::ALL[order.index()..]);
        ((all - usable) * 1000).checked_div(all).unwrap_or(0)
    }
}
