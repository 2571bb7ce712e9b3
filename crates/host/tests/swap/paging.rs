//! Pages that are swapped out and in.

use crate::common::*;
use crate::disk::{Disk, lock};
use quire_host::swap::{Completion, SlowConfig};

fn overcommitted(mib: u64) -> Machine {
    Setup::mib(mib).reserve().overcommit().build()
}

fn compressed(machine: &Machine, slots: u64) -> DeviceId {
    let disk = CompressedRam::new(machine.memory().frames(), slots, Lz4).unwrap();
    swap_on(machine, disk)
}

#[test]
fn a_page_that_is_paged_out_comes_back_as_it_was() {
    let machine = swapping(16, 1, 1024);
    let (cpu, space, area) = filled(&machine, 8, 100);
    space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().resident, 0, "all is out");
    assert_eq!(space.figures().swapped, 8 * PAGE);
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, 0..8, 100);
    assert_eq!(space.figures().swapped, 0);
    assert_eq!((count(&machine, VmEvent::Pswpout), count(&machine, VmEvent::Pswpin)), (8, 8));
    assert_eq!(count(&machine, VmEvent::Pgmajfault), 8);
    assert_audit(&machine);
    drop(space);
    assert_eq!(free_slots(&machine), 1024);
    assert_audit(&machine);
}

#[test]
fn a_program_larger_than_memory_keeps_what_it_wrote() {
    let machine = overcommitted(16);
    compressed(&machine, 16 << 10);
    let (cpu, space) = cpu_and_space(&machine);
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
}

#[test]
fn both_sides_of_a_fork_keep_what_is_paged_out() {
    let machine = swapping(16, 1, 1024);
    let (cpu, space, area) = filled(&machine, 8, 100);
    space.madvise(area, 4 * PAGE, Advice::PageOut).unwrap();
    let child = space.fork().unwrap();
    assert_audit(&machine);
    for at in 0..8 {
        write(&cpu, &child, page(area, at), 200 + at);
        assert_eq!(read(&cpu, &space, page(area, at)), 100 + at);
    }
    assert_audit(&machine);
    machine.memory().swapoff(DeviceId::new(0).unwrap(), || true).unwrap();
    assert_filled(&cpu, &child, area, 0..8, 200);
    assert_filled(&cpu, &space, area, 0..8, 100);
}

#[test]
fn swapoff_reads_everything_in() {
    let machine = machine(16, 1);
    let id = compressed(&machine, 1024);
    let (cpu, space, area) = filled(&machine, 512, 100);
    space.madvise(area, 512 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().swapped, 512 * PAGE);
    machine.memory().swapoff(id, || true).unwrap();
    assert_eq!(space.figures().swapped, 0);
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, 0..512, 100);
}

/// A slow device, with a program that reads in order.
#[test]
fn readahead_from_a_slow_device() {
    let machine = overcommitted(16);
    swap_on_slow_ram(&machine, 1024, SlowConfig::default());
    let (cpu, space, area) = filled(&machine, 256, 100);
    space.madvise(area, 256 * PAGE, Advice::PageOut).unwrap();
    // Once written, they are freed by the next pass.
    for _ in 0..3 {
        machine.memory().swap().io().reap();
        machine.memory().reclaim(MemcgId::ROOT, 256);
    }
    assert_eq!(anonymous_frames(&machine), 0);
    assert_eq!(space.figures().swapped, 256 * PAGE);
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, 0..256, 100);
    let (ahead, hits) = (count(&machine, VmEvent::SwapRa), count(&machine, VmEvent::SwapRaHit));
    assert!(hits > 128 && ahead >= hits, "{ahead} read ahead, {hits} of them used");
    machine.memory().swap().io().reap();
    assert_audit(&machine);
    drop(space);
    machine.memory().swap().io().reap();
    machine.memory().reclaim(MemcgId::ROOT, 1024);
    assert_eq!(free_slots(&machine), 1024);
    assert_audit(&machine);
}

/// A lazily freed page reads what was written last, or zeros, but never what a device still has from before.
#[test]
fn a_lazily_freed_page_never_reads_old_data_of_the_device() {
    let machine = overcommitted(16);
    swap_on_slow_ram(&machine, 64, SlowConfig::default());
    let (cpu, space, area) = filled(&machine, 1, 1);
    space.madvise(area, PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.figures().resident, 0);
    // As long as the device writes it the folio stays in the cache, whatever maps it; and the device gets
    // this.
    assert_eq!(read(&cpu, &space, area), 1);
    reap(&machine, 2);
    write(&cpu, &space, area, 2);
    space.madvise(area, PAGE, Advice::Free).unwrap();
    for _ in 0..3 {
        machine.memory().reclaim(MemcgId::ROOT, 64);
        machine.memory().swap().io().reap();
    }
    assert_eq!(space.figures().resident, 0);
    let found = read(&cpu, &space, area);
    assert!(found == 2 || found == 0, "{found} was overwritten");
}

/// A lazily freed page is not written again because it was swapped out before.
#[test]
fn a_lazily_freed_page_is_dropped_without_a_write() {
    let machine = overcommitted(16);
    swap_on_ram(&machine, 64);
    let (cpu, space, area) = filled(&machine, 8, 100);
    space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
    fill(&cpu, &space, area, 0..8, 200);
    space.madvise(area, 8 * PAGE, Advice::Free).unwrap();
    write(&cpu, &space, area, 300);
    reclaim(&machine, 2, 64);
    assert_eq!((count(&machine, VmEvent::Pglazyfreed), count(&machine, VmEvent::Pswpout)), (7, 9));
    assert_eq!(read(&cpu, &space, area), 300);
    (1..8).for_each(|at| assert_eq!(read(&cpu, &space, page(area, at)), 0));
}

/// What has been written is freed next; what is being written does not stop reclaim.
#[test]
fn pages_are_freed_as_soon_as_they_are_written() {
    let machine = overcommitted(16);
    swap_on_slow_ram(&machine, 1024, SlowConfig::default());
    let (cpu, space, area) = filled(&machine, 128, 100);
    // All are on their list now. The others are older, and were not referenced either.
    machine.memory().reclaim(MemcgId::ROOT, 0);
    space.madvise(page(area, 8), 120 * PAGE, Advice::Cold).unwrap();
    space.madvise(area, 8 * PAGE, Advice::PageOut).unwrap();
    assert_eq!((count(&machine, VmEvent::Pswpout), anonymous_frames(&machine)), (8, 128));
    reap(&machine, 2);
    assert_eq!(machine.memory().reclaim(MemcgId::ROOT, 8), 8);
    // Reclaim takes a batch of 32 at a time: these and 24 others, whose writing begins.
    assert_eq!((count(&machine, VmEvent::Pswpout), anonymous_frames(&machine)), (32, 120));
    assert_filled(&cpu, &space, area, 0..128, 100);
}

/// When only pages that have a slot already can be written, reclaim skips the rest: they keep their place on
/// the list.
#[test]
fn pages_skipped_while_the_device_is_full_are_written_later() {
    let machine = overcommitted(16);
    swap_on_ram(&machine, 32);
    let (cpu, space, area) = filled(&machine, 256, 100);
    space.madvise(area, 256 * PAGE, Advice::Cold).unwrap();
    let goes = |from: u64| {
        machine.memory().reclaim(MemcgId::ROOT, 32);
        let mut there = Vec::new();
        space.mincore(page(area, from), 64 * PAGE, |is| there.push(is)).unwrap();
        assert!(there.iter().enumerate().all(|(at, &is)| is == (at >= 32)), "from {from}: {there:?}");
    };
    goes(0);
    assert_eq!(free_slots(&machine), 0);
    assert_eq!(machine.memory().reclaim(MemcgId::ROOT, 32), 0);
    space.munmap(area, 32 * PAGE).unwrap();
    goes(32);
    assert_filled(&cpu, &space, page(area, 32), 0..224, 132);
}

/// As by Linux's guess: RAM and the swap in use together are the most that one mapping may have.
#[test]
fn one_mapping_is_as_large_as_ram_and_swap_at_most() {
    let machine: Machine = Setup::mib(16).build();
    let space = create_space(&machine);
    let map = |bytes| space.mmap(&MapRequest::anonymous(bytes, RW));
    let ram = machine.memory().totals().managed * PAGE;
    assert_eq!(map(ram + PAGE), Err(Error::CommitLimit));
    swap_on_ram(&machine, 1024);
    assert!(map(ram + 1024 * PAGE).is_ok());
    assert_eq!(map(ram + 1025 * PAGE), Err(Error::CommitLimit));
}

/// Pages that are mapped again while they are being written stay in the swap cache. When they are unmapped
/// after that, they and their slots are free.
#[test]
fn pages_used_during_their_write_are_freed_with_their_mapping() {
    const PAGES: u64 = 200;
    const SLOTS: u64 = 256;
    type Way = fn(&HostSpace<'_>, VirtAddr);
    let ways: [Option<Way>; 4] = [
        Some(|space, area| space.munmap(area, PAGES * PAGE).unwrap()),
        Some(|space, area| space.madvise(area, PAGES * PAGE, Advice::DontNeed).unwrap()),
        Some(|space, area| assert_eq!(map_at(space, area.0, PAGES * PAGE, READ), area)),
        // Exit.
        None,
    ];
    for (order, way) in [0, 2].into_iter().flat_map(|order| ways.map(|way| (order, way))) {
        let machine: Machine = Setup::mib(16).reserve().folios(orders(&[order])).build();
        let config =
            SlowConfig { completion: Completion::AfterReaps(1000), queue: 256, ..SlowConfig::default() };
        swap_on_slow_ram(&machine, SLOTS, config);
        let (cpu, space) = (machine.vcpu(0).unwrap(), create_space(&machine));
        let area = map_at(&space, GIB, PAGES * PAGE, RW);
        // A neighbour keeps the table.
        write(&cpu, &space, map_at(&space, GIB + MIB2 - PAGE, PAGE, RW), 1);
        fill(&cpu, &space, area, 0..PAGES, 100);
        space.madvise(area, PAGES * PAGE, Advice::PageOut).unwrap();
        assert_filled(&cpu, &space, area, 0..PAGES, 100);
        assert_eq!(space.figures().swapped, 0);
        reap(&machine, 1001);
        let cached = SLOTS - free_slots(&machine);
        assert!(cached > PAGES / 2, "{cached} are in the swap cache");
        let mut space = Some(space);
        match way {
            Some(way) => way(space.as_ref().unwrap(), area),
            None => space = None,
        }
        assert_eq!(free_slots(&machine), SLOTS, "order {order}");
        assert_eq!(anonymous_frames(&machine), u64::from(space.is_some()), "the neighbour");
        assert_audit(&machine);
    }
}

/// A pinned page that is still being written stays the program's own: a write neither copies it nor waits for
/// the device.
#[test]
fn a_pinned_page_is_written_to_during_its_writeback() {
    for order in [0, 2] {
        let machine: Machine = Setup::mib(16).reserve().folios(orders(&[order])).build();
        let config = SlowConfig { completion: Completion::AfterReaps(1000), ..SlowConfig::default() };
        swap_on_slow_ram(&machine, 64, config);
        let (cpu, space, area) = filled(&machine, 4, 100);
        space.madvise(area, 4 * PAGE, Advice::PageOut).unwrap();
        assert_filled(&cpu, &space, area, 0..4, 100);
        let pinned = space.pin_page(page(area, 1), Access::Write).unwrap();
        space.mprotect(area, 4 * PAGE, READ, false).unwrap();
        space.mprotect(area, 4 * PAGE, RW, false).unwrap();
        write(&cpu, &space, page(area, 1), 7);
        assert_eq!(device_reads(&machine, &pinned), 7, "the program got a copy of a pinned page");
        drop(pinned);
        assert_audit(&machine);
        assert_eq!([0, 1, 2, 3].map(|at| read(&cpu, &space, page(area, at))), [100, 7, 102, 103]);
    }
}

/// A device takes milliseconds for each discard, and a program in a fault waits. kswapd does not, but other
/// work of it does.
#[test]
fn a_page_out_waits_for_one_discard_and_kswapd_for_a_few_at_a_time() {
    const CLUSTERS: u64 = 100;
    let machine = overcommitted(64);
    let (disk, medium) = Disk::new(CLUSTERS * 512);
    let discards = || lock(&medium).discards;
    machine.memory().swapon(disk, SwapOnOptions { discard: true, ..SwapOnOptions::default() }).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    // Freed clusters are used last, but for the one that the CPU allocates from.
    for _ in 0..=CLUSTERS / 10 {
        let area = map_filled(&cpu, &space, GIB, 5120, 1);
        space.madvise(area, 10 * MIB2, Advice::PageOut).unwrap();
        assert_eq!(space.figures().swapped, 10 * MIB2);
        space.munmap(area, 10 * MIB2).unwrap();
    }
    assert_eq!(discards(), 0);
    // The CPU still has the last cluster, and then needs another one.
    let area = map_filled(&cpu, &space, GIB, 513, 1);
    space.madvise(area, 513 * PAGE, Advice::PageOut).unwrap();
    assert_eq!((space.figures().swapped, discards()), (513 * PAGE, 1));
    // It does not wait for memory to be short.
    for done in [17, 33, 49, 65, 81, 97, CLUSTERS - 1, CLUSTERS - 1] {
        assert_eq!(machine.memory().kswapd_step().missing, 0);
        assert_eq!(discards(), done);
    }
}

/// Hazard: a page waits for a discard while the thread has others in hand, unmapped and locked: their
/// programs wait for the device, too.
#[test]
fn what_was_unmapped_is_written_before_a_page_waits_for_a_discard() {
    const PAGES: u64 = 32;
    let machine = overcommitted(64);
    let (disk, medium) = Disk::new(2 * 512);
    machine.memory().swapon(disk, SwapOnOptions { discard: true, ..SwapOnOptions::default() }).unwrap();
    let (cpu, space) = cpu_and_space(&machine);
    let page_out = |area: u64, pages: u64| {
        let area = map_filled(&cpu, &space, area, pages, 1);
        space.madvise(area, pages * PAGE, Advice::PageOut).unwrap();
        area
    };
    let first = page_out(GIB, 512);
    let _ = page_out(2 * GIB, 512 - PAGES / 2);
    space.munmap(first, 512 * PAGE).unwrap();
    let discards = || {
        let medium = lock(&medium);
        (medium.discards, medium.stored_at_discard)
    };
    assert_eq!(discards(), (0, 0));
    // There are slots for one half of them.
    let area = page_out(GIB, PAGES);
    assert_eq!(discards(), (1, 512));
    assert_eq!(space.figures().swapped, (512 + PAGES / 2) * PAGE);
    assert_filled(&cpu, &space, area, 0..PAGES, 1);
}

/// Hazard: a folio for which no slots lie together is split, its first page is paged out, and the others are
/// taken for the youngest pages of their list.
#[test]
fn all_pages_of_a_folio_that_is_split_for_want_of_slots_are_paged_out() {
    let order = Order::new(6).unwrap();
    let machine: Machine = Setup::mib(32).overcommit().folios(orders(&[6])).swap(512).build();
    let (cpu, space) = cpu_and_space(&machine);
    // From now on the only cluster is one for single pages.
    let single = map_filled(&cpu, &space, GIB, 1, 7);
    space.madvise(single, PAGE, Advice::PageOut).unwrap();

    let area = map_filled(&cpu, &space, 2 * GIB, order.pages(), 100);
    let folios = |counter| machine.memory().frames().events().folios(order, counter);
    assert_eq!(folios(FolioCounter::NrAnon), 1);
    space.madvise(area, order.pages() * PAGE, Advice::PageOut).unwrap();
    assert_eq!((folios(FolioCounter::SwpoutFallback), folios(FolioCounter::Split)), (1, 1));
    assert_eq!((space.figures().resident, space.figures().swapped), (0, (1 + order.pages()) * PAGE));
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, 0..order.pages(), 100);
    assert_filled(&cpu, &space, single, 0..1, 7);
    drop(space);
    assert_eq!(free_slots(&machine), 512);
    assert_audit(&machine);
}
