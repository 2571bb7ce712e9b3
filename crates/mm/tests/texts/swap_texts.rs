//! What the texts tell of swap is what is there, and the same in all of them.

use crate::common::{HostMemory, text, words};
use quire_arch::{PAGE_SIZE, Platform, VirtAddr, VirtRange};
use quire_host::{HostConfig, HostPlatform, Machine, Vcpu};
use quire_mm::{
    MemoryConfig,
    memcg::{MemcgError, MemcgId},
    proc,
    space::{Advice, MapRequest, MappedFile, PageState, Protection, RemapFlags, Space},
    swap::{
        DeviceError, DeviceFlags, DeviceMemory, DeviceReport, PageIo, Submitted, SwapDevice, SwapOnOptions,
    },
};

const PAGES: u64 = 64;
const RW: Protection = Protection::READ.union(Protection::WRITE);

fn machine() -> Machine {
    Machine::new(&HostConfig::with_ram(32 << 20).paranoid(), MemoryConfig::default()).unwrap()
}

fn page(base: VirtAddr, nth: u64) -> VirtAddr {
    VirtAddr(base.0 + nth * PAGE_SIZE)
}

/// A space with pages that were written, each with other contents.
fn filled<'m>(machine: &'m Machine, cpu: &Vcpu) -> (Space<'m, HostPlatform>, VirtAddr) {
    let space = machine.memory().create_space().unwrap();
    let base = space.mmap(&MapRequest::anonymous(PAGES * PAGE_SIZE, RW)).unwrap();
    for nth in 0..PAGES {
        cpu.program(&space).write_u64(page(base, nth), 1 + nth).unwrap();
    }
    (space, base)
}

/// What a compressed cache keeps back from its device, and what else compresses does not count.
#[test]
fn the_pages_of_a_compressed_cache_are_told_in_meminfo() {
    let machine = machine();
    let memory = machine.memory();
    let cpu = machine.vcpu(0).unwrap();
    let (space, base) = filled(&machine, &cpu);
    let told = || {
        let meminfo = text(&machine, proc::meminfo);
        (figure(&meminfo, "Zswap:"), figure(&meminfo, "Zswapped:"))
    };
    let swapon = |nth, cached: bool| {
        let options = SwapOnOptions { priority: Some(nth), ..Default::default() };
        if cached {
            let behind = memory.create_ram_disk(40).unwrap();
            memory.swapon(memory.create_compressed_cache(behind, 1 << 20).unwrap(), options).unwrap();
        } else {
            memory.swapon(memory.create_compressed_ram(1000).unwrap(), options).unwrap();
        }
    };
    swapon(1, true);
    swapon(0, false);
    assert_eq!(told(), (0, 0));
    space.madvise(base, PAGES * PAGE_SIZE, Advice::PageOut).unwrap();
    let (compressed, original) = told();
    assert_eq!(original, 40 * 4);
    assert!((4..original).contains(&compressed) && compressed.is_multiple_of(4), "{compressed} kB");
    let vmstat = text(&machine, proc::vmstat);
    assert_eq!(
        (figure(&vmstat, "zswpout"), figure(&vmstat, "zswpin"), figure(&vmstat, "zswpwb")),
        (40, 0, 0)
    );
    assert_agree(&machine, &[&space]);
    for nth in 0..PAGES {
        assert_eq!(cpu.program(&space).read_u64(page(base, nth)).unwrap(), 1 + nth);
    }
    assert_eq!(told().1, 0);
    assert_eq!(figure(&text(&machine, proc::vmstat), "zswpin"), 40);
}

/// The figure behind `name`.
#[track_caller]
fn figure(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| words(line).first() == Some(&name));
    words(line.unwrap_or_else(|| panic!("no {name}: {text}")))[1].parse().unwrap()
}

/// The sum of all figures behind `name`.
fn sum(text: &str, name: &str) -> u64 {
    let lines = text.lines().map(words).filter(|words| words.first() == Some(&name));
    lines.map(|words| words[1].parse::<u64>().unwrap()).sum()
}

fn status(machine: &Machine, space: &Space<'_, HostPlatform>) -> String {
    text(machine, |_, out| proc::status(&space.figures(), out))
}

fn smaps(machine: &Machine, space: &Space<'_, HostPlatform>) -> String {
    text(machine, |_, out| proc::smaps(space, out))
}

fn pages(space: &Space<'_, HostPlatform>, base: VirtAddr) -> Vec<(u64, u64)> {
    let mut words = Vec::new();
    space.mappings().pagemap(VirtRange::new(base, page(base, PAGES)), |range, state| {
        for addr in (range.start().0..range.end().0).step_by(PAGE_SIZE as usize) {
            words.push((addr, proc::pagemap_entry(state)));
        }
    });
    words
}

/// Whatever was done: what adds up to the same in several texts does so.
#[track_caller]
fn assert_agree(machine: &Machine, spaces: &[&Space<'_, HostPlatform>]) {
    let (meminfo, vmstat) = (text(machine, proc::meminfo), text(machine, proc::vmstat));
    let zoneinfo = text(machine, proc::zoneinfo);
    let swaps = text(machine, proc::swaps);
    for (name, pages) in [
        ("Active(anon):", "nr_active_anon"),
        ("Inactive(anon):", "nr_inactive_anon"),
        ("Active(file):", "nr_active_file"),
        ("Inactive(file):", "nr_inactive_file"),
        ("Unevictable:", "nr_unevictable"),
        ("SwapCached:", "nr_swapcached"),
        ("AnonPages:", "nr_anon_pages"),
        ("Mapped:", "nr_mapped"),
        ("Dirty:", "nr_dirty"),
        ("Writeback:", "nr_writeback"),
    ] {
        assert_eq!(figure(&meminfo, name), figure(&vmstat, pages) * 4, "{name}");
        if pages.ends_with("active_anon") || pages.ends_with("active_file") || pages == "nr_unevictable" {
            assert_eq!(sum(&zoneinfo, pages), figure(&vmstat, pages), "{pages}");
        }
    }
    assert_eq!(
        figure(&meminfo, "Active:"),
        figure(&meminfo, "Active(anon):") + figure(&meminfo, "Active(file):")
    );
    assert_eq!(
        figure(&meminfo, "Cached:") + figure(&meminfo, "SwapCached:"),
        figure(&vmstat, "nr_file_pages") * 4
    );
    let devices: Vec<Vec<&str>> = swaps.lines().skip(1).map(words).collect();
    let column = |nth: usize| devices.iter().map(|words| words[nth].parse::<u64>().unwrap()).sum::<u64>();
    assert_eq!(column(2), figure(&meminfo, "SwapTotal:"));
    assert_eq!(column(2) - column(3), figure(&meminfo, "SwapFree:"));
    for space in spaces {
        let (status, smaps) = (status(machine, space), smaps(machine, space));
        assert_eq!(figure(&status, "VmSwap:"), sum(&smaps, "Swap:"));
        assert_eq!(figure(&status, "VmRSS:"), sum(&smaps, "Rss:"));
        assert_eq!(figure(&status, "RssAnon:"), sum(&smaps, "Anonymous:"));
        let parts = ["Shared_Clean:", "Shared_Dirty:", "Private_Clean:", "Private_Dirty:"];
        assert_eq!(sum(&smaps, "Rss:"), parts.map(|part| sum(&smaps, part)).iter().sum::<u64>());
        assert!(
            sum(&smaps, "SwapPss:") <= sum(&smaps, "Swap:") && sum(&smaps, "Pss:") <= sum(&smaps, "Rss:")
        );
    }
}

#[test]
fn proc_files_report_swapped_pages() {
    let machine = machine();
    let memory = machine.memory();
    let cpu = machine.vcpu(0).unwrap();
    let (space, base) = filled(&machine, &cpu);
    assert_agree(&machine, &[&space]);
    assert_eq!(text(&machine, proc::swaps).lines().count(), 1);
    assert_eq!(figure(&text(&machine, proc::meminfo), "SwapTotal:"), 0);
    memory
        .swapon(
            memory.create_ram_disk(40).unwrap(),
            SwapOnOptions { priority: Some(5), ..Default::default() },
        )
        .unwrap();
    memory.swapon(memory.create_compressed_ram(1000).unwrap(), SwapOnOptions::default()).unwrap();
    let meminfo = text(&machine, proc::meminfo);
    assert_eq!(figure(&meminfo, "Active(anon):") + figure(&meminfo, "Inactive(anon):"), 4 * PAGES);
    assert_agree(&machine, &[&space]);

    // All but eight go, more than the first device has room for.
    space.madvise(page(base, 8), (PAGES - 8) * PAGE_SIZE, Advice::PageOut).unwrap();
    assert_agree(&machine, &[&space]);
    assert_eq!(figure(&status(&machine, &space), "VmSwap:"), 4 * (PAGES - 8));
    assert_eq!(sum(&smaps(&machine, &space), "SwapPss:"), 4 * (PAGES - 8));
    let vmstat = text(&machine, proc::vmstat);
    assert_eq!((figure(&vmstat, "pswpout"), figure(&vmstat, "pswpin")), (PAGES - 8, 0));
    let swaps = text(&machine, proc::swaps);
    assert!(swaps.lines().nth(1).is_some_and(|line| words(line)[2..] == ["160", "160", "5"]), "{swaps}");
    let zram = memory.swap().devices().reports().nth(1).unwrap();
    let mm_stat = text(&machine, |_, out| proc::mm_stat(&zram, out));
    assert_eq!(words(&mm_stat)[0].parse(), Ok((PAGES - 8 - 40) * PAGE_SIZE), "{mm_stat}");
    let words_of_pages = pages(&space, base);
    assert!(words_of_pages[..8].iter().all(|&(_, word)| word == 1 << 63));
    // Device and slot: no two are the same, and 40 are on device 0.
    let mut slots: Vec<u64> = words_of_pages[8..].iter().map(|&(_, word)| word).collect();
    assert!(slots.iter().all(|word| word >> 62 == 1));
    assert_eq!(slots.iter().filter(|&word| word & 0x1f == 0).count(), 40);
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len() as u64, PAGES - 8);
    // None of them is in memory for mincore either.
    let mut present = Vec::new();
    space.mincore(base, PAGES * PAGE_SIZE, |page| present.push(page)).unwrap();
    assert_eq!(present.iter().filter(|&&page| page).count(), 8);

    // A page that is read is in memory again, and one of a child's too: both have it in the cache.
    let child = space.fork().unwrap();
    assert_agree(&machine, &[&space, &child]);
    assert_eq!(sum(&smaps(&machine, &space), "SwapPss:"), 2 * (PAGES - 8));
    assert_eq!(cpu.program(&space).read_u64(page(base, 20)), Ok(21));
    assert_agree(&machine, &[&space, &child]);
    assert_eq!(figure(&status(&machine, &space), "VmSwap:"), 4 * (PAGES - 9));
    assert_eq!(figure(&text(&machine, proc::meminfo), "SwapCached:"), 4);
    let swapped = |state| matches!(state, PageState::Swapped { .. });
    let mut here = false;
    child
        .mappings()
        .pagemap(VirtRange::new(page(base, 20), page(base, 21)), |_, state| here = swapped(state));
    assert!(here, "the child has not looked yet");
    child.mincore(page(base, 20), PAGE_SIZE, |present| assert!(present, "but it is in memory")).unwrap();
    drop(child);
    assert_agree(&machine, &[&space]);
    drop(space);
    assert_agree(&machine, &[]);
}

#[test]
fn unneeded_pages_are_counted() {
    let machine = machine();
    let cpu = machine.vcpu(0).unwrap();
    let (space, base) = filled(&machine, &cpu);
    assert_eq!(sum(&smaps(&machine, &space), "Private_Dirty:"), 4 * PAGES);
    assert_eq!(sum(&smaps(&machine, &space), "Referenced:"), 4 * PAGES);
    space.madvise(base, 10 * PAGE_SIZE, Advice::Free).unwrap();
    cpu.program(&space).write_u64(base, 7).unwrap();
    let told = smaps(&machine, &space);
    assert_eq!((sum(&told, "LazyFree:"), sum(&told, "Private_Clean:")), (36, 36), "{told}");
    space.mlock(page(base, 20), 5 * PAGE_SIZE, false).unwrap();
    assert_eq!(sum(&smaps(&machine, &space), "Locked:"), 20);
    // What a CPU keeps of the old pages says that they were used; the tables do not any more.
    let used = sum(&smaps(&machine, &space), "Referenced:");
    space.madvise(page(base, 30), 20 * PAGE_SIZE, Advice::Cold).unwrap();
    assert_eq!(sum(&smaps(&machine, &space), "Referenced:"), used - 80);
    let findings = machine.audit();
    assert!(findings.is_empty(), "{findings:?}");
    let child = space.fork().unwrap();
    assert_eq!(sum(&smaps(&machine, &child), "Pss:"), 2 * PAGES);
    assert_agree(&machine, &[&space, &child]);
}

/// A write to `memory.reclaim` succeeds where all that it asks for was freed, as in Linux.
#[test]
fn a_memcg_is_reclaimed_from_through_its_files() {
    let machine = machine();
    let memory = machine.memory();
    let cpu = machine.vcpu(0).unwrap();
    let group = memory.create_memcg(MemcgId::ROOT, "group").unwrap();
    assert_eq!((memory.find_memcg("group"), memory.find_memcg("grope")), (Some(group), None));
    let space = memory.create_space().unwrap();
    space.set_memcg(group).unwrap();
    let base = space.mmap(&MapRequest::anonymous(PAGES * PAGE_SIZE, RW)).unwrap();
    for nth in 0..PAGES {
        cpu.program(&space).write_u64(page(base, nth), 1 + nth).unwrap();
    }
    let write = |name, text| memory.write_memcg_file(group, name, text);
    let in_memory = || space.figures().resident_anonymous / PAGE_SIZE;
    assert_eq!(in_memory(), PAGES);
    // Nothing can go without a device.
    assert_eq!(write("memory.reclaim", "4K"), Err(MemcgError::Again));
    assert_eq!(in_memory(), PAGES);
    memory.swapon(memory.create_ram_disk(40).unwrap(), SwapOnOptions::default()).unwrap();
    assert_eq!(write("memory.reclaim", "4K swappiness=max"), Err(MemcgError::BadValue));
    assert_eq!(in_memory(), PAGES);
    assert_eq!(write("memory.reclaim", "32K"), Ok(None));
    assert!(in_memory() <= PAGES - 8);
    // The device takes 40 pages only, and what it took is not put back.
    assert_eq!(write("memory.reclaim", "256K"), Err(MemcgError::Again));
    assert_eq!(in_memory(), PAGES - 40);
    // Nor does a limit below the usage fail: the next page that the program asks for does.
    assert_eq!(write("memory.max", "4K"), Ok(None));
    assert_eq!(in_memory(), PAGES - 40);
    assert_eq!(write("memory.max", "max"), Ok(None));
    drop(space);
    memory.remove_memcg(group).unwrap();
    assert_eq!(memory.find_memcg("group"), None);
}

#[test]
fn files_of_memcgs_are_found_by_their_path() {
    let machine = machine();
    let memory = machine.memory();
    let cpu = machine.vcpu(0).unwrap();
    let memcgs = memory.memcgs();
    let outer = memcgs.lifecycle().create(MemcgId::ROOT, "outer").unwrap();
    let inner = memcgs.lifecycle().create(outer, "inner").unwrap();
    let space = memory.create_space().unwrap();
    space.set_memcg(inner).unwrap();
    let base = space.mmap(&MapRequest::anonymous(PAGES * PAGE_SIZE, RW)).unwrap();
    (0..PAGES).for_each(|nth| cpu.program(&space).write_u64(page(base, nth), 1).unwrap());
    let read_since = |path: &str, since| {
        let mut out = String::new();
        proc::memcg_file(memory as &HostMemory, path, since, &mut out).map(|()| out)
    };
    let read = |path: &str| read_since(path, None);
    assert_eq!(read("outer/inner/memory.current"), read("/outer/memory.current"));
    assert_eq!(read("outer/memory.current").map(|text| text.trim().parse()), Ok(Ok(PAGES * PAGE_SIZE)));
    // An open file of a peak is reset, and others are not.
    assert_eq!(read("outer/memory.peak"), read("outer/memory.current"));
    space.madvise(base, PAGES / 2 * PAGE_SIZE, Advice::DontNeed).unwrap();
    memcgs.charges().drain_stocks(&memory.platform().pin());
    let open = memory.write_memcg_file(outer, "memory.peak", "reset").unwrap();
    assert_eq!(read_since("outer/memory.peak", open), read("outer/memory.current"));
    let peak = |since| read_since("outer/memory.peak", since).map(|text| text.trim().parse());
    assert_eq!((peak(open), peak(None)), (Ok(Ok(PAGES / 2 * PAGE_SIZE)), Ok(Ok(PAGES * PAGE_SIZE))));
    assert!(read("memory.stat").is_ok_and(|text| text.contains("inactive_anon")));
    assert_eq!(read("memory.current"), Err(MemcgError::NoFile));
    assert_eq!(read("other/memory.current"), Err(MemcgError::NoMemcg));
    assert_eq!(read("outer/memory.much"), Err(MemcgError::NoFile));
    drop(space);
    memcgs.lifecycle().remove(inner).unwrap();
    memcgs.lifecycle().remove(outer).unwrap();
}

/// A device of the embedder's whose name is longer than its column, and whose figures are larger than any
/// memory.
struct Boastful;

impl<P: Platform> SwapDevice<P> for Boastful {
    fn kind(&self) -> &'static str {
        "a kind of device whose name takes more than forty columns"
    }

    fn slots(&self) -> u64 {
        64
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::SYNCHRONOUS
    }

    unsafe fn submit(&self, _: DeviceMemory<'_, P>, _: PageIo) -> Submitted {
        Submitted::Done(Err(DeviceError::Io))
    }

    fn report(&self) -> DeviceReport {
        let most = u64::MAX;
        DeviceReport { is_cache: true, stored_pages: most, used_bytes: most, ..DeviceReport::default() }
    }
}

/// Hazard: a text panics for what an embedder's device says of itself.
#[test]
fn a_device_that_boasts_breaks_no_text() {
    let machine = machine();
    machine.memory().swapon(Boastful, SwapOnOptions::default()).unwrap();
    let swaps = text(&machine, proc::swaps);
    assert_eq!(
        words(swaps.lines().last().unwrap()).split_at(10).1,
        ["columns0", "partition", "256", "0", "-2"]
    );
    let meminfo = text(&machine, proc::meminfo);
    assert_eq!([figure(&meminfo, "Zswap:"), figure(&meminfo, "Zswapped:")], [u64::MAX >> 12 << 2, u64::MAX]);
    let report = machine.memory().swap().devices().reports().next().unwrap();
    let stat = text(&machine, |_, out| proc::mm_stat(&report, out));
    assert_eq!(words(&stat)[0], u64::MAX.to_string());
}

/// Hazard: a file's offset overflows. `mremap` checks only that pages can be counted, so what it adds may lie
/// past all offsets that bytes can have.
#[test]
fn an_offset_past_all_bytes_wraps_as_in_linux() {
    let machine = machine();
    let space = machine.memory().create_space().unwrap();
    let file = MappedFile { max_bytes: MappedFile::DEVICE_BYTES, ..MappedFile::new(1, (1 << 52) - 2) };
    let request = MapRequest { file: Some(file), ..MapRequest::anonymous(PAGE_SIZE, RW) };
    let at = space.mmap(&request).unwrap();
    let at = space.mremap(at, PAGE_SIZE, 8 * PAGE_SIZE, RemapFlags::MAYMOVE, VirtAddr(0)).unwrap();
    space.munmap(at, 3 * PAGE_SIZE).unwrap();
    let mut maps = String::new();
    proc::maps(&space, &mut maps).unwrap();
    assert_eq!(words(&maps)[2], "00001000");
}
