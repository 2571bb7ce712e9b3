//! What a compressed cache keeps of each memcg, and what its limit and its switch do.

use crate::common::*;
use crate::disk::Disk;
use quire_host::swap::{Completion, SlowConfig, SlowDevice};
use quire_mm::proc::memcg_file;

const PAGES: u64 = 64;

/// A machine with a compressed cache of `bytes` in front of a device that is slow or not.
fn with_cache(bytes: u64, is_slow: bool) -> Machine {
    let machine = Setup::mib(32).overcommit().build();
    let memory = machine.memory();
    let disk = Disk::new(4096).0;
    if is_slow {
        let config = SlowConfig { completion: Completion::AfterReaps(2), queue: 4, ..SlowConfig::default() };
        swap_on(&machine, memory.create_compressed_cache(SlowDevice::new(disk, config), bytes).unwrap());
    } else {
        swap_on(&machine, memory.create_compressed_cache(disk, bytes).unwrap());
    }
    machine
}

fn write_file(machine: &Machine, memcg: MemcgId, name: &str, text: &str) {
    machine.memory().write_memcg_file(memcg, name, text).unwrap();
}

/// The number in the file of a memcg at `path`, behind `key` if it has keys.
fn figure(machine: &Machine, path: &str, key: &str) -> u64 {
    let mut text = String::new();
    memcg_file(machine.memory(), path, None, &mut text).unwrap();
    let line = text.lines().find(|line| key.is_empty() || line.split(' ').next() == Some(key)).unwrap();
    line.split(' ').next_back().unwrap().parse().unwrap()
}

fn stat(machine: &Machine, memcg: &str, key: &str) -> u64 {
    figure(machine, &format!("{memcg}/memory.stat"), key)
}

fn current(machine: &Machine, memcg: &str) -> u64 {
    figure(machine, &format!("{memcg}/memory.zswap.current"), "")
}

fn page_out(space: &HostSpace<'_>, area: VirtAddr) {
    space.madvise(area, PAGES * PAGE, Advice::PageOut).unwrap();
}

/// Pages of words of which each is another one: they are compressed a little.
fn noise(cpu: &Vcpu, space: &HostSpace<'_>, area: VirtAddr) {
    let mut random = Random(5);
    for word in (0..PAGES * PAGE / 16).map(|nth| VirtAddr(area.0 + 16 * nth)) {
        write(cpu, space, word, random.below(u64::MAX));
    }
}

fn filled_in<'m>(machine: &'m Machine, name: &str) -> (Vcpu, MemcgId, HostSpace<'m>, VirtAddr) {
    let (cpu, memcg, space) = in_memcg(machine, name, &[]);
    let area = map_at(&space, GIB, PAGES * PAGE, RW);
    noise(&cpu, &space, area);
    (cpu, memcg, space, area)
}

#[test]
fn what_the_cache_has_counts_for_the_memcg_until_it_is_gone() {
    for is_slow in [false, true] {
        let machine = with_cache(8 << 20, is_slow);
        let (cpu, _, space, area) = filled_in(&machine, "m");
        page_out(&space, area);
        let report = machine.memory().swap().devices().reports().next().unwrap().device;
        assert_eq!((report.stored_pages, report.compressed_bytes), (PAGES, current(&machine, "m")));
        assert_eq!(stat(&machine, "m", "zswap"), report.compressed_bytes);
        let is = ["zswapped", "zswpout", "zswpin", "zswpwb", "pswpout"].map(|key| stat(&machine, "m", key));
        assert_eq!(is, [PAGES * PAGE, PAGES, 0, 0, 0]);
        assert!(report.compressed_bytes > PAGES * PAGE / 4);
        // A page that comes back leaves with its slot.
        (0..PAGES / 2).for_each(|nth| _ = read(&cpu, &space, page(area, nth)));
        // Some come before they are wanted.
        let came = stat(&machine, "m", "zswpin");
        assert_eq!(stat(&machine, "m", "zswapped"), PAGES / 2 * PAGE);
        assert!((PAGES / 2..PAGES).contains(&came), "{came}");
        space.munmap(area, PAGES * PAGE).unwrap();
        assert_eq!((current(&machine, "m"), stat(&machine, "m", "zswapped")), (0, 0));
        assert_audit(&machine);
    }
}

/// Hazard: what is written back counts for ever.
#[test]
fn what_is_written_back_counts_as_written_and_not_in_the_cache() {
    for is_slow in [false, true] {
        let machine = with_cache(64 << 10, is_slow);
        let (cpu, _, space, area) = filled_in(&machine, "m");
        page_out(&space, area);
        reap(&machine, 100);
        let report = machine.memory().swap().devices().reports().next().unwrap().device;
        assert!(report.written_back_pages > 0 && report.stored_pages > 0, "{report:?}");
        assert_eq!(current(&machine, "m"), report.compressed_bytes);
        let [zswapped, zswpwb, pswpout, zswpout] =
            ["zswapped", "zswpwb", "pswpout", "zswpout"].map(|key| stat(&machine, "m", key));
        assert_eq!((zswapped, zswpwb), (report.stored_pages * PAGE, report.written_back_pages));
        assert_eq!(pswpout - zswpwb + zswpout, PAGES);
        drop(space);
        assert_eq!(current(&machine, "m"), 0);
        drop(cpu);
    }
}

#[test]
fn a_memcg_keeps_no_more_in_the_cache_than_it_may() {
    for is_slow in [false, true] {
        let machine = with_cache(8 << 20, is_slow);
        let (cpu, memcg, space, area) = filled_in(&machine, "m");
        write_file(&machine, memcg, "memory.zswap.max", "0");
        page_out(&space, area);
        reap(&machine, 100);
        assert_eq!((current(&machine, "m"), stat(&machine, "m", "pswpout")), (0, PAGES));
        assert_eq!(stat(&machine, "m", "zswpout"), 0);
        noise(&cpu, &space, area);
        write_file(&machine, memcg, "memory.zswap.max", "16K");
        page_out(&space, area);
        reap(&machine, 100);
        // As in Linux a page that finds it below the limit may take it past that.
        assert!((1..24 << 10).contains(&current(&machine, "m")), "{}", current(&machine, "m"));
        assert!(stat(&machine, "m", "zswpwb") > 0, "its own pages make room");
        let other = machine.memory().swap().devices().reports().next().unwrap().device;
        assert_eq!(other.compressed_bytes, current(&machine, "m"));
        assert_audit(&machine);
    }
}

/// Hazard: a page of a memcg that must not go to a slow device goes there.
#[test]
fn without_writeback_a_page_goes_no_further_than_the_cache() {
    let machine = with_cache(64 << 10, false);
    let (cpu, memcg, space, area) = filled_in(&machine, "m");
    write_file(&machine, MemcgId::ROOT, "memory.zswap.writeback", "0");
    page_out(&space, area);
    let out = PAGES - usage(&machine, memcg);
    assert!(out > 0 && out < PAGES, "{out}");
    let is = ["pswpout", "zswpwb", "zswapped"].map(|key| stat(&machine, "m", key));
    assert_eq!(is, [0, 0, out * PAGE]);
    write_file(&machine, memcg, "memory.zswap.max", "0");
    (0..PAGES).for_each(|nth| _ = read(&cpu, &space, page(area, nth)));
    page_out(&space, area);
    assert_eq!((usage(&machine, memcg), stat(&machine, "m", "pswpout")), (PAGES, 0), "all stay in memory");
    write_file(&machine, MemcgId::ROOT, "memory.zswap.writeback", "1");
    page_out(&space, area);
    (0..2).for_each(|_| _ = machine.memory().reclaim(memcg, PAGES));
    assert_eq!((usage(&machine, memcg), stat(&machine, "m", "pswpout")), (0, PAGES));
    assert_audit(&machine);
}

/// The oldest pages are of a memcg without writeback: those of another one go.
#[test]
fn pages_that_must_stay_in_the_cache_are_passed_over() {
    let machine = with_cache(256 << 10, false);
    let (cpu, memcg, space, area) = filled_in(&machine, "m");
    write_file(&machine, memcg, "memory.zswap.writeback", "0");
    page_out(&space, area);
    let has = current(&machine, "m");
    assert_eq!(stat(&machine, "m", "zswapped"), space.figures().swapped);
    let other = crate::common::memcg(&machine, "other", &[]);
    let second = space_in(&machine, other);
    let place = map_at(&second, GIB, PAGES * PAGE, RW);
    noise(&cpu, &second, place);
    page_out(&second, place);
    noise(&cpu, &second, place);
    page_out(&second, place);
    assert_eq!((current(&machine, "m"), stat(&machine, "m", "zswpwb")), (has, 0));
    assert!(stat(&machine, "other", "pswpout") > 0);
}

/// Hazard: a page in the cache counts for a memcg that is gone, or for the next one with its number.
#[test]
fn what_the_cache_has_goes_with_the_slots_to_another_memcg() {
    for swaps_in in [false, true] {
        let machine = with_cache(8 << 20, false);
        let memory = machine.memory();
        let above = memcg(&machine, "above", &[]);
        memory.create_memcg(above, "below").unwrap();
        let home = memcg(&machine, "home", &[]);
        let below = memory.find_memcg("above/below").unwrap();
        let cpu = machine.vcpu(0).unwrap();
        let space = space_in(&machine, below);
        let area = map_at(&space, GIB, PAGES * PAGE, RW);
        noise(&cpu, &space, area);
        page_out(&space, area);
        let has = current(&machine, "above");
        assert_eq!((has > 0, current(&machine, "above/below")), (true, has));
        // Its entries keep the slots when the pages come back.
        let child = space.fork().unwrap();
        child.set_memcg(home).unwrap();
        space.set_memcg(home).unwrap();
        memory.remove_memcg(below).unwrap();
        let expected = if swaps_in {
            (0..PAGES).for_each(|nth| _ = read(&cpu, &space, page(area, nth)));
            (0, has)
        } else {
            memory.swap().reparenting().free_numbers();
            (has, 0)
        };
        assert_eq!((current(&machine, "above"), current(&machine, "home")), expected);
        drop(child);
        drop(space);
        assert_eq!((current(&machine, "above"), current(&machine, "home")), (0, 0));
        assert_eq!(memory.memcgs().counters().stats(MemcgId::ROOT)[MemcgStat::Zswap as usize], 0);
        assert_audit(&machine);
    }
}
