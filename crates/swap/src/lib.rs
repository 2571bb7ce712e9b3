//! Swap: devices, clusters of slots, and the swap cache as the one synchronisation layer.
//!
//! docs/swap.md says how the parts fit together, and which lock guards what.
//!
//! # Modules, lowest first
//!
//! - `device`: the interface of swap devices.
//! - `error`: errors, one for each cause.
//! - `charge`: the charges of slots to memcgs.
//! - `shadow`: shadows: when a page was evicted, and from which memcg.
//! - `technique`: whether the swap cache is used as before or as now.
//! - `word`: the word of a slot: its state in 64 bits.
//! - `cluster`: a cluster: 512 slots and their shared state.
//! - `lists`: a device's lists of clusters.
//! - `slot`: names of slots.
//! - `bypass`: for the old technique: reading a page without the swap cache from a synchronous device, and
//!   separate lookup and removal of shadows.
//! - `devices`: the devices in use, and their metadata in RAM.
//! - `held`: a locked cluster, with all that is needed to change it.
//! - `discard`: discarding free clusters, and waiting for another thread that does.
//! - `allocate`: allocating a folio's slots.
//! - `audit`: the audit of swap: everything recounted, on a quiet machine.
//! - `cache`: the swap cache: which page has which slot, decided under the cluster's lock.
//! - `counts`: how many page-table entries name a slot.
//! - `io`: reading and writing folios of the cache.
//! - `reclaim`: freeing slots whose pages only the cache holds, and compacting devices in RAM.
//! - `swapoff`: removing a device.
//! - `zeros`: zero-filled pages.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod allocate;
mod audit;
mod bypass;
mod cache;
mod charge;
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
mod shadow;
mod slot;
mod swapoff;
mod technique;
mod word;
mod zeros;

pub use audit::{NamedSlot, SwapViolation};
pub use cache::Seen;
pub use counts::Dropped;
pub use device::{
    CODEC_OUTPUT, Codec, CompressedCache, CompressedRam, CompressedStore, Damaged, DeviceError, DeviceFlags,
    DeviceMemory, DeviceReport, Direction, Lz4, Lz4Workspace, PageIo, RamDisk, StoreStatistics, Submitted,
    SwapDevice,
};
pub use devices::SwapReport;
pub use error::{NoSlots, NoTable, StillUsed, SwapOnError};
pub use held::Inserted;
pub use io::IoState;
pub use shadow::{Ages, Shadow};
pub use slot::{DeviceId, MAX_DEVICES, SlotId};
pub use technique::SwapTechnique;

use core::fmt;
use core::ptr;
use devices::{Device, Registry};
use discard::Discards;
use quire_arch::{LockClass, Platform};
use quire_frame::Frames;
use quire_memcg::Memcgs;
use quire_sync::SpinLock;
use quire_sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// How a device is taken into use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapOnOptions {
    /// Devices of higher priority are filled first, those of equal priority in turns. Without one a device
    /// comes after all that were there before.
    pub priority: Option<i16>,
    /// Whether freed clusters are discarded, if the device wants it ([`DeviceFlags::DISCARD`]).
    pub discard: bool,
}

/// The swap of one machine. Owns the memcgs, and through them the frames.
///
/// No method is called with a lock of class `SwapCluster` or later held. Those that may sleep say so; all
/// others may be called with spin locks held, and pin the CPU themselves.
pub struct Swap<P: Platform> {
    memcgs: Memcgs<P>,
    ages: Ages,
    technique: SwapTechnique,
    devices: [AtomicPtr<Device<P>>; MAX_DEVICES],
    /// The devices that slots are allocated from, as number plus one, highest priority first; 0 ends it.
    order: [AtomicU8; MAX_DEVICES],
    /// Whose turn it is among devices of equal priority.
    turn: AtomicU32,
    /// Devices in use.
    on: AtomicU32,
    discards: Discards,
    registry: SpinLock<Registry, P>,
}

impl<P: Platform> Swap<P> {
    /// Swap over `memcgs`. No device is in use, and nothing is allocated before there is one.
    pub fn new(memcgs: Memcgs<P>, technique: SwapTechnique) -> Self {
        Self {
            // What is not online yet may come.
            ages: Ages::for_memory(memcgs.frames().map().span().len()),
            memcgs,
            technique,
            devices: core::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            order: core::array::from_fn(|_| AtomicU8::new(0)),
            turn: AtomicU32::new(0),
            on: AtomicU32::new(0),
            discards: Discards::new(),
            registry: SpinLock::new(LockClass::SwapDevices, Registry::new()),
        }
    }

    /// How ages are kept in shadows.
    #[inline]
    pub fn ages(&self) -> Ages {
        self.ages
    }

    /// The memcgs.
    #[inline]
    pub fn memcgs(&self) -> &Memcgs<P> {
        &self.memcgs
    }

    /// The frames.
    #[inline]
    pub fn frames(&self) -> &Frames<P> {
        self.memcgs.frames()
    }

    /// The same, as passed to devices.
    #[inline]
    pub(crate) fn device_memory(&self) -> DeviceMemory<'_, P> {
        DeviceMemory::new(self.frames())
    }

    /// The machine.
    #[inline]
    pub fn platform(&self) -> &P {
        self.frames().platform()
    }

    /// The technique in use.
    #[inline]
    pub fn technique(&self) -> SwapTechnique {
        self.technique
    }
}

impl<P: Platform> Drop for Swap<P> {
    fn drop(&mut self) {
        for index in 0..MAX_DEVICES {
            let device = self.devices[index].swap(ptr::null_mut(), Ordering::Relaxed);
            if let Some(device) = ptr::NonNull::new(device) {
                // SAFETY: no thread has `Swap` any more, so none uses the device or will.
                unsafe { Device::end(device, self) };
            }
        }
    }
}

impl<P: Platform> fmt::Debug for Swap<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Swap")
            .field("technique", &self.technique)
            .field("on", &self.on)
            .finish_non_exhaustive()
    }
}
