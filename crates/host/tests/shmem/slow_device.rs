//! Shared memory on swap devices that take their time: it is used again while it is being written.

use crate::common::*;
use crate::disk::{Disk, lock};
use crate::mapped::shared;
use quire_host::swap::{Completion, SlowConfig, SlowDevice};

const SHARED: MapFlags = MapFlags::SHARED;

fn filled(cpu: &Vcpu, space: &HostSpace<'_>, area: VirtAddr, pages: u64) {
    (0..pages).for_each(|at| write(cpu, space, page(area, at), at + 1));
}

fn assert_filled(cpu: &Vcpu, space: &HostSpace<'_>, area: VirtAddr, pages: u64) {
    (0..pages).for_each(|at| assert_eq!(read(cpu, space, page(area, at)), at + 1, "page {at}"));
}

#[test]
fn what_was_written_leaves_memory_and_comes_back() {
    let machine: Machine = Setup::mib(32).build();
    let (cpu, space) = cpu_and_space(&machine);
    swap_on_slow_ram(&machine, 64, SlowConfig::default());
    let area = shared(&space, 16);
    for _ in 0..3 {
        filled(&cpu, &space, area, 16);
        reclaim(&machine, 3, 64);
        reap(&machine, 8);
        reclaim(&machine, 3, 64);
        assert_eq!(machine.memory().swap().devices().cached_pages(), 0, "all writes have ended");
        assert_eq!(machine.memory().file_totals().shmem, 0);
        assert_audit(&machine);
        assert_filled(&cpu, &space, area, 16);
    }
    space.munmap(area, 16 * PAGE).unwrap();
    reap(&machine, 8);
    reclaim(&machine, 1, 64);
    assert_eq!(free_slots(&machine), 64);
}

#[test]
fn a_compressed_cache_in_front_of_a_slow_device_changes_nothing() {
    let machine: Machine = Setup::mib(32).build();
    let slow = SlowDevice::new(Disk::new(256).0, SlowConfig::default());
    swap_on(&machine, machine.memory().create_compressed_cache(slow, 16 * PAGE).unwrap());
    let (cpu, space) = cpu_and_space(&machine);
    let area = shared(&space, 64);
    filled(&cpu, &space, area, 64);
    for _ in 0..3 {
        reclaim(&machine, 4, 64);
        reap(&machine, 20);
        assert_filled(&cpu, &space, area, 64);
        assert_audit(&machine);
    }
}

/// 8 pages that a device is still writing, and the file has again.
fn being_written<'m>(machine: &'m Machine, cpu: &Vcpu) -> (HostSpace<'m>, File<'m, HostPlatform>, VirtAddr) {
    let config = SlowConfig { completion: Completion::WhenTold, ..SlowConfig::default() };
    swap_on_slow_ram(machine, 256, config);
    let space = create_space(machine);
    let file = machine.memory().create_shmem((), 8 * PAGE).unwrap();
    let area = space.mmap_file(&file_request(0, 8, RW, SHARED), &file).unwrap();
    filled(cpu, &space, area, 8);
    space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(file.figures().swapped, 8);
    assert_filled(cpu, &space, area, 8);
    assert_eq!((file.figures().cached, free_slots(machine)), (8, 248));
    (space, file, area)
}

#[test]
fn truncation_and_holes_do_not_wait_for_a_swap_device() {
    let machine: Machine = Setup::mib(32).unaudited().build();
    let cpu = machine.vcpu(0).unwrap();
    let (space, file, area) = being_written(&machine, &cpu);
    file.punch(10..20, |_| Ok(())).unwrap();
    file.set_size(2 * PAGE + 10).unwrap();
    file.set_size(8 * PAGE).unwrap();
    for at in 2..8 {
        assert_eq!(read(&cpu, &space, page(area, at)), if at == 2 { 3 } else { 0 });
    }
    file.set_size(0).unwrap();
    assert_eq!(machine.memory().file_totals().shmem, 0);
    assert_audit(&machine);
}

#[test]
fn a_private_copy_of_a_pinned_page_does_not_wait_for_a_swap_device() {
    let machine: Machine = Setup::mib(32).unaudited().build();
    let cpu = machine.vcpu(0).unwrap();
    let (space, file, area) = being_written(&machine, &cpu);
    let private = space.mmap_file(&file_request(0, 8, RW, MapFlags::empty()), &file).unwrap();
    assert_eq!(read(&cpu, &space, private), 1);
    let pinned = space.pin_page(area, Access::Write).unwrap();
    write(&cpu, &space, private, 99);
    assert_eq!((read(&cpu, &space, private), read(&cpu, &space, area)), (99, 1));
    drop(pinned);
    assert_audit(&machine);
}

#[test]
fn what_a_device_refuses_stays_a_page_of_its_memcg() {
    let machine: Machine = Setup::mib(32).build();
    let (cpu, _, space) = in_memcg(&machine, "group", &[]);
    let (disk, medium) = Disk::new(256);
    swap_on(&machine, disk);
    let area = shared(&space, 16);
    filled(&cpu, &space, area, 16);
    lock(&medium).unwritable = true;
    reclaim(&machine, 4, 64);
    assert_audit(&machine);
    lock(&medium).unwritable = false;
    assert_filled(&cpu, &space, area, 16);
    assert_audit(&machine);
}
