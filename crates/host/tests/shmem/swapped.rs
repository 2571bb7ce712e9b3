//! Shared memory on swap devices.

use crate::common::*;
use crate::disk::{Disk, lock};
use crate::mapped::{in_memory, resident, shared};
use quire_fault::{Ahead, SwapIn};
use quire_frame::Kind;
use quire_memcg::Membership;
use quire_pageout::referenced;

const SHARED: MapFlags = MapFlags::SHARED;
const BUS: AccessError<FaultError> = AccessError::Fault(FaultError::Bus);

/// 64 pages of shared memory with their numbers, from 1 on.
fn with_pages(cpu: &Vcpu, space: &HostSpace<'_>) -> VirtAddr {
    let area = shared(space, 64);
    for at in 0..64 {
        write(cpu, space, page(area, at), at + 1);
    }
    area
}

fn words(cpu: &Vcpu, space: &HostSpace<'_>, area: VirtAddr) -> Vec<u64> {
    (0..64).map(|at| read(cpu, space, page(area, at))).collect()
}

fn numbers() -> Vec<u64> {
    (1..=64).collect()
}

/// The same in a file, all of it on a device, and where it is mapped.
fn paged_out_file<'m>(
    machine: &'m Machine,
    cpu: &Vcpu,
    space: &HostSpace<'_>,
) -> (File<'m, HostPlatform>, VirtAddr) {
    let file = machine.memory().create_shmem((), 64 * PAGE).unwrap();
    let area = space.mmap_file(&file_request(0, 64, RW, SHARED), &file).unwrap();
    (0..64).for_each(|at| write(cpu, space, page(area, at), at + 1));
    reclaim(machine, 4, 64);
    assert_eq!((file.figures().swapped, swapped(machine)), (64, 64));
    (file, area)
}

/// Pages that slots are used for.
fn swapped(machine: &Machine) -> u64 {
    let devices = machine.memory().swap().devices();
    devices.total_slots() - devices.free_slots()
}

#[test]
fn what_is_paged_out_comes_back_for_all_that_share_it() {
    let machine = swapping(32, 1, 256);
    let (cpu, space) = cpu_and_space(&machine);
    let area = with_pages(&cpu, &space);
    let child = space.fork().unwrap();
    reclaim(&machine, 4, 64);
    assert_eq!((machine.memory().file_totals().shmem, swapped(&machine)), (0, 64));
    assert_eq!((resident(&space), resident(&child)), ([0; 3], [0; 3]));
    assert_eq!(in_memory(&space, area, 64), [false; 64]);
    assert_audit(&machine);
    let majors = count(&machine, VmEvent::Pgmajfault);
    assert_eq!(words(&cpu, &child, area), numbers());
    assert_eq!(count(&machine, VmEvent::Pgmajfault) - majors, 64);
    write(&cpu, &child, page(area, 3), 100);
    assert_eq!(read(&cpu, &space, page(area, 3)), 100);
    assert_eq!((machine.memory().file_totals().shmem, swapped(&machine)), (64, 0));
    assert_eq!(count(&machine, VmEvent::Pgmajfault) - majors, 64, "it is there for the parent, too");
}

#[test]
fn a_program_pages_out_what_it_alone_maps() {
    let machine = swapping(32, 1, 256);
    let (cpu, space) = cpu_and_space(&machine);
    let area = with_pages(&cpu, &space);
    space.madvise(area, 32 * PAGE, Advice::PageOut).unwrap();
    assert_eq!((swapped(&machine), resident(&space)[2]), (32, 32));
    let child = space.fork().unwrap();
    read(&cpu, &child, page(area, 40));
    space.madvise(area, 64 * PAGE, Advice::PageOut).unwrap();
    assert!(in_memory(&space, area, 64)[40], "another program maps it");
    drop(child);
    assert_eq!(words(&cpu, &space, area), numbers());
}

#[test]
fn holes_and_truncation_free_slots() {
    let machine = swapping(32, 1, 256);
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = paged_out_file(&machine, &cpu, &space);
    // The pages at its ends are swapped in.
    file.punch(PAGE + 8..5 * PAGE + 16, |_| Ok(())).unwrap();
    assert_eq!((file.figures().swapped, file.figures().cached), (59, 2));
    file.set_size(60 * PAGE + 4).unwrap();
    assert_eq!((file.figures().swapped, file.figures().cached), (55, 3));
    assert_eq!(swapped(&machine), 55);
    assert_audit(&machine);
    file.set_size(64 * PAGE).unwrap();
    let mut left = numbers();
    left[2..6].fill(0);
    left[61..].fill(0);
    assert_eq!(words(&cpu, &space, area), left);
    assert_eq!(cpu.program(&space).read_u64(page(area, 1).checked_add(8).unwrap()).unwrap(), 0);
    file.set_size(0).unwrap();
    assert_eq!((file.figures().swapped, file.figures().cached, swapped(&machine)), (0, 0, 0));
}

#[test]
fn calls_read_and_write_what_is_swapped_out() {
    let machine = swapping(32, 1, 256);
    let (cpu, space) = cpu_and_space(&machine);
    let (file, area) = paged_out_file(&machine, &cpu, &space);
    assert_eq!(read_file(&file, 7 * PAGE, 8), 8_u64.to_le_bytes());
    write_file(&file, 9 * PAGE + 8, &[1; 8]);
    write_file(&file, 11 * PAGE, &[0; PAGE as usize]);
    assert_eq!(file.figures().swapped, 61);
    let mut wanted = numbers();
    wanted[11] = 0;
    assert_eq!(words(&cpu, &space, area), wanted);
}

#[test]
fn advice_reads_swapped_pages_into_the_swap_cache_and_makes_no_others() {
    let machine = swapping(32, 1, 256);
    let (cpu, space) = cpu_and_space(&machine);
    let area = shared(&space, 64);
    for at in 0..32 {
        write(&cpu, &space, page(area, at), at + 1);
    }
    reclaim(&machine, 4, 64);
    space.madvise(page(area, 8), 56 * PAGE, Advice::WillNeed).unwrap();
    reap(&machine, 64);
    let wanted: Vec<_> = (0..64).map(|at| (8..32).contains(&at)).collect();
    assert_eq!(in_memory(&space, area, 64), wanted);
    assert_eq!((swapped(&machine), machine.memory().file_totals().shmem), (32, 0));
    assert_audit(&machine);
    let majors = count(&machine, VmEvent::Pgmajfault);
    for at in 0..32 {
        assert_eq!(read(&cpu, &space, page(area, at)), at + 1);
    }
    assert_eq!(count(&machine, VmEvent::Pgmajfault) - majors, 8);
    assert_eq!(swapped(&machine), 0);
}

#[test]
fn the_last_mapping_frees_what_is_swapped_out() {
    let machine = swapping(32, 1, 256);
    let (cpu, space) = cpu_and_space(&machine);
    let area = with_pages(&cpu, &space);
    reclaim(&machine, 4, 64);
    space.munmap(area, 32 * PAGE).unwrap();
    assert_eq!(swapped(&machine), 64);
    space.munmap(page(area, 32), 32 * PAGE).unwrap();
    assert_eq!(swapped(&machine), 0);
}

#[test]
fn swapoff_brings_shared_memory_back_and_says_what_is_lost() {
    let machine = machine(32, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = with_pages(&cpu, &space);
    let (disk, medium) = Disk::new(256);
    let id = swap_on(&machine, disk);
    reclaim(&machine, 4, 64);
    assert_eq!(swapped(&machine), 64);
    let bad = lock(&medium).stored()[5];
    lock(&medium).bad_slots.insert(bad);
    machine.memory().swapoff(id, || true).unwrap();
    assert_audit(&machine);
    let results: Vec<_> = (0..64).map(|at| cpu.program(&space).read_u64(page(area, at))).collect();
    let lost: Vec<_> = results.iter().filter(|result| **result == Err(BUS)).collect();
    assert_eq!(lost.len(), 1);
    let found = results.iter().zip(1..).filter(|(result, at)| **result == Ok(*at)).count();
    assert_eq!(found, 63);
    assert_audit(&machine);
}

#[test]
fn a_page_that_cannot_be_read_is_a_bus_error_until_it_can() {
    let machine = machine(32, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = with_pages(&cpu, &space);
    let (disk, medium) = Disk::new(256);
    swap_on(&machine, disk);
    lock(&medium).unwritable = true;
    reclaim(&machine, 4, 64);
    assert_eq!(words(&cpu, &space, area), numbers(), "what cannot be written stays");
    assert_audit(&machine);
    lock(&medium).unwritable = false;
    reclaim(&machine, 6, 64);
    lock(&medium).unreadable = true;
    assert_eq!(cpu.program(&space).read_u64(area), Err(BUS));
    assert_audit(&machine);
    lock(&medium).unreadable = false;
    assert_eq!(words(&cpu, &space, area), numbers());
}

#[test]
fn a_memcg_pages_out_the_shared_memory_that_it_pays_for() {
    let machine = swapping(32, 1, 512);
    let group = memcg(&machine, "group", &[]);
    let cpu = machine.vcpu(0).unwrap();
    let space = space_in(&machine, group);
    set_limit(&machine, group, Limit::Max, 40);
    let area = with_pages(&cpu, &space);
    for round in 0..3 {
        assert_eq!(words(&cpu, &space, area), numbers(), "round {round}");
        let (in_memory, out) = (usage(&machine, group), swap_usage(&machine, group));
        assert!(in_memory <= 40 && out >= 24, "{in_memory} {out}");
    }
    assert_audit(&machine);
}

/// A fork per client, all of them using the same buffers, with less memory than these need.
#[test]
fn programs_that_share_more_than_there_is_room_for_see_what_each_wrote() {
    let machine: Machine = Setup::mib(8).cpus(2).reserve().build();
    swap_on(&machine, Disk::new(4096).0);
    let (cpu, space) = cpu_and_space(&machine);
    const PAGES: u64 = 2500;
    let area = shared(&space, PAGES);
    let children: Vec<_> = (0..2).map(|_| space.fork().unwrap()).collect();
    drop(cpu);
    for round in 1..4 {
        on_cpus(&machine, 2, |number, cpu| {
            for at in (number as u64..PAGES).step_by(2) {
                write(cpu, &children[number], page(area, at), round * PAGES + at);
            }
        });
        on_cpus(&machine, 2, |number, cpu| {
            for at in (1 - number as u64..PAGES).step_by(2) {
                assert_eq!(read(cpu, &children[number], page(area, at)), round * PAGES + at);
            }
        });
    }
    assert!(swapped(&machine) > 0);
    drop(children);
}

/// A thread has seen entries of private memory that name 16 slots in a row. These were freed, and given to
/// shared memory, before it reads them in one folio.
#[test]
fn a_large_folio_over_its_slots_does_not_hide_a_page() {
    let machine = swapping(32, 1, 512);
    let (cpu, space) = cpu_and_space(&machine);
    let area = with_pages(&cpu, &space);
    reclaim(&machine, 4, 64);
    let membership = Membership::default();
    let swap_in = SwapIn::new(machine.memory().spaces().memory(), &membership);
    let device = DeviceId::new(0).unwrap();
    for first in [0, 16] {
        let begun = swap_in.begin_ahead(SlotId::new(device, first), orders(&[4]), Ahead::Wanted);
        assert_eq!(begun, Ok(16));
    }
    for at in 0..16 {
        assert_eq!(read(&cpu, &space, page(area, at)), at + 1);
    }
    assert_audit(&machine);
    machine.memory().swapoff(device, || true).unwrap();
    assert_eq!(words(&cpu, &space, area), numbers());
    assert_eq!(machine.memory().file_totals().shmem, 64);
}

/// Reclaim takes shared memory that was used often back to the inactive list, and looks at its mappings
/// without having its lock.
#[test]
fn active_folios_are_deactivated() {
    let machine = swapping(32, 1, 512);
    let (cpu, space) = cpu_and_space(&machine);
    let area = with_pages(&cpu, &space);
    let folios = machine.memory().memcgs().folios();
    folios.take_in(None);
    let mut heads = Vec::new();
    machine.memory().frames().audit().for_each_frame(|head, frame| {
        if frame.kind() == Kind::Shmem {
            heads.push(head);
        }
    });
    let pin = machine.memory().platform().pin();
    assert!(heads.into_iter().all(|head| folios.activate(&pin, head)));
    drop(pin);
    let before = count(&machine, VmEvent::Pgdeactivate);
    reclaim(&machine, 4, 64);
    assert!(count(&machine, VmEvent::Pgdeactivate) > before);
    assert_eq!(words(&cpu, &space, area), numbers());
}

#[test]
fn the_lock_of_another_folio_is_none() {
    let machine = machine(16, 1);
    let (cpu, space) = cpu_and_space(&machine);
    let area = shared(&space, 2);
    let [first, second] = [0, 1].map(|at| {
        write(&cpu, &space, page(area, at), 1);
        space.pin_page(page(area, at), Access::Read).unwrap().pfn()
    });
    let folios = machine.memory().frames().folios();
    let (lock, other) = (folios.lock_folio(first).unwrap(), folios.lock_folio(second).unwrap());
    let rmap = || machine.memory().spaces().rmap();
    assert!(referenced(rmap(), first, None).is_none());
    assert!(referenced(rmap(), first, Some(&other)).is_none());
    assert!(referenced(rmap(), first, Some(&lock)).is_some_and(|found| found.mappings == 1));
    drop(lock);
    assert!(referenced(rmap(), first, Some(&other)).is_some_and(|found| found.mappings == 0));
}
