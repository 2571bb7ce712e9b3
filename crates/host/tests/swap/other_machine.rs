//! Swap devices that are in the RAM of another machine, where other owners have the frames of their numbers.

use crate::common::*;
use crate::disk::Disk;
use crate::watched::Watched;
use quire_host::swap::{FileDevice, FileDeviceOptions, SlowConfig, SlowDevice};

const PAGES: u64 = 8;
const SLOTS: u64 = 64;
/// What a compressed cache may take: all pages, or none of them.
const LIMITS: [u64; 2] = [1 << 20, 0];

type HostMemory = Memory<HostPlatform>;

fn small() -> Machine {
    Setup::mib(16).unaudited().build()
}

/// Maps pages with a value each, and calls `change` with the program, which keeps them.
fn with_pages(machine: &Machine, change: impl FnOnce(&HostSpace<'_>)) {
    let (cpu, space) = cpu_and_space(machine);
    let area = map_at(&space, GIB, PAGES * PAGE, RW);
    fill(&cpu, &space, area, 0..PAGES, 100);
    change(&space);
    assert_filled(&cpu, &space, area, 0..PAGES, 100);
}

fn page_out(space: &HostSpace<'_>) {
    space.madvise(VirtAddr(GIB), PAGES * PAGE, Advice::PageOut).unwrap();
}

/// Asserts that a machine refuses the device that `make` makes of its memory and that of another one.
fn assert_refused<D: SwapDevice<HostPlatform>>(make: impl FnOnce(&HostMemory, &HostMemory) -> D) {
    let (machine, other) = (small(), small());
    let memory = machine.memory();
    with_pages(&machine, |space| {
        let state = || {
            (
                in_use(&machine),
                memory.swap().devices().reports().count(),
                memory.swap().devices().total_slots(),
            )
        };
        let before = state();
        let device = make(memory, other.memory());
        assert_eq!(memory.swapon(device, SwapOnOptions::default()), Err(SwapOnError::OtherMachine));
        assert_eq!(state(), before, "what it has of this machine is freed, and nothing else changed");
        page_out(space);
        assert_eq!(space.figures().swapped, 0, "there is no device");
        // Its number is free.
        let id = swap_on_ram(&machine, SLOTS);
        assert_eq!(Some(id), DeviceId::new(0));
        page_out(space);
        assert_eq!(space.figures().swapped, PAGES * PAGE);
    });
    memory.swapoff(DeviceId::new(0).unwrap(), || true).unwrap();
    assert_audit(&machine);
    assert_audit(&other);
}

#[test]
fn a_ram_disk_of_another_machine_is_refused() {
    assert_refused(|_, other| other.create_ram_disk(SLOTS).unwrap());
    assert_refused(|_, other| RamDisk::preallocated(other.frames(), SLOTS).unwrap());
}

#[test]
fn compressed_ram_of_another_machine_is_refused() {
    assert_refused(|_, other| other.create_compressed_ram(SLOTS).unwrap());
}

#[test]
fn a_compressed_cache_of_another_machine_is_refused() {
    for limit in LIMITS {
        assert_refused(|_, other| other.create_compressed_cache(Disk::new(SLOTS).0, limit).unwrap());
    }
}

#[test]
fn a_device_behind_that_is_of_another_machine_is_refused() {
    for limit in LIMITS {
        assert_refused(|own, other| {
            own.create_compressed_cache(other.create_ram_disk(SLOTS).unwrap(), limit).unwrap()
        });
        assert_refused(|own, other| {
            other.create_compressed_cache(own.create_ram_disk(SLOTS).unwrap(), limit).unwrap()
        });
        assert_refused(|own, other| {
            let inner = other.create_compressed_cache(Disk::new(SLOTS).0, limit).unwrap();
            own.create_compressed_cache(SlowDevice::new(inner, SlowConfig::default()), limit).unwrap()
        });
    }
    let slow = SlowConfig::default();
    assert_refused(|_, other| SlowDevice::new(other.create_compressed_ram(SLOTS).unwrap(), slow));
}

/// It transfers to and from the RAM of the machine that it was opened for.
#[test]
fn a_file_device_of_another_machine_is_refused() {
    assert_refused(|_, other| {
        FileDevice::temporary(other.platform(), SLOTS + 1, FileDeviceOptions::default()).unwrap()
    });
}

/// A device that does not ask the one behind it.
fn unaware<D: SwapDevice<HostPlatform>>(device: D) -> Watched<(), D> {
    Watched::in_front_of(device, ())
}

/// Asserts that such a device, which `make` makes of this and of another machine's memory, takes no page.
fn assert_takes_nothing<D: SwapDevice<HostPlatform>>(make: impl FnOnce(&HostMemory, &HostMemory) -> D) {
    let (machine, other) = (small(), small());
    let device = unaware(make(machine.memory(), other.memory()));
    let id = swap_on(&machine, device);
    with_pages(&machine, page_out);
    machine.memory().swapoff(id, || true).unwrap();
    assert_audit(&machine);
    assert_audit(&other);
}

/// Hazard: a page is lost on a device of another machine that was not refused, since no read finds it there.
#[test]
fn a_device_of_another_machine_takes_no_page() {
    assert_takes_nothing(|_, other| other.create_ram_disk(SLOTS).unwrap());
    assert_takes_nothing(|_, other| other.create_compressed_ram(SLOTS).unwrap());
    for limit in LIMITS {
        assert_takes_nothing(|_, other| other.create_compressed_cache(Disk::new(SLOTS).0, limit).unwrap());
        assert_takes_nothing(|own, other| {
            let behind = unaware(other.create_ram_disk(SLOTS).unwrap());
            own.create_compressed_cache(behind, limit).unwrap()
        });
    }
}
