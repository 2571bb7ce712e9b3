//! Event counters, one set a CPU.

// Counts order nothing, so no model has to see them.
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Pin, Platform};
use quire_sync::PerCpu;

/// Declares the events once, with the name of each.
macro_rules! vm_events {
    ($($(#[doc = $doc:literal])+ $event:ident = $name:literal,)+) => {
        /// What is counted. Names are those of Linux's `/proc/vmstat` where Linux counts the same thing; the
        /// others say so.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(usize)]
        pub enum VmEvent {
            $($(#[doc = $doc])+ $event,)+
        }

        impl VmEvent {
            /// Every event, in the order of the enum.
            pub const ALL: &'static [Self] = &[$(Self::$event,)+];

            /// Name of the counter.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$event => $name,)+
                }
            }
        }
    };
}

vm_events! {
    /// Frames given out from [`ZoneKind::Dma32`](crate::ZoneKind::Dma32).
    PgallocDma32 = "pgalloc_dma32",
    /// Frames given out from [`ZoneKind::Normal`](crate::ZoneKind::Normal).
    PgallocNormal = "pgalloc_normal",
    /// Allocations that could have used [`ZoneKind::Dma32`](crate::ZoneKind::Dma32) at the highest, found nothing and had to
    /// drain what holds free memory back.
    AllocstallDma32 = "allocstall_dma32",
    /// As the one before, for [`ZoneKind::Normal`](crate::ZoneKind::Normal).
    AllocstallNormal = "allocstall_normal",
    /// Frames given back.
    Pgfree = "pgfree",
    /// Page faults.
    Pgfault = "pgfault",
    /// Page faults that had to wait for a device.
    Pgmajfault = "pgmajfault",
    /// Write faults whose page was reused, since nobody else had it.
    Pgreuse = "pgreuse",
    /// Allocations answered from the CPU's lists. Not in Linux.
    PcpHit = "pcp_hit",
    /// Allocations that had to refill the CPU's lists first. Not in Linux.
    PcpMiss = "pcp_miss",
    /// Frames that went from a CPU's lists back to their zone. Not in Linux.
    PcpDrain = "pcp_drain",
    /// Frames that a CPU had too many of and that went back to the CPU whose list they came from. Not in Linux.
    PcpReturn = "pcp_return",
    /// Of these, frames that answered an allocation at once. Not in Linux.
    PcpReturned = "pcp_returned",
    /// Blocks that were split to make smaller ones. Not in Linux.
    BuddySplit = "buddy_split",
    /// Pairs of blocks that became one. Not in Linux.
    BuddyMerge = "buddy_merge",
    /// Blocks taken from another migratetype's lists. Not in Linux's vmstat: there it is a tracepoint, whose name this is.
    Extfrag = "page_alloc_extfrag",
    /// Page blocks whose migratetype changed for that. Not in Linux.
    PageblockSteal = "pageblock_steal",
    /// Frames that were given back while lock-free readers might still look. Not in Linux.
    LimboRetired = "limbo_retired",
    /// Of these, frames whose readers were gone. Not in Linux.
    LimboFreed = "limbo_freed",
    /// Slab frames that were taken from the zones, in blocks. Not in Linux.
    SlabGrow = "slab_grow",
    /// Slab frames that went back, in blocks. Not in Linux.
    SlabShrink = "slab_shrink",
}

/// Number of events.
const COUNT: usize = VmEvent::ALL.len();

/// One CPU's counters.
#[derive(Debug)]
pub(crate) struct EventSet([AtomicU64; COUNT]);

impl EventSet {
    pub(crate) fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Adds to a counter. A load and a store: only the pinned owner of the CPU writes, others read.
    #[inline]
    pub(crate) fn add(&self, event: VmEvent, count: u64) {
        let counter = &self.0[event as usize];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    fn read(&self, event: VmEvent) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }
}

/// The event counters of a machine.
#[derive(Debug)]
pub struct VmEvents {
    sets: PerCpu<EventSet>,
}

impl VmEvents {
    pub(crate) fn new(sets: PerCpu<EventSet>) -> Self {
        Self { sets }
    }

    #[inline]
    pub(crate) fn mine<P: Platform>(&self, pin: &Pin<'_, P>) -> &EventSet {
        self.sets.mine(pin)
    }

    /// Counts `count` events on the caller's CPU.
    #[inline]
    pub fn add<P: Platform>(&self, pin: &Pin<'_, P>, event: VmEvent, count: u64) {
        self.sets.mine(pin).add(event, count);
    }

    /// The sum over all CPUs. On a busy machine it is a moment's mixture, as in Linux.
    pub fn sum(&self, event: VmEvent) -> u64 {
        self.sets.iter().fold(0, |sum, set| sum.wrapping_add(set.read(event)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_its_own_place_and_name() {
        for (place, &event) in VmEvent::ALL.iter().enumerate() {
            assert_eq!(event as usize, place);
            assert_eq!(VmEvent::ALL.iter().filter(|other| other.name() == event.name()).count(), 1);
        }
    }
}
