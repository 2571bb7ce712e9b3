//! Charging pages to groups.
//!
//! A charge counts at the group and at every group above it. So that this is not done for each page, a CPU has a stock of
//! pages that are charged to one group already; it is filled in batches, and what is given back goes there first.

use crate::Groups;
use crate::counter::PageCounter;
use crate::error::{OverHigh, OverLimit};
use crate::event::GroupEvent;
use crate::group::Group;
use crate::id::GroupId;
use quire_arch::{Pin, Platform};
use quire_sync::atomic::Ordering;

/// Pages that are charged at once at least, if limits allow it.
const BATCH: u64 = 64;
/// The most pages in a stock.
const MOST: u64 = 2 * BATCH;

impl<P: Platform> Groups<P> {
    /// Charges `pages` to the group. Above `memory.high` it succeeds, and [`over_high`](Self::over_high) tells it.
    ///
    /// Nothing but the charge itself may keep the group. Then the caller has found its number in something that belongs to it, and
    /// is in the section of the epoch in which he did: so the number stands for this group still.
    ///
    /// # Errors
    ///
    /// [`OverLimit`] if the group or one above it would go past `memory.max`, also without what CPUs have in stock; the
    /// event is counted there. Nothing is charged.
    #[inline]
    pub fn try_charge(&self, pin: &Pin<'_, P>, id: GroupId, pages: u64) -> Result<(), OverLimit> {
        if id.is_root() || self.cpus.mine(pin).stock.take(id, pages as i64) {
            return Ok(());
        }
        self.charge_slowly(pin, id, pages)
    }

    #[cold]
    fn charge_slowly(&self, pin: &Pin<'_, P>, id: GroupId, pages: u64) -> Result<(), OverLimit> {
        if pages < BATCH && self.charge_all(id, BATCH).is_ok() {
            self.put_in_stock(pin, id, BATCH - pages);
            return Ok(());
        }
        let Err(OverLimit { group }) = self.charge_all(id, pages) else { return Ok(()) };
        self.drain_stocks_of(pin, |whose| self.is_below(whose, group));
        self.charge_all(id, pages).inspect_err(|over| self.count(over.group, GroupEvent::Max, 1))
    }

    /// Charges `pages` at the group and all above it, or nowhere.
    fn charge_all(&self, id: GroupId, pages: u64) -> Result<(), OverLimit> {
        let mut over_high = false;
        for group in self.up(id) {
            let Some(usage) = group.memory.try_add(pages) else {
                for undone in self.up(id).take_while(|below| below.id != group.id) {
                    let left = undone.memory.sub(pages);
                    self.note_protected(undone, left);
                }
                return Err(OverLimit { group: group.id });
            };
            self.note_protected(group, usage);
            over_high |= usage > group.high.load(Ordering::Relaxed);
        }
        if over_high {
            self.note_high(id);
        }
        Ok(())
    }

    fn note_high(&self, id: GroupId) {
        if let Some(group) = self.table.get(id)
            && !group.over_high.load(Ordering::Relaxed)
        {
            group.over_high.store(true, Ordering::Relaxed);
        }
    }

    /// Charges `pages` to the group whatever the limits: for what cannot be undone.
    pub fn charge_anyway(&self, pin: &Pin<'_, P>, id: GroupId, pages: u64) {
        if id.is_root() || self.cpus.mine(pin).stock.take(id, pages as i64) {
            return;
        }
        let mut over_high = false;
        for group in self.up(id) {
            let usage = group.memory.add(pages);
            self.note_protected(group, usage);
            over_high |= usage > group.high.load(Ordering::Relaxed);
        }
        if over_high {
            self.note_high(id);
        }
    }

    /// Gives back `pages` that were charged to the group. The caller has nothing more to do with the group afterwards, unless
    /// something else keeps it.
    #[inline]
    pub fn uncharge(&self, pin: &Pin<'_, P>, id: GroupId, pages: u64) {
        if id.is_root() || self.cpus.mine(pin).stock.try_add(id, pages as i64, MOST) {
            return;
        }
        self.uncharge_slowly(pin, id, pages);
    }

    /// The stock is another group's, or full: then it is brought down to a batch.
    #[cold]
    fn uncharge_slowly(&self, pin: &Pin<'_, P>, id: GroupId, pages: u64) {
        let stock = &self.cpus.mine(pin).stock;
        let full = stock.drain(|whose| whose == id).map_or(0, |(_, full)| full as u64);
        let kept = full.min(BATCH);
        self.uncharge_all(id, pages + full - kept);
        if kept > 0 {
            self.put_in_stock(pin, id, kept);
        }
    }

    /// Puts charged pages in the CPU's stock, and gives back what has to make room.
    fn put_in_stock(&self, pin: &Pin<'_, P>, id: GroupId, pages: u64) {
        if let Some((whose, out)) = self.cpus.mine(pin).stock.add(id, pages as i64) {
            // What is in a stock is charged still, so its group is there.
            self.uncharge_all(whose, out as u64);
        }
    }

    /// Gives `pages` back at the group and all above it.
    fn uncharge_all(&self, id: GroupId, pages: u64) {
        for group in self.up(id) {
            let usage = group.memory.sub(pages);
            self.note_protected(group, usage);
        }
    }

    /// Gives back what all CPUs have in stock.
    pub fn drain_stocks(&self, pin: &Pin<'_, P>) {
        self.drain_stocks_of(pin, |_| true);
    }

    /// As [`drain_stocks`](Self::drain_stocks), of some groups. Pinned, so that it does not take long.
    pub(crate) fn drain_stocks_of(&self, _pin: &Pin<'_, P>, wanted: impl Fn(GroupId) -> bool) {
        for cells in self.cpus.iter() {
            if let Some((whose, pages)) = cells.stock.drain(&wanted) {
                self.uncharge_all(whose, pages as u64);
            }
        }
    }

    /// Pages that all CPUs have in stock for the group.
    pub fn stocked(&self, id: GroupId) -> u64 {
        let stocks = self.cpus.iter().map(|cells| cells.stock.get());
        stocks.filter(|&(whose, _)| whose == id).map(|(_, pages)| pages as u64).sum()
    }

    /// The group, or the one above it that is worst, over its `memory.high`; none if no charge of this group went past
    /// a limit since this last answered so, or since [`forgive_high`](Self::forgive_high).
    #[inline]
    pub fn over_high(&self, id: GroupId) -> Option<OverHigh> {
        if id.is_root() {
            return None;
        }
        match self.table.get(id) {
            Some(group) if group.over_high.load(Ordering::Relaxed) => self.worst_over_high(group),
            _ => None,
        }
    }

    #[cold]
    fn worst_over_high(&self, group: &Group<P>) -> Option<OverHigh> {
        let over = |group: &Group<P>| {
            let pages = group.memory.usage().saturating_sub(group.high.load(Ordering::Relaxed));
            OverHigh { group: group.id, pages }
        };
        let worst = self.up(group.id).map(over).max_by_key(|over| over.pages).filter(|over| over.pages > 0);
        if worst.is_none() {
            group.over_high.store(false, Ordering::Relaxed);
        }
        worst
    }

    /// Nothing can be done about what the group has; it is over again with the next charge that goes past a limit.
    pub fn forgive_high(&self, id: GroupId) {
        if let Some(group) = self.table.get(id) {
            group.over_high.store(false, Ordering::Relaxed);
        }
    }

    /// Charges `pages` of swap to the group.
    ///
    /// # Errors
    ///
    /// [`OverLimit`] if the group or one above it would go past `memory.swap.max`; the events are counted. Nothing is
    /// charged.
    pub fn charge_swap(&self, id: GroupId, pages: u64) -> Result<(), OverLimit> {
        for group in self.up(id) {
            if group.swap.try_add(pages).is_none() {
                for undone in self.up(id).take_while(|below| below.id != group.id) {
                    undone.swap.sub(pages);
                }
                self.count(id, GroupEvent::SwapMax, 1);
                self.count(id, GroupEvent::SwapFail, 1);
                return Err(OverLimit { group: group.id });
            }
        }
        Ok(())
    }

    /// Gives back `pages` of swap that were charged to the group.
    pub fn uncharge_swap(&self, id: GroupId, pages: u64) {
        for group in self.up(id) {
            group.swap.sub(pages);
        }
    }

    /// Pages of swap that the group may still charge, as far as limits go.
    pub fn swap_left(&self, id: GroupId) -> u64 {
        let left = |group: &Group<P>| group.swap.max().saturating_sub(group.swap.usage());
        self.up(id).map(left).min().unwrap_or(u64::MAX)
    }

    /// Pages that the group may still charge, as far as limits go.
    pub fn pages_left(&self, id: GroupId) -> u64 {
        let left = |group: &Group<P>| group.memory.max().saturating_sub(group.memory.usage());
        self.up(id).map(left).min().unwrap_or(u64::MAX)
    }

    /// Pages that are charged to the group and to what is below it, those in stock included. Of the root nothing is known.
    pub fn usage(&self, id: GroupId) -> u64 {
        self.table.get(id).map_or(0, |group| group.memory.usage())
    }

    /// Pages of swap that are charged to the group and to what is below it.
    pub fn swap_usage(&self, id: GroupId) -> u64 {
        self.table.get(id).map_or(0, |group| group.swap.usage())
    }

    /// Pages that are charged to the group itself, without those in stock: as many as frames whose
    /// [`memory_group`](quire_frame::Frame::memory_group) it is. On a quiet machine.
    pub fn charged(&self, id: GroupId) -> u64 {
        self.own(id, |group| &group.memory).saturating_sub(self.stocked(id))
    }

    /// What is counted at the group and at none of its children.
    pub(crate) fn own(&self, id: GroupId, counter: impl Fn(&Group<P>) -> &PageCounter) -> u64 {
        let _pin = self.frames.platform().pin();
        let _registry = self.registry.lock();
        let Some(group) = self.table.get(id) else { return 0 };
        let below: u64 = self.children(group).map(|child| counter(child).usage()).sum();
        counter(group).usage().saturating_sub(below)
    }
}
