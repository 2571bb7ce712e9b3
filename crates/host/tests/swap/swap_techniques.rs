//! Every value of the technique `swap`: what is swapped out is read back as it was.

use crate::common::*;
use quire_host::swap::{FileDevice, FileDeviceOptions};
use std::sync::Barrier;

/// A machine with one value of the technique; with 2 MiB folios if `huge`.
fn machine_by(technique: SwapTechnique, mib: u64, cpus: usize, huge: bool) -> Machine {
    let sizes = if huge { OrderSet::PMD } else { OrderSet::EMPTY };
    machine_with(technique, (mib, cpus), HugePolicy::MADVISE.with_sizes(sizes, SizeEnabled::Always))
}

fn machine_with(technique: SwapTechnique, (mib, cpus): (u64, usize), policy: HugePolicy) -> Machine {
    let setup = Setup::mib(mib).cpus(cpus).reserve().overcommit().huge(policy);
    setup.with(|memory| memory.techniques.swap = technique).swap(2048).build()
}

fn swap_off(machine: &Machine) {
    machine.memory().swapoff(DeviceId::new(0).unwrap(), || true).unwrap();
}

/// Every third page holds nothing but zeros.
pub(crate) fn contents(at: u64) -> u64 {
    if at.is_multiple_of(3) { 0 } else { 100 + at }
}

pub(crate) fn write_contents(cpu: &Vcpu, space: &HostSpace<'_>, area: VirtAddr, pages: u64) {
    for at in 0..pages {
        cpu.program(space).write_u64(page(area, at), contents(at)).unwrap();
    }
}

#[track_caller]
pub(crate) fn assert_contents(cpu: &Vcpu, space: &HostSpace<'_>, area: VirtAddr, pages: u64) {
    for at in 0..pages {
        assert_eq!(cpu.program(space).read_u64(page(area, at)).unwrap(), contents(at), "page {at}");
    }
}

#[test]
fn pages_swap_in_alone_shared_and_by_swapoff() {
    for technique in SwapTechnique::ALL {
        let machine = machine_by(technique, 32, 1, false);
        let (cpu, space, area) = mapped(&machine, GIB, 64 * PAGE);
        write_contents(&cpu, &space, area, 64);
        space.madvise(area, 64 * PAGE, Advice::PageOut).unwrap();
        assert_eq!(space.figures().resident, 0, "{technique:?}");
        assert_contents(&cpu, &space, area, 64);
        let pages_in = count(&machine, VmEvent::Pswpin) + count(&machine, VmEvent::SwpinZero);
        assert_eq!((count(&machine, VmEvent::Pgmajfault), pages_in), (64, 64));
        // The device keeps nothing that only one program has.
        assert_eq!(free_slots(&machine), 2048, "{technique:?}");
        space.madvise(area, 64 * PAGE, Advice::PageOut).unwrap();
        let child = space.fork().unwrap();
        assert_contents(&cpu, &child, area, 64);
        assert_audit(&machine);
        swap_off(&machine);
        assert_contents(&cpu, &space, area, 64);
    }
}

#[test]
fn a_pmd_mapped_folio_swaps_out_whole_and_in_as_the_technique_says() {
    for technique in SwapTechnique::ALL {
        let machine = machine_by(technique, 32, 1, true);
        let (cpu, space, area) = mapped(&machine, GIB, MIB2);
        write_contents(&cpu, &space, area, 512);
        space.madvise(area, MIB2, Advice::PageOut).unwrap();
        assert_eq!((space.figures().resident, space.figures().swapped), (0, MIB2), "{technique:?}");
        let folios = |counter| machine.memory().frames().events().folios(Order::PMD, counter);
        assert_eq!(folios(FolioCounter::Swpout), 1);
        assert_audit(&machine);
        assert_contents(&cpu, &space, area, 512);
        let (large, faults) = if technique == SwapTechnique::All { (1, 1) } else { (0, 512) };
        assert_eq!((folios(FolioCounter::Swpin), count(&machine, VmEvent::Pgmajfault)), (large, faults));
        assert_eq!(free_slots(&machine), 2048, "{technique:?}");
        write_contents(&cpu, &space, area, 512);
    }
}

/// Consecutive slots do not make a folio of a size that faults may not use.
#[test]
fn swap_in_uses_the_folio_sizes_that_the_policy_allows() {
    for (sizes, pages) in
        [(OrderSet::PMD, 1), (OrderSet::PMD.union(OrderSet::of(Order::new(7).unwrap())), 128)]
    {
        let policy = HugePolicy::MADVISE.with_sizes(sizes, SizeEnabled::Madvise);
        let machine = machine_with(SwapTechnique::All, (32, 1), policy);
        let (cpu, space, area) = mapped(&machine, GIB, MIB2);
        // There is a page already, so a folio of 2 MiB does not fit, and it is not of zeros as all others
        // are.
        cpu.program(&space).write_u64(page(area, 500), 1).unwrap();
        space.madvise(area, MIB2, Advice::HugePage).unwrap();
        space.madvise(area, MIB2, Advice::PopulateWrite).unwrap();
        space.madvise(area, MIB2, Advice::PageOut).unwrap();
        assert_eq!(space.figures().resident, 0);
        assert_eq!(cpu.program(&space).read_u64(page(area, 0x116)), Ok(0));
        assert_eq!(space.figures().resident, pages * PAGE, "{sizes:?}");
    }
}

/// A batch may be full just where a table ends.
#[test]
fn a_folio_swaps_out_after_a_full_batch_of_pages() {
    const PAGES: u64 = 32 + MIB2 / PAGE;
    let machine = machine_by(SwapTechnique::All, 32, 1, true);
    let (cpu, space, area) = mapped(&machine, GIB - 32 * PAGE, PAGES * PAGE);
    write_contents(&cpu, &space, area, PAGES);
    assert_eq!(machine.memory().frames().events().folios(Order::PMD, FolioCounter::AnonFaultAlloc), 1);
    space.madvise(area, PAGES * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().resident, 0);
    assert_contents(&cpu, &space, area, PAGES);
}

#[test]
fn a_pinned_folio_is_not_swapped_out() {
    let machine = machine_by(SwapTechnique::All, 32, 1, true);
    let (cpu, space, area) = mapped(&machine, GIB, MIB2);
    write_contents(&cpu, &space, area, 512);
    let pinned = space.pin_page(page(area, 7), Access::Write).unwrap();
    space.madvise(area, MIB2, Advice::PageOut).unwrap();
    assert_eq!((space.figures().resident, space.figures().swapped), (MIB2, 0));
    assert_eq!(free_slots(&machine), 2048);
    assert_audit(&machine);
    assert_contents(&cpu, &space, area, 512);
    drop(pinned);
    write_contents(&cpu, &space, area, 512);
    space.madvise(area, MIB2, Advice::PageOut).unwrap();
    assert_eq!(space.figures().resident, 0);
    assert_contents(&cpu, &space, area, 512);
}

#[test]
fn threads_that_want_the_same_page_all_get_it() {
    for technique in SwapTechnique::ALL {
        let machine = machine_by(technique, 32, 3, false);
        let space = create_space(&machine).audited(&machine);
        let area = map_at(&space, GIB, 64 * PAGE, RW);
        {
            let cpu = machine.vcpu(0).unwrap();
            write_contents(&cpu, &space, area, 64);
        }
        space.madvise(area, 64 * PAGE, Advice::PageOut).unwrap();
        let barrier = Barrier::new(3);
        on_cpus(&machine, 3, |_, cpu| {
            barrier.wait();
            assert_contents(cpu, &space, area, 64);
        });
        assert_eq!(count(&machine, VmEvent::Pgmajfault), 64, "{technique:?}: each page is read once");
        assert_eq!(free_slots(&machine), 2048, "{technique:?}");
    }
}

#[test]
fn a_limited_program_waits_for_a_slow_device() {
    let machine = Setup::of(HostConfig::with_ram(32 << 20)).reserve().overcommit().build();
    let device = FileDevice::temporary(machine.memory().platform(), 4096, FileDeviceOptions::default());
    swap_on(&machine, device.unwrap());
    let space = create_space(&machine);
    let memcgs = machine.memory().memcgs();
    let memcg = memcgs.lifecycle().create(MemcgId::ROOT, "small").unwrap();
    set_limit(&machine, memcg, Limit::Max, 128);
    space.set_memcg(memcg).unwrap();
    let cpu = machine.vcpu(0).unwrap();
    let area = map_at(&space, GIB, 1024 * PAGE, RW);
    for _ in 0..2 {
        write_contents(&cpu, &space, area, 1024);
        assert_contents(&cpu, &space, area, 1024);
    }
    assert!(memcgs.charges().usage(memcg) <= 128);
}

/// Hazard: what was read without the cache looks as if it never was written. Where another process that has
/// the page frees it lazily, reclaim takes it from both, and the first one reads zeros.
#[test]
fn a_page_that_another_process_frees_lazily_keeps_its_contents() {
    for technique in SwapTechnique::ALL {
        let machine = machine_by(technique, 32, 1, false);
        let (cpu, space, area) = mapped(&machine, GIB, PAGE);
        cpu.program(&space).write_u64(area, 7).unwrap();
        space.madvise(area, PAGE, Advice::PageOut).unwrap();
        assert_eq!(space.figures().resident, 0, "{technique:?}");
        assert_eq!(read(&cpu, &space, area), 7, "{technique:?}");
        let child = space.fork().unwrap();
        child.madvise(area, PAGE, Advice::Free).unwrap();
        // The first one finds it referenced.
        reclaim(&machine, 4, 64);
        assert_eq!(space.figures().resident, 0, "{technique:?}");
        assert_eq!(read(&cpu, &space, area), 7, "{technique:?}");
        assert_eq!(read(&cpu, &child, area), 7, "{technique:?}");
    }
}
