//! Large folios against the calls, at the borders where other memory managers had bugs.

use crate::common::*;
use quire_arch::paging::invented::Invented3;
use quire_frame::FrameChain;

/// A machine where private pages come in folios of these orders wherever they fit.
fn machine_of_orders<F: PagingFormat>(mib: u64, cpus: usize, sizes: &[u8]) -> Machine<F> {
    Setup::mib(mib).cpus(cpus).folios(orders(sizes)).build()
}

/// Hazard: an exclusive mark is relied on after the fork. A folio that is PROT_NONE at the fork becomes
/// shared all the same.
#[test]
fn a_prot_none_folio_is_shared_by_fork_like_any_other() {
    for order in [9, 4] {
        let machine: Machine = machine_of_orders(32, 1, &[order]);
        let (cpu, space, area) = mapped(&machine, GIB, MIB2);
        write(&cpu, &space, area, 1);
        space.mprotect(area, MIB2, NONE, false).unwrap();
        let child = space.fork().unwrap();
        for space in [&space, &child] {
            space.mprotect(area, MIB2, RW, false).unwrap();
        }
        write(&cpu, &child, area, 2);
        assert_eq!((read(&cpu, &space, area), read(&cpu, &child, area)), (1, 2), "order {order}");
    }
}

/// Hazard: a run that is noted after the gather was full. A PMD leaf that others map too, behind more shared
/// pages than are noted, is made not-present first and taken out after the flush; its count falls then.
#[test]
fn a_shared_leaf_behind_a_full_gather_loses_its_count() {
    let machine: Machine = machine_of_orders(32, 1, &[9]);
    let (cpu, space) = cpu_and_space(&machine);
    // Small pages first: the mapping begins within a table, and the page before it keeps that table.
    let small = map_at(&space, GIB + PAGE, MIB2 - PAGE, RW);
    let large = map_at(&space, GIB + MIB2, MIB2, RW);
    fill(&cpu, &space, small, 0..511, 0);
    write(&cpu, &space, large, 1);
    let child = space.fork().unwrap();
    child.munmap(page(small, 1), 510 * PAGE + MIB2).unwrap();
    assert_audit(&machine);
    assert_eq!(read(&cpu, &space, large), 1);
    write(&cpu, &space, large, 2);
}

/// A format whose tables are smaller than the largest folio: a folio never reaches over the end of a table.
#[test]
fn no_folio_is_larger_than_a_table_of_the_format() {
    for orders in [&[2, 3, 4, 5, 6, 7, 8, 9][..], &[7], &[9], &[8, 5]] {
        let machine: Machine<Invented3> = machine_of_orders(32, 1, orders);
        let (cpu, space, area) = mapped(&machine, GIB, 2048 * PAGE);
        for at in [70, 0, 1024, 2047] {
            write(&cpu, &space, page(area, at), at + 1);
            assert_audit(&machine);
        }
        let child = space.fork().unwrap();
        for at in [70, 0, 1024, 2047] {
            assert_eq!(read(&cpu, &child, page(area, at)), at + 1);
            write(&cpu, &child, page(area, at), 5);
            assert_eq!(read(&cpu, &space, page(area, at)), at + 1);
        }
    }
}

/// Hazard: a pinned page stays what the program sees, also where its folio is half shared.
#[test]
fn a_pinned_page_of_a_half_shared_folio_stays_the_programs_own() {
    let machine: Machine = machine_of_orders(32, 1, &[4]);
    let (cpu, space, area) = mapped(&machine, GIB, 16 * PAGE);
    write(&cpu, &space, area, 1);
    space.madvise(area, 8 * PAGE, Advice::DontFork).unwrap();
    let child = space.fork().unwrap();
    let pinned = space.pin_page(area, Access::Write).unwrap();
    space.mprotect(area, 8 * PAGE, READ, false).unwrap();
    space.mprotect(area, 8 * PAGE, RW, false).unwrap();
    write(&cpu, &space, area, 7);
    assert_eq!(device_reads(&machine, &pinned), 7, "the program and its device see the same page");
    drop(pinned);
    drop(child);
}

/// An rmap walk ends when all maps of a folio are found: one leaf counts for all pages.
#[test]
fn a_walk_ends_at_the_leaf_that_maps_the_whole_folio() {
    let machine: Machine = machine_of_orders(32, 1, &[9]);
    let (cpu, space, area) = mapped(&machine, GIB, MIB2);
    write(&cpu, &space, area, 1);
    let pinned = space.pin_page(area, Access::Read).unwrap();
    let head = pinned.pfn();
    drop(pinned);
    let child = space.fork().unwrap();
    // Its own copy of every page: the folio is the parent's alone, but the child's mapping could map it.
    child.madvise(area, MIB2, Advice::DontNeed).unwrap();
    let mut places = 0;
    let looked_at = machine.memory().spaces().rmap().for_each_map(head, |_, _| places += 1);
    assert_eq!((places, looked_at), (1, 1));
}

/// A page with the largest count of pins: one more pin fails, instead of being retried for ever. A fork,
/// which needs a reference for its copy of the page, still succeeds.
#[test]
fn one_pin_too_many_fails() {
    let machine: Machine = machine_of_orders(32, 1, &[9]);
    let (cpu, space, small) = mapped(&machine, GIB - PAGE, PAGE);
    let large = map_at(&space, GIB, MIB2, RW);
    for addr in [small, large] {
        write(&cpu, &space, addr, 1);
        let pinned = space.pin_page(addr, Access::Write).unwrap();
        let frames = machine.memory().frames();
        let mut pins = 0;
        while frames.folios().pin_folio(pinned.pfn()) {
            pins += 1;
        }
        assert!(matches!(space.pin_page(addr, Access::Write), Err(FaultError::OutOfMemory(_))));
        assert_eq!(pins + 1, (1 << 18) - 1, "as docs/differences.md says");
        let child = space.fork().unwrap();
        assert_eq!(read(&cpu, &child, addr), 1);
        drop(child);
        for _ in 0..pins {
            let (head, order) = frames.folios().unpin_folio(pinned.pfn());
            assert_eq!(frames.folios().put_folio(&mut FrameChain::new(), head, order), Ok(false));
        }
    }
}

/// Hazard: a copy replaces the page in every TLB, so that the other threads see what was written.
#[test]
fn a_copy_is_seen_by_the_other_threads() {
    for order in [0, 4, 9] {
        let machine: Machine = machine_of_orders(32, 2, &[order]);
        let (cpu, other) = (machine.vcpu(0).unwrap(), machine.vcpu(1).unwrap());
        let space = create_space(&machine).audited(&machine);
        let area = map_at(&space, GIB, MIB2, RW);
        write(&cpu, &space, area, 1);
        let child = space.fork().unwrap();
        assert_eq!(read(&other, &space, area), 1);
        write(&cpu, &space, area, 2);
        assert_eq!((read(&other, &space, area), read(&cpu, &child, area)), (2, 1), "order {order}");
    }
}
