//! Pages that leave memory and come back.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{
    GIB, PAGE, RW, anonymous_frames, assert_audit, assert_filled, count, fill, machine, map_at, page, read,
    swap_on_ram, write,
};
use quire_host::swap::{SlowConfig, SlowDevice};
use quire_host::{HostConfig, Machine};
use quire_mm::{Advice, CompressedRam, Lz4, MemoryConfig, Overcommit, RamDisk, SwapOnOptions, VmEvent};

fn overcommitted(mib: u64) -> Machine {
    let config = MemoryConfig { overcommit: Overcommit::Always, ..MemoryConfig::default() };
    Machine::new(&HostConfig::with_ram(mib << 20).cpus(1).paranoid(), config).unwrap()
}

fn compressed(machine: &Machine, slots: u64) -> quire_mm::DeviceId {
    let disk = CompressedRam::new(machine.memory().frames(), slots, Lz4).unwrap();
    machine.memory().swapon(disk, SwapOnOptions::default()).unwrap()
}

#[test]
fn a_page_that_is_paged_out_comes_back_as_it_was() {
    let machine = machine(16, 1);
    swap_on_ram(&machine, 1024);
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let area = map_at(&space, GIB, 8 * PAGE, RW);
    fill(&cpu, &space, area, 8, 100);
    space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().resident, 0, "all is out");
    assert_eq!(space.figures().swapped, 8 * PAGE);
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, 8, 100);
    assert_eq!(space.figures().swapped, 0);
    assert_eq!((count(&machine, VmEvent::Pswpout), count(&machine, VmEvent::Pswpin)), (8, 8));
    assert_eq!(count(&machine, VmEvent::Pgmajfault), 8);
    assert_audit(&machine);
    drop(space);
    assert_eq!(machine.memory().swap().free_slots(), 1024);
    assert_audit(&machine);
}

#[test]
fn a_program_larger_than_memory_keeps_what_it_wrote() {
    let machine = overcommitted(16);
    compressed(&machine, 16 << 10);
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let pages = 8 << 10;
    let area = map_at(&space, GIB, pages * PAGE, RW);
    for round in 0..3 {
        for at in 0..pages {
            if round > 0 {
                assert_eq!(read(&cpu, &space, page(area, at)), (round - 1) << 32 | at, "page {at}");
            }
            write(&cpu, &space, page(area, at), round << 32 | at);
        }
        assert_audit(&machine);
    }
    assert!(count(&machine, VmEvent::Pswpout) > pages);
    drop(space);
    assert_audit(&machine);
}

#[test]
fn both_sides_of_a_fork_keep_what_is_paged_out() {
    let machine = machine(16, 1);
    swap_on_ram(&machine, 1024);
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let area = map_at(&space, GIB, 8 * PAGE, RW);
    fill(&cpu, &space, area, 8, 100);
    space.madvise(area, 4 * PAGE, Advice::PageOut).unwrap();
    let child = space.fork().unwrap();
    assert_audit(&machine);
    for at in 0..8 {
        write(&cpu, &child, page(area, at), 200 + at);
        assert_eq!(read(&cpu, &space, page(area, at)), 100 + at);
    }
    assert_audit(&machine);
    machine.memory().swapoff(quire_mm::DeviceId::new(0).unwrap(), || true).unwrap();
    assert_filled(&cpu, &child, area, 8, 200);
    assert_filled(&cpu, &space, area, 8, 100);
    assert_audit(&machine);
}

#[test]
fn swapoff_brings_everything_back() {
    let machine = machine(16, 1);
    let id = compressed(&machine, 1024);
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let area = map_at(&space, GIB, 512 * PAGE, RW);
    fill(&cpu, &space, area, 512, 100);
    space.madvise(area, 512 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, 512 * PAGE);
    machine.memory().swapoff(id, || true).unwrap();
    assert_eq!(space.figures().swapped, 0);
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, 512, 100);
}

/// A device that answers late, with a program that reads in order.
#[test]
fn pages_are_read_ahead_from_a_device_that_answers_late() {
    let machine = overcommitted(16);
    let disk = RamDisk::new(machine.memory().frames(), 1024).unwrap();
    let slow = SlowDevice::new(disk, SlowConfig::default());
    machine.memory().swapon(slow, SwapOnOptions::default()).unwrap();
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let area = map_at(&space, GIB, 256 * PAGE, RW);
    fill(&cpu, &space, area, 256, 100);
    space.madvise(area, 256 * PAGE, Advice::PageOut).unwrap();
    // Written, they go with the next pass.
    for _ in 0..3 {
        machine.memory().swap().reap();
        machine.memory().reclaim(quire_mm::GroupId::ROOT, 256);
    }
    assert_eq!(anonymous_frames(&machine), 0);
    assert_eq!(space.figures().swapped, 256 * PAGE);
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, 256, 100);
    let (ahead, hits) = (count(&machine, VmEvent::SwapRa), count(&machine, VmEvent::SwapRaHit));
    assert!(hits > 128 && ahead >= hits, "{ahead} read ahead, {hits} of them used");
    machine.memory().swap().reap();
    assert_audit(&machine);
    drop(space);
    machine.memory().swap().reap();
    machine.memory().reclaim(quire_mm::GroupId::ROOT, 1024);
    assert_eq!(machine.memory().swap().free_slots(), 1024);
    assert_audit(&machine);
}

/// A page whose contents nobody needs has those that were written last, or zeros, but never what a device has from before.
#[test]
fn a_freed_page_never_holds_what_a_device_got_before() {
    let machine = overcommitted(16);
    let disk = RamDisk::new(machine.memory().frames(), 64).unwrap();
    let slow = SlowDevice::new(disk, SlowConfig::default());
    machine.memory().swapon(slow, SwapOnOptions::default()).unwrap();
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let area = map_at(&space, GIB, PAGE, RW);
    write(&cpu, &space, area, 1);
    space.madvise(area, PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().resident, 0);
    // As long as the device is at it the folio stays in the cache, whoever maps it; and the device gets this.
    assert_eq!(read(&cpu, &space, area), 1);
    (0..2).for_each(|_| machine.memory().swap().reap());
    write(&cpu, &space, area, 2);
    space.madvise(area, PAGE, Advice::Free).unwrap();
    for _ in 0..3 {
        machine.memory().reclaim(quire_mm::GroupId::ROOT, 64);
        machine.memory().swap().reap();
    }
    assert_eq!(space.figures().resident, 0);
    let found = read(&cpu, &space, area);
    assert!(found == 2 || found == 0, "{found} was overwritten");
    assert_audit(&machine);
}

/// That a page was out before is no reason to write it again once nobody needs it.
#[test]
fn a_freed_page_that_was_out_before_goes_without_the_device() {
    let machine = overcommitted(16);
    swap_on_ram(&machine, 64);
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let area = map_at(&space, GIB, 8 * PAGE, RW);
    (0..8).for_each(|at| write(&cpu, &space, page(area, at), 100 + at));
    space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
    (0..8).for_each(|at| write(&cpu, &space, page(area, at), 200 + at));
    space.madvise(area, 8 * PAGE, Advice::Free).unwrap();
    write(&cpu, &space, area, 300);
    machine.memory().reclaim(quire_mm::GroupId::ROOT, 64);
    machine.memory().reclaim(quire_mm::GroupId::ROOT, 64);
    assert_eq!((count(&machine, VmEvent::Pglazyfreed), count(&machine, VmEvent::Pswpout)), (7, 9));
    assert_eq!(read(&cpu, &space, area), 300);
    (1..8).for_each(|at| assert_eq!(read(&cpu, &space, page(area, at)), 0));
    assert_audit(&machine);
}

/// What has been written is the next to go, and what is being written is in nobody's way.
#[test]
fn pages_go_as_soon_as_they_are_written() {
    let machine = overcommitted(16);
    let disk = RamDisk::new(machine.memory().frames(), 1024).unwrap();
    let slow = SlowDevice::new(disk, SlowConfig::default());
    machine.memory().swapon(slow, SwapOnOptions::default()).unwrap();
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let area = map_at(&space, GIB, 128 * PAGE, RW);
    (0..128).for_each(|at| write(&cpu, &space, page(area, at), 100 + at));
    // All are on their list now. The others are older, and were not used either.
    machine.memory().reclaim(quire_mm::GroupId::ROOT, 0);
    space.madvise(page(area, 8), 120 * PAGE, Advice::Cold).unwrap();
    space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
    assert_eq!((count(&machine, VmEvent::Pswpout), anonymous_frames(&machine)), (8, 128));
    (0..2).for_each(|_| machine.memory().swap().reap());
    assert_eq!(machine.memory().reclaim(quire_mm::GroupId::ROOT, 8), 8);
    // Reclaim takes a handful of 32 at a time: these and 24 others, whose writing begins.
    assert_eq!((count(&machine, VmEvent::Pswpout), anonymous_frames(&machine)), (32, 120));
    (0..128).for_each(|at| assert_eq!(read(&cpu, &space, page(area, at)), 100 + at));
    assert_audit(&machine);
}

/// With nowhere to go but for what has a slot already, reclaim passes over the rest: that grows no younger by it.
#[test]
fn what_is_passed_over_while_the_device_is_full_goes_in_its_turn() {
    let machine = overcommitted(16);
    swap_on_ram(&machine, 32);
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let area = map_at(&space, GIB, 256 * PAGE, RW);
    fill(&cpu, &space, area, 256, 100);
    space.madvise(area, 256 * PAGE, Advice::Cold).unwrap();
    let goes = |from: u64| {
        machine.memory().reclaim(quire_mm::GroupId::ROOT, 32);
        let mut there = Vec::new();
        space.mincore(page(area, from), 64 * PAGE, |is| there.push(is)).unwrap();
        assert!(there.iter().enumerate().all(|(at, &is)| is == (at >= 32)), "from {from}: {there:?}");
    };
    goes(0);
    assert_eq!(machine.memory().swap().free_slots(), 0);
    assert_eq!(machine.memory().reclaim(quire_mm::GroupId::ROOT, 32), 0);
    space.munmap(area, 32 * PAGE).unwrap();
    goes(32);
    assert_filled(&cpu, &space, page(area, 32), 224, 132);
    assert_audit(&machine);
}
