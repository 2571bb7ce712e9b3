//! The huge zero page: where it is mapped, what replaces it, and that it is freed when no entry maps it.

mod threads;

use crate::common::*;
use quire_arch::paging::invented::Invented3;
use quire_frame::{FailAim, FailPlan, FailSite};

const BASE: u64 = GIB;
/// Aligned alike, below other tables.
const TARGET: u64 = 3 * GIB;

/// A machine whose private pages come in folios of `leaf` where they fit.
fn machine_of_format<F: PagingFormat>(mib: u64, cpus: usize, leaf: Order) -> Machine<F> {
    Setup::mib(mib).cpus(cpus).folios(OrderSet::of(leaf)).build()
}

/// A machine where a read of untouched memory maps 2 MiB of zeros, if they fit.
fn machine_of_leaves(mib: u64) -> Machine {
    machine_of_format(mib, 1, Order::PMD)
}

/// What entries of `len` bytes from `addr` on map: pages of each entry, and what they are.
fn entries<F: PagingFormat>(space: &HostSpace<'_, F>, addr: u64, len: u64) -> Vec<(u64, PageState)> {
    let mut all = Vec::new();
    let range = VirtRange::new(VirtAddr(addr), VirtAddr(addr + len));
    space.mappings().pagemap(range, |pages, state| all.push((pages.pages(), state)));
    all
}

const ZEROS: (u64, PageState) = (512, PageState::Zero);
const FOLIO: (u64, PageState) = (512, PageState::Anonymous);

/// CPU 0, and a space with `blocks` blocks at [`BASE`] that were read.
fn read_blocks(machine: &Machine, blocks: u64) -> (Vcpu, HostSpace<'_>) {
    let (cpu, space) = cpu_and_space(machine);
    map_at(&space, BASE, blocks * MIB2, RW);
    for block in 0..blocks {
        assert_eq!(cpu.program(&space).read_u64(VirtAddr(BASE + block * MIB2 + 9 * PAGE)), Ok(0));
    }
    assert_eq!(entries(&space, BASE, blocks * MIB2), vec![ZEROS; blocks as usize]);
    (cpu, space)
}

#[test]
fn a_read_maps_zeros_by_one_leaf_and_costs_a_table() {
    let machine = machine_of_leaves(32);
    let before = in_use(&machine);
    {
        let (cpu, space) = read_blocks(&machine, 3);
        map_at(&space, TARGET, MIB2, READ);
        assert_eq!(cpu.program(&space).read_u64(VirtAddr(TARGET)), Ok(0));
        assert_eq!(entries(&space, TARGET, MIB2), [ZEROS], "a mapping that is read only has them too");
        // What does not hold 2 MiB gets one page.
        map_at(&space, 2 * TARGET, MIB2 / 2, RW);
        assert_eq!(cpu.program(&space).read_u64(VirtAddr(2 * TARGET)), Ok(0));
        assert_eq!(entries(&space, 2 * TARGET, MIB2), [(1, PageState::Zero)]);
        assert_eq!(space.figures().resident, 0);
        let mut present = 0;
        space.mincore(VirtAddr(BASE), MIB2, |is| present += u64::from(is)).unwrap();
        assert_eq!(present, 512);
        assert_eq!(count(&machine, VmEvent::ThpZeroPageAlloc), 1);
        for event in [VmEvent::ThpFaultAlloc, VmEvent::ThpFaultFallback, VmEvent::ThpSplitPmd] {
            assert_eq!(count(&machine, event), 0, "{event:?}");
        }
        let events = machine.memory().frames().events();
        assert_eq!((events.folios(Order::PMD, FolioCounter::NrAnon), events.pmd_mapped()), (0, 0));
        assert_audit(&machine);
        assert_eq!(machine.memory().spaces().thp().shrink_huge_zero(), 0, "it is mapped");
    }
    assert_audit(&machine);
    assert_eq!(machine.memory().spaces().thp().shrink_huge_zero(), 512);
    assert_eq!(machine.memory().spaces().thp().huge_zero_page(), None);
    assert_eq!(in_use(&machine), before);
}

#[test]
fn without_use_zero_page_a_read_gives_a_folio() {
    let machine = machine_of_leaves(32);
    machine.memory().huge().change(|policy| policy.with_zero_page(false));
    let (cpu, space, _) = mapped(&machine, BASE, MIB2);
    assert_eq!(cpu.program(&space).read_u64(VirtAddr(BASE)), Ok(0));
    assert_eq!(entries(&space, BASE, MIB2), [FOLIO]);
    assert_eq!((count(&machine, VmEvent::ThpFaultAlloc), count(&machine, VmEvent::ThpZeroPageAlloc)), (1, 0));
    // It is mapped by the program already.
    let faults = count(&machine, VmEvent::Pgfault);
    cpu.program(&space).write_u64(VirtAddr(BASE), 1).unwrap();
    assert_eq!(count(&machine, VmEvent::Pgfault), faults);
}

#[test]
fn the_first_write_gives_a_folio_in_one_fault() {
    let machine = machine_of_leaves(32);
    let (cpu, space) = read_blocks(&machine, 3);
    // Linux does not ask again what the mapping wants.
    space.madvise(VirtAddr(BASE + MIB2), MIB2, Advice::NoHugePage).unwrap();
    for block in [0, 1] {
        let faults = count(&machine, VmEvent::Pgfault);
        cpu.program(&space).write_u64(VirtAddr(BASE + block * MIB2 + 100 * PAGE), 7).unwrap();
        assert_eq!(count(&machine, VmEvent::Pgfault), faults + 1);
    }
    assert_eq!(entries(&space, BASE, 3 * MIB2), [FOLIO, FOLIO, ZEROS]);
    assert_eq!(space.figures().resident, 2 * MIB2);
    assert_eq!((count(&machine, VmEvent::ThpFaultAlloc), count(&machine, VmEvent::ThpSplitPmd)), (2, 0));
    assert_eq!(pmd_mapped(&machine), 2);
    assert_audit(&machine);
    for at in 0..3 * 512 {
        let expected = if [100, 612].contains(&at) { 7 } else { 0 };
        assert_eq!(cpu.program(&space).read_u64(page(VirtAddr(BASE), at)), Ok(expected), "page {at}");
    }
}

/// Without memory for a folio, the leaf is split and one page is copied.
#[test]
fn a_write_without_memory_for_a_folio_gives_a_page() {
    let machine = machine_of_leaves(32);
    let (cpu, space) = read_blocks(&machine, 1);
    failing(&machine, FailPlan::nth(1).at(FailAim::Site(FailSite::ANONYMOUS)), || {
        cpu.program(&space).write_u64(VirtAddr(BASE + 5 * PAGE), 7).unwrap();
    });
    assert_eq!(space.figures().resident, PAGE);
    assert_eq!((count(&machine, VmEvent::ThpFaultFallback), count(&machine, VmEvent::ThpSplitPmd)), (1, 1));
    let mapped = entries(&space, BASE, MIB2);
    assert_eq!(mapped.len(), 512);
    assert_eq!(mapped.iter().filter(|entry| **entry == (1, PageState::Zero)).count(), 511);
    assert_audit(&machine);
    assert_eq!(cpu.program(&space).read_u64(VirtAddr(BASE + 5 * PAGE)), Ok(7));
    assert_eq!(machine.memory().spaces().thp().shrink_huge_zero(), 512, "no entry maps it any more");
}

/// Without memory for the huge zero page, the read maps the zero page.
#[test]
fn a_read_without_memory_for_the_huge_zero_page_maps_the_zero_page() {
    let machine = machine_of_leaves(32);
    let (cpu, space, _) = mapped(&machine, BASE, 2 * MIB2);
    failing(&machine, FailPlan::every(1).at(FailAim::Site(FailSite::new("huge_zero"))), || {
        assert_eq!(cpu.program(&space).read_u64(VirtAddr(BASE)), Ok(0));
    });
    assert_eq!(entries(&space, BASE, 2 * MIB2), [(1, PageState::Zero)]);
    assert_eq!(count(&machine, VmEvent::ThpZeroPageAllocFailed), 1);
    assert_eq!(count(&machine, VmEvent::ThpFaultFallback), 1);
    assert_audit(&machine);
    // With memory again, the next block.
    assert_eq!(cpu.program(&space).read_u64(VirtAddr(BASE + MIB2)), Ok(0));
    assert_eq!(entries(&space, BASE + MIB2, MIB2), [ZEROS]);
    assert_eq!(count(&machine, VmEvent::ThpZeroPageAlloc), 1);
}

/// A part of it that changes leaves a table of zero pages, and nothing on the deferred split queue.
#[test]
fn a_part_that_changes_leaves_small_zero_pages() {
    type Change = fn(&HostSpace<'_>, VirtAddr, u64);
    let changes: [(&str, Change, usize); 4] = [
        ("DONTNEED", |space, addr, len| space.madvise(addr, len, Advice::DontNeed).unwrap(), 496),
        ("munmap", |space, addr, len| space.munmap(addr, len).unwrap(), 496),
        ("mprotect", |space, addr, len| space.mprotect(addr, len, READ, false).unwrap(), 512),
        ("DONTFORK", |space, addr, len| space.madvise(addr, len, Advice::DontFork).unwrap(), 512),
    ];
    for (name, change, left) in changes {
        for first in [0, 100, 496] {
            let machine = machine_of_leaves(32);
            let (cpu, space) = read_blocks(&machine, 2);
            change(&space, page(VirtAddr(BASE), first), 16 * PAGE);
            let mapped = entries(&space, BASE, MIB2);
            assert_eq!(mapped, vec![(1, PageState::Zero); left], "{name} from page {first}");
            assert_eq!(entries(&space, BASE + MIB2, MIB2), [ZEROS], "{name}");
            assert_eq!(count(&machine, VmEvent::ThpSplitPmd), 1, "{name}");
            assert_eq!(waiting_to_split(&machine), 0);
            assert_audit(&machine);
            cpu.program(&space).write_u64(VirtAddr(BASE + 50 * PAGE), 1).unwrap();
            assert_eq!(space.figures().resident, PAGE, "{name}: a write gives one page");
            for at in (0..512).filter(|at| *at != 50) {
                let gone = name == "munmap" && (first..first + 16).contains(&at);
                let expected = if gone { Err(NOT_MAPPED) } else { Ok(0) };
                assert_eq!(cpu.program(&space).read_u64(page(VirtAddr(BASE), at)), expected, "{name}");
            }
        }
    }
}

#[test]
fn a_call_that_ends_inside_two_pmds_removes_all_between() {
    type Call = fn(&HostSpace<'_>, VirtAddr, u64);
    let calls: [Call; 2] = [
        |space, addr, len| space.munmap(addr, len).unwrap(),
        // This keeps the mapping.
        |space, addr, len| space.madvise(addr, len, Advice::DontNeed).unwrap(),
    ];
    for call in calls {
        let machine = machine_of_leaves(32);
        let (_cpu, space) = read_blocks(&machine, 12);
        call(&space, VirtAddr(BASE + MIB2 / 2), 11 * MIB2);
        assert_eq!(entries(&space, BASE, 12 * MIB2), vec![(1, PageState::Zero); 512]);
    }
}

/// MADV_FREE has nothing to free: the leaf stays, also for a part.
#[test]
fn advice_that_frees_leaves_zeros_alone() {
    let machine = machine_of_leaves(32);
    let (_cpu, space) = read_blocks(&machine, 2);
    space.madvise(VirtAddr(BASE + PAGE), MIB2, Advice::Free).unwrap();
    space.madvise(VirtAddr(BASE), 2 * MIB2, Advice::Free).unwrap();
    assert_eq!(entries(&space, BASE, 2 * MIB2), [ZEROS, ZEROS]);
    assert_audit(&machine);
    space.madvise(VirtAddr(BASE), 2 * MIB2, Advice::DontNeed).unwrap();
    assert_eq!(entries(&space, BASE, 2 * MIB2), []);
    assert_eq!(machine.memory().spaces().thp().shrink_huge_zero(), 512);
}

#[test]
fn a_child_shares_the_zeros_until_one_writes() {
    let machine = machine_of_leaves(64);
    let (cpu, space) = read_blocks(&machine, 3);
    let child = space.fork().unwrap();
    let grandchild = child.fork().unwrap();
    assert_eq!(entries(&grandchild, BASE, 3 * MIB2), [ZEROS; 3]);
    assert_audit(&machine);
    cpu.program(&child).write_u64(VirtAddr(BASE), 1).unwrap();
    cpu.program(&space).write_u64(VirtAddr(BASE + MIB2), 2).unwrap();
    assert_eq!(entries(&space, BASE, 3 * MIB2), [ZEROS, FOLIO, ZEROS]);
    assert_eq!(entries(&child, BASE, 3 * MIB2), [FOLIO, ZEROS, ZEROS]);
    assert_eq!(entries(&grandchild, BASE, 3 * MIB2), [ZEROS; 3]);
    assert_eq!(count(&machine, VmEvent::ThpSplitPmd), 0);
    assert_audit(&machine);
    for (space, words) in [(&space, [0, 2]), (&child, [1, 0]), (&grandchild, [0, 0])] {
        for (block, word) in (0..).zip(words) {
            assert_eq!(cpu.program(space).read_u64(VirtAddr(BASE + block * MIB2)), Ok(word));
        }
    }
    drop(space);
    drop(child);
    assert_audit(&machine);
    assert_eq!(cpu.program(&grandchild).read_u64(VirtAddr(BASE + 5 * PAGE)), Ok(0));
    assert_eq!(count(&machine, VmEvent::ThpZeroPageAlloc), 1);
}

#[test]
fn mremap_moves_huge_zeros_whole_or_page_by_page() {
    for (to, expected) in [(TARGET, vec![ZEROS]), (TARGET + PAGE, vec![(1, PageState::Zero); 512])] {
        let machine = machine_of_leaves(32);
        let (cpu, space) = read_blocks(&machine, 2);
        space.mremap(VirtAddr(BASE), MIB2, MIB2, MOVE, VirtAddr(to)).unwrap();
        assert_eq!(entries(&space, to, MIB2), expected);
        assert_eq!(entries(&space, BASE, 2 * MIB2), [ZEROS]);
        assert_eq!(count(&machine, VmEvent::ThpSplitPmd), u64::from(to != TARGET));
        assert_audit(&machine);
        cpu.program(&space).write_u64(VirtAddr(to + 8 * PAGE), 1).unwrap();
        assert_eq!(space.figures().resident, if to == TARGET { MIB2 } else { PAGE });
        assert_eq!(cpu.program(&space).read_u64(VirtAddr(to + 7 * PAGE)), Ok(0));
    }
}

/// No change of permissions makes the zeros writable.
#[test]
fn protection_and_its_end_leave_the_zeros_unwritable() {
    let machine = machine_of_leaves(32);
    let (cpu, space) = read_blocks(&machine, 2);
    for protection in [NONE, READ, RW, NONE, RW] {
        space.mprotect(VirtAddr(BASE), 2 * MIB2, protection, false).unwrap();
        assert_eq!(entries(&space, BASE, 2 * MIB2), [ZEROS, ZEROS], "{protection:?}");
        assert_audit(&machine);
    }
    cpu.program(&space).write_u64(VirtAddr(BASE), 5).unwrap();
    assert_eq!(cpu.program(&space).read_u64(VirtAddr(BASE + MIB2)), Ok(0));
    assert_eq!(entries(&space, BASE, 2 * MIB2), [FOLIO, ZEROS]);
    drop(cpu);
    // A not-present leaf that is removed or split was in no TLB.
    space.mprotect(VirtAddr(BASE), 2 * MIB2, NONE, false).unwrap();
    space.madvise(VirtAddr(BASE + MIB2), PAGE, Advice::DontNeed).unwrap();
    assert_audit(&machine);
    assert_eq!(machine.memory().spaces().thp().shrink_huge_zero(), 512);
    let (_cpu, space) = read_blocks(&machine, 1);
    space.mprotect(VirtAddr(BASE), MIB2, NONE, false).unwrap();
    space.madvise(VirtAddr(BASE), MIB2, Advice::DontNeed).unwrap();
    assert_audit(&machine);
    assert_eq!(machine.memory().spaces().thp().shrink_huge_zero(), 512);
}

#[test]
fn a_device_reads_the_small_page_and_writes_a_folio() {
    let machine = machine_of_leaves(32);
    let (_cpu, space) = read_blocks(&machine, 1);
    let zero = machine.memory().spaces().zero_page();
    let pinned = space.pin_page(VirtAddr(BASE + 3 * PAGE), Access::Read).unwrap();
    assert_eq!(pinned.pfn(), zero);
    assert_eq!(entries(&space, BASE, MIB2), [ZEROS]);
    let own = space.pin_page(VirtAddr(BASE + 3 * PAGE), Access::Write).unwrap();
    assert_ne!(own.pfn(), zero);
    assert_eq!(entries(&space, BASE, MIB2), [FOLIO]);
    drop((pinned, own));
}

#[test]
fn locking_and_populating() {
    let machine = machine_of_leaves(32);
    let (_cpu, space) = read_blocks(&machine, 2);
    space.mlock(VirtAddr(BASE), MIB2, false).unwrap();
    space.mlock(VirtAddr(BASE + MIB2), 2 * PAGE, false).unwrap();
    assert_eq!(space.figures().resident, MIB2 + 2 * PAGE);
    assert_eq!(entries(&space, BASE, MIB2), [FOLIO]);
    assert_eq!(count(&machine, VmEvent::ThpSplitPmd), 1);
    map_at(&space, TARGET, 2 * MIB2, RW);
    space.madvise(VirtAddr(TARGET + 8 * PAGE), PAGE, Advice::PopulateRead).unwrap();
    assert_eq!(entries(&space, TARGET, 2 * MIB2), [ZEROS]);
    space.madvise(VirtAddr(TARGET), 2 * MIB2, Advice::PopulateRead).unwrap();
    assert_eq!(entries(&space, TARGET, 2 * MIB2), [ZEROS, ZEROS]);
    space.madvise(VirtAddr(TARGET), 2 * MIB2, Advice::PopulateWrite).unwrap();
    assert_eq!(entries(&space, TARGET, 2 * MIB2), [FOLIO, FOLIO]);
}

#[test]
fn huge_zeros_count_as_collapsed_unless_they_were_split() {
    let machine = machine_of_leaves(32);
    let (_cpu, space) = read_blocks(&machine, 2);
    machine.memory().spaces().huge().set_khugepaged(KhugepagedSetting::MaxPtesNone, 511).unwrap();
    space.madvise(VirtAddr(BASE), 2 * MIB2, Advice::Collapse).unwrap();
    assert_eq!(entries(&space, BASE, 2 * MIB2), [ZEROS, ZEROS]);
    assert_eq!(machine.memory().khugepaged_step().collapsed, 0);
    space.madvise(VirtAddr(BASE), 2 * MIB2, Advice::HugePage).unwrap();
    space.madvise(VirtAddr(BASE), PAGE, Advice::DontNeed).unwrap();
    assert_eq!(machine.memory().khugepaged_step().collapsed, 0, "512 zeros are more than 511");
    space.madvise(VirtAddr(BASE), MIB2, Advice::Collapse).unwrap();
    assert_eq!(entries(&space, BASE, 2 * MIB2), [FOLIO, ZEROS]);
    assert_eq!((space.figures().resident, count(&machine, VmEvent::ThpCollapseAlloc)), (MIB2, 1));
}

/// Where a relative of the mapping has zeros in the place of the folio, they do not prevent the split.
#[test]
fn a_folio_is_split_past_the_zeros_of_a_child() {
    let machine = machine_of_leaves(32);
    let (cpu, space, _) = mapped(&machine, BASE, MIB2);
    cpu.program(&space).write_u64(VirtAddr(BASE + 9 * PAGE), 7).unwrap();
    let child = space.fork().unwrap();
    child.madvise(VirtAddr(BASE), MIB2, Advice::DontNeed).unwrap();
    assert_eq!(cpu.program(&child).read_u64(VirtAddr(BASE + 9 * PAGE)), Ok(0));
    assert_eq!(entries(&child, BASE, MIB2), [ZEROS]);
    assert_eq!(space.split_folio(VirtAddr(BASE), Order::ZERO), Ok(511), "all else is zeros");
    assert!(child.split_folio(VirtAddr(BASE), Order::ZERO).is_err(), "zeros are no folio");
    assert_eq!(entries(&child, BASE, MIB2), [ZEROS]);
    assert_eq!(count(&machine, VmEvent::ThpSplitPmd), 1);
    assert_audit(&machine);
    assert_eq!(cpu.program(&space).read_u64(VirtAddr(BASE + 9 * PAGE)), Ok(7));
}

/// A fault without memory takes the frames of the huge zero page, if no entry maps it.
#[test]
fn an_unmapped_huge_zero_page_is_freed_when_memory_runs_short() {
    for mapped in [false, true] {
        let machine = machine_of_leaves(16);
        let (cpu, space) = read_blocks(&machine, 1);
        assert!(machine.memory().spaces().thp().huge_zero_page().is_some());
        if !mapped {
            space.munmap(VirtAddr(BASE), MIB2).unwrap();
        }
        machine.memory().huge().change(|policy| policy.with_sizes(OrderSet::PMD, SizeEnabled::Never));
        for part in 0..4 {
            map_at(&space, TARGET + part * (8 << 20), 8 << 20, RW);
        }
        fill_memory(&cpu, &space, VirtAddr(TARGET));
        assert_eq!(machine.memory().spaces().thp().huge_zero_page().is_some(), mapped);
        assert!(used_frames(&machine) + 64 > machine.memory().frames().reports().totals().managed);
        assert_audit(&machine);
        if mapped {
            assert_eq!(cpu.program(&space).read_u64(VirtAddr(BASE)), Ok(0));
        }
    }
}

/// Other formats have smaller leaves.
#[test]
fn leaves_of_another_format_have_zeros_of_their_size() {
    let leaf = Invented3::leaf_order(Level::PMD).unwrap();
    let machine = machine_of_format::<Invented3>(16, 1, leaf);
    let cpu = machine.vcpu(0).unwrap();
    let before = in_use(&machine);
    let space = create_space(&machine);
    map_at(&space, BASE, 4 * leaf.bytes(), RW);
    for block in 0..4 {
        assert_eq!(cpu.program(&space).read_u64(VirtAddr(BASE + block * leaf.bytes() + PAGE)), Ok(0));
    }
    assert_eq!(entries(&space, BASE, 4 * leaf.bytes()), [(leaf.pages(), PageState::Zero); 4]);
    cpu.program(&space).write_u64(VirtAddr(BASE), 1).unwrap();
    space.madvise(VirtAddr(BASE + leaf.bytes()), PAGE, Advice::DontNeed).unwrap();
    let child = space.fork().unwrap();
    assert_audit(&machine);
    assert_eq!(cpu.program(&child).read_u64(VirtAddr(BASE + PAGE)), Ok(0));
    drop((space, child));
    assert_eq!(in_use(&machine), before);
}
