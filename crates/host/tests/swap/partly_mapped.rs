//! Large folios some of whose pages are not mapped any more, when their memcg comes to its limit: those pages
//! are freed first, without being written, and what is left of a folio is reclaimed page by page.

use crate::common::*;
use crate::disk::Disk;
use quire_host::swap::{Completion, HostRam, SlowConfig, SlowDevice};
use quire_memcg::DeferredOf;

/// Pages of a folio.
const FOLIO: u64 = 16;
const FOLIOS: u64 = 32;
/// The page of each folio that stays.
const KEPT: u64 = 5;

/// Bytes of half a folio.
const HALF: u64 = FOLIO / 2 * PAGE;

fn without_swap() -> Machine {
    Setup::mib(32).overcommit().folios(orders(&[4])).build()
}

fn with_swap() -> Machine {
    let machine = without_swap();
    swap_on(&machine, Disk::new(4096).0);
    machine
}

/// Folios of 64 KiB in a memcg, of each of which one page is left, with its number in it.
fn area_of_single_pages(cpu: &Vcpu, space: &HostSpace<'_>) -> VirtAddr {
    let area = map_filled(cpu, space, GIB, FOLIOS * FOLIO, 100);
    for first in (0..FOLIOS).map(|folio| folio * FOLIO) {
        space.madvise(page(area, first), KEPT * PAGE, Advice::DontNeed).unwrap();
        space.madvise(page(area, first + KEPT + 1), (FOLIO - KEPT - 1) * PAGE, Advice::DontNeed).unwrap();
    }
    area
}

fn assert_kept(cpu: &Vcpu, space: &HostSpace<'_>, area: VirtAddr) {
    assert_filled(cpu, space, area, (0..FOLIOS).map(|folio| folio * FOLIO + KEPT), 100);
}

fn assert_large(machine: &Machine) {
    let partly_mapped = folios(machine, 4, FolioCounter::NrAnonPartiallyMapped);
    assert_eq!(partly_mapped, FOLIOS, "the area is not in folios of 64 KiB");
}

#[test]
fn a_limit_frees_pages_that_are_not_mapped_and_writes_none() {
    let machine = with_swap();
    let (cpu, memcg, space) = in_memcg(&machine, "sparse", &[]);
    let area = area_of_single_pages(&cpu, &space);
    assert_large(&machine);
    assert_eq!(usage(&machine, memcg), FOLIOS * FOLIO);

    // Four times what is mapped.
    machine.memory().write_memcg_file(memcg, "memory.max", &(4 * FOLIOS * PAGE).to_string()).unwrap();
    assert!(usage(&machine, memcg) <= 4 * FOLIOS, "{} pages", usage(&machine, memcg));
    assert_eq!(count(&machine, VmEvent::Pswpout), 0, "there was enough that no program needs");
    assert_kept(&cpu, &space, area);
    assert_eq!(count(&machine, VmEvent::Pgmajfault), 0);
}

/// A part that is locked keeps its own pages in memory, and not those beside it.
#[test]
fn locked_parts_of_folios_do_not_fill_a_memcg() {
    let machine = with_swap();
    let (cpu, memcg, space) = in_memcg(&machine, "locked", &[]);
    let area = area_of_single_pages(&cpu, &space);
    for at in (0..FOLIOS).map(|folio| folio * FOLIO + KEPT) {
        space.mlock(page(area, at), PAGE, false).unwrap();
    }
    assert_large(&machine);

    machine.memory().write_memcg_file(memcg, "memory.max", &(4 * FOLIOS * PAGE).to_string()).unwrap();
    assert!(usage(&machine, memcg) <= 4 * FOLIOS, "{} pages", usage(&machine, memcg));
    // What is locked is found once, and not looked at again by each scan.
    let other = map_at(&space, 2 * GIB, 8 * FOLIOS * PAGE, RW);
    space.madvise(other, 8 * FOLIOS * PAGE, Advice::NoHugePage).unwrap();
    fill(&cpu, &space, other, 0..8 * FOLIOS, 7);
    assert_kept(&cpu, &space, area);
    assert_eq!(count(&machine, VmEvent::Pgmajfault), 0, "what is locked stays in memory");
    assert_eq!(
        machine.memory().memcgs().folios().sizes(memcg, NodeId::new(0).unwrap())
            [LruList::Unevictable as usize],
        FOLIOS
    );
}

/// Hazard: without swap for a memcg reclaim looks at no list, and pages that no program maps stay charged
/// until a program is killed for them.
#[test]
fn a_memcg_without_swap_frees_pages_that_are_not_mapped() {
    for (machine, name) in [(without_swap(), "none"), (with_swap(), "not allowed"), (with_swap(), "full")] {
        let memory = machine.memory();
        let cpu = machine.vcpu(0).unwrap();
        let [top, beside] = ["top", "beside"].map(|name| memory.create_memcg(MemcgId::ROOT, name).unwrap());
        let memcg = memory.create_memcg(top, "below").unwrap();
        let [space, other] = [memcg, beside].map(|memcg| space_in(&machine, memcg));
        if name == "not allowed" {
            memory.write_memcg_file(memcg, "memory.swap.max", "0").unwrap();
        }
        let filler = create_space(&machine);
        if name == "full" {
            let area = map_filled(&cpu, &filler, GIB, 4096, 1);
            filler.madvise(area, 4096 * PAGE, Advice::PageOut).unwrap();
            assert_eq!(memory.swap().devices().free_slots(), 0);
        }
        let areas = [&space, &other].map(|space| area_of_single_pages(&cpu, space));
        // One more page for each that is not mapped.
        memory.write_memcg_file(top, "memory.max", &(FOLIOS * FOLIO * PAGE).to_string()).unwrap();
        assert_eq!(usage(&machine, top), FOLIOS * FOLIO, "{name}");
        let more = FOLIOS * (FOLIO - 1) - 64;
        let fresh = map_at(&space, 2 * GIB, more * PAGE, RW);
        space.madvise(fresh, more * PAGE, Advice::NoHugePage).unwrap();
        fill(&cpu, &space, fresh, 0..more, 7);
        assert!(usage(&machine, top) <= FOLIOS * FOLIO);
        assert_eq!(memory.memcgs().counters().events(top, MemcgEvent::Oom), 0, "{name}");
        let waiting = |memcg| memory.memcgs().splits().waiting_of(DeferredOf::Memcg(memcg));
        assert_eq!(waiting(beside), FOLIOS, "{name}: those of others are left alone");
        assert_kept(&cpu, &space, areas[0]);
        assert_kept(&cpu, &other, areas[1]);
    }
}

/// A folio of 16 pages in the swap cache, which is not mapped. Its contents are on a device, too.
fn cached_folio(machine: &Machine) -> (DeviceId, Vcpu, HostSpace<'_>, VirtAddr) {
    let id = swap_on(machine, HostRam::new(64).unwrap());
    let (cpu, space, area) = filled(machine, FOLIO, 100);
    space.madvise(area, FOLIO * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, FOLIO * PAGE);
    space.madvise(area, FOLIO * PAGE, Advice::WillNeed).unwrap();
    assert_eq!(anonymous_frames(machine), 1, "one folio");
    assert_eq!(space.figures().swapped, FOLIO * PAGE);
    (id, cpu, space, area)
}

/// Hazard: a part of a folio is given up while it has swap entries. When the folio leaves the swap cache with
/// the rest mapped nothing queues it, since none of its pages is ever unmapped.
#[test]
fn a_folio_whose_swap_entries_were_given_up_in_part_waits_to_be_split() {
    // Before the rest is mapped, and after that, as another mapping.
    for first in [true, false] {
        let machine = without_swap();
        let (id, cpu, space, area) = cached_folio(&machine);
        let upper = page(area, FOLIO / 2);
        if first {
            space.madvise(upper, HALF, Advice::DontNeed).unwrap();
        } else {
            space.mprotect(area, HALF, Protection::READ, false).unwrap();
        }
        assert_filled(&cpu, &space, area, 0..FOLIO / 2, 100);
        if !first {
            space.munmap(upper, HALF).unwrap();
        }
        assert_eq!(free_slots(&machine), 64, "the folio is not in the swap cache");
        machine.memory().swapoff(id, || true).unwrap();
        assert_eq!((anonymous_frames(&machine), waiting_to_split(&machine)), (1, 1), "first: {first}");
        assert_eq!(split_deferred(&machine), FOLIO / 2);
        assert_filled(&cpu, &space, area, 0..FOLIO / 2, 100);
    }
}

/// Hazard: the same of a folio that is being written while its entries go, and leaves the swap cache when
/// others want its slots.
#[test]
fn a_folio_that_leaves_the_swap_cache_for_its_slots_waits_to_be_split() {
    const REAPS: u32 = 1000;
    let machine = without_swap();
    let config = SlowConfig { completion: Completion::AfterReaps(REAPS), queue: 64, ..SlowConfig::default() };
    swap_on(&machine, SlowDevice::new(HostRam::new(24).unwrap(), config));
    let complete = || (0..=REAPS).for_each(|_| machine.memory().swap().io().reap());
    let (cpu, space) = cpu_and_space(&machine);
    let [area, other] = [GIB, 2 * GIB].map(|at| map_at(&space, at, FOLIO * PAGE, RW));
    space.madvise(other, FOLIO * PAGE, Advice::NoHugePage).unwrap();
    fill(&cpu, &space, other, 0..9, 7);
    fill(&cpu, &space, area, 0..FOLIO, 100);
    space.madvise(area, FOLIO * PAGE, Advice::PageOut).unwrap();
    space.madvise(page(area, FOLIO / 2), HALF, Advice::DontNeed).unwrap();
    assert_filled(&cpu, &space, area, 0..FOLIO / 2, 100);
    complete();
    assert_eq!((free_slots(&machine), waiting_to_split(&machine)), (8, 0), "the cache has it");
    for pages in [8, 9] {
        space.madvise(other, pages * PAGE, Advice::PageOut).unwrap();
        complete();
    }
    assert_eq!(free_slots(&machine), 24 - 9);
    assert_eq!((waiting_to_split(&machine), split_deferred(&machine)), (1, FOLIO / 2));
    assert_filled(&cpu, &space, area, 0..FOLIO / 2, 100);
}

/// CPU 0, a space with one folio, the first frame of that, and so many children that share it.
fn shared_folio(machine: &Machine, children: usize) -> (Vcpu, Pfn, HostSpace<'_>, Vec<HostSpace<'_>>) {
    let (cpu, space, area) = filled(machine, FOLIO, 100);
    let head = space.pin_page_fast(area, Access::Read).unwrap().pfn();
    let children = (0..children).map(|_| space.fork().unwrap()).collect();
    (cpu, head, space, children)
}

/// The children map the first half of the folio and nothing the second: a shortage gets that. The folio
/// counts once as deferred, as in Linux.
#[track_caller]
fn assert_half_is_left(cpu: &Vcpu, machine: &Machine, children: &[HostSpace<'_>]) {
    assert_eq!(split_deferred(machine), FOLIO / 2, "{} children", children.len());
    for child in children {
        assert_filled(cpu, child, VirtAddr(GIB), 0..FOLIO / 2, 100);
    }
    assert_eq!(folios(machine, 4, FolioCounter::SplitDeferred), 1);
    assert_audit(machine);
}

/// Hazard: a folio that waits to be split is found to be mapped whole, by another process. When that exits,
/// nothing queues the folio again, though a part of it is mapped by none any more.
#[test]
fn a_folio_that_an_exit_leaves_partly_mapped_waits_to_be_split() {
    // Two children map as many pages as the folio has.
    for children in [1, 2] {
        let machine = without_swap();
        let (cpu, _, space, children) = shared_folio(&machine, children);
        for child in &children {
            child.madvise(page(VirtAddr(GIB), FOLIO / 2), HALF, Advice::DontNeed).unwrap();
        }
        assert_eq!(waiting_to_split(&machine), 1);
        assert_eq!(split_deferred(&machine), 0, "the parent maps all of it");
        assert_eq!(waiting_to_split(&machine), 0, "it is not looked at until that changes");
        drop(space);
        assert_half_is_left(&cpu, &machine, &children);
    }
}

/// Hazard: a folio that is busy when it is to be split is put back only if less of it is mapped than it has
/// pages, in all processes together.
#[test]
fn a_busy_folio_of_two_processes_still_waits_to_be_split() {
    let machine = without_swap();
    let (cpu, head, space, children) = shared_folio(&machine, 1);
    let frames = machine.memory().frames();
    for space in [&space, &children[0]] {
        space.madvise(page(VirtAddr(GIB), FOLIO / 2), HALF, Advice::DontNeed).unwrap();
    }
    assert!(frames.known(head).get(1), "a thread that looks at it");
    assert_eq!((split_deferred(&machine), waiting_to_split(&machine)), (0, 1));
    machine.memory().memcgs().folios().release_folio(head);
    assert_eq!((split_deferred(&machine), waiting_to_split(&machine)), (FOLIO / 2, 0));
    for space in [&space, &children[0]] {
        assert_filled(&cpu, space, VirtAddr(GIB), 0..FOLIO / 2, 100);
    }
}

/// Hazard: reclaim takes from one process the pages that another one had unmapped already, and finds then
/// that the rest is needed. Nothing queues the folio again.
#[test]
fn a_folio_that_reclaim_leaves_partly_mapped_waits_to_be_split() {
    let machine = without_swap();
    let (cpu, head, space, children) = shared_folio(&machine, 1);
    // What the child has is dirty.
    space.madvise(VirtAddr(GIB), FOLIO * PAGE, Advice::Free).unwrap();
    children[0].madvise(page(VirtAddr(GIB), FOLIO / 2), HALF, Advice::DontNeed).unwrap();
    reclaim(&machine, 4, 64);
    assert_eq!(space.figures().resident_anonymous, 0, "reclaim took what was given free");
    split_deferred(&machine);
    let order = machine.memory().frames().folio(head).order();
    assert_eq!((order, waiting_to_split(&machine)), (Order::ZERO, 0), "pages are kept that no process maps");
    assert_filled(&cpu, &children[0], VirtAddr(GIB), 0..FOLIO / 2, 100);
}

/// Hazard: children map a part of a folio from the start, all together as much as all of it. It is not known
/// that nothing maps the rest, once their parent exits.
#[test]
fn a_folio_of_which_children_got_a_part_waits_to_be_split() {
    for children in [1, 2] {
        let machine = without_swap();
        let (cpu, _, space, _) = shared_folio(&machine, 0);
        space.madvise(page(VirtAddr(GIB), FOLIO / 2), HALF, Advice::DontFork).unwrap();
        let children: Vec<_> = (0..children).map(|_| space.fork().unwrap()).collect();
        assert_eq!(waiting_to_split(&machine), 0, "the parent maps all of it");
        drop(space);
        assert_half_is_left(&cpu, &machine, &children);
    }
}

/// The same of pages that children read from swap.
#[test]
fn a_folio_of_which_children_read_a_part_from_swap_waits_to_be_split() {
    let machine = with_swap();
    let (cpu, _, space, children) = shared_folio(&machine, 2);
    reclaim(&machine, 4, 64);
    assert_eq!(space.figures().swapped, FOLIO * PAGE);
    for child in &children {
        child.madvise(page(VirtAddr(GIB), FOLIO / 2), HALF, Advice::DontNeed).unwrap();
    }
    assert_filled(&cpu, &space, VirtAddr(GIB), 0..FOLIO, 100);
    for child in &children {
        assert_filled(&cpu, child, VirtAddr(GIB), 0..FOLIO / 2, 100);
    }
    drop(space);
    assert_half_is_left(&cpu, &machine, &children);
}
