//! MADV_WILLNEED: pages that were swapped out are read before an access waits for them.

use crate::common::*;
use quire_host::swap::SlowConfig;

const SLOTS: u64 = 2048;

fn setup() -> Setup {
    Setup::mib(32).reserve().overcommit()
}

/// A machine whose device completes a request after two reaps.
fn late(config: SlowConfig) -> Machine {
    let machine = setup().build();
    swap_on_slow_ram(&machine, SLOTS, config);
    machine
}

/// Pages it out, to the last byte.
fn send_out(machine: &Machine, space: &HostSpace<'_>, area: VirtAddr, pages: u64) {
    space.madvise(area, pages * PAGE, Advice::PageOut).unwrap();
    for _ in 0..3 {
        reap(machine, 3);
        machine.memory().reclaim(MemcgId::ROOT, pages);
    }
    assert_eq!(machine.memory().swap().devices().cached_pages(), 0);
    assert_eq!(space.figures().swapped, pages * PAGE);
}

/// A space whose pages are swapped out.
fn paged_out(machine: &Machine, pages: u64) -> (Vcpu, HostSpace<'_>, VirtAddr) {
    let (cpu, space, area) = filled(machine, pages, 100);
    send_out(machine, &space, area, pages);
    (cpu, space, area)
}

/// How many of the pages are in memory, mapped or not.
fn in_memory(space: &HostSpace<'_>, area: VirtAddr, pages: u64) -> u64 {
    let mut count = 0;
    space.mincore(area, pages * PAGE, |is| count += u64::from(is)).unwrap();
    count
}

fn counts<const N: usize>(machine: &Machine, events: [VmEvent; N]) -> [u64; N] {
    events.map(|event| count(machine, event))
}

#[test]
fn willneed_reads_pages_into_the_swap_cache() {
    const IN: [VmEvent; 4] =
        [VmEvent::Pswpin, VmEvent::SwpinZero, VmEvent::SwapRa, VmEvent::WorkingsetRefaultAnon];
    for technique in SwapTechnique::ALL {
        let machine = setup().with(|memory| memory.techniques.swap = technique).swap(SLOTS).build();
        let (cpu, space, area) = mapped(&machine, GIB, 64 * PAGE);
        // The first page is full of zeros.
        fill(&cpu, &space, area, 0..64, 0);
        send_out(&machine, &space, area, 64);
        space.madvise(area, 32 * PAGE, Advice::WillNeed).unwrap();
        assert_eq!((in_memory(&space, area, 32), in_memory(&space, area, 64)), (32, 32), "{technique:?}");
        assert_eq!((space.figures().resident, space.figures().swapped), (0, 64 * PAGE));
        let zeros = u64::from(count(&machine, VmEvent::SwpoutZero) > 0);
        assert_eq!(counts(&machine, IN), [32 - zeros, zeros, 0, 32], "{technique:?}");
        assert_audit(&machine);
        // Resident pages are left alone.
        space.madvise(area, 32 * PAGE, Advice::WillNeed).unwrap();
        assert_eq!(counts(&machine, IN), [32 - zeros, zeros, 0, 32]);
        assert_filled(&cpu, &space, area, 0..32, 0);
        let later = [VmEvent::Pgmajfault, VmEvent::SwapRaHit, VmEvent::Pswpin];
        assert_eq!(counts(&machine, later), [0, 0, 32 - zeros], "{technique:?}");
        assert_filled(&cpu, &space, area, 0..64, 0);
        assert_eq!(count(&machine, VmEvent::Pgmajfault), 32);
        assert_eq!(free_slots(&machine), SLOTS, "{technique:?}");
        // Nor pages that were never swapped out.
        space.madvise(area, 64 * PAGE, Advice::WillNeed).unwrap();
        assert_eq!(space.figures().resident, 64 * PAGE);
    }
}

#[test]
fn willneed_does_not_wait_for_a_slow_device() {
    let machine = late(SlowConfig { queue: 64, ..SlowConfig::default() });
    let (cpu, space, area) = paged_out(&machine, 64);
    space.madvise(area, 64 * PAGE, Advice::WillNeed).unwrap();
    assert_eq!(count(&machine, VmEvent::Pswpin), 64);
    assert_eq!(in_memory(&space, area, 64), 0, "nothing has come yet");
    assert_audit(&machine);
    // An access that comes too early waits for the read.
    assert_eq!(read(&cpu, &space, page(area, 63)), 163);
    assert_eq!(in_memory(&space, area, 64), 64);
    assert_filled(&cpu, &space, area, 0..64, 100);
    assert_eq!(
        counts(&machine, [VmEvent::Pgmajfault, VmEvent::Pswpin, VmEvent::SwapRa, VmEvent::SwapRaHit]),
        [0, 64, 0, 0]
    );
}

/// More than the device's queue holds.
#[test]
fn willneed_continues_after_a_full_queue() {
    let machine = late(SlowConfig { queue: 4, ..SlowConfig::default() });
    let (cpu, space, area) = paged_out(&machine, 64);
    space.madvise(area, 64 * PAGE, Advice::WillNeed).unwrap();
    reap(&machine, 3);
    assert_eq!(in_memory(&space, area, 64), 64);
    assert_filled(&cpu, &space, area, 0..64, 100);
}

#[test]
fn a_failed_read_is_retried_by_the_fault() {
    let machine = late(SlowConfig { fail_read: Some(3), queue: 64, ..SlowConfig::default() });
    let (cpu, space, area) = paged_out(&machine, 8);
    space.madvise(area, 8 * PAGE, Advice::WillNeed).unwrap();
    reap(&machine, 3);
    assert_eq!(in_memory(&space, area, 8), 7);
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, 0..8, 100);
    assert_eq!(count(&machine, VmEvent::Pgmajfault), 1);
}

/// Pages that are unmapped while they are read leave nothing behind.
#[test]
fn munmap_during_willneed_leaves_nothing() {
    let machine = late(SlowConfig { queue: 64, ..SlowConfig::default() });
    let (_cpu, space, area) = paged_out(&machine, 16);
    space.madvise(area, 16 * PAGE, Advice::WillNeed).unwrap();
    space.munmap(area, 8 * PAGE).unwrap();
    drop(space);
    assert_eq!(machine.memory().swap().devices().cached_pages(), 16, "the device is at them");
    assert_audit(&machine);
    reap(&machine, 3);
    assert_eq!(machine.memory().swap().devices().cached_pages(), 0);
    assert_eq!(free_slots(&machine), SLOTS);
    assert_eq!(anonymous_frames(&machine), 0);
    assert_audit(&machine);
}

#[test]
fn willneed_reports_a_hole_after_reading_the_rest() {
    let machine = setup().swap(SLOTS).build();
    let (_cpu, space, area) = paged_out(&machine, 16);
    space.munmap(page(area, 4), PAGE).unwrap();
    assert_eq!(space.madvise(area, 16 * PAGE, Advice::WillNeed), Err(Error::NotMapped));
    assert_eq!((in_memory(&space, area, 4), in_memory(&space, page(area, 5), 11)), (4, 11));
    assert_eq!(space.madvise(page(area, 16), PAGE, Advice::WillNeed), Err(Error::NotMapped));
    // The advice is allowed for memory of any kind.
    let shared = MapRequest { flags: MapFlags::SHARED, ..MapRequest::anonymous(PAGE, RW) };
    let file = MappedFile::new(7, 0);
    let file = MapRequest { file: Some(file), ..MapRequest::anonymous(PAGE, RW) };
    for request in [shared, file] {
        let other = space.mmap(&request).unwrap();
        space.madvise(other, PAGE, Advice::WillNeed).unwrap();
    }
}

#[test]
fn willneed_reads_a_large_folio_whole() {
    let machine = setup()
        .huge(HugePolicy::MADVISE.with_sizes(OrderSet::of(Order::PMD), SizeEnabled::Always))
        .swap(SLOTS)
        .build();
    let (cpu, space, area) = mapped(&machine, GIB, MIB2);
    let folios = |counter| machine.memory().frames().events().folios(Order::PMD, counter);
    fill(&cpu, &space, area, 0..512, 100);
    send_out(&machine, &space, area, 512);
    space.madvise(area, MIB2, Advice::WillNeed).unwrap();
    assert_eq!((folios(FolioCounter::Swpin), folios(FolioCounter::NrAnon)), (1, 1));
    assert_audit(&machine);
    let faults = count(&machine, VmEvent::Pgfault);
    assert_filled(&cpu, &space, area, 0..512, 100);
    assert_eq!(counts(&machine, [VmEvent::Pgfault, VmEvent::Pgmajfault]), [faults + 1, 0]);
    // A part of it is read in pages.
    send_out(&machine, &space, area, 512);
    space.madvise(page(area, 3), 510 * PAGE, Advice::WillNeed).unwrap_err();
    space.madvise(page(area, 3), 500 * PAGE, Advice::WillNeed).unwrap();
    assert_eq!((folios(FolioCounter::Swpin), folios(FolioCounter::NrAnon)), (1, 0));
    assert_eq!(in_memory(&space, area, 512), 509);
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, 0..512, 100);
}

/// Other pages are reclaimed; what does not fit stays in swap, and no program is killed for it.
#[test]
fn a_full_memcg_fails_neither_willneed_nor_the_program() {
    let machine: Machine = setup().with(|memory| memory.oom = OomAction::Kill).swap(SLOTS).build();
    let cpu = machine.vcpu(0).unwrap();
    let memcgs = machine.memory().memcgs();
    let memcg = memcgs.lifecycle().create(MemcgId::ROOT, "small").unwrap();
    let _ = memcgs.files().set(memcg, Limit::Max, Some(128 * PAGE)).unwrap();
    let space = create_space(&machine).audited(&machine);
    space.set_memcg(memcg).unwrap();
    let area = map_filled(&cpu, &space, GIB, 512, 100);
    space.madvise(area, 512 * PAGE, Advice::PageOut).unwrap();
    let before = count(&machine, VmEvent::Pswpin);
    space.madvise(area, 512 * PAGE, Advice::WillNeed).unwrap();
    let read = count(&machine, VmEvent::Pswpin) - before;
    assert!(read > 256 && usage(&machine, memcg) <= 128, "{read} read");
    assert_audit(&machine);
    assert_filled(&cpu, &space, area, 0..512, 100);
    // Locked memory cannot be reclaimed.
    space.madvise(area, 512 * PAGE, Advice::PageOut).unwrap();
    space.mlock(area, 128 * PAGE, false).unwrap();
    let before = count(&machine, VmEvent::Pswpin);
    space.madvise(page(area, 128), 384 * PAGE, Advice::WillNeed).unwrap();
    assert_eq!((count(&machine, VmEvent::Pswpin), space.oom().is_killed()), (before, false));
    space.munlock(area, 128 * PAGE).unwrap();
    assert_filled(&cpu, &space, area, 0..512, 100);
}
