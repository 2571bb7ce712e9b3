//! Swap: devices, and background reclaim.
//!
//! A machine starts without swap. [`Memory::swapon`](crate::Memory::swapon) takes a [`SwapDevice`] into use:
//! one in the machine's own RAM ([`CompressedRam`], [`RamDisk`], a [`CompressedCache`] in front of another),
//! or one of the embedder's own.

#[doc(inline)]
pub use quire_reclaim::KswapdStep;
#[doc(inline)]
pub use quire_space::SwapOffError;
#[doc(inline)]
pub use quire_swap::{
    CompressedCache, CompressedRam, DeviceError, DeviceFlags, DeviceId, DeviceMemory, DeviceReport,
    Direction, PageIo, RamDisk, Submitted, SwapOnError, SwapOnOptions,
};

/// What an embedder takes as it is ([`Techniques::default`](crate::Techniques)).
#[doc(hidden)]
pub use quire_swap::SwapTechnique;

/// For the project's own tests and tools.
#[doc(hidden)]
pub use quire_swap::{Lz4, SlotId, SwapReport};

/// A store for pages that are not in RAM. An embedder can implement one, here a file in memory:
///
/// ```
/// # use quire_host::{HostConfig, Machine};
/// use quire_mm::platform::{PAGE_SIZE, Platform};
/// use quire_mm::swap::{
///     DeviceError, DeviceFlags, DeviceMemory, Direction, PageIo, Submitted, SwapDevice, SwapOnOptions,
/// };
/// use std::sync::Mutex;
///
/// struct File(Mutex<Vec<u8>>);
///
/// impl<P: Platform> SwapDevice<P> for File {
///     fn kind(&self) -> &'static str {
///         "file"
///     }
///
///     fn slots(&self) -> u64 {
///         1024
///     }
///
///     fn flags(&self) -> DeviceFlags {
///         DeviceFlags::SYNCHRONOUS
///     }
///
///     unsafe fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted {
///         let mut bytes = self.0.lock().unwrap();
///         let (start, len) = (io.slot as usize * PAGE_SIZE as usize, io.pages as usize * PAGE_SIZE as usize);
///         let Some(on_device) = bytes.get_mut(start..start + len) else {
///             return Submitted::Done(Err(DeviceError::OutOfRange));
///         };
///         let in_ram = memory.platform().direct_map(io.pfn).as_ptr();
///         // SAFETY: the frames are this device's until it says that it is done. A program may write to them still: a
///         // real device reads them by DMA, and what it then wrote is written again.
///         unsafe {
///             match io.direction {
///                 Direction::Read => in_ram.copy_from(on_device.as_ptr(), len),
///                 Direction::Write => in_ram.copy_to(on_device.as_mut_ptr(), len),
///             }
///         }
///         Submitted::Done(Ok(()))
///     }
/// }
///
/// # let machine: Machine = Machine::new(&HostConfig::with_ram(16 << 20), quire_mm::MemoryConfig::default())?;
/// let memory = machine.memory();
/// let device = memory.swapon(File(Mutex::new(vec![0; 4 << 20])), SwapOnOptions::default())?;
/// memory.swapoff(device, || true)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
#[doc(inline)]
pub use quire_swap::SwapDevice;
