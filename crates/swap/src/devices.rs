//! The devices in use, and their metadata in RAM.

use crate::cluster::{CLUSTER_SLOTS, Cluster, NONE};
use crate::device::{DeviceFlags, DeviceReport, SwapDevice};
use crate::lists::{ListId, Lists};
use crate::slot::{DeviceId, MAX_DEVICES};
use crate::{Swap, SwapOnError, SwapOnOptions};
use core::ptr::{self, NonNull};
use quire_arch::{LockClass, Order, PAGE_SIZE, Pfn, Pin, Platform};
use quire_frame::{AllocRequest, FaultSite, Frames, Kind};
use quire_sync::atomic::raw::AtomicBool;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_sync::{PerCpu, SpinLock};

const SITE: FaultSite = FaultSite::new("swap_device");

/// Clusters described in one frame.
const PER_CHUNK: u32 = (PAGE_SIZE as usize / size_of::<Cluster>()) as u32;

/// The clusters that a CPU allocates from, by order. A folio of a cluster's own order finds nothing in a
/// cluster that was used before.
pub(crate) type Hints = [AtomicU32; Order::PMD.index()];

/// A block of the machine's memory.
#[derive(Clone, Copy, Debug)]
struct Block {
    pfn: Pfn,
    order: Order,
}

impl Block {
    fn allocate<P: Platform>(
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        bytes: usize,
    ) -> Result<Self, SwapOnError> {
        let order = Order::for_bytes(bytes as u64).ok_or(SwapOnError::TooLarge)?;
        let pfn = frames
            .allocate(pin, AllocRequest::new(order, SITE).kind(Kind::Swap))
            .map_err(SwapOnError::NoMemory)?;
        Ok(Self { pfn, order })
    }

    fn base<P: Platform>(self, frames: &Frames<P>) -> NonNull<u8> {
        frames.platform().direct_map(self.pfn)
    }

    fn free<P: Platform>(self, frames: &Frames<P>, pin: &Pin<'_, P>) {
        let freed = frames.free(pin, self.pfn, self.order);
        debug_assert!(freed.is_ok(), "memory of a swap device: {freed:?}");
    }
}

/// Frames of clusters, and where each is.
#[derive(Debug)]
struct Chunks {
    directory: Block,
    places: NonNull<Pfn>,
    bases: NonNull<NonNull<Cluster>>,
    count: usize,
}

impl Chunks {
    fn allocate<P: Platform>(
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        clusters: u32,
    ) -> Result<Self, SwapOnError> {
        let count = clusters.div_ceil(PER_CHUNK) as usize;
        let directory =
            Block::allocate(frames, pin, count * (size_of::<Pfn>() + size_of::<NonNull<Cluster>>()))?;
        let bases = directory.base(frames).cast::<NonNull<Cluster>>();
        // SAFETY: the block has room for both arrays.
        let places = unsafe { bases.add(count) }.cast::<Pfn>();
        let mut chunks = Self { directory, places, bases, count: 0 };
        for nth in 0..count {
            let chunk = match Block::allocate(frames, pin, PAGE_SIZE as usize) {
                Ok(chunk) => chunk,
                Err(error) => {
                    chunks.free(frames, pin);
                    return Err(error);
                }
            };
            let base = chunk.base(frames).cast::<Cluster>();
            // SAFETY: `nth` lies in both arrays; the frame is this call's, page aligned, and has room for its
            // clusters.
            unsafe {
                chunks.places.add(nth).write(chunk.pfn);
                chunks.bases.add(nth).write(base);
                for cluster in 0..PER_CHUNK as usize {
                    base.add(cluster).write(Cluster::new());
                }
            }
            chunks.count = nth + 1;
        }
        Ok(chunks)
    }

    fn free<P: Platform>(&self, frames: &Frames<P>, pin: &Pin<'_, P>) {
        for nth in 0..self.count {
            // SAFETY: the first `count` places were written.
            let pfn = unsafe { self.places.add(nth).read() };
            Block { pfn, order: Order::ZERO }.free(frames, pin);
        }
        self.directory.free(frames, pin);
    }

    fn bytes(&self) -> u64 {
        self.directory.order.bytes() + self.count as u64 * PAGE_SIZE
    }
}

/// A device in use.
pub(crate) struct Device<P: Platform> {
    pub(crate) id: DeviceId,
    pub(crate) slots: u64,
    pub(crate) clusters: u32,
    pub(crate) flags: DeviceFlags,
    /// Whether it wants discards of freed clusters.
    pub(crate) discard: bool,
    backing: NonNull<dyn SwapDevice<P>>,
    block: Block,
    chunks: Chunks,
    hints: PerCpu<Hints>,
    hints_block: Block,
    priority: AtomicU32,
    /// Whether slots are allocated from it.
    accepts: AtomicBool,
    /// Slots in use.
    pub(crate) used: AtomicU64,
    /// Frames of words.
    pub(crate) tables: AtomicU64,
    /// Threads that use the device where they may sleep.
    pub(crate) users: AtomicU32,
    /// Times that completions were reaped.
    pub(crate) reaps: AtomicU32,
    /// Where the next search for slots that only the cache holds begins.
    pub(crate) reclaim_cursor: AtomicU32,
    pub(crate) lists: SpinLock<Lists, P>,
}

/// A device with its backing, as it lies in its block.
#[repr(C)]
struct Boxed<P: Platform, D> {
    core: Device<P>,
    backing: D,
}

/// The memory for a device's metadata.
struct DeviceMetadata {
    clusters: u32,
    block: Block,
    hints_block: Block,
    chunks: Chunks,
}

impl DeviceMetadata {
    fn allocate<P: Platform, D: SwapDevice<P>>(
        frames: &Frames<P>,
        pin: &Pin<'_, P>,
        slots: u64,
    ) -> Result<Self, SwapOnError> {
        const { assert!(align_of::<Boxed<P, D>>() <= PAGE_SIZE as usize, "a block is aligned to a page") };
        if slots == 0 {
            return Err(SwapOnError::TooSmall);
        }
        let clusters =
            u32::try_from(slots.div_ceil(u64::from(CLUSTER_SLOTS))).map_err(|_| SwapOnError::TooLarge)?;
        let cpus = frames.platform().cpu_count();
        let block = Block::allocate(frames, pin, size_of::<Boxed<P, D>>())?;
        let hints_block = Block::allocate(frames, pin, PerCpu::<Hints>::bytes(cpus))
            .inspect_err(|_| block.free(frames, pin))?;
        let chunks = Chunks::allocate(frames, pin, clusters).inspect_err(|_| {
            hints_block.free(frames, pin);
            block.free(frames, pin);
        })?;
        Ok(Self { clusters, block, hints_block, chunks })
    }
}

impl<P: Platform> Device<P> {
    /// Puts a device into memory of the machine.
    fn build<D: SwapDevice<P>>(
        frames: &Frames<P>,
        metadata: DeviceMetadata,
        id: DeviceId,
        backing: D,
        discard: bool,
    ) -> NonNull<Self> {
        let DeviceMetadata { clusters, block, hints_block, chunks } = metadata;
        let (slots, cpus) = (backing.slots(), frames.platform().cpu_count());
        let hint = |_| core::array::from_fn(|_| AtomicU32::new(NONE));
        // SAFETY: the block has room for the hints of all CPUs, and is theirs until the device goes.
        let hints = unsafe { PerCpu::init(hints_block.base(frames), cpus, hint) };
        let boxed = block.base(frames).cast::<Boxed<P, D>>();
        // SAFETY: the block is this call's, page aligned and large enough; only the backing's address is
        // taken before both parts are written.
        unsafe {
            let place = NonNull::new_unchecked(&raw mut (*boxed.as_ptr()).backing);
            let flags = backing.flags();
            let core = Self {
                id,
                slots,
                clusters,
                flags,
                discard: discard && flags.contains(DeviceFlags::DISCARD),
                backing: place as NonNull<dyn SwapDevice<P>>,
                block,
                chunks,
                hints,
                hints_block,
                priority: AtomicU32::new(0),
                accepts: AtomicBool::new(true),
                used: AtomicU64::new(0),
                tables: AtomicU64::new(0),
                users: AtomicU32::new(0),
                reaps: AtomicU32::new(0),
                reclaim_cursor: AtomicU32::new(0),
                lists: SpinLock::new(LockClass::SwapLists, Lists::new()),
            };
            boxed.write(Boxed { core, backing });
        }
        // `Boxed` begins with its core.
        let device = boxed.cast::<Self>();
        // SAFETY: just written, and no other thread knows it.
        let this = unsafe { device.as_ref() };
        let mut lists = this.lists.lock();
        for index in 0..clusters {
            lists.put(|index| this.cluster(index), index, ListId::Free);
        }
        drop(lists);
        device
    }

    /// Closes the device and frees all its memory.
    ///
    /// # Safety
    ///
    /// `this` came from `build`, no other thread uses it or will, and no slot is in use.
    pub(crate) unsafe fn end(this: NonNull<Self>, swap: &Swap<P>) {
        let frames = swap.frames();
        // SAFETY: the caller's promise.
        let device = unsafe { this.as_ref() };
        device.backing().close(swap.device_memory());
        let pin = frames.platform().pin();
        for index in 0..device.clusters {
            if let Some(table) = device.cluster(index).lock::<P>().table.take() {
                swap.free_table(&pin, table);
            }
        }
        device.chunks.free(frames, &pin);
        device.hints_block.free(frames, &pin);
        let (backing, block) = (device.backing, device.block);
        drop(pin);
        // SAFETY: both parts are dropped once and not used after. A backing's `Drop` may sleep: nothing is
        // held.
        unsafe {
            backing.drop_in_place();
            this.drop_in_place();
        }
        block.free(frames, &frames.platform().pin());
    }

    /// The device itself.
    #[inline]
    pub(crate) fn backing(&self) -> &dyn SwapDevice<P> {
        // SAFETY: it lies beside this in the same block and is dropped with it.
        unsafe { self.backing.as_ref() }
    }

    #[inline]
    pub(crate) fn cluster(&self, index: u32) -> &Cluster {
        assert!(index < self.clusters);
        // SAFETY: below the number of clusters, so in a chunk that was written whole.
        unsafe {
            let base = self.chunks.bases.add((index / PER_CHUNK) as usize).read();
            base.add((index % PER_CHUNK) as usize).as_ref()
        }
    }

    /// Slots of a cluster that exist.
    #[inline]
    pub(crate) fn slots_of(&self, index: u32) -> u32 {
        let before = u64::from(index) * u64::from(CLUSTER_SLOTS);
        (self.slots - before).min(u64::from(CLUSTER_SLOTS)) as u32
    }

    #[inline]
    pub(crate) fn hints(&self, pin: &Pin<'_, P>) -> &Hints {
        self.hints.mine(pin)
    }

    pub(crate) fn all_hints(&self) -> impl Iterator<Item = &AtomicU32> {
        self.hints.iter().flatten()
    }

    #[inline]
    pub(crate) fn priority(&self) -> i16 {
        self.priority.load(Ordering::Relaxed) as i16
    }

    fn set_priority(&self, priority: i16) {
        self.priority.store(u32::from(priority as u16), Ordering::Relaxed);
    }

    /// Whether slots are allocated from it.
    #[inline]
    pub(crate) fn accepts(&self) -> bool {
        self.accepts.load(Ordering::Relaxed)
    }

    pub(crate) fn set_accepts(&self, accepts: bool) {
        self.accepts.store(accepts, Ordering::Relaxed);
    }

    fn metadata_bytes(&self) -> u64 {
        let fixed = self.block.order.bytes() + self.hints_block.order.bytes() + self.chunks.bytes();
        fixed + self.tables.load(Ordering::Relaxed) * PAGE_SIZE
    }
}

/// What changes as devices come and go; behind a lock of class `SwapDevices`.
#[derive(Debug)]
pub(crate) struct Registry {
    /// Numbers of devices that are coming or going.
    reserved: u32,
    /// The priority that the last device without one of its own got.
    least: i16,
}

impl Registry {
    pub(crate) const fn new() -> Self {
        Self { reserved: 0, least: -1 }
    }
}

/// A swap device as reports show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapReport {
    /// Its number.
    pub id: DeviceId,
    /// The kind of device, as a short name.
    pub kind: &'static str,
    /// All its slots.
    pub slots: u64,
    /// Of these, those in use.
    pub used: u64,
    /// Devices of higher priority are filled first.
    pub priority: i16,
    /// The device's statistics.
    pub device: DeviceReport,
    /// RAM for its metadata: cluster descriptors and tables of words.
    pub metadata_bytes: u64,
}

impl<P: Platform> Swap<P> {
    /// The device with this number. The caller is inside a section of the epoch, or keeps the device by a
    /// slot in use or a count of users.
    #[inline]
    pub(crate) fn device(&self, index: usize) -> Option<&Device<P>> {
        let device = self.devices.get(index)?.load(Ordering::Acquire);
        // SAFETY: a device that is taken off the table ends only after all sections that were open have
        // closed and its users are gone (`finish_swapoff`), and outlives the borrow by that.
        unsafe { device.as_ref() }
    }

    /// Takes a device into use.
    ///
    /// # Errors
    ///
    /// See [`SwapOnError`]; the device is closed and dropped then.
    pub fn swapon<D: SwapDevice<P>>(
        &self,
        device: D,
        options: SwapOnOptions,
    ) -> Result<DeviceId, SwapOnError> {
        let frames = self.frames();
        let Some(id) = self.reserve() else {
            device.close(self.device_memory());
            return Err(SwapOnError::TooManyDevices);
        };
        let metadata = DeviceMetadata::allocate::<P, D>(frames, &self.platform().pin(), device.slots());
        let metadata = match metadata {
            Ok(metadata) => metadata,
            Err(error) => {
                // Frees the device's own memory.
                device.close(self.device_memory());
                self.unreserve(id);
                return Err(error);
            }
        };
        let _pin = self.platform().pin();
        let built = Device::build(frames, metadata, id, device, options.discard);
        let mut registry = self.registry.lock();
        registry.reserved &= !(1 << id.index());
        // SAFETY: just built, and still this call's alone.
        let device = unsafe { built.as_ref() };
        device.set_priority(options.priority.unwrap_or_else(|| {
            registry.least -= 1;
            registry.least
        }));
        self.devices[id.index()].store(built.as_ptr(), Ordering::Release);
        self.on.fetch_add(1, Ordering::Relaxed);
        self.sort_devices();
        Ok(id)
    }

    /// A number that no device has.
    fn reserve(&self) -> Option<DeviceId> {
        let _pin = self.platform().pin();
        let mut registry = self.registry.lock();
        let free = |index: &usize| {
            registry.reserved >> index & 1 == 0 && self.devices[*index].load(Ordering::Relaxed).is_null()
        };
        let index = (0..MAX_DEVICES).find(free)?;
        registry.reserved |= 1 << index;
        DeviceId::new(index)
    }

    /// Recomputes the order in which devices are tried. The registry is locked. A concurrent reader may miss
    /// a device once.
    pub(crate) fn sort_devices(&self) {
        let mut sorted = arrayvec::ArrayVec::<(i16, u8), MAX_DEVICES>::new();
        for index in 0..MAX_DEVICES {
            if let Some(device) = self.device(index)
                && device.accepts()
            {
                sorted.push((device.priority(), index as u8 + 1));
            }
        }
        sorted.sort_unstable_by_key(|&(priority, id)| (core::cmp::Reverse(priority), id));
        for (place, rank) in self.order.iter().enumerate() {
            rank.store(sorted.get(place).map_or(0, |&(_, id)| id), Ordering::Relaxed);
        }
    }

    /// Takes a device off the table, so that no thread finds it any more.
    pub(crate) fn unlist(&self, device: &Device<P>) -> Option<NonNull<Device<P>>> {
        let _pin = self.platform().pin();
        let mut registry = self.registry.lock();
        let this = self.devices[device.id.index()].swap(ptr::null_mut(), Ordering::AcqRel);
        registry.reserved |= 1 << device.id.index();
        self.on.fetch_sub(1, Ordering::Relaxed);
        let gone = device.priority();
        if gone < 0 && gone >= registry.least {
            // Those after it move up, as in Linux.
            registry.least += 1;
            for other in (0..MAX_DEVICES).filter_map(|index| self.device(index)) {
                if other.priority() < gone {
                    other.set_priority(other.priority() + 1);
                }
            }
        }
        self.sort_devices();
        NonNull::new(this)
    }

    /// Releases a number that was reserved while its device was being removed.
    pub(crate) fn unreserve(&self, id: DeviceId) {
        let _pin = self.platform().pin();
        self.registry.lock().reserved &= !(1 << id.index());
    }

    /// Whether there is any device. A cheap snapshot.
    #[inline]
    pub fn is_any_on(&self) -> bool {
        self.on.load(Ordering::Relaxed) != 0
    }

    /// Every device, by its number.
    pub fn devices(&self) -> impl Iterator<Item = SwapReport> {
        (0..MAX_DEVICES).filter_map(|index| {
            let device = self.use_device(index)?;
            Some(SwapReport {
                id: device.id,
                kind: device.backing().kind(),
                slots: device.slots,
                used: device.used.load(Ordering::Relaxed),
                priority: device.priority(),
                device: device.backing().report(),
                metadata_bytes: device.metadata_bytes(),
            })
        })
    }

    /// Slots of all devices.
    pub fn total_slots(&self) -> u64 {
        self.sum(|device| device.slots)
    }

    /// Of these, those that are free and can be allocated.
    pub fn free_slots(&self) -> u64 {
        self.sum(|device| {
            let used = device.used.load(Ordering::Relaxed);
            if device.accepts() { device.slots.saturating_sub(used) } else { 0 }
        })
    }

    /// Pages in the swap cache. Visits every cluster: for reports.
    pub fn cached_pages(&self) -> u64 {
        self.sum(|device| {
            let cached = |index| u64::from(device.cluster(index).lock::<P>().cached);
            (0..device.clusters).map(cached).sum()
        })
    }

    fn sum(&self, of: impl Fn(&Device<P>) -> u64) -> u64 {
        let pin = self.platform().pin();
        let _epoch = self.frames().epoch().enter(&pin);
        (0..MAX_DEVICES).filter_map(|index| self.device(index)).map(of).sum()
    }
}
