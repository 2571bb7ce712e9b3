//! Events of groups, as `memory.events` and `memory.swap.events` tell them.

use crate::Groups;
use crate::id::GroupId;
use quire_arch::Platform;
use quire_sync::atomic::Ordering;

/// Something rare that happened to a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum GroupEvent {
    /// Reclaim took from it though it was below `memory.low`.
    Low,
    /// It was above `memory.high`, and reclaimed for that.
    High,
    /// A charge would have gone past `memory.max`.
    Max,
    /// It was at `memory.max`, and reclaim found nothing.
    Oom,
    /// A process was killed for that.
    OomKill,
    /// All processes of it were killed together.
    OomGroupKill,
    /// Swap in use would have gone past `memory.swap.max`.
    SwapMax,
    /// No swap could be had, for that or because no device has room.
    SwapFail,
}

impl GroupEvent {
    /// How many there are.
    pub const COUNT: usize = Self::SwapFail as usize + 1;
}

impl<P: Platform> Groups<P> {
    /// Counts `count` events at the group.
    pub fn count(&self, id: GroupId, event: GroupEvent, count: u64) {
        if id.is_root() {
            return;
        }
        if let Some(group) = self.table.get(id) {
            group.events[event as usize].fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Events at the group itself.
    pub fn local_events(&self, id: GroupId, event: GroupEvent) -> u64 {
        self.table.get(id).map_or(0, |group| group.events[event as usize].load(Ordering::Relaxed))
    }

    /// Events at the group and at all groups below it that there are or were.
    pub fn events(&self, id: GroupId, event: GroupEvent) -> u64 {
        let mut sum = 0;
        self.for_each_in_subtree(id, |below| {
            if let Some(group) = self.table.get(below) {
                sum += group.events[event as usize].load(Ordering::Relaxed)
                    + group.events_of_gone[event as usize].load(Ordering::Relaxed);
            }
        });
        sum
    }
}
