//! A device that keeps nothing.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use quire_arch::Platform;
use quire_mm::swap::{DeviceFlags, DeviceMemory, Direction, PageIo, Submitted, SwapDevice};
use std::sync::Arc;

/// A device that keeps nothing: a write completes at once, and a read leaves the frame as it is. So pages do
/// not come back with their contents. It is synchronous, so that the strategy `bypass` reads past the cache.
#[derive(Debug, Default)]
pub(super) struct Nothing {
    pub(super) slots: u64,
    /// What a read takes.
    pub(super) latency: Duration,
    /// The number of the CPU that read last.
    pub(super) reader: Arc<AtomicU64>,
}

impl<P: Platform> SwapDevice<P> for Nothing {
    fn kind(&self) -> &'static str {
        "nothing"
    }

    fn slots(&self) -> u64 {
        self.slots
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::SYNCHRONOUS
    }

    unsafe fn submit(&self, memory: DeviceMemory<'_, P>, io: PageIo) -> Submitted {
        if io.direction == Direction::Read && !self.latency.is_zero() {
            let cpu = memory.platform().pin().cpu();
            self.reader.store(cpu.index() as u64, Ordering::Release);
            std::thread::sleep(self.latency);
        }
        Submitted::Done(Ok(()))
    }
}
