//! Exclusivity of a large folio that is being written or was read ahead: processes that share it see nothing
//! of each other's writes.

use crate::common::*;
use quire_frame::AllocRequest;
use quire_frame::{FailAim, FailPlan, FailSite};
use quire_host::swap::{Completion, SlowConfig, SlowDevice};

const PAGES: u64 = MIB2 / PAGE;

/// A machine with 2 MiB folios, whose device completes when it is told to, or at once.
fn machine_of_sharers(late: bool) -> Machine {
    let policy = HugePolicy::MADVISE.with_sizes(OrderSet::PMD, SizeEnabled::Always);
    let machine = Setup::mib(32).reserve().overcommit().huge(policy).build();
    let disk = RamDisk::new(machine.memory().frames(), 2 * PAGES).unwrap();
    let options = SwapOnOptions::default();
    if late {
        let config = SlowConfig { completion: Completion::AfterReaps(1000), ..SlowConfig::default() };
        machine.memory().swapon(SlowDevice::new(disk, config), options).unwrap();
    } else {
        machine.memory().swapon(disk, options).unwrap();
    }
    machine
}

/// A space with one folio that was written to and is being paged out.
fn paged_out(machine: &Machine) -> (Vcpu, HostSpace<'_>, VirtAddr) {
    let (cpu, space, area) = filled(machine, PAGES, 100);
    space.madvise(area, MIB2, Advice::PageOut).unwrap();
    assert_eq!((space.figures().resident, space.figures().swapped), (0, MIB2));
    (cpu, space, area)
}

/// The folio is still marked exclusive, as it was when its last mapping was removed.
#[test]
fn a_folio_under_writeback_is_shared_after_fork() {
    for parent_writes in [false, true] {
        let machine = machine_of_sharers(true);
        let (cpu, space, area) = paged_out(&machine);
        let child = space.fork().unwrap();
        let (writer, other) = if parent_writes { (&space, &child) } else { (&child, &space) };
        // The writer has it mapped first.
        assert_eq!(read(&cpu, writer, page(area, 3)), 103);
        write(&cpu, writer, page(area, 3), 7);
        write(&cpu, writer, page(area, 4), 8);
        assert_filled(&cpu, other, area, 0..PAGES, 100);
        assert_eq!([3, 4].map(|at| read(&cpu, writer, page(area, at))), [7, 8]);
    }
}

/// A part that one process has alone does not make the rest exclusive.
#[test]
fn a_readahead_folio_is_partly_exclusive() {
    for first_reads in [false, true] {
        let machine = machine_of_sharers(false);
        let (cpu, space, area) = paged_out(&machine);
        space.madvise(area, MIB2, Advice::WillNeed).unwrap();
        // The child shares the upper half only.
        space.madvise(area, MIB2 / 2, Advice::DontFork).unwrap();
        let child = space.fork().unwrap();
        if first_reads {
            assert_eq!(read(&cpu, &child, page(area, 500)), 600);
        }
        // The parent's own part, then the other.
        write(&cpu, &space, page(area, 3), 7);
        assert_eq!(read(&cpu, &space, page(area, 300)), 400);
        write(&cpu, &space, page(area, 300), 8);
        write(&cpu, &space, page(area, 500), 9);
        assert_filled(&cpu, &child, area, 256..PAGES, 100);
        assert_eq!([3, 300, 500].map(|at| read(&cpu, &space, page(area, at))), [7, 8, 9]);
    }
}

/// No memory for words of their own: how often each slot is named is not known, only that some are.
#[test]
fn a_page_of_a_torn_cluster_is_shared_after_fork() {
    let machine = machine_of_sharers(false);
    let (cpu, space, area) = paged_out(&machine);
    let child = space.fork().unwrap();
    failing(&machine, FailPlan::every(1).at(FailAim::Site(FailSite::new("swap_table"))), || {
        space.munmap(area, PAGE).unwrap();
    });
    // The parent has it mapped first.
    assert_eq!(read(&cpu, &space, page(area, 3)), 103);
    write(&cpu, &space, page(area, 3), 7);
    write(&cpu, &space, page(area, 4), 8);
    assert_filled(&cpu, &child, area, 0..PAGES, 100);
    assert_eq!([3, 4].map(|at| read(&cpu, &space, page(area, at))), [7, 8]);
}

/// A page of a folio that was paged out whole needs words for its cluster. Where there is no memory for them
/// the fault fails like any other that gets none.
#[test]
fn a_page_without_memory_for_its_words_stays_out() {
    let machine = machine_of_sharers(false);
    let (cpu, space, area) = paged_out(&machine);
    space.madvise(area, MIB2, Advice::NoHugePage).unwrap();
    let refused =
        failing(&machine, FailPlan::every(1).at(FailAim::Site(FailSite::new("swap_table"))), || {
            cpu.program(&space).read_u64(page(area, 3))
        });
    assert!(matches!(refused, Err(AccessError::Fault(FaultError::OutOfMemory(_)))), "{refused:?}");
    assert_filled(&cpu, &space, area, 0..PAGES, 100);
}

/// Hazard: the words are allocated under a lock, from what is free at once. Where all of that is on lists of
/// CPUs the fault fails, or kills a program.
#[test]
fn memory_for_words_is_looked_for_on_the_lists_of_cpus_first() {
    let machine = machine_of_sharers(false);
    let (cpu, space, area) = paged_out(&machine);
    space.madvise(area, MIB2, Advice::NoHugePage).unwrap();
    let frames = machine.memory().frames();
    // More than the next request takes is on the lists.
    let request = AllocRequest::new(Order::ZERO, FailSite::new("test"));
    let pin = frames.platform().pin();
    let pages = [(); 64].map(|()| frames.allocate(&pin, request).unwrap());
    pages.into_iter().for_each(|page| frames.free(&pin, page, Order::ZERO).unwrap());
    drop(pin);
    frames.fail_points().set(FailPlan::nth(1).at(FailAim::Site(FailSite::new("swap_table"))));
    let seen = cpu.program(&space).read_u64(page(area, 3));
    frames.fail_points().set(FailPlan::OFF);
    assert_eq!(seen, Ok(103));
    assert_eq!(count(&machine, VmEvent::AllocstallDma32), 0);
    assert_filled(&cpu, &space, area, 0..PAGES, 100);
}

/// A fault keeps the folio that it swapped in locked while memory is found for a copy. The folio waits to be
/// split: the search for memory does not wait for its lock.
#[test]
fn a_copy_of_a_folio_that_waits_to_be_split_fails_without_memory() {
    const PAGES: u64 = 16;
    let machine: Machine = Setup::mib(16).reserve().folios(orders(&[4])).swap(64).build();
    let (cpu, space, area) = filled(&machine, PAGES, 100);
    let child = space.fork().unwrap();
    reclaim(&machine, 2, 64);
    assert_eq!(space.figures().swapped, PAGES * PAGE);
    // The child has the folio whole, and then a part of it. The parent names it still.
    assert_eq!(read(&cpu, &child, area), 100);
    assert_eq!(child.figures().swapped, 0);
    child.munmap(area, PAGE).unwrap();
    assert_eq!(waiting_to_split(&machine), 1);
    let refused = failing(&machine, FailPlan::every(1).at(FailAim::Site(FailSite::new("anonymous"))), || {
        cpu.program(&space).write_u64(page(area, 3), 7)
    });
    assert!(matches!(refused, Err(AccessError::Fault(FaultError::OutOfMemory(_)))), "{refused:?}");
    write(&cpu, &space, page(area, 3), 7);
    assert_filled(&cpu, &child, area, 1..PAGES, 100);
}
