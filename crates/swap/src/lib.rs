//! Swap: devices, clusters of slots, and the swap cache as the one synchronisation layer.
//!
//! docs/swap.md says how the parts fit together, and which lock guards what.
//!
//! # Modules, lowest first
//!
//! - `device`: the interface of swap devices.
//! - `error`: errors, one for each cause.
//! - `shadow`: shadows: when a page was evicted, and from which memcg.
//! - `technique`: whether the swap cache is used as before or as now.
//! - `word`: the word of a slot: its state in 64 bits.
//! - `cluster`: a cluster: 512 slots and their shared state.
//! - `lists`: a device's lists of clusters.
//! - `slot`: names of slots.
//! - `devices`: the devices in use, their metadata in RAM, and what all of swap shares.
//! - `held`: a locked cluster, with all that is needed to change it.
//! - `discard`: discarding free clusters, and waiting for another thread that does.
//! - `counts`: how many page-table entries name a slot.
//! - `cache`: the swap cache: which page has which slot, decided under the cluster's lock.
//! - `io`: reading and writing folios of the cache.
//! - `reclaim`: freeing slots whose pages only the cache holds, and compacting devices in RAM.
//! - `reparent`: what removed memcgs leave goes to those that inherit it.
//! - `allocate`: allocating a folio's slots.
//! - `swapoff`: removing a device.
//! - `audit`: the audit of swap: everything recounted, on a quiet machine.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod allocate;
mod audit;
mod cache;
mod cluster;
mod counts;
mod device;
mod devices;
mod discard;
mod error;
mod held;
mod io;
mod lists;
mod reclaim;
mod reparent;
mod shadow;
mod slot;
mod swapoff;
mod technique;
mod word;

pub use allocate::SlotAllocator;
pub use audit::{NamedSlot, SwapAudit, SwapViolation};
pub use cache::{Seen, SwapCache};
pub use counts::{Dropped, SlotCounts};
pub use device::{
    CODEC_OUTPUT, Codec, CompressedCache, CompressedRam, CompressedStore, Damaged, DeviceError, DeviceFlags,
    DeviceMemory, DeviceReport, Direction, Lz4, Lz4Workspace, PageIo, RamDisk, StoreStatistics, Submitted,
    SwapDevice,
};
pub use devices::{SwapDevices, SwapOnOptions, SwapReport};
pub use discard::ClusterDiscard;
pub use error::{NoSlots, NoTable, StillUsed, SwapOnError};
pub use held::Inserted;
pub use io::{IoState, SwapIo};
pub use reclaim::SlotReclaim;
pub use reparent::SwapReparenting;
pub use shadow::{Ages, Shadow};
pub use slot::{DeviceId, MAX_DEVICES, SlotId};
pub use swapoff::Swapoff;
pub use technique::SwapTechnique;

use core::fmt;
use quire_arch::Platform;
use quire_frame::Frames;
use quire_memcg::Memcgs;

/// The swap of one machine. Owns the memcgs, and through them the frames.
///
/// No method, of this type or of those that it gives, is called with a lock of class `SwapCluster` or later
/// held. Those that may sleep say so; all others may be called with spin locks held, and pin the CPU
/// themselves.
pub struct Swap<P: Platform> {
    devices: SwapDevices<P>,
}

impl<P: Platform> Swap<P> {
    /// Swap over `memcgs`. No device is in use, and nothing is allocated before there is one.
    pub fn new(memcgs: Memcgs<P>, technique: SwapTechnique) -> Self {
        Self { devices: SwapDevices::new(memcgs, technique) }
    }

    /// The memcgs.
    #[inline]
    pub fn memcgs(&self) -> &Memcgs<P> {
        self.devices.memcgs()
    }

    /// The frames.
    #[inline]
    pub fn frames(&self) -> &Frames<P> {
        self.devices.frames()
    }

    /// The machine.
    #[inline]
    pub fn platform(&self) -> &P {
        self.devices.platform()
    }

    /// The technique in use.
    #[inline]
    pub fn technique(&self) -> SwapTechnique {
        self.devices.technique()
    }

    /// How ages are kept in shadows.
    #[inline]
    pub fn ages(&self) -> Ages {
        self.devices.ages()
    }

    /// The devices in use.
    #[inline]
    pub fn devices(&self) -> &SwapDevices<P> {
        &self.devices
    }

    /// The swap cache.
    #[inline]
    pub fn cache(&self) -> SwapCache<'_, P> {
        SwapCache::new(&self.devices)
    }

    /// How many page-table entries name each slot.
    #[inline]
    pub fn counts(&self) -> SlotCounts<'_, P> {
        SlotCounts::new(&self.devices)
    }

    /// Slots for folios that enter the cache.
    #[inline]
    pub fn allocator(&self) -> SlotAllocator<'_, P> {
        SlotAllocator::new(&self.devices)
    }

    /// Reading and writing.
    #[inline]
    pub fn io(&self) -> SwapIo<'_, P> {
        SwapIo::new(&self.devices)
    }

    /// Freeing slots that only the cache keeps.
    #[inline]
    pub fn reclaim(&self) -> SlotReclaim<'_, P> {
        SlotReclaim::new(&self.devices)
    }

    /// What removed memcgs leave.
    #[inline]
    pub fn reparenting(&self) -> SwapReparenting<'_, P> {
        SwapReparenting::new(&self.devices)
    }

    /// Discarding free clusters.
    #[inline]
    pub fn discard(&self) -> ClusterDiscard<'_, P> {
        ClusterDiscard::new(&self.devices)
    }

    /// Removing devices.
    #[inline]
    pub fn swapoff(&self) -> Swapoff<'_, P> {
        Swapoff::new(&self.devices)
    }

    /// The audit.
    #[inline]
    pub fn audit(&self) -> SwapAudit<'_, P> {
        SwapAudit::new(&self.devices)
    }
}

impl<P: Platform> fmt::Debug for Swap<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.devices.fmt(f)
    }
}
