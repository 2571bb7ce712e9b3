//! Large folios: how they are split, collapsed, and partly freed.

use crate::common::*;
use quire_frame::MAX_REFS;
use quire_memcg::DeferredOf;
use quire_mm::proc::HugeFile;
use quire_space::khugepaged_totals;

const BASE: u64 = GIB;

/// A machine where private pages come in folios of `order` wherever they fit.
fn machine_of_order(mib: u64, order: u8) -> Machine {
    Setup::mib(mib).folios(orders(&[order])).build()
}

#[test]
fn a_mapped_folio_is_split_to_every_lower_order() {
    for to in 0..4 {
        let machine = machine_of_order(32, 4);
        let (cpu, space, _) = filled(&machine, 64, 1);
        assert_eq!(folios(&machine, 4, FolioCounter::NrAnon), 4);
        let before = used_frames(&machine);
        let order = Order::new(to).unwrap();
        assert_eq!(space.split_folio(VirtAddr(BASE + 5 * PAGE), order), Ok(0));
        assert_eq!(space.split_folio(VirtAddr(BASE + 5 * PAGE), order), Err(SplitError::NotLarger));
        assert_eq!(used_frames(&machine), before);
        assert_eq!([FolioCounter::NrAnon, FolioCounter::Split].map(|it| folios(&machine, 4, it)), [3, 1]);
        assert_audit(&machine);
        assert_filled(&cpu, &space, VirtAddr(BASE), 0..64, 1);
        fill(&cpu, &space, VirtAddr(BASE), 0..64, 1);
        space.munmap(VirtAddr(BASE + 3 * PAGE), 7 * PAGE).unwrap();
        assert_audit(&machine);
        assert_filled(&cpu, &space, VirtAddr(BASE), (0..3).chain(10..64), 1);
    }
}

#[test]
fn a_folio_that_several_spaces_map_is_split_for_all() {
    let machine = machine_of_order(32, 9);
    let (cpu, space, _) = filled(&machine, 512, 1);
    assert_eq!(pmd_mapped(&machine), 1);
    let children: Vec<_> = (0..3).map(|_| space.fork().unwrap()).collect();
    children[0].munmap(VirtAddr(BASE), 100 * PAGE).unwrap();
    children[1].madvise(VirtAddr(BASE + 50 * PAGE), 400 * PAGE, Advice::DontNeed).unwrap();
    assert_audit(&machine);
    assert_eq!(children[2].split_folio(VirtAddr(BASE), Order::new(3).unwrap()), Ok(0));
    assert_eq!(pmd_mapped(&machine), 0);
    assert_audit(&machine);
    assert_filled(&cpu, &space, VirtAddr(BASE), 0..512, 1);
    assert_filled(&cpu, &children[0], VirtAddr(BASE), 100..512, 1);
    assert_filled(&cpu, &children[1], VirtAddr(BASE), (0..50).chain(450..512), 1);
    assert_filled(&cpu, &children[2], VirtAddr(BASE), 0..512, 1);
}

/// Hazard: the unmapped part of a large folio must be freed under pressure.
#[test]
fn the_unmapped_part_of_a_folio_comes_back_when_memory_runs_short() {
    let machine = machine_of_order(16, 9);
    let (cpu, space, _) = filled(&machine, 1024, 1);
    let full = used_frames(&machine);
    space.munmap(VirtAddr(BASE + 2 * PAGE), 500 * PAGE).unwrap();
    assert_eq!(waiting_to_split(&machine), 1);
    assert_eq!(count(&machine, VmEvent::ThpDeferredSplitPage), 1);
    assert_eq!(used_frames(&machine), full, "a part of a folio is not freed at once");
    assert_audit(&machine);
    // A second partial unmap finds it on the queue.
    space.madvise(VirtAddr(BASE), PAGE, Advice::DontNeed).unwrap();
    assert_eq!(waiting_to_split(&machine), 1);
    assert_eq!(machine.memory().spaces().thp().split_deferred(1), 501);
    assert_eq!(waiting_to_split(&machine), 0);
    assert_eq!(used_frames(&machine), full - 501);
    assert_eq!(count(&machine, VmEvent::ThpSplitPage), 1);
    assert_audit(&machine);
    assert_filled(&cpu, &space, VirtAddr(BASE), (1..2).chain(502..1024), 1);

    // A fault without memory splits it.
    space.munmap(VirtAddr(BASE + MIB2), 511 * PAGE).unwrap();
    for part in 0..4 {
        map_at(&space, 2 * GIB + part * (8 << 20), 8 << 20, RW);
    }
    machine.memory().huge().change(|policy| policy.with_sizes(OrderSet::PMD, SizeEnabled::Never));
    fill_memory(&cpu, &space, VirtAddr(2 * GIB));
    assert_eq!(count(&machine, VmEvent::ThpSplitPage), 2);
}

/// A folio that is freed whole before leaves the queue.
#[test]
fn a_freed_folio_leaves_the_deferred_split_queue() {
    let machine = machine_of_order(32, 4);
    let (_cpu, space, _) = filled(&machine, 64, 1);
    for cut in [17, 33, 49] {
        space.munmap(VirtAddr(BASE + cut * PAGE), PAGE).unwrap();
    }
    assert_eq!(waiting_to_split(&machine), 3);
    assert_eq!(folios(&machine, 4, FolioCounter::NrAnonPartiallyMapped), 3);
    space.munmap(VirtAddr(BASE + 32 * PAGE), 16 * PAGE).unwrap();
    assert_eq!(waiting_to_split(&machine), 2);
    assert_audit(&machine);
    drop(space);
    assert_eq!(waiting_to_split(&machine), 0);
    let counted = [FolioCounter::NrAnon, FolioCounter::NrAnonPartiallyMapped];
    assert_eq!(counted.map(|counter| folios(&machine, 4, counter)), [0, 0]);
}

/// A pinned page keeps its folio from being split, and no page of it is lost.
#[test]
fn a_pinned_folio_is_not_split() {
    let machine = machine_of_order(32, 9);
    let (cpu, space, _) = filled(&machine, 512, 1);
    let pinned = space.pin_page(VirtAddr(BASE + 7 * PAGE), Access::Write).unwrap();
    space.munmap(VirtAddr(BASE + 100 * PAGE), 100 * PAGE).unwrap();
    assert_eq!(space.split_folio(VirtAddr(BASE), Order::ZERO), Err(SplitError::Busy));
    assert_eq!(split_deferred(&machine), 0);
    assert_eq!(waiting_to_split(&machine), 1);
    assert_audit(&machine);
    drop(pinned);
    assert_eq!(split_deferred(&machine), 100);
    assert_audit(&machine);
    assert_filled(&cpu, &space, VirtAddr(BASE), (0..100).chain(200..512), 1);
}

#[test]
fn folios_of_several_orders_that_go_together_are_counted_by_order() {
    let machine: Machine = Setup::mib(32).folios(orders(&[2, 3, 4])).build();
    let counted = || [2, 3, 4].map(|order| folios(&machine, order, FolioCounter::NrAnon));
    let (_cpu, space, area) = filled(&machine, 44, 1);
    assert_eq!(counted(), [1, 1, 2]);
    space.munmap(area, 44 * PAGE).unwrap();
    assert_eq!(counted(), [0; 3]);
    assert_audit(&machine);
}

#[test]
fn collapse_makes_one_folio_of_present_pages() {
    let machine = machine_of_order(32, 2);
    let (cpu, space, _) = mapped(&machine, BASE, 2 * MIB2);
    fill(&cpu, &space, VirtAddr(BASE), 0..3, 1);
    fill(&cpu, &space, VirtAddr(BASE), 100..140, 1);
    assert_eq!(cpu.program(&space).read_u64(VirtAddr(BASE + 300 * PAGE)).unwrap(), 0);
    space.madvise(VirtAddr(BASE), MIB2, Advice::Collapse).unwrap();
    assert_eq!(space.figures().resident, MIB2);
    assert_eq!(pmd_mapped(&machine), 1);
    assert_eq!(folios(&machine, 2, FolioCounter::NrAnon), 0);
    assert_audit(&machine);
    assert_filled(&cpu, &space, VirtAddr(BASE), (0..3).chain(100..140), 1);
    assert_eq!(cpu.program(&space).read_u64(VirtAddr(BASE + 300 * PAGE)).unwrap(), 0);
    // Again: nothing to do.
    space.madvise(VirtAddr(BASE), MIB2, Advice::Collapse).unwrap();
    assert_eq!(count(&machine, VmEvent::ThpCollapseAlloc), 1);
    // No table, and no whole block.
    let einval = |addr, len| space.madvise(VirtAddr(addr), len, Advice::Collapse).map_err(Error::errno);
    assert_eq!(einval(BASE + MIB2, MIB2), Err(Errno::EINVAL));
    assert_eq!(einval(BASE + PAGE, MIB2 - 2 * PAGE), Err(Errno::EINVAL));
    // A range that ends at the border where its first block would start has no block.
    assert_eq!(einval(BASE + PAGE, MIB2), Ok(()));
    space.madvise(VirtAddr(BASE), MIB2, Advice::NoHugePage).unwrap();
    assert_eq!(einval(BASE, MIB2), Err(Errno::EINVAL));
}

/// Hazard: the pages and the folio that takes their place count at the same time. As on Linux the peak of
/// resident memory (VmHWM) is what was there before or is there now.
#[test]
fn a_collapse_counts_no_page_twice_in_the_peak_of_resident_memory() {
    for pages in [512, 300] {
        let machine = machine_of_khugepaged();
        let (cpu, space) = cpu_and_space(&machine);
        let area = map_small(&cpu, &space, (BASE, 1), 0..pages, 1);
        space.madvise(area, MIB2, Advice::HugePage).unwrap();
        space.madvise(area, MIB2, Advice::Collapse).unwrap();
        let figures = space.figures();
        assert_eq!((figures.resident, figures.peak_resident), (MIB2, MIB2), "{pages} pages became one folio");
        assert_audit(&machine);
        assert_filled(&cpu, &space, area, 0..pages, 1);
    }
}

/// A child gets a folio of its own, the parent keeps its pages.
#[test]
fn collapse_in_a_child_copies_what_is_shared() {
    let machine = machine_of_order(32, 3);
    let (cpu, space, _) = filled(&machine, 512, 1);
    let child = space.fork().unwrap();
    child.madvise(VirtAddr(BASE), MIB2, Advice::Collapse).unwrap();
    cpu.program(&child).write_u64(page(VirtAddr(BASE), 9), 77).unwrap();
    assert_audit(&machine);
    assert_filled(&cpu, &space, VirtAddr(BASE), 0..512, 1);
    assert_filled(&cpu, &child, VirtAddr(BASE), (0..9).chain(10..512), 1);
    assert_eq!(folios(&machine, 3, FolioCounter::NrAnon), 64);
    // A pinned page is not moved.
    let pinned = space.pin_page(VirtAddr(BASE), Access::Write).unwrap();
    let result = space.madvise(VirtAddr(BASE), MIB2, Advice::Collapse).map_err(Error::errno);
    assert_eq!(result, Err(Errno::EAGAIN));
    drop(pinned);
    space.madvise(VirtAddr(BASE), MIB2, Advice::Collapse).unwrap();
    assert_audit(&machine);
    assert_filled(&cpu, &space, VirtAddr(BASE), 0..512, 1);
}

/// A folio that cannot be split goes back on the list, and is not counted as deferred once more.
#[test]
fn a_folio_that_is_busy_is_deferred_once() {
    let machine = machine_of_order(16, 4);
    let (cpu, space, _) = filled(&machine, 16, 1);
    let pinned = space.pin_page(page(VirtAddr(BASE), 5), Access::Write).unwrap();
    space.munmap(page(VirtAddr(BASE), 8), 8 * PAGE).unwrap();
    let spaces = machine.memory().spaces();
    for _ in 0..3 {
        assert_eq!(spaces.thp().split_deferred(u64::MAX), 0);
        let counted = [FolioCounter::SplitDeferred, FolioCounter::NrAnonPartiallyMapped];
        assert_eq!(counted.map(|counter| folios(&machine, 4, counter)), [1, 1]);
    }
    drop(pinned);
    assert_eq!(spaces.thp().split_deferred(u64::MAX), 8);
    assert_eq!(folios(&machine, 4, FolioCounter::NrAnonPartiallyMapped), 0);
    assert_filled(&cpu, &space, VirtAddr(BASE), 0..8, 1);
}

/// Hazard: a folio that is pinned is split in its tables, and all its entries are looked at, before the pin
/// is found, each time that reclaim comes to it. As in Linux the references come first.
#[test]
fn a_split_of_a_pinned_folio_leaves_its_pmd_leaf() {
    let machine = machine_of_order(32, 9);
    let (cpu, space, _) = filled(&machine, 512, 1);
    let pinned = space.pin_page(page(VirtAddr(BASE), 5), Access::Write).unwrap();
    let leaves = || (pmd_mapped(&machine), count(&machine, VmEvent::ThpSplitPmd));
    assert_eq!(leaves(), (1, 0));
    for _ in 0..3 {
        assert_eq!(space.split_folio(VirtAddr(BASE), Order::ZERO), Err(SplitError::Busy));
        assert_eq!(leaves(), (1, 0));
    }
    drop(pinned);
    space.split_folio(VirtAddr(BASE), Order::ZERO).unwrap();
    assert_eq!(leaves(), (0, 1));
    assert_filled(&cpu, &space, VirtAddr(BASE), 0..512, 1);
}

/// Hazard: a shortage of frames looks at the folios of one memcg only, or at none of those that come back to
/// a queue. All queues are split in turn, the oldest folio of each first.
#[test]
fn folios_of_all_memcgs_are_split_in_turn() {
    const FOLIOS: u64 = 3;
    let machine = machine_of_order(32, 4);
    let cpu = machine.vcpu(0).unwrap();
    let (memory, memcgs) = (machine.memory(), machine.memory().memcgs());
    let groups = ["a", "b"].map(|name| memcgs.lifecycle().create(MemcgId::ROOT, name).unwrap());
    let groups = [MemcgId::ROOT, groups[0], groups[1]];
    let spaces: Vec<_> = groups
        .iter()
        .map(|&memcg| {
            let space = space_in(&machine, memcg);
            map_filled(&cpu, &space, BASE, FOLIOS * 16, 1);
            for folio in 0..FOLIOS {
                space.munmap(page(VirtAddr(BASE), folio * 16 + 1), PAGE).unwrap();
            }
            space
        })
        .collect();
    let waiting = || groups.map(|memcg| memcgs.splits().waiting_of(DeferredOf::Memcg(memcg)));
    assert_eq!((waiting(), memory.spaces().memory().memcgs().splits().waiting()), ([3; 3], 9));
    let thp = memory.spaces().thp();
    assert_eq!((thp.split_deferred(1), waiting()), (1, [2, 3, 3]));
    assert_eq!((thp.split_deferred(3), waiting()), (3, [1, 2, 2]));
    assert_eq!((thp.split_deferred_of(groups[1], 2, 9), waiting()), (0, [1, 2, 2]), "too few for that");
    assert_eq!((thp.split_deferred_of(groups[1], 0, 1), waiting()), (1, [1, 1, 2]));
    assert_eq!((thp.split_deferred_of(groups[1], 0, 99), waiting()), (1, [1, 0, 2]));
    assert_eq!((thp.split_deferred(2), waiting()), (2, [0, 0, 1]), "the turn is passed on");
    spaces[1].munmap(page(VirtAddr(BASE), 2), PAGE).unwrap();
    assert_eq!((thp.split_deferred(u64::MAX), waiting()), (1, [0; 3]));
    assert_eq!((thp.split_deferred(1), thp.split_deferred_of(groups[2], 0, 1)), (0, 0));
    assert_audit(&machine);
}

/// Hazard: a folio has as many references as can be, so there can be none for its split, which drops one all
/// the same: the folio is freed while it is mapped. It is passed over, and the next one split.
#[test]
fn a_folio_that_can_have_no_more_references_is_not_split() {
    const FOLIOS: u64 = 3;
    let machine = machine_of_order(32, 4);
    let (_cpu, space, _) = filled(&machine, FOLIOS * 16, 1);
    for folio in 0..FOLIOS {
        space.munmap(page(VirtAddr(BASE), folio * 16 + 1), PAGE).unwrap();
    }
    let frames = machine.memory().frames();
    let pinned = space.pin_page(VirtAddr(BASE), Access::Write).unwrap();
    let frame = frames.folio(pinned.pfn()).frame();
    let refs = frame.refs();
    assert!(frame.get(MAX_REFS - refs));
    let (memory, thp) = (machine.memory().spaces().memory(), machine.memory().spaces().thp());
    assert_eq!((thp.split_deferred(1), memory.memcgs().splits().waiting()), (1, 2));
    assert_eq!((thp.split_deferred(u64::MAX), memory.memcgs().splits().waiting()), (1, 1));
    assert_eq!((thp.split_deferred(u64::MAX), frame.refs()), (0, MAX_REFS));
    frame.put(MAX_REFS - refs);
    drop(pinned);
    assert_eq!((thp.split_deferred(u64::MAX), memory.memcgs().splits().waiting()), (1, 0));
}

/// The call continues behind a block with a pinned page, as in Linux (tried there with `vmsplice`), and
/// reports it in the end.
#[test]
fn a_pinned_page_keeps_its_own_block_from_being_collapsed() {
    let machine = machine(16, 1);
    let (cpu, space, _) = filled(&machine, 1024, 1);
    let pinned = space.pin_page(page(VirtAddr(BASE), 5), Access::Write).unwrap();
    let result = space.madvise(VirtAddr(BASE), 2 * MIB2, Advice::Collapse).map_err(Error::errno);
    assert_eq!(result, Err(Errno::EAGAIN));
    assert_eq!(count(&machine, VmEvent::ThpCollapseAlloc), 1, "the block behind it");
    drop(pinned);
    space.madvise(VirtAddr(BASE), 2 * MIB2, Advice::Collapse).unwrap();
    assert_filled(&cpu, &space, VirtAddr(BASE), 0..1024, 1);
}

/// A machine where folios of the PMD's order are for khugepaged to make.
fn machine_of_khugepaged() -> Machine {
    Setup::mib(32).always_huge().build()
}

#[test]
fn khugepaged_collapses_within_its_limits() {
    let machine = machine_of_khugepaged();
    let cpu = machine.vcpu(0).unwrap();
    let memory = machine.memory();
    let spaces: Vec<_> = (0..3).map(|_| create_space(&machine)).collect();
    for space in &spaces {
        map_at(space, BASE, 3 * MIB2, RW);
        // An existing table keeps faults from mapping large folios.
        space.madvise(VirtAddr(BASE), 3 * MIB2, Advice::NoHugePage).unwrap();
        fill(&cpu, space, VirtAddr(BASE), 0..300, 1);
        fill(&cpu, space, VirtAddr(BASE), 512..520, 1);
        space.madvise(VirtAddr(BASE), 3 * MIB2, Advice::HugePage).unwrap();
    }
    let set = |setting, value| memory.spaces().huge().set_khugepaged(setting, value).unwrap();
    set(KhugepagedSetting::MaxPtesNone, 300);
    set(KhugepagedSetting::PagesToScan, 512);
    // A block per step, and nine blocks; the third of each space has no table.
    let collapsed: u64 = (0..9).map(|_| memory.khugepaged_step().collapsed).sum();
    assert_eq!(collapsed, 3);
    assert_eq!(pmd_mapped(&machine), 3);
    assert_audit(&machine);
    for space in &spaces {
        assert_filled(&cpu, space, VirtAddr(BASE), (0..300).chain(512..520), 1);
        assert_eq!(space.figures().resident, MIB2 + 8 * PAGE);
    }
    // With other limits the rest; but not a NOHUGEPAGE mapping.
    set(KhugepagedSetting::MaxPtesNone, 511);
    set(KhugepagedSetting::PagesToScan, 100_000);
    spaces[1].madvise(VirtAddr(BASE), 3 * MIB2, Advice::NoHugePage).unwrap();
    let step = memory.khugepaged_step();
    assert_eq!((step.collapsed, step.out_of_memory), (2, false));
    assert!(step.scanned < 10_000, "all spaces were seen once: {step:?}");
    assert_eq!(memory.khugepaged_step().collapsed, 0);
    let (scans, collapsed) = khugepaged_totals(memory.spaces());
    assert!(scans >= 2);
    assert_eq!(collapsed, 5);
    for (file, figure) in [(HugeFile::FullScans, scans), (HugeFile::PagesCollapsed, collapsed)] {
        let mut text = String::new();
        file.read(memory, &mut text).unwrap();
        assert_eq!(text, format!("{figure}\n"), "{file}");
    }
    assert_audit(&machine);
}

/// With more shared pages than `max_ptes_shared`.
#[test]
fn khugepaged_leaves_shared_pages() {
    let machine = machine_of_khugepaged();
    let cpu = machine.vcpu(0).unwrap();
    let memory = machine.memory();
    let space = create_space(&machine);
    map_at(&space, BASE, MIB2, RW);
    space.madvise(VirtAddr(BASE), MIB2, Advice::NoHugePage).unwrap();
    fill(&cpu, &space, VirtAddr(BASE), 0..512, 1);
    space.madvise(VirtAddr(BASE), MIB2, Advice::HugePage).unwrap();
    let child = space.fork().unwrap();
    assert_eq!(memory.khugepaged_step().collapsed, 0);
    fill(&cpu, &child, VirtAddr(BASE), 0..300, 1);
    // Those that the child copied are its own now, and so are the parent's.
    for at in 0..512 {
        cpu.program(&child).read_u64(VirtAddr(BASE + at * PAGE)).unwrap();
        cpu.program(&space).read_u64(VirtAddr(BASE + at * PAGE)).unwrap();
    }
    assert_eq!(memory.khugepaged_step().collapsed, 2);
    assert_audit(&machine);
    assert_filled(&cpu, &space, VirtAddr(BASE), 0..512, 1);
    assert_filled(&cpu, &child, VirtAddr(BASE), 0..512, 1);
}
