//! Taking a machine's RAM into use: survey it, carve the metadata out of it, describe every frame.

use super::descriptor::Frame;
use super::memory_map::{Arrays, MOST_FRAMES, MemoryMap, PAGEBLOCK_ORDER, RamRange, slot, slots};
use super::migratetype::Migratetype;
use crate::error::BootError;
use crate::kind::Kind;
use crate::zone_id::{ZoneId, ZoneKind};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use quire_arch::{MAX_CPUS, MAX_NODES, PAGE_SIZE, Pfn, PfnRange, Platform};
use quire_sync::atomic::raw::AtomicU8;
use quire_sync::{CachePadded, PerCpu};

/// The platform's RAM and CPUs.
#[derive(Clone, Copy, Debug)]
struct Survey {
    base: Pfn,
    /// Frames from the lowest to the highest, holes included.
    span: u32,
    ranges: usize,
    cpus: usize,
    nodes: usize,
}

impl Survey {
    fn of<P: Platform>(platform: &P) -> Result<Self, BootError> {
        let cpus = platform.cpu_count();
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(BootError::CpuCount(cpus));
        }
        let nodes = platform.node_count();
        if nodes == 0 || nodes > MAX_NODES {
            return Err(BootError::NodeCount(nodes));
        }
        let (mut lowest, mut highest, mut ranges) = (u64::MAX, 0, 0);
        let (mut misaligned, mut past) = (None, None);
        platform.for_each_ram(&mut |range| {
            if range.is_empty() {
                return;
            }
            lowest = lowest.min(range.start().0);
            highest = highest.max(range.end().0);
            ranges += 1;
            let first = platform.direct_map(range.start());
            if !(first.addr().get() as u64).is_multiple_of(PAGE_SIZE) {
                misaligned = Some(range.start());
            }
            past = past.or(Some(platform.node_of_ram(range.start()).index()).filter(|&node| node >= nodes));
        });
        if let Some(node) = past {
            return Err(BootError::NodeCount(node + 1));
        }
        shared_block(platform).map_or(Ok(()), |pfn| Err(BootError::SharedPageBlock(pfn)))?;
        if let Some(pfn) = misaligned {
            return Err(BootError::MisalignedDirectMap(pfn));
        }
        torn(platform).map_or(Ok(()), |pfn| Err(BootError::TornDirectMap(pfn)))?;
        if ranges == 0 {
            return Err(BootError::NoRam);
        }
        let frames = highest - lowest;
        if frames > MOST_FRAMES {
            return Err(BootError::SpanTooLarge { frames });
        }
        Ok(Self { base: Pfn(lowest), span: frames as u32, ranges, cpus, nodes })
    }

    /// Bytes of the memory map.
    fn map_bytes(&self) -> u64 {
        let frames = (slots(self.span) * size_of::<Frame>()) as u64;
        let blocks = MemoryMap::blocks_of(self.base, self.span) as u64;
        let ranges = (self.ranges * size_of::<RamRange>()) as u64;
        frames + blocks + ranges
    }
}

/// The first frame of a range of RAM that shares its page block with a range of another node.
fn shared_block<P: Platform>(platform: &P) -> Option<Pfn> {
    second_range(platform, |first, second| {
        let last = Pfn(first.end().0 - 1).block_start(PAGEBLOCK_ORDER);
        let meet = first.start() < second.start() && last == second.start().block_start(PAGEBLOCK_ORDER);
        meet && platform.node_of_ram(first.start()) != platform.node_of_ram(second.start())
    })
}

/// The first frame of a range of RAM that touches another one of its node, and lies elsewhere in memory: a
/// block may have frames of both, and its user takes it to be in one piece.
fn torn<P: Platform>(platform: &P) -> Option<Pfn> {
    second_range(platform, |first, second| {
        let touch = first.end() == second.start()
            && platform.node_of_ram(first.start()) == platform.node_of_ram(second.start());
        let address = |pfn| platform.direct_map(pfn).addr().get();
        touch
            && address(second.start())
                != address(first.start()).wrapping_add((first.len() * PAGE_SIZE) as usize)
    })
}

/// The start of the second of two ranges of RAM for which `is` holds.
fn second_range<P: Platform>(platform: &P, is: impl Fn(PfnRange, PfnRange) -> bool) -> Option<Pfn> {
    let mut found = None;
    platform.for_each_ram(&mut |second| {
        platform.for_each_ram(&mut |first| {
            if !first.is_empty() && !second.is_empty() && is(first, second) {
                found = found.or(Some(second.start()));
            }
        });
    });
    found
}

/// A boot allocator: memory is carved from one end and never freed.
#[derive(Debug)]
pub(crate) struct BootMemory {
    next: NonNull<u8>,
    left: usize,
    /// Number of CPUs, for the per-CPU arrays.
    cpus: usize,
    total: u64,
}

impl BootMemory {
    /// Space for `count` uninitialised values. It is used no longer than the machine's RAM exists.
    fn carve<'m, T>(&mut self, count: usize) -> Result<&'m mut [MaybeUninit<T>], BootError> {
        let no_room = BootError::NoRoom { bytes: self.total };
        let padding = self.next.align_offset(align_of::<T>());
        let bytes = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(padding));
        let bytes = bytes.filter(|&bytes| bytes <= self.left).ok_or(no_room)?;
        // SAFETY: `padding <= bytes <= left`, and `left` bytes from `next` are ours.
        let (first, next) = unsafe { (self.next.add(padding), self.next.add(bytes)) };
        self.next = next;
        self.left -= bytes;
        // SAFETY: so many values fit between `first`, which is aligned for them, and `next`. They are handed
        // out only here.
        Ok(unsafe { NonNull::slice_from_raw_parts(first.cast(), count).as_mut() })
    }

    /// An array of `count` values, which lasts as long as the machine's RAM. Not inlined, so that the
    /// caller's stack does not hold one of each kind.
    #[inline(never)]
    pub(crate) fn array<T>(
        &mut self,
        count: usize,
        mut make: impl FnMut(usize) -> T,
    ) -> Result<NonNull<T>, BootError> {
        let room = self.carve::<T>(count)?;
        for (index, place) in room.iter_mut().enumerate() {
            place.write(make(index));
        }
        Ok(NonNull::from(room).cast())
    }

    /// A per-CPU array. Not inlined, as [`array`](Self::array).
    #[inline(never)]
    pub(crate) fn per_cpu<T>(&mut self, mut make: impl FnMut() -> T) -> Result<PerCpu<T>, BootError> {
        let first = NonNull::from(self.carve::<CachePadded<T>>(self.cpus)?);
        // SAFETY: `carve` gave room and alignment for one padded element for each CPU, and gives it to no
        // other.
        Ok(unsafe { PerCpu::init(first.cast(), self.cpus, |_| make()) })
    }
}

/// A machine's memory, described but with nothing free yet.
#[derive(Debug)]
pub(crate) struct Booted {
    pub(crate) map: MemoryMap,
    /// Frames that hold the metadata; all others of RAM are free to use.
    pub(crate) reserved: PfnRange,
    /// What is left of the reserved frames.
    pub(crate) memory: BootMemory,
}

/// What the crates need beside the memory map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extra {
    /// Bytes for each CPU.
    pub(crate) per_cpu: usize,
    /// Bytes for each CPU and zone.
    pub(crate) per_cpu_and_zone: usize,
    /// Bytes for each zone.
    pub(crate) per_zone: usize,
}

/// Makes the memory map, with room for `extra` beside it. Every frame of RAM that is not boot memory comes
/// out as [`Kind::Tail`]: most will be inside a free block, and a thread that makes the block marks its first
/// frame.
///
/// The metadata lies at the end of the highest range that has room, so that memory below 4 GiB is left to
/// devices that can use no other.
pub(crate) fn boot<P: Platform>(platform: &P, extra: Extra) -> Result<Booted, BootError> {
    let survey = Survey::of(platform)?;
    let zones = survey.nodes * ZoneKind::COUNT;
    let a_cpu = extra.per_cpu + zones * extra.per_cpu_and_zone;
    let bytes = survey.map_bytes() + (survey.cpus * a_cpu + zones * extra.per_zone) as u64 + PAGE_SIZE;
    let frames = bytes.div_ceil(PAGE_SIZE);
    let mut reserved = None;
    platform.for_each_ram(&mut |range| {
        let higher = reserved.is_none_or(|found: PfnRange| found.start() < range.start());
        if range.len() >= frames && higher {
            reserved = Some(PfnRange::new(Pfn(range.end().0 - frames), range.end()));
        }
    });
    let reserved = reserved.ok_or(BootError::NoRoom { bytes })?;
    let mut memory = BootMemory {
        next: platform.direct_map(reserved.start()),
        left: (frames * PAGE_SIZE) as usize,
        cpus: survey.cpus,
        total: bytes,
    };
    let map = describe(platform, &survey, reserved, &mut memory)?;
    Ok(Booted { map, reserved, memory })
}

fn describe<P: Platform>(
    platform: &P,
    survey: &Survey,
    reserved: PfnRange,
    memory: &mut BootMemory,
) -> Result<MemoryMap, BootError> {
    let descriptors = slots(survey.span);
    let frames = memory.carve::<Frame>(descriptors)?;
    for frame in &mut *frames {
        frame.write(Frame::new(Kind::Hole, ZoneId::default()));
    }
    let ranges = memory.carve::<RamRange>(survey.ranges)?;
    let mut range_count = 0;
    platform.for_each_ram(&mut |range| {
        if range.is_empty() || range_count == survey.ranges {
            return;
        }
        let first = platform.direct_map(range.start());
        ranges[range_count].write(RamRange { frames: range, first });
        range_count += 1;
        let node = platform.node_of_ram(range.start());
        for pfn in range.start().0..range.end().0 {
            let kind = if reserved.contains(Pfn(pfn)) { Kind::Reserved } else { Kind::Tail };
            let index = slot((pfn - survey.base.0) as u32) as usize;
            // The platform names the same ranges each time, so the index is below `span` and its slot inside.
            frames[index].write(Frame::new(kind, ZoneId::of(node, Pfn(pfn))));
        }
    });
    let block_count = MemoryMap::blocks_of(survey.base, survey.span);
    let movable = |_| AtomicU8::new(MemoryMap::block_byte(Migratetype::Movable));
    let blocks = memory.array(block_count, movable)?;
    let arrays = Arrays {
        frames: NonNull::from(frames).cast(),
        blocks,
        ranges: NonNull::from(ranges).cast(),
        range_count,
    };
    // SAFETY: the arrays were carved and filled above with the lengths that `new` asks for, the last
    // descriptor is still the hole that it was written as, and the boot memory gives them to no other.
    Ok(unsafe { MemoryMap::new(survey.base, survey.span, arrays) })
}
