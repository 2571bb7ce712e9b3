//! Charging pages to memcgs.
//!
//! A charge counts at the memcg and at every memcg above it. To avoid this for each page, a CPU has a stock
//! of pages already charged to one memcg. It is filled in batches, and uncharged pages go there first.

mod swap_high;

use crate::counters::MemcgCounters;
use crate::error::{OverHigh, OverLimit};
use crate::event::MemcgEvent;
use crate::id::MemcgId;
use crate::memcg::Memcg;
use crate::tree::{CpuCells, MemcgTree};
use quire_arch::{Pin, Platform};
use quire_sync::atomic::Ordering;

/// The least number of pages charged at once, if limits allow it.
const BATCH: u64 = 64;
/// The most pages of a charge for which a program reclaims; larger ones are wishes.
const RECLAIMS: u64 = 8;
/// Pages that it then makes room for.
const ROOM: u64 = 32;
/// The most pages in a stock.
const MOST: u64 = 2 * BATCH;

quire_arch::part_of! {
    /// Charges of memcgs.
    pub struct MemcgCharges { pub(crate) tree: MemcgTree }
}

impl<P: Platform> MemcgCharges<'_, P> {
    /// Charges `pages` to the memcg. Above `memory.high` it succeeds, and [`over_high`](Self::over_high)
    /// reports it.
    ///
    /// Possibly only the charge itself keeps the memcg. Then the caller has found the memcg's number in
    /// something that belongs to it, and is still in the epoch section in which it found it; so the number
    /// still names this memcg.
    ///
    /// # Errors
    ///
    /// [`OverLimit`] if the memcg or an ancestor would exceed `memory.max`, even after draining the CPUs'
    /// stocks. Nothing is charged. The caller counts the event there when it reclaims for the charge.
    #[inline]
    pub fn try_charge(self, pin: &Pin<'_, P>, id: MemcgId, pages: u64) -> Result<(), OverLimit> {
        if id.is_root() || self.tree.cpus.mine(pin).stock.take(id, pages as i64) {
            return Ok(());
        }
        self.charge_slowly(pin, id, pages)
    }

    #[cold]
    fn charge_slowly(self, pin: &Pin<'_, P>, id: MemcgId, pages: u64) -> Result<(), OverLimit> {
        if pages < BATCH && self.charge_all(id, BATCH).is_ok() {
            self.put_in_stock(pin, id, BATCH - pages);
            return Ok(());
        }
        let mut drained = None;
        loop {
            let Err(over) = self.charge_all(id, pages) else { return Ok(()) };
            // Stocks below a memcg at its limit hold some of its charge. An ancestor further up may be filled
            // by others.
            if drained.is_some_and(|drained| self.tree.is_below(over.memcg, drained)) {
                if pages <= RECLAIMS {
                    // What is reclaimed for it goes to a stock, and is charged from there.
                    self.note_swap_high(id, ROOM);
                }
                return Err(over);
            }
            self.drain_stocks_of(pin, |whose| self.tree.is_below(whose, over.memcg));
            drained = Some(over.memcg);
        }
    }

    /// Charges `pages` to the memcg and all its ancestors, or to none.
    fn charge_all(self, id: MemcgId, pages: u64) -> Result<(), OverLimit> {
        let mut over_high = false;
        for memcg in self.tree.up(id) {
            let Some(usage) = memcg.memory.try_add(pages) else {
                for undone in self.tree.up(id).take_while(|below| below.id != memcg.id) {
                    let left = undone.memory.sub(pages);
                    self.tree.note_protected(undone, left);
                }
                return Err(memcg.refusal());
            };
            self.tree.note_protected(memcg, usage);
            over_high |= usage > memcg.high.load(Ordering::Relaxed);
        }
        if over_high {
            self.note_high(id);
        }
        self.note_swap_high(id, pages);
        Ok(())
    }

    fn note_high(self, id: MemcgId) {
        if let Some(memcg) = self.tree.table.get(id)
            && !memcg.over_high.load(Ordering::Relaxed)
        {
            memcg.over_high.store(true, Ordering::Relaxed);
        }
    }

    /// Charges `pages` to the memcg whatever the limits: for what cannot be undone.
    pub fn charge_anyway(self, pin: &Pin<'_, P>, id: MemcgId, pages: u64) {
        if id.is_root() || self.tree.cpus.mine(pin).stock.take(id, pages as i64) {
            return;
        }
        let mut over_high = false;
        for memcg in self.tree.up(id) {
            let usage = memcg.memory.add(pages);
            self.tree.note_protected(memcg, usage);
            over_high |= usage > memcg.high.load(Ordering::Relaxed);
        }
        if over_high {
            self.note_high(id);
        }
        self.note_swap_high(id, pages);
    }

    /// Uncharges `pages` from the memcg. The caller does not use the memcg afterwards, unless something else
    /// keeps it.
    #[inline]
    pub fn uncharge(self, pin: &Pin<'_, P>, id: MemcgId, pages: u64) {
        if id.is_root() || self.tree.cpus.mine(pin).stock.try_add(id, pages as i64, MOST) {
            return;
        }
        self.uncharge_slowly(pin, id, pages);
    }

    /// The stock is another memcg's, or full: then it is reduced to a batch.
    #[cold]
    fn uncharge_slowly(self, pin: &Pin<'_, P>, id: MemcgId, pages: u64) {
        let stock = &self.tree.cpus.mine(pin).stock;
        let full = stock.drain(|whose| whose == id).map_or(0, |(_, full)| full as u64);
        let kept = full.min(BATCH);
        self.uncharge_all(pin, id, pages + full - kept);
        if kept > 0 {
            self.put_in_stock(pin, id, kept);
        }
    }

    /// Puts charged pages in the CPU's stock, and returns what has to make room.
    fn put_in_stock(self, pin: &Pin<'_, P>, id: MemcgId, pages: u64) {
        if let Some((whose, out)) = self.tree.cpus.mine(pin).stock.add(id, pages as i64) {
            // What is in a stock is still charged, so its memcg exists.
            self.uncharge_all(pin, whose, out as u64);
        }
    }

    /// Uncharges `pages` from the memcg and all its ancestors. After the last page only the section keeps the
    /// memcg, whose protection is still to be noted.
    fn uncharge_all(self, pin: &Pin<'_, P>, id: MemcgId, pages: u64) {
        let _section = self.tree.frames.epoch().enter(pin);
        for memcg in self.tree.up(id) {
            let usage = memcg.memory.sub(pages);
            self.tree.note_protected(memcg, usage);
        }
    }

    /// Uncharges the stocks of all CPUs.
    pub fn drain_stocks(self, pin: &Pin<'_, P>) {
        self.drain_stocks_of(pin, |_| true);
    }

    /// The same, of the memcg and those below it only.
    pub fn drain_stocks_below(self, pin: &Pin<'_, P>, id: MemcgId) {
        self.drain_stocks_of(pin, |whose| self.tree.is_below(whose, id));
    }

    /// As [`drain_stocks`](Self::drain_stocks), for some memcgs. Runs pinned, so it must be short.
    pub(crate) fn drain_stocks_of(self, pin: &Pin<'_, P>, wanted: impl Fn(MemcgId) -> bool) {
        for cells in self.tree.cpus.iter() {
            self.drain_stock(pin, cells, &wanted);
        }
    }

    /// Uncharges the stock of one CPU if it is of a memcg that is `wanted`.
    pub(crate) fn drain_stock(self, pin: &Pin<'_, P>, cells: &CpuCells, wanted: impl Fn(MemcgId) -> bool) {
        if let Some((whose, pages)) = cells.stock.drain(wanted) {
            self.uncharge_all(pin, whose, pages as u64);
        }
    }

    /// Pages that all CPUs have in stock for the memcg.
    pub fn stocked(self, id: MemcgId) -> u64 {
        let stocks = self.tree.cpus.iter().map(|cells| cells.stock.get());
        stocks.filter(|&(whose, _)| whose == id).map(|(_, pages)| pages as u64).sum()
    }

    /// Pages charged to the memcg and its descendants that are in use: without those in stock.
    pub(crate) fn used(self, id: MemcgId) -> u64 {
        let stocks = self.tree.cpus.iter().map(|cells| cells.stock.get());
        let below = stocks.filter(|&(whose, pages)| pages != 0 && self.tree.is_below(whose, id));
        self.usage(id).saturating_sub(below.map(|(_, pages)| pages as u64).sum())
    }

    /// Whether [`over_high`](Self::over_high) or [`swap_delay`](Self::swap_delay) may return something: else
    /// a program of the memcg goes on without asking them.
    #[inline]
    pub fn may_be_over_high(self, id: MemcgId) -> bool {
        let is_noted = |memcg: &Memcg<P>| {
            memcg.over_high.load(Ordering::Relaxed) || memcg.over_swap_high.load(Ordering::Relaxed) != 0
        };
        !id.is_root() && self.tree.table.get(id).is_some_and(is_noted)
    }

    /// The memcg, or the first above it, that is over its `memory.high`. `None` if no charge of this memcg
    /// went over a limit since this last returned `None`, or since [`forgive_high`](Self::forgive_high).
    #[inline]
    pub fn over_high(self, id: MemcgId) -> Option<OverHigh> {
        if id.is_root() {
            return None;
        }
        match self.tree.table.get(id) {
            Some(memcg) if memcg.over_high.load(Ordering::Relaxed) => self.first_noted(memcg),
            _ => None,
        }
    }

    #[cold]
    fn first_noted(self, memcg: &Memcg<P>) -> Option<OverHigh> {
        // Before the look: what is noted from now on is kept.
        memcg.over_high.store(false, Ordering::Relaxed);
        let first = self.first_over_high(memcg.id);
        if first.is_some() {
            self.note_high(memcg.id);
        }
        first
    }

    /// The memcg, or the first above it, that is over its `memory.high`, noted or not.
    pub fn first_over_high(self, id: MemcgId) -> Option<OverHigh> {
        let over = |memcg: &Memcg<P>| {
            let pages = memcg.memory.usage().saturating_sub(memcg.high.load(Ordering::Relaxed));
            OverHigh { memcg: memcg.id, pages }
        };
        self.tree.up(id).map(over).find(|over| over.pages > 0)
    }

    /// Accepts that the memcg is over its limit; it is reported again after the next charge over a limit.
    pub fn forgive_high(self, id: MemcgId) {
        if let Some(memcg) = self.tree.table.get(id) {
            memcg.over_high.store(false, Ordering::Relaxed);
        }
    }

    /// Charges `pages` of swap to the memcg.
    ///
    /// # Errors
    ///
    /// [`OverLimit`] if the memcg or an ancestor would exceed `memory.swap.max`; the events are counted.
    /// Nothing is charged.
    pub fn charge_swap(self, id: MemcgId, pages: u64) -> Result<(), OverLimit> {
        for memcg in self.tree.up(id) {
            if memcg.swap.try_add(pages).is_none() {
                for undone in self.tree.up(id).take_while(|below| below.id != memcg.id) {
                    undone.swap.sub(pages);
                }
                MemcgCounters::new(self.tree).count(id, MemcgEvent::SwapMax, 1);
                MemcgCounters::new(self.tree).count(id, MemcgEvent::SwapFail, 1);
                return Err(memcg.refusal());
            }
        }
        Ok(())
    }

    /// Charges `pages` of swap to the memcg whatever the limits: for what was charged elsewhere before. The
    /// caller keeps the memcg, as for [`try_charge`](Self::try_charge).
    pub fn charge_swap_anyway(self, id: MemcgId, pages: u64) {
        for memcg in self.tree.up(id) {
            memcg.swap.add(pages);
        }
    }

    /// Uncharges `pages` of swap from the memcg.
    pub fn uncharge_swap(self, id: MemcgId, pages: u64) {
        for memcg in self.tree.up(id) {
            memcg.swap.sub(pages);
        }
    }

    /// Pages of swap that the limits still allow the memcg to charge.
    pub fn swap_left(self, id: MemcgId) -> u64 {
        let left = |memcg: &Memcg<P>| memcg.swap.max().saturating_sub(memcg.swap.usage());
        self.tree.up(id).map(left).min().unwrap_or(u64::MAX)
    }

    /// Pages that the limits still allow the memcg to charge.
    pub fn pages_left(self, id: MemcgId) -> u64 {
        let left = |memcg: &Memcg<P>| memcg.memory.max().saturating_sub(memcg.memory.usage());
        self.tree.up(id).map(left).min().unwrap_or(u64::MAX)
    }

    /// Pages that the memcg's own limit still allows, whatever those above it do.
    pub fn margin(self, id: MemcgId) -> u64 {
        self.tree.table.get(id).map_or(0, |memcg| memcg.memory.max().saturating_sub(memcg.memory.usage()))
    }

    /// Pages charged to the memcg and its descendants, including those in stock. The root is not counted.
    pub fn usage(self, id: MemcgId) -> u64 {
        self.tree.table.get(id).map_or(0, |memcg| memcg.memory.usage())
    }

    /// Pages of swap charged to the memcg and its descendants.
    pub fn swap_usage(self, id: MemcgId) -> u64 {
        self.tree.table.get(id).map_or(0, |memcg| memcg.swap.usage())
    }

    /// Pages that are charged to the memcg itself, without those in stock: the number of frames whose
    /// [`memcg`](quire_frame::Frame::memcg) it is. On a quiet machine.
    pub fn charged(self, id: MemcgId) -> u64 {
        let own = MemcgCounters::new(self.tree).own(id, |memcg| memcg.memory.usage() as i64);
        (own.max(0) as u64).saturating_sub(self.stocked(id))
    }
}
