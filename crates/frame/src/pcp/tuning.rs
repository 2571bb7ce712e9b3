//! How a CPU's budget follows the traffic.
//!
//! - A *miss* (a list is empty and nothing was returned) raises the budget by what is fetched, and the next
//!   fetch of the same order takes twice as many blocks. So memory that is repeatedly allocated and freed
//!   stays on the lists. A request that finds nothing at all leaves no sign: more room would not serve it.
//! - A *spill* (the budget is used up) halves the next fetch of that order.
//! - A *tick* takes an eighth off the budget of a CPU without misses since the last one; a CPU that did not
//!   use its lists at all gives back a half, and at the [`TICKS_TO_EMPTY`]th tick everything.
//! - What the zone has free bounds it too: the lists of all CPUs together never claim more than a sixth of
//!   that. Where less than its `high` watermark is free, that sets every budget to its least.
//!
//! Linux tunes `high` since 6.7 between the same bounds, for order 0 and upwards by the same signs (Y. Huang,
//! "mm: PCP high auto-tuning", 2023).

use super::limits::{CHUNK_BLOCKS, PcpLimits};
use quire_arch::Order;

/// Ticks after which an unused CPU's lists are empty.
pub(crate) const TICKS_TO_EMPTY: u8 = 4;
/// The part of the budget that a tick takes away, as a shift.
const DECAY_SHIFT: u32 = 3;
/// Doublings of a fetch, at most.
const MAX_GROWTH: u8 = 16;
/// A fetch or a spill moves no more than this part of the budget at once.
const MOST_PART: u64 = 4;

/// The budget of one CPU for one zone, and the signs that it follows.
#[derive(Debug)]
pub(super) struct Tuning {
    /// More base pages than this are not kept.
    pub(super) high: u64,
    /// Doublings of the next fetch, by order.
    growth: [u8; Order::COUNT],
    /// Whether something was missed since the last tick.
    missed: bool,
    /// Whether the lists were used since the last tick.
    pub(super) used: bool,
    /// Ticks since the lists were used.
    idle: u8,
    /// Base pages that the CPU has to give back since the last tick, and has not yet.
    pub(super) due: u64,
}

/// What a miss changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signs {
    high: u64,
    growth: u8,
    missed: bool,
}

impl Tuning {
    pub(super) fn new(high: u64) -> Self {
        Self { high, growth: [0; Order::COUNT], missed: false, used: false, idle: 0, due: 0 }
    }

    /// Notes that a list of `order` is empty and that nothing was returned, and returns how many blocks to
    /// fetch. Here and below, `limits` are within what the zone allows each CPU now.
    pub(super) fn miss(&mut self, limits: PcpLimits, order: Order) -> u64 {
        let base = (limits.batch >> order.get()).max(1);
        self.missed = true;
        if limits.is_fixed() {
            self.high = limits.high_min;
            return base;
        }
        let growth = &mut self.growth[order.index()];
        let most = ((limits.high_max / MOST_PART) >> order.get()).clamp(1, CHUNK_BLOCKS as u64);
        let blocks = (base << *growth).min(most);
        *growth = (*growth + 1).min(MAX_GROWTH);
        self.high = (self.high + (blocks << order.get())).min(limits.high_max);
        blocks
    }

    /// The signs that a miss of `order` changes.
    pub(super) fn signs(&self, order: Order) -> Signs {
        Signs { high: self.high, growth: self.growth[order.index()], missed: self.missed }
    }

    /// Takes back what misses of `order` changed since `before`.
    pub(super) fn forget_miss(&mut self, order: Order, before: Signs) {
        self.high = self.high.min(before.high);
        self.growth[order.index()] = before.growth;
        self.missed = before.missed;
    }

    /// Notes that a free of `order` exceeds the budget, and returns how many base pages to give back.
    pub(super) fn overflow(&mut self, limits: PcpLimits, order: Order) -> u64 {
        let growth = &mut self.growth[order.index()];
        *growth = growth.saturating_sub(1);
        self.high = self.high.min(limits.high_max);
        let most = (self.high / MOST_PART).max(order.pages());
        ((CHUNK_BLOCKS as u64) << order.get()).min(most).max(limits.batch)
    }

    /// A tick, with `pages` base pages on the lists, and `returned` more that other CPUs returned. Sets how
    /// many of them the CPU must give back, and returns whether it has use for more.
    pub(super) fn tick(&mut self, limits: PcpLimits, pages: u64, returned: u64) -> bool {
        let used = core::mem::take(&mut self.used);
        let missed = core::mem::take(&mut self.missed);
        self.idle = if used { 0 } else { self.idle.saturating_add(1) };
        if !missed || limits.is_fixed() {
            self.growth = [0; Order::COUNT];
            self.high = (self.high - (self.high >> DECAY_SHIFT)).max(limits.high_min);
        }
        self.high =
            if self.idle >= TICKS_TO_EMPTY { limits.high_min } else { self.high.min(limits.high_max) };
        self.due = match self.idle {
            0 => pages.saturating_sub(self.high),
            TICKS_TO_EMPTY.. => pages + returned,
            _ => pages.saturating_sub(self.high.min(pages / 2)),
        };
        missed
    }
}
