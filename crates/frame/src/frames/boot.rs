//! Taking a machine's memory into use.

use super::caches::CacheList;
use super::claimed::Claimed;
use super::{FrameConfig, Frames, MachineId};
use crate::counters::{EventSet, VmEvents};
use crate::error::BootError;
use crate::fail_points::FailPoints;
use crate::kind::Kind;
use crate::limbo::LimboLists;
use crate::map::boot::{BootMemory, Booted, Extra, boot};
use crate::map::{MemoryMap, Migratetype, PAGEBLOCK_ORDER};
use crate::pcp::{PcpLimits, PcpSet};
use crate::zone::{Watermarks, Zone, Zonelist, Zones, default_min_free_kib};
use crate::zone_id::{ZoneId, ZoneKind};
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{LockClass, MAX_NODES, NodeId, Order, Pfn, PfnRange, Platform};
use quire_sync::atomic::AtomicU32;
use quire_sync::{CachePadded, Epoch, EpochSlot, SpinLock};

/// Frames of the upper zone for each frame that its users must leave in the lower one (Linux's default
/// `lowmem_reserve_ratio` of DMA32).
const LOWMEM_RESERVE_RATIO: u64 = 256;

/// The number of the next machine. Only unique; orders nothing.
static NEXT_MACHINE: AtomicU64 = AtomicU64::new(1);

impl<P: Platform> Frames<P> {
    /// Takes the RAM of `platform` into use.
    ///
    /// # Errors
    ///
    /// See [`BootError`]. Nothing outlives a failure. One `Frames` at a time has the RAM: after
    /// [`BootError::RamTaken`] nothing has changed.
    pub fn new(platform: P, config: FrameConfig) -> Result<Self, BootError> {
        let extra = Extra {
            per_cpu: size_of::<CachePadded<EventSet>>()
                + size_of::<CachePadded<SpinLock<LimboLists, P>>>()
                + size_of::<CachePadded<EpochSlot>>(),
            per_cpu_and_zone: size_of::<CachePadded<PcpSet<P>>>(),
            per_zone: size_of::<Zone<P>>(),
        };
        // Before all that lies in the RAM, so that a failure drops it last.
        let platform = Claimed::new(platform)?;
        let Booted { map, reserved, mut memory } = boot(&*platform, extra)?;
        let events = VmEvents::new(memory.per_cpu(EventSet::new)?);
        let limbo = memory.per_cpu(|| SpinLock::new(LockClass::Limbo, LimboLists::default()))?;
        let epoch = Epoch::new(memory.per_cpu(EpochSlot::default)?);
        let mut zones = make_zones(&*platform, &mut memory, config)?;
        {
            // Whose counters these are does not matter yet: no other thread runs on this machine.
            let pin = platform.pin();
            fill_zones(&map, reserved, &mut zones, &*platform, events.mine(&pin));
        }
        set_levels(&zones, config.min_free_kib);
        let cpus = platform.cpu_count() as u64;
        for zone in zones.all_mut().iter_mut().filter(|zone| !zone.is_empty()) {
            let limits = PcpLimits::new(config.pcp, zone.managed(), zone.levels.get().low, cpus);
            zone.pcp = memory.per_cpu(|| PcpSet::new(limits))?;
        }
        let nodes = platform.node_count();
        let populated = |id: ZoneId| zones.all().get(id.index()).is_some_and(|zone| !zone.is_empty());
        let zonelists = core::array::from_fn(|node| {
            Zonelist::of(NodeId::new(node % nodes).unwrap_or_default(), nodes, populated)
        });
        const { assert!(MAX_NODES <= u8::MAX as usize) };

        Ok(Self {
            id: MachineId(NEXT_MACHINE.fetch_add(1, Ordering::Relaxed)),
            map,
            zones,
            zonelists,
            reserved,
            technique: config.pcp.switch(),
            only_type: config.ignore_mobility.then_some(Migratetype::Movable),
            checks_tails: config.check_tails || cfg!(debug_assertions),
            min_free_kib: config.min_free_kib,
            events,
            limbo,
            reap_turn: AtomicU32::new(0),
            age_turn: AtomicU32::new(0),
            due: AtomicU32::new(0),
            epoch,
            hotplug: SpinLock::new(LockClass::Hotplug, ()),
            caches: CacheList::new(),
            fail_points: FailPoints::new(),
            platform,
        })
    }
}

/// Zones without frames.
fn make_zones<P: Platform>(
    platform: &P,
    memory: &mut BootMemory,
    config: FrameConfig,
) -> Result<Zones<P>, BootError> {
    let count = platform.node_count() * ZoneKind::COUNT;
    let make = |index| Zone::new(ZoneId::from_index(index).unwrap_or_default(), config.time_locks);
    let first = memory.array(count, make)?;
    // SAFETY: `array` wrote `count` zones to memory that no other code gets and that lasts as long as the
    // machine's RAM, which the platform keeps until it is dropped; the zones are dropped with it.
    Ok(unsafe { Zones::new(first, count) })
}

/// Hands every frame that is not boot memory to its zone, in the largest aligned blocks.
fn fill_zones<P: Platform>(
    map: &MemoryMap,
    reserved: PfnRange,
    zones: &mut Zones<P>,
    platform: &P,
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
            zones.all_mut()[map.known(pfn).zone().index()].add_present(pfn);
        }
        for piece in pieces {
            let mut pfn = piece.start();
            while pfn < piece.end() {
                let order = largest_block(pfn, piece.end());
                let mut zone = zones.all()[map.known(pfn).zone().index()].lock(platform);
                zone.free_block(map, map.index(pfn), order, events);
                zone.add_managed(order.pages());
                pfn = pfn.offset(order.pages());
            }
        }
    }
    // Every page block with RAM counts for the zone of its frames.
    let mut block = map.span().start().block_start(PAGEBLOCK_ORDER);
    while block < map.span().end() {
        if let Some(id) = zone_of_block(map, block) {
            let mut zone = zones.all()[id.index()].lock(platform);
            zone.add_blocks(1, map.block_migratetype(block));
        }
        block = block.offset(PAGEBLOCK_ORDER.pages());
    }
}

/// The zone of the page block that starts at `block`, or `None` if it is all hole.
pub(super) fn zone_of_block(map: &MemoryMap, block: Pfn) -> Option<ZoneId> {
    let frames = (block.0..block.0 + PAGEBLOCK_ORDER.pages()).map(Pfn);
    let ram = frames.into_iter().find(|&pfn| map.known(pfn).kind() != Kind::Hole)?;
    Some(map.known(ram).zone())
}

/// The largest order of a block that starts at `pfn` and ends by `end`. The borders of zones are multiples of
/// the page block, and blocks of different zones are not joined.
fn largest_block(pfn: Pfn, end: Pfn) -> Order {
    let fits = |order: &Order| pfn.is_aligned(*order) && pfn.0 + order.pages() <= end.0;
    Order::ALL.into_iter().rev().find(fits).unwrap_or(Order::ZERO)
}

/// Watermarks and reserves, from what the zones manage.
pub(super) fn set_levels<P: Platform>(zones: &Zones<P>, min_free_kib: Option<u64>) {
    let total: u64 = zones.all().iter().map(Zone::managed).sum();
    let min_free_kib = min_free_kib.unwrap_or_else(|| default_min_free_kib(total));
    for zone in zones.all() {
        // What requests that could use the zones above must leave here.
        let above = zones.all().iter().filter(|other| other.id.node() == zone.id.node());
        let above: u64 = above.filter(|other| other.id.kind() > zone.id.kind()).map(Zone::managed).sum();
        let marks = Watermarks::of_zone(zone.managed(), total, min_free_kib);
        zone.levels.set(marks, above / LOWMEM_RESERVE_RATIO);
    }
}
