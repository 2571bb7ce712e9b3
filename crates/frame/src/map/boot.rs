//! Taking a machine's RAM into use: survey it, carve the metadata out of it, describe every frame.

use super::descriptor::Frame;
use super::memory_map::{Arrays, MemoryMap, RamRange};
use super::migratetype::Migratetype;
use super::word::Kind;
use crate::error::BootError;
use core::ptr::NonNull;
use quire_arch::{MAX_CPUS, PAGE_SIZE, Pfn, PfnRange, Platform};
use quire_sync::atomic::raw::AtomicU8;
use quire_sync::{CachePadded, PerCpu};

/// What the platform has.
#[derive(Clone, Copy, Debug)]
struct Survey {
    base: Pfn,
    /// Frames from the lowest to the highest, holes included.
    span: u32,
    ranges: usize,
    cpus: usize,
}

impl Survey {
    fn of<P: Platform>(platform: &P) -> Result<Self, BootError> {
        let cpus = platform.cpu_count();
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(BootError::CpuCount(cpus));
        }
        let (mut lowest, mut highest, mut ranges) = (u64::MAX, 0, 0);
        let mut misaligned = None;
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
        });
        if let Some(pfn) = misaligned {
            return Err(BootError::MisalignedDirectMap(pfn));
        }
        if ranges == 0 {
            return Err(BootError::NoRam);
        }
        let frames = highest - lowest;
        // One number is the sentinel's and one the end of a list.
        if frames >= u64::from(u32::MAX) - 1 {
            return Err(BootError::SpanTooLarge { frames });
        }
        Ok(Self { base: Pfn(lowest), span: frames as u32, ranges, cpus })
    }

    /// Bytes of the memory map.
    fn map_bytes(&self) -> u64 {
        let frames = (u64::from(self.span) + 1) * size_of::<Frame>() as u64;
        let blocks = MemoryMap::blocks_of(self.base, self.span) as u64;
        let ranges = (self.ranges * size_of::<RamRange>()) as u64;
        frames + blocks + ranges
    }
}

/// Memory that is handed out from one end and never given back: a boot allocator.
#[derive(Debug)]
pub(crate) struct BootMemory {
    next: NonNull<u8>,
    left: usize,
    /// Number of CPUs, for the per-CPU arrays.
    cpus: usize,
    total: u64,
}

impl BootMemory {
    /// Room for `count` values, uninitialised.
    fn carve<T>(&mut self, count: usize) -> Result<NonNull<T>, BootError> {
        let no_room = BootError::NoRoom { bytes: self.total };
        let padding = self.next.align_offset(align_of::<T>());
        let bytes = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(padding));
        let bytes = bytes.filter(|&bytes| bytes <= self.left).ok_or(no_room)?;
        // SAFETY: `padding <= bytes <= left`, and `left` bytes from `next` are ours.
        let (first, next) = unsafe { (self.next.add(padding), self.next.add(bytes)) };
        self.next = next;
        self.left -= bytes;
        Ok(first.cast())
    }

    /// A per-CPU array.
    pub(crate) fn per_cpu<T>(&mut self, mut make: impl FnMut() -> T) -> Result<PerCpu<T>, BootError> {
        let first = self.carve::<CachePadded<T>>(self.cpus)?;
        // SAFETY: `carve` gave room and alignment for one padded element for each CPU, and gives it nobody else.
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

/// Makes the memory map, with room for `per_cpu_bytes` bytes for each CPU beside it. Every frame of RAM that is not
/// boot memory comes out as [`Kind::Tail`]: most will be inside a free block, and whoever makes the block marks its
/// first frame.
///
/// The metadata lies at the end of the highest range that has room, so that memory below 4 GiB is left to devices
/// that can use no other.
pub(crate) fn boot<P: Platform>(platform: &P, per_cpu_bytes: usize) -> Result<Booted, BootError> {
    let survey = Survey::of(platform)?;
    let bytes = survey.map_bytes() + (survey.cpus * per_cpu_bytes) as u64 + PAGE_SIZE;
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
    let descriptors = survey.span as usize + 1;
    let frames = memory.carve::<Frame>(descriptors)?;
    for index in 0..descriptors {
        // SAFETY: `carve` gave room for `descriptors` of them.
        unsafe { frames.add(index).write(Frame::new(Kind::Hole)) };
    }
    let ranges = memory.carve::<RamRange>(survey.ranges)?;
    let mut range_count = 0;
    platform.for_each_ram(&mut |range| {
        if range.is_empty() || range_count == survey.ranges {
            return;
        }
        // SAFETY: `range_count` is below the number that room was carved for.
        unsafe {
            let first = platform.direct_map(range.start());
            ranges.add(range_count).write(RamRange { frames: range, first });
        }
        range_count += 1;
        for pfn in range.start().0..range.end().0 {
            let kind = if reserved.contains(Pfn(pfn)) { Kind::Reserved } else { Kind::Tail };
            let index = (pfn - survey.base.0) as usize;
            // SAFETY: the platform names the same ranges each time, so the index is below `span`.
            unsafe { frames.add(index).write(Frame::new(kind)) };
        }
    });
    let block_count = MemoryMap::blocks_of(survey.base, survey.span);
    let blocks = memory.carve::<AtomicU8>(block_count)?;
    for index in 0..block_count {
        // SAFETY: `carve` gave room for `block_count` of them.
        unsafe { blocks.add(index).write(AtomicU8::new(Migratetype::Movable as u8)) };
    }
    let arrays = Arrays { frames, blocks, ranges, range_count };
    // SAFETY: the arrays were carved and filled above with the lengths that `new` asks for, the last descriptor is
    // still the hole that it was written as, and the boot memory gives them to nobody else.
    Ok(unsafe { MemoryMap::new(survey.base, survey.span, arrays) })
}
