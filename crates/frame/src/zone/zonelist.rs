//! All zones of a machine, and the order in which a CPU tries them.

use super::Zone;
use crate::zone_id::{ZoneId, ZoneKind};
use core::ptr::NonNull;
use quire_arch::{NodeId, Platform};

/// The zones of a machine, in boot memory.
#[derive(Debug)]
pub(crate) struct Zones<P> {
    first: NonNull<Zone<P>>,
    count: usize,
}

// SAFETY: the zones are reached through shared references only, from whichever thread has the machine.
unsafe impl<P: Platform> Send for Zones<P> {}
// SAFETY: as for `Send`.
unsafe impl<P: Platform> Sync for Zones<P> {}

impl<P: Platform> Zones<P> {
    /// # Safety
    ///
    /// `first` points to `count` zones, by index, that belong to this value for as long as it lives.
    pub(crate) unsafe fn new(first: NonNull<Zone<P>>, count: usize) -> Self {
        Self { first, count }
    }

    /// Every zone, by index; some may have no frames.
    #[inline]
    pub(crate) fn all(&self) -> &[Zone<P>] {
        // SAFETY: `new`.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }

    /// The same, to be filled before another thread knows the machine.
    pub(crate) fn all_mut(&mut self) -> &mut [Zone<P>] {
        // SAFETY: `new`, and the borrow is exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.first.as_ptr(), self.count) }
    }

    /// Every zone that has frames, or had some when the machine started.
    #[inline]
    pub(crate) fn populated(&self) -> impl Iterator<Item = &Zone<P>> {
        self.all().iter().filter(|zone| !zone.is_empty())
    }
}

/// The zones that requests from one node try, in this order: those of the node itself from the highest down,
/// then those of the other nodes, by the number of steps from here. Only zones with frames are on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zonelist {
    zones: [ZoneId; ZoneId::COUNT],
    count: usize,
}

impl Zonelist {
    /// The list of `node` on a machine of `nodes`, where `populated` tells which zones have frames.
    pub(crate) fn of(node: NodeId, nodes: usize, populated: impl Fn(ZoneId) -> bool) -> Self {
        let mut list = Self { zones: [ZoneId::default(); ZoneId::COUNT], count: 0 };
        let nodes = (0..nodes).filter_map(|step| NodeId::new((node.index() + step) % nodes));
        for node in nodes {
            for kind in ZoneKind::ALL.into_iter().rev() {
                let zone = ZoneId::new(node, kind);
                if populated(zone) {
                    list.zones[list.count] = zone;
                    list.count += 1;
                }
            }
        }
        list
    }

    /// The zones, the best first.
    #[inline]
    pub(crate) fn zones(&self) -> &[ZoneId] {
        &self.zones[..self.count.min(ZoneId::COUNT)]
    }
}
