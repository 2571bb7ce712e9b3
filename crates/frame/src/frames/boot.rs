//! Taking a machine's memory into use.

use super::{FrameConfig, Frames, MachineId};
use crate::counters::{EventSet, VmEvents};
use crate::error::BootError;
use crate::faults::Faults;
use crate::limbo::LimboLists;
use crate::map::boot::{Booted, boot};
use crate::map::{MemoryMap, PAGEBLOCK_ORDER};
use crate::pcp::{PcpLimits, PcpSet};
use crate::slab::CacheRegistry;
use crate::zone::{Watermarks, Zone, ZoneKind, default_min_free_kib};
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{LockClass, Order, Pfn, PfnRange, Platform};
use quire_sync::{CachePadded, Epoch, EpochSlot, SpinLock};

/// Frames of the upper zone for each frame that its users must leave in the lower one (Linux's default
/// `lowmem_reserve_ratio` of DMA32).
const LOWMEM_RESERVE_RATIO: u64 = 256;

/// The number of the next machine. Only differs; orders nothing.
static NEXT_MACHINE: AtomicU64 = AtomicU64::new(1);

impl<P: Platform> Frames<P> {
    /// Takes the RAM of `platform` into use.
    ///
    /// # Errors
    ///
    /// See [`BootError`]. Nothing outlives a failure.
    pub fn new(platform: P, config: FrameConfig) -> Result<Self, BootError> {
        let per_cpu_bytes = size_of::<CachePadded<PcpSet<P>>>()
            + size_of::<CachePadded<EventSet>>()
            + size_of::<CachePadded<SpinLock<LimboLists, P>>>()
            + size_of::<CachePadded<EpochSlot>>();
        let Booted { map, reserved, mut memory } = boot(&platform, per_cpu_bytes)?;
        let events = VmEvents::new(memory.per_cpu(EventSet::new)?);
        let limbo = memory.per_cpu(|| SpinLock::new(LockClass::Limbo, LimboLists::default()))?;
        let epoch = Epoch::new(memory.per_cpu(EpochSlot::default)?);

        let mut zones = ZoneKind::ALL.map(Zone::new);
        {
            // Whose counters these are does not matter yet: nobody else runs on this machine.
            let pin = platform.pin();
            fill_zones(&map, reserved, &mut zones, events.mine(&pin));
        }
        set_levels(&mut zones, config);
        let cpus = platform.cpu_count() as u64;
        let limits = zones.each_ref().map(|zone| PcpLimits::new(zone.managed, zone.watermarks.low, cpus));
        let pcp = memory.per_cpu(|| PcpSet::new(limits))?;

        Ok(Self {
            platform,
            id: MachineId(NEXT_MACHINE.fetch_add(1, Ordering::Relaxed)),
            map,
            zones,
            reserved,
            technique: config.pcp,
            pcp,
            events,
            limbo,
            epoch,
            caches: CacheRegistry::new(),
            faults: Faults::new(),
        })
    }
}

/// Hands every frame that is not boot memory to its zone, in the largest aligned blocks.
fn fill_zones<P: Platform>(
    map: &MemoryMap,
    reserved: PfnRange,
    zones: &mut [Zone<P>; ZoneKind::COUNT],
    events: &EventSet,
) {
    for range in map.ranges() {
        let (start, end) = (range.frames.start(), range.frames.end());
        // The boot memory lies in one range, so what is usable of any range is at most two pieces.
        let inside = range.frames.contains(reserved.start());
        let pieces = if inside {
            [PfnRange::new(start, reserved.start()), PfnRange::new(reserved.end(), end)]
        } else {
            [range.frames, PfnRange::new(end, end)]
        };
        for pfn in (start.0..end.0).map(Pfn) {
            zones[ZoneKind::of(pfn).index()].present += 1;
        }
        for piece in pieces {
            let mut pfn = piece.start();
            while pfn < piece.end() {
                let order = largest_block(pfn, piece.end());
                let zone = &mut zones[ZoneKind::of(pfn).index()];
                let mut buddy = zone.buddy.lock();
                buddy.free_block(map, map.index(pfn), order, events);
                zone.publish_free(&buddy);
                drop(buddy);
                zone.managed += order.pages();
                pfn = pfn.offset(order.pages());
            }
        }
    }
    // Every page block that the span touches counts for the zone of its first frame; holes cost nothing.
    let mut block = map.span().start().block_start(PAGEBLOCK_ORDER);
    while block < map.span().end() {
        let zone = &zones[ZoneKind::of(block).index()];
        zone.buddy.lock().add_blocks(1, map.block_migratetype(block));
        block = block.offset(PAGEBLOCK_ORDER.pages());
    }
}

/// The largest order of a block that starts at `pfn` and ends by `end`. The zones' border is a multiple of the
/// largest block, so no block crosses it.
fn largest_block(pfn: Pfn, end: Pfn) -> Order {
    let fits = |order: &Order| pfn.is_aligned(*order) && pfn.0 + order.pages() <= end.0;
    Order::ALL.into_iter().rev().find(fits).unwrap_or(Order::ZERO)
}

/// Watermarks and reserves, from what the zones manage.
fn set_levels<P: Platform>(zones: &mut [Zone<P>; ZoneKind::COUNT], config: FrameConfig) {
    let total: u64 = zones.iter().map(|zone| zone.managed).sum();
    let min_free_kib = config.min_free_kib.unwrap_or_else(|| default_min_free_kib(total));
    for zone in zones.iter_mut() {
        zone.watermarks = Watermarks::of_zone(zone.managed, total, min_free_kib);
    }
    let normal = zones[ZoneKind::Normal.index()].managed;
    zones[ZoneKind::Dma32.index()].lowmem_reserve = normal / LOWMEM_RESERVE_RATIO;
}
