//! How many entries name the slots of a cluster.

use super::Held;
use quire_arch::Platform;

impl<P: Platform> Held<'_, P> {
    /// Whether the slots have counts of their own. If not the cluster is torn, and counts in one sum.
    fn counts_apart(&mut self, first: u32, end: u32) -> bool {
        if !self.guard.torn && !self.own(first, end) {
            self.guard.tear();
        }
        !self.guard.torn
    }

    /// One entry more names each slot. Returns whether nothing named any of them before.
    pub(crate) fn name(&mut self, first: u32, end: u32) -> bool {
        if !self.counts_apart(first, end) {
            self.guard.sum += end - first;
            return self.guard.sum == end - first;
        }
        let mut unnamed = true;
        self.each(first, end, |held, unit| {
            unnamed &= unit.word.count() == 0;
            let named = if unit.word.is_free() { None } else { unit.word.named() };
            debug_assert!(named.is_some(), "{} is named, but {:?}", held.slot(unit.first), unit.word);
            held.guard.store(unit, named.unwrap_or(unit.word));
        });
        unnamed
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
