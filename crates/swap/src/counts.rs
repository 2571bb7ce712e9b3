//! How many page-table entries name a slot.

use crate::Swap;
use crate::cluster::{CLUSTER_SLOTS, State};
use crate::held::Held;
use crate::slot::SlotId;
use crate::word::Tag;
use quire_arch::Platform;
use quire_frame::FrameFlags;

/// What became of slots whose names went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dropped {
    /// Nothing names some of them any more, but the cache has their pages: a thread that can lock the folio
    /// should [`remove`](Swap::remove_unnamed) it.
    pub cached_only: bool,
}

impl<P: Platform> Swap<P> {
    /// Calls `work` with each cluster of these slots, with the first and one past the last in it.
    fn each_cluster(&self, slot: SlotId, pages: u32, mut work: impl FnMut(&mut Held<'_, P>, u32, u32)) {
        let (mut at, mut left) = (slot, pages);
        while left > 0 {
            let here = left.min(CLUSTER_SLOTS - at.number() as u32 % CLUSTER_SLOTS);
            let known = self.with_cluster(at, |held, first| work(held, first, first + here));
            debug_assert!(known.is_some(), "{at} is of no device");
            at = at.plus(u64::from(here));
            left -= here;
        }
    }

    /// One more entry names each of these slots, which are in use and stay so: their folio is in the cache
    /// and locked, or an entry that names them stays where it is meanwhile. Returns whether nothing named any
    /// of them before.
    pub fn add_counts(&self, slot: SlotId, pages: u32) -> bool {
        let mut unnamed = true;
        self.each_cluster(slot, pages, |held, first, end| {
            unnamed &= held.guard.all_unnamed(first, end);
            held.name(first, end);
        });
        unnamed
    }

    /// One entry fewer names each of these slots. Those that nothing needs any more are free at once.
    pub fn drop_counts(&self, slot: SlotId, pages: u32) -> Dropped {
        let mut dropped = Dropped::default();
        self.each_cluster(slot, pages, |held, first, end| dropped.cached_only |= held.unname(first, end));
        dropped
    }

    /// How many entries name the slot. Where slots could not be told apart for want of memory, the result is
    /// 1 as long as something names any of them.
    pub fn count(&self, slot: SlotId) -> u32 {
        let count = self.with_cluster(slot, |held, at| {
            if held.guard.torn { u32::from(held.guard.sum > 0) } else { held.guard.word_of(at).count() }
        });
        count.unwrap_or(0)
    }

    /// Whether the cache has the page of the slot: a moment's view.
    pub fn is_cached(&self, slot: SlotId) -> bool {
        self.with_cluster(slot, |held, at| held.guard.word_of(at).tag() == Tag::Folio).unwrap_or(false)
    }

    /// Whether the cache has the page of the slot and it has been read: a moment's view.
    pub fn is_in_memory(&self, slot: SlotId) -> bool {
        let unread = FrameFlags::READING | FrameFlags::READ_FAILED;
        let read = |held: &mut Held<'_, P>, at: u32| {
            let page = held.pfn(held.guard.word_of(at))?;
            Some(!self.frames().folio(page).frame().word().flags().intersects(unread))
        };
        self.with_cluster(slot, read).flatten().unwrap_or(false)
    }

    /// Whether the cache has the pages of these slots, which are those of one folio, and nothing names any of
    /// them: a moment's view, of a device that may be gone.
    pub fn is_cached_only(&self, slot: SlotId, pages: u32) -> bool {
        let only = self.with_cluster(slot, |held, first| {
            let mut cached = true;
            held.each(first, first + pages, |_, unit| cached &= unit.word.is_cached());
            cached && held.guard.all_unnamed(first, first + pages)
        });
        only.unwrap_or(false)
    }

    /// The memory group that the slot is charged to; 0 if it is free.
    pub fn group_of(&self, slot: SlotId) -> u16 {
        self.with_cluster(slot, |held, at| held.group(held.guard.unit(at))).unwrap_or(0)
    }
}

impl State {
    /// Whether nothing names any slot from `first` up to `end`.
    pub(crate) fn all_unnamed(&self, first: u32, end: u32) -> bool {
        let mut at = first;
        while let Some(unit) = self.next_unit(at, end) {
            if self.is_named(unit) {
                return false;
            }
            at = unit.first + unit.pages;
        }
        true
    }
}

impl<P: Platform> Held<'_, P> {
    /// Whether the slots have counts of their own. If not the cluster is torn, and counts in one sum.
    fn counts_apart(&mut self, first: u32, end: u32) -> bool {
        if !self.guard.torn && !self.own(first, end) {
            self.guard.tear();
        }
        !self.guard.torn
    }

    fn name(&mut self, first: u32, end: u32) {
        if !self.counts_apart(first, end) {
            self.guard.sum += end - first;
            return;
        }
        self.each(first, end, |held, unit| {
            let named = if unit.word.is_free() { None } else { unit.word.named() };
            debug_assert!(named.is_some(), "{} is named, but {:?}", held.slot(unit.first), unit.word);
            held.guard.store(unit, named.unwrap_or(unit.word));
        });
    }

    /// Whether the cache has pages that nothing names any more.
    pub(crate) fn unname(&mut self, first: u32, end: u32) -> bool {
        if !self.counts_apart(first, end) {
            debug_assert!(self.guard.sum >= end - first, "more names go than there are");
            self.guard.sum = self.guard.sum.saturating_sub(end - first);
            if self.guard.sum > 0 {
                return false;
            }
            self.each(0, self.limit(), |held, unit| {
                held.free_if_unused(unit.first);
            });
            return self.guard.cached > 0;
        }
        let mut cached_only = false;
        self.each(first, end, |held, unit| {
            let unnamed = unit.word.unnamed();
            debug_assert!(unnamed.is_some(), "{} loses a name, but {:?}", held.slot(unit.first), unit.word);
            let Some(word) = unnamed else { return };
            held.guard.store(unit, word);
            if word.count() == 0 {
                cached_only |= word.is_cached();
                held.free_if_unused(unit.first);
            }
        });
        cached_only
    }
}
