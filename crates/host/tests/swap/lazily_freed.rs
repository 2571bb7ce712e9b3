//! Where lazily freed pages (MADV_FREE) are looked for.

use crate::common::*;

/// Pages of the programs' memcg, and those of them that are freed lazily.
const LIMIT: u64 = 1024;
const FREED: u64 = 512;

/// A space in a memcg of [`LIMIT`] pages without swap, on a machine of pages or of folios of 2 MiB.
fn limited(of_huge: bool, device: bool) -> Machine {
    let setup = Setup::mib(32).overcommit();
    let machine: Machine = if of_huge { setup.folios(OrderSet::PMD).build() } else { setup.build() };
    if device {
        swap_on_ram(&machine, 64);
    }
    let memory = machine.memory();
    let memcg = memory.create_memcg(MemcgId::ROOT, "g").unwrap();
    memory.write_memcg_file(memcg, "memory.max", &(LIMIT * PAGE).to_string()).unwrap();
    memory.write_memcg_file(memcg, "memory.swap.max", "0").unwrap();
    machine
}

fn space_in_memcg(machine: &Machine) -> HostSpace<'_> {
    let memcg = machine.memory().find_memcg("g").unwrap();
    let space = space_in(machine, memcg);
    space.set_limits(Limits { locked: u64::MAX, ..space.limits() });
    space
}

/// Pages that are freed lazily, and nothing else.
fn freed_lazily(cpu: &Vcpu, space: &HostSpace<'_>) -> VirtAddr {
    let area = map_filled(cpu, space, GIB, FREED, 1);
    space.madvise(area, FREED * PAGE, Advice::Free).unwrap();
    area
}

/// Needs a page more than is there beside those that were freed, and finds it there.
fn assert_freed_is_found(cpu: &Vcpu, machine: &Machine, space: &HostSpace<'_>) {
    let more = map_at(space, 2 * GIB, LIMIT * PAGE, RW);
    let written = (0..=LIMIT - FREED).map(|at| cpu.program(space).write_u64(page(more, at), 1));
    assert_eq!(written.collect::<Result<Vec<()>, _>>().map(|all| all.len() as u64), Ok(LIMIT - FREED + 1));
    assert!(count(machine, VmEvent::Pglazyfreed) > 0);
    assert_audit(machine);
}

/// Hazard: munlock puts a page on the list of those that need swap, though it was freed lazily. Where there
/// is no swap its program is killed beside memory that it gave back. Linux puts it where it was.
#[test]
fn what_was_locked_after_it_was_freed_lazily_needs_no_swap() {
    for of_huge in [false, true] {
        let machine = limited(of_huge, true);
        let cpu = machine.vcpu(0).unwrap();
        let space = space_in_memcg(&machine);
        let area = freed_lazily(&cpu, &space);
        let list = || {
            let pfn = space.pin_page_fast(area, Access::Read).unwrap().pfn();
            machine.memory().memcgs().folios().list_of(machine.memory().frames().folio(pfn).head())
        };
        assert_eq!(list(), Some(LruList::InactiveFile));
        space.mlock(area, FREED * PAGE, true).unwrap();
        assert_eq!(list(), Some(LruList::Unevictable));
        space.munlock(area, FREED * PAGE).unwrap();
        assert_eq!(list(), Some(LruList::InactiveFile), "folios of 2 MiB: {of_huge}");
        assert_audit(&machine);
        assert_freed_is_found(&cpu, &machine, &space);
    }
}

/// Hazard: on a machine without a device munlock looks for no marks, and those that reclaim has made stay for
/// ever: what was freed lazily is never taken, nor paged out after a swapon.
#[test]
fn without_a_device_reclaim_marks_no_page_as_locked() {
    for swapon in [false, true] {
        let machine = limited(false, false);
        let memory = machine.memory();
        let cpu = machine.vcpu(0).unwrap();
        let space = space_in_memcg(&machine);
        let area = freed_lazily(&cpu, &space);
        space.mlock(area, FREED * PAGE, true).unwrap();
        assert_eq!(memory.reclaim(MemcgId::ROOT, FREED), 0, "they are locked");
        assert_audit(&machine);
        if swapon {
            swap_on_ram(&machine, 64);
        }
        space.munlock(area, FREED * PAGE).unwrap();
        assert_audit(&machine);
        assert_freed_is_found(&cpu, &machine, &space);
    }
}

/// Hazard: advice that is given again is counted again, and moves pages that were used since. As in Linux
/// nothing is done for what was freed lazily before, also where it was written since.
#[test]
fn advice_to_free_that_is_given_again_is_counted_once() {
    let machine: Machine = Setup::mib(16).overcommit().swap(64).build();
    let (cpu, space, area) = filled(&machine, 8, 1);
    for _ in 0..2 {
        space.madvise(area, 8 * PAGE, Advice::Free).unwrap();
        assert_eq!(count(&machine, VmEvent::Pglazyfree), 8);
    }
    fill(&cpu, &space, area, 0..8, 2);
    space.madvise(area, 8 * PAGE, Advice::Free).unwrap();
    assert_eq!(count(&machine, VmEvent::Pglazyfree), 8);
    while machine.memory().reclaim(MemcgId::ROOT, 8) > 0 {}
    assert_eq!((count(&machine, VmEvent::Pglazyfreed), count(&machine, VmEvent::Pswpout)), (8, 0));
    // What comes back is a new page.
    fill(&cpu, &space, area, 0..8, 3);
    space.madvise(area, 8 * PAGE, Advice::Free).unwrap();
    assert_eq!(count(&machine, VmEvent::Pglazyfree), 16);
}
