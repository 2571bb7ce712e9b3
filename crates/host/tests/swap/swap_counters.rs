//! What is counted when folios of each size are swapped out and in, as Linux 6.18 counts it. Its counts were
//! taken with zram, without and with zswap in front of it, folios of 64 KiB and 2 MiB, of zeros and of random
//! bytes.

use crate::common::*;

const SLOTS: u64 = 2048;

/// A machine with folios of one order and 8 MiB of swap, behind a compressed cache of `front` bytes if that
/// is set.
fn machine_of_folios(order: Order, front: Option<u64>) -> Machine {
    let policy = HugePolicy::MADVISE.with_sizes(OrderSet::of(order), SizeEnabled::Always);
    let machine = Setup::mib(32).reserve().huge(policy).build();
    if let Some(bytes) = front {
        let frames = machine.memory().frames();
        let cache = CompressedCache::new(frames, RamDisk::new(frames, SLOTS).unwrap(), bytes).unwrap();
        swap_on(&machine, cache);
    } else {
        swap_on_ram(&machine, SLOTS);
    }
    machine
}

const EVENTS: [VmEvent; 8] = [
    VmEvent::Pswpout,
    VmEvent::Pswpin,
    VmEvent::SwpoutZero,
    VmEvent::SwpinZero,
    VmEvent::Zswpout,
    VmEvent::Zswpin,
    VmEvent::Zswpwb,
    VmEvent::ThpSwpout,
];
const FOLIOS: [FolioCounter; 3] = [FolioCounter::Swpout, FolioCounter::Zswpout, FolioCounter::Swpin];

fn counted(machine: &Machine, order: Order) -> ([u64; EVENTS.len()], [u64; FOLIOS.len()]) {
    let events = machine.memory().frames().events();
    (EVENTS.map(|event| count(machine, event)), FOLIOS.map(|counter| events.folios(order, counter)))
}

#[test]
fn swap_counters_of_folios() {
    for order in [Order::new(4).unwrap(), Order::PMD] {
        let pages = order.pages();
        let huge = u64::from(order == Order::PMD);
        for (front, zeros) in [(None, false), (None, true), (Some(4 << 20), false), (Some(4 << 20), true)] {
            let machine = machine_of_folios(order, front);
            let (cpu, space, area) = mapped(&machine, GIB, MIB2);
            if zeros {
                // A read would map the shared zero page.
                (0..pages).for_each(|at| write(&cpu, &space, page(area, at), 0));
            } else {
                fill(&cpu, &space, area, 0..pages, 100);
            }
            assert_eq!(machine.memory().frames().events().folios(order, FolioCounter::AnonFaultAlloc), 1);
            space.madvise(area, pages * PAGE, Advice::PageOut).unwrap();
            assert_eq!(space.figures().resident, 0);
            // Written to the device, or stored as zeros, or kept by the cache: one of the three.
            let (out, folios) = match (zeros, front) {
                (true, _) => ([0, 0, pages, 0, 0, 0, 0, 0], [0, 0, 0]),
                (false, None) => ([pages, 0, 0, 0, 0, 0, 0, huge], [1, 0, 0]),
                (false, Some(_)) => ([0, 0, 0, 0, pages, 0, 0, 0], [0, 1, 0]),
            };
            let case = format!("{order:?}, zeros {zeros}, {front:?}");
            assert_eq!(counted(&machine, order), (out, folios), "{case}");
            if zeros {
                (0..pages).for_each(|at| assert_eq!(read(&cpu, &space, page(area, at)), 0, "{case}"));
            } else {
                assert_filled(&cpu, &space, area, 0..pages, 100);
            }
            let (mut all, mut folios) = (out, folios);
            match (zeros, front) {
                (true, _) => all[3] = pages,
                (false, None) => (all[1], folios[2]) = (pages, 1),
                (false, Some(_)) => all[5] = pages,
            }
            assert_eq!(counted(&machine, order), (all, folios), "{case}, back");
        }
    }
}

/// What a cache writes back is written by the device then, and read from there.
#[test]
fn writeback_counts_for_the_device_behind() {
    // Enough for a part of what is stored.
    let machine = machine_of_folios(Order::new(4).unwrap(), Some(16 * PAGE));
    let (cpu, space, area) = mapped(&machine, GIB, 256 * PAGE);
    let noise = |at: u64, word: u64| (at << 32 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for at in 0..256 {
        for word in 0..256 {
            write(&cpu, &space, VirtAddr(page(area, at).0 + 8 * word), noise(at, word));
        }
    }
    space.madvise(area, 256 * PAGE, Advice::PageOut).unwrap();
    let ([out, _, _, _, kept, _, back, _], _) = counted(&machine, Order::PMD);
    assert!(kept > 0 && back > 0, "{kept} pages were kept, {back} of them written back");
    assert_eq!(out + kept - back, 256, "each page went once to its place");
    for at in 0..256 {
        assert_eq!(read(&cpu, &space, page(area, at)), noise(at, 0));
    }
    let ([_, read, _, _, _, found, ..], _) = counted(&machine, Order::PMD);
    assert_eq!((read + found, found), (256, kept - back));
}

/// A memcg at its limit gets no large folio, neither new nor from swap, though there is memory.
#[test]
fn a_memcg_at_its_limit_is_told_from_a_machine_without_memory() {
    let order = Order::new(4).unwrap();
    let machine = machine_of_folios(order, None);
    let (cpu, memcg, space) = in_memcg(&machine, "small", &[]);
    let area = map_at(&space, GIB, MIB2, RW);
    let folios = |counter| machine.memory().frames().events().folios(order, counter);
    fill(&cpu, &space, area, 0..16, 100);
    space.madvise(area, 16 * PAGE, Advice::PageOut).unwrap();
    set_limit(&machine, memcg, Limit::Max, 8);
    assert_eq!(read(&cpu, &space, area), 100);
    assert_eq!([FolioCounter::SwpinFallback, FolioCounter::SwpinFallbackCharge].map(folios), [1, 1]);
    write(&cpu, &space, page(area, 16), 1);
    assert_eq!([FolioCounter::AnonFaultFallback, FolioCounter::AnonFaultFallbackCharge].map(folios), [1, 1]);
    assert_eq!(folios(FolioCounter::AnonFaultAlloc), 1);
}
