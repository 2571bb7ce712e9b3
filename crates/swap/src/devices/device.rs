//! A device in use, and its metadata.

use super::SwapDevices;
use super::block::Block;
use super::chunks::Chunks;
use crate::SwapOnError;
use crate::cluster::{CLUSTER_SLOTS, Cluster, NONE};
use crate::device::{DeviceFlags, SwapDevice};
use crate::lists::{ListId, Lists};
use crate::slot::{DeviceId, SlotId};
use core::ptr::NonNull;
use quire_arch::{LockClass, Order, PAGE_SIZE, Pin, Platform};
use quire_frame::Frames;
use quire_sync::atomic::raw::AtomicBool;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_sync::{PerCpu, SpinLock};

/// The clusters that a CPU allocates from, by order. A folio of a cluster's own order finds nothing in a
/// cluster that was used before.
pub(crate) type Hints = [AtomicU32; Order::PMD.index()];

/// Clusters that are listed, or counted, under one pin.
const AT_ONCE: usize = 256;

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
pub(super) struct DeviceMetadata {
    slots: u64,
    clusters: u32,
    block: Block,
    hints_block: Block,
    chunks: Chunks,
}

impl DeviceMetadata {
    pub(super) fn allocate<P: Platform, D: SwapDevice<P>>(
        frames: &Frames<P>,
        slots: u64,
    ) -> Result<Self, SwapOnError> {
        const { assert!(align_of::<Boxed<P, D>>() <= PAGE_SIZE as usize, "a block is aligned to a page") };
        if slots == 0 {
            return Err(SwapOnError::TooSmall);
        }
        let clusters =
            u32::try_from(slots.div_ceil(u64::from(CLUSTER_SLOTS))).map_err(|_| SwapOnError::TooLarge)?;
        let cpus = frames.platform().cpu_count();
        let pin = || frames.platform().pin();
        let block = Block::allocate(frames, &pin(), size_of::<Boxed<P, D>>())?;
        let hints_block = Block::allocate(frames, &pin(), PerCpu::<Hints>::bytes(cpus))
            .inspect_err(|_| block.free(frames, &pin()))?;
        let chunks = Chunks::allocate(frames, clusters).inspect_err(|_| {
            hints_block.free(frames, &pin());
            block.free(frames, &pin());
        })?;
        Ok(Self { slots, clusters, block, hints_block, chunks })
    }
}

impl<P: Platform> Device<P> {
    /// Puts a device into memory of the machine.
    pub(super) fn build<D: SwapDevice<P>>(
        frames: &Frames<P>,
        metadata: DeviceMetadata,
        id: DeviceId,
        backing: D,
        discard: bool,
    ) -> NonNull<Self> {
        let DeviceMetadata { slots, clusters, block, hints_block, chunks } = metadata;
        let cpus = frames.platform().cpu_count();
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
        for first in (0..clusters).step_by(AT_ONCE) {
            let _pin = frames.platform().pin();
            let mut lists = this.lists.lock();
            for index in first..clusters.min(first.saturating_add(AT_ONCE as u32)) {
                lists.put(|index| this.cluster(index), index, ListId::Free);
            }
        }
        device
    }

    /// Closes the device and frees all its memory.
    ///
    /// # Safety
    ///
    /// `this` came from `build`, and no other thread uses it or will, nor looks at one of its slots again.
    pub(crate) unsafe fn end(this: NonNull<Self>, devices: &SwapDevices<P>) {
        let frames = devices.frames();
        // SAFETY: the caller's promise.
        let device = unsafe { this.as_ref() };
        device.backing().close(devices.device_memory());
        for index in 0..device.clusters {
            let pin = frames.platform().pin();
            if let Some(table) = device.cluster(index).lock::<P>().table.take() {
                devices.free_table(&pin, table);
            }
        }
        device.chunks.free(frames);
        device.hints_block.free(frames, &frames.platform().pin());
        let (backing, block) = (device.backing, device.block);
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
        // SAFETY: below the number of clusters; they live as long as the device.
        unsafe { self.chunks.cluster(index).as_ref() }
    }

    /// Slots of a cluster that exist.
    #[inline]
    pub(crate) fn slots_of(&self, index: u32) -> u32 {
        let before = u64::from(index) * u64::from(CLUSTER_SLOTS);
        (self.slots - before).min(u64::from(CLUSTER_SLOTS)) as u32
    }

    /// Whether `slot` is its slot of this number.
    #[inline]
    pub(crate) fn has(&self, slot: SlotId, number: u64) -> bool {
        slot.device_index() == self.id.index() && slot.number() == number
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

    pub(super) fn set_priority(&self, priority: i16) {
        self.priority.store(u32::from(priority as u16), Ordering::Relaxed);
    }

    /// Whether slots are allocated from it.
    #[inline]
    pub(crate) fn accepts(&self) -> bool {
        self.accepts.load(Ordering::Relaxed)
    }

    pub(super) fn set_accepts(&self, accepts: bool) {
        self.accepts.store(accepts, Ordering::Relaxed);
    }

    /// Pages in the swap cache that have slots here.
    pub(super) fn cached_pages(&self, platform: &P) -> u64 {
        let some = |first: u32| {
            let _pin = platform.pin();
            let end = self.clusters.min(first.saturating_add(AT_ONCE as u32));
            (first..end).map(|index| u64::from(self.cluster(index).lock::<P>().cached)).sum::<u64>()
        };
        (0..self.clusters).step_by(AT_ONCE).map(some).sum()
    }

    pub(super) fn metadata_bytes(&self) -> u64 {
        let fixed = self.block.order.bytes() + self.hints_block.order.bytes() + self.chunks.bytes();
        fixed + self.tables.load(Ordering::Relaxed) * PAGE_SIZE
    }
}
