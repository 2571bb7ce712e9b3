//! Swap devices of a machine.

use super::*;
#[cfg(not(shuttle))]
use quire_host::swap::{SlowConfig, SlowDevice};

/// Adds `device` as swap.
pub(crate) fn swap_on<F: PagingFormat>(
    machine: &Machine<F>,
    device: impl SwapDevice<HostPlatform<F>>,
) -> DeviceId {
    machine.memory().swapon(device, SwapOnOptions::default()).expect("there is memory enough")
}

/// Adds a RAM disk of `slots` slots as swap.
pub(crate) fn swap_on_ram<F: PagingFormat>(machine: &Machine<F>, slots: u64) -> DeviceId {
    swap_on(machine, RamDisk::new(machine.memory().frames(), slots).expect("there is memory enough"))
}

/// The same, slow as `config` says.
#[cfg(not(shuttle))]
pub(crate) fn swap_on_slow_ram(machine: &Machine, slots: u64, config: SlowConfig) -> DeviceId {
    let disk = RamDisk::new(machine.memory().frames(), slots).expect("there is memory enough");
    swap_on(machine, SlowDevice::new(disk, config))
}

/// Looks `times` times at what the devices have done.
pub(crate) fn reap(machine: &Machine, times: usize) {
    (0..times).for_each(|_| machine.memory().swap().io().reap());
}

/// Slots that are free.
pub(crate) fn free_slots(machine: &Machine) -> u64 {
    machine.memory().swap().devices().free_slots()
}

/// Reclaims `pages` pages `times` times. Those that were used go at the second or third time only.
pub(crate) fn reclaim(machine: &Machine, times: usize, pages: u64) {
    (0..times).for_each(|_| _ = machine.memory().reclaim(MemcgId::ROOT, pages));
}
