//! The files of `/sys/kernel/mm/transparent_hugepage`: what is read and written, against tables and against
//! the Linux that the tests run on.

use crate::common::{HostMemory, machine_with, small, text};
use proptest::prelude::*;
use quire_arch::{Order, PAGE_SIZE, Platform, VirtAddr};
use quire_host::Machine;
use quire_mm::proc::HugeFile;
use quire_mm::{
    MemoryConfig,
    frame::{FolioCounter, VmEvent},
    proc as texts,
    space::{Advice, Errno, MapFlags, MapRequest, Protection},
    thp::{
        HugeConfig, HugeDisable, HugeEnabled, HugePolicy, HugeUse, KhugepagedConfig, KhugepagedSetting,
        OrderSet, SizeEnabled,
    },
};
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Write;

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
const RW: Protection = Protection::READ.union(Protection::WRITE);

fn find(path: &str) -> HugeFile {
    HugeFile::find(path).unwrap()
}

fn read(memory: &HostMemory, file: HugeFile) -> String {
    let mut text = String::new();
    file.read(memory, &mut text).unwrap();
    text
}

/// Everything that can be written, as it reads.
fn state(memory: &HostMemory) -> Vec<String> {
    HugeFile::all().filter(|file| file.is_writable()).map(|file| read(memory, file)).collect()
}

/// What would have to be written for a file to read so.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text, |(word, _)| word)
}

/// Linux's own text, or `None` with a note where there is none.
fn linux(file: HugeFile) -> Option<String> {
    let path = format!("{FOLDER}/{file}");
    fs::read_to_string(&path).map_err(|error| println!("{path} is not compared: {error}")).ok()
}

/// Sets `memory` as Linux is set at this moment; `false` where Linux lacks a file.
fn follow_linux(memory: &HostMemory) -> bool {
    HugeFile::all().filter(|file| file.is_writable()).all(|file| {
        let Some(text) = linux(file) else { return false };
        assert_eq!(file.write(memory, chosen(&text)), Ok(()), "{file}: {text:?}");
        true
    })
}

const SHORT: &[&str] = &[
    "always", "always\n", "madvise", "inherit", "never", "never\n", "defer", "", "\n", " madvise",
    "madvise ", "Always", "alway", "alwaysx", "defer+", "always\0", "\0", "0", "1", "1\n", "2", "-1", "-0",
    "01", "010", "+1", "+", "++1", "+ 1", " 1", "1 ", "1x", "0x1", "1\n\n", "1\n\0x", "0\0", "511", "512",
    "y", "Y", "yes", "no", "N\n", "t", "True", "f", "on", "off", "oN", "oFF", "o", "oo", "enable", "disable",
    "+511",
];
const LONG: &[&str] = &[
    "defer+madvise",
    "defer+madvise\n",
    "always\n\n",
    "[madvise]",
    "always madvise",
    "always\0x",
    "madvise\n\0",
    "always\nx",
    "4294967295",
    "4294967296",
    "99999999999999999999",
    "99999999999999999999x",
    "18446744073709551615",
    "18446744073709551616",
    "within_size",
];

/// Texts for every file: right ones and wrong ones.
fn any_texts() -> Vec<&'static str> {
    [SHORT, LONG].concat()
}

#[test]
fn files_read_as_linux_boots_with_madvise() {
    let machine = small(1);
    let memory = machine.memory();
    for (path, expected) in [
        ("enabled", "always [madvise] never\n"),
        ("defrag", "always defer defer+madvise [madvise] never\n"),
        ("use_zero_page", "1\n"),
        ("shrink_underused", "1\n"),
        ("hpage_pmd_size", "2097152\n"),
        ("hugepages-16kB/enabled", "always inherit madvise [never]\n"),
        ("shmem_enabled", "always within_size advise [never] deny force\n"),
        ("hugepages-8kB/shmem_enabled", "always inherit within_size advise [never]\n"),
        ("hugepages-2048kB/shmem_enabled", "always [inherit] within_size advise never\n"),
        ("hugepages-8kB/stats/shmem_alloc", "0\n"),
        ("hugepages-1024kB/enabled", "always inherit madvise [never]\n"),
        ("hugepages-2048kB/enabled", "always [inherit] madvise never\n"),
        ("hugepages-64kB/stats/anon_fault_alloc", "0\n"),
        ("khugepaged/pages_to_scan", "4096\n"),
        ("khugepaged/scan_sleep_millisecs", "10000\n"),
        ("khugepaged/alloc_sleep_millisecs", "60000\n"),
        ("khugepaged/max_ptes_none", "511\n"),
        ("khugepaged/max_ptes_swap", "64\n"),
        ("khugepaged/max_ptes_shared", "256\n"),
        ("khugepaged/defrag", "1\n"),
        ("khugepaged/full_scans", "0\n"),
        ("khugepaged/pages_collapsed", "0\n"),
    ] {
        assert_eq!(read(memory, find(path)), expected, "{path}");
    }
    for path in ["", "enable", "enabled/", "hugepages-8kB/enabled", "hugepages-4096kB/enabled", "stats/split"]
    {
        assert_eq!(HugeFile::find(path), Err(Errno::ENOENT), "{path:?}");
    }
    let paths: BTreeSet<String> = HugeFile::all().map(|file| file.to_string()).collect();
    let of_two_pages = FolioCounter::ALL.iter().filter(|counter| !counter.is_of_anonymous()).count();
    assert_eq!(paths.len(), 6 + 7 + 2 + 8 * (2 + FolioCounter::ALL.len()) + 1 + of_two_pages);
    for file in HugeFile::all() {
        assert_eq!(HugeFile::find(&file.to_string()), Ok(file));
    }
}

/// What Linux 6.18 does: what reads afterwards, or the error.
#[test]
fn writes_are_taken_and_refused_as_by_linux() {
    let machine = small(1);
    let memory = machine.memory();
    let (word, number) = ("hugepages-64kB/enabled", "khugepaged/max_ptes_none");
    let sleep = "khugepaged/scan_sleep_millisecs";
    for (path, text, expected) in [
        ("enabled", "always\n", Ok("[always] madvise never\n")),
        ("enabled", "", Ok("[always] madvise never\n")),
        ("enabled", "never\0\n", Ok("always madvise [never]\n")),
        ("enabled", "inherit", Err(Errno::EINVAL)),
        ("enabled", "always\n\n", Err(Errno::EINVAL)),
        ("enabled", "\n", Err(Errno::EINVAL)),
        ("enabled", "\0", Err(Errno::EINVAL)),
        ("enabled", "[madvise]", Err(Errno::EINVAL)),
        ("defrag", "defer+madvise\n", Ok("always defer [defer+madvise] madvise never\n")),
        ("defrag", "defer", Ok("always [defer] defer+madvise madvise never\n")),
        ("defrag", "defer+", Err(Errno::EINVAL)),
        (word, "inherit", Ok("always [inherit] madvise never\n")),
        (word, "madvise", Ok("always inherit [madvise] never\n")),
        (word, "always\n", Ok("[always] inherit madvise never\n")),
        (word, "within_size", Err(Errno::EINVAL)),
        (word, "never", Ok("always inherit madvise [never]\n")),
        ("shmem_enabled", "within_size\n", Ok("always [within_size] advise never deny force\n")),
        ("shmem_enabled", "inherit", Err(Errno::EINVAL)),
        ("shmem_enabled", "force", Ok("always within_size advise never deny [force]\n")),
        ("hugepages-8kB/shmem_enabled", "inherit", Err(Errno::EINVAL)),
        ("hugepages-8kB/shmem_enabled", "advise", Ok("always inherit within_size [advise] never\n")),
        ("shmem_enabled", "deny", Ok("always within_size advise never [deny] force\n")),
        ("hugepages-8kB/shmem_enabled", "inherit\n", Ok("always [inherit] within_size advise never\n")),
        ("shmem_enabled", "force", Err(Errno::EINVAL)),
        ("hugepages-8kB/shmem_enabled", "deny", Err(Errno::EINVAL)),
        ("hugepages-8kB/shmem_enabled", "never", Ok("always inherit within_size advise [never]\n")),
        ("use_zero_page", "0", Ok("0\n")),
        ("use_zero_page", "+1\n", Ok("1\n")),
        ("use_zero_page", "00", Ok("0\n")),
        ("use_zero_page", "2", Err(Errno::EINVAL)),
        ("use_zero_page", "-0", Err(Errno::EINVAL)),
        ("use_zero_page", "yes", Err(Errno::EINVAL)),
        ("use_zero_page", "99999999999999999999x", Err(Errno::ERANGE)),
        ("khugepaged/defrag", "0", Ok("0\n")),
        ("khugepaged/defrag", "99999999999999999999", Err(Errno::ERANGE)),
        ("khugepaged/defrag", "2", Err(Errno::EINVAL)),
        ("shrink_underused", "disable", Ok("0\n")),
        ("shrink_underused", "1\n\n", Ok("1\n")),
        ("shrink_underused", "oFF", Ok("0\n")),
        ("shrink_underused", "oo", Err(Errno::EINVAL)),
        ("shrink_underused", "2", Err(Errno::EINVAL)),
        (number, "010", Ok("10\n")),
        (number, "512", Err(Errno::EINVAL)),
        (number, "0x10", Err(Errno::EINVAL)),
        (number, "99999999999999999999", Err(Errno::EINVAL)),
        ("khugepaged/max_ptes_swap", "511", Ok("511\n")),
        ("khugepaged/max_ptes_swap", "512", Err(Errno::EINVAL)),
        ("khugepaged/max_ptes_shared", "511", Ok("511\n")),
        ("khugepaged/max_ptes_shared", "512", Err(Errno::EINVAL)),
        (sleep, "4294967295", Ok("4294967295\n")),
        (sleep, "4294967296", Err(Errno::EINVAL)),
        (sleep, "0", Ok("0\n")),
        ("khugepaged/pages_to_scan", "0", Err(Errno::EINVAL)),
        ("khugepaged/pages_to_scan", "1", Ok("1\n")),
        ("hpage_pmd_size", "2097152", Err(Errno::EACCES)),
        ("khugepaged/full_scans", "0", Err(Errno::EACCES)),
        ("khugepaged/pages_collapsed", "", Err(Errno::EACCES)),
        ("hugepages-64kB/stats/split", "", Err(Errno::EACCES)),
    ] {
        let file = find(path);
        let before = state(memory);
        let written = file.write(memory, text);
        assert_eq!(written, expected.map(|_| ()), "{path} <- {text:?}");
        match expected {
            Ok(text) => assert_eq!(read(memory, file), text, "{path}"),
            Err(_) => assert_eq!(state(memory), before, "{path} <- {text:?}"),
        }
    }
}

/// Linux has all these files, those that can be written are the same, and each text looks as its own.
#[test]
fn files_look_as_linux_shows_them() {
    let machine = small(1);
    let memory = machine.memory();
    for file in HugeFile::all() {
        let Some(theirs) = linux(file) else { continue };
        let metadata = fs::metadata(format!("{FOLDER}/{file}")).unwrap();
        assert_eq!(!metadata.permissions().readonly(), file.is_writable(), "{file}");
        if file.is_writable() {
            assert_eq!(file.write(memory, chosen(&theirs)), Ok(()), "{file}");
            assert_eq!(read(memory, file), theirs, "{file}");
        } else {
            assert!(theirs.trim_end().parse::<u64>().is_ok() && theirs.ends_with('\n'), "{file}: {theirs:?}");
        }
    }
    assert_eq!(linux(HugeFile::PmdSize).unwrap_or_else(|| read(memory, HugeFile::PmdSize)), "2097152\n");
}

/// Linux refuses, with the same error, what is refused here. Nothing else is written to it, so it stays as it
/// is.
#[test]
fn linux_refuses_what_is_refused_here() {
    let machine = small(1);
    let memory = machine.memory();
    let mut compared = 0;
    for file in HugeFile::all().filter(|file| file.is_writable()) {
        let path = format!("{FOLDER}/{file}");
        let mut linux = match OpenOptions::new().write(true).open(&path) {
            Ok(linux) => linux,
            Err(error) => {
                println!("{path} is not written to: {error}");
                continue;
            }
        };
        for text in any_texts() {
            if let Err(errno) = file.write(memory, text) {
                let error = linux.write(text.as_bytes()).map_err(|error| error.raw_os_error());
                assert_eq!(error, Err(Some(errno.0)), "{path} <- {text:?}: Linux is no longer set as it was");
                compared += 1;
            }
        }
    }
    println!("{compared} texts were refused by both");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Of whatever is written, either nothing is left, or one file reads differently; and what is read can be
    /// written.
    #[test]
    fn what_is_read_can_be_written_back(
        writes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u32..600), 1..40),
    ) {
        let machine = small(1);
        let memory = machine.memory();
        let files: Vec<HugeFile> = HugeFile::all().filter(|file| file.is_writable()).collect();
        for (place, text, number) in writes {
            let place = place.index(files.len());
            let before = state(memory);
            let number = number.to_string();
            let text = *text.get(&[any_texts(), vec![number.as_str(); 20]].concat());
            let result = files[place].write(memory, text);
            let after = state(memory);
            for other in 0..files.len() {
                if other != place || result.is_err() {
                    prop_assert_eq!(&after[other], &before[other], "{} <- {:?}", files[place], text);
                }
            }
            for (file, text) in files.iter().zip(&after) {
                prop_assert_eq!(file.write(memory, chosen(text)), Ok(()), "{} <- {:?}", file, text);
            }
            prop_assert_eq!(state(memory), after);
        }
    }
}

#[test]
fn a_machine_starts_as_configured() {
    let policy = HugePolicy::default()
        .with_enabled(HugeEnabled::Never)
        .with_sizes([Order::new(4).unwrap()].into_iter().collect(), SizeEnabled::Always);
    let khugepaged = KhugepagedConfig::LINUX.with(KhugepagedSetting::MaxPtesNone, 0).unwrap();
    let config = MemoryConfig {
        huge: HugeConfig { policy, khugepaged, ..HugeConfig::default() },
        min_free_kib: Some(0),
        ..MemoryConfig::default()
    };
    let machine = machine_with(&[(0x1000, 0x2000)], 1, 1, config);
    let memory = machine.memory();
    assert_eq!(memory.spaces().huge().policy(), policy);
    assert_eq!(read(memory, find("enabled")), "always madvise [never]\n");
    assert_eq!(read(memory, find("hugepages-64kB/enabled")), "[always] inherit madvise never\n");
    assert_eq!(read(memory, find("khugepaged/max_ptes_none")), "0\n");
}

/// What is counted on any CPU is read in the file of its size, and of the largest in vmstat too.
#[test]
fn counters_add_up_over_cpus() {
    let machine = small(2);
    let memory = machine.memory();
    let events = memory.frames().events();
    let count = |cpu: usize, order: u8, counter, change| {
        machine.vcpu(cpu).unwrap().run(|| {
            let pin = memory.platform().pin();
            events.count_folio(&pin, Order::new(order).unwrap(), counter, change);
        });
    };
    for (place, &counter) in FolioCounter::ALL.iter().enumerate() {
        // One CPU counts down what the other counted up.
        count(0, 4, counter, 10 + place as i64);
        count(1, 4, counter, -3);
        count(1, 9, counter, 20 + place as i64);
    }
    for (place, &counter) in FolioCounter::ALL.iter().enumerate() {
        let name = counter.name();
        let of = |size: &str| read(memory, find(&format!("hugepages-{size}/stats/{name}")));
        assert_eq!(
            [of("32kB"), of("64kB"), of("2048kB")],
            ["0\n", &format!("{}\n", 7 + place), &format!("{}\n", 20 + place)]
        );
    }
    for (event, count) in [
        (VmEvent::ThpFaultAlloc, 20),
        (VmEvent::ThpFaultFallback, 21),
        (VmEvent::ThpFaultFallbackCharge, 22),
        (VmEvent::ThpSwpout, 23),
        (VmEvent::ThpSwpoutFallback, 24),
        (VmEvent::ThpSplitPage, 29),
        (VmEvent::ThpSplitPageFailed, 30),
        (VmEvent::ThpDeferredSplitPage, 31),
        (VmEvent::ThpCollapseAlloc, 0),
        (VmEvent::ThpSplitPmd, 0),
    ] {
        assert_eq!(events.sum(event), count, "{}", event.name());
    }
    for (cpu, change) in [(0, 5), (1, -2)] {
        machine
            .vcpu(cpu)
            .unwrap()
            .run(|| events.count_pmd_mapped(&memory.platform().pin(), quire_frame::Kind::Anonymous, change));
    }
    assert!(text(&machine, texts::vmstat).contains("\nnr_anon_transparent_hugepages 3\n"));
    assert!(text(&machine, texts::meminfo).contains("\nAnonHugePages:      6144 kB\n"));
    // There are no such folios, as the auditor knows.
    machine
        .vcpu(0)
        .unwrap()
        .run(|| events.count_pmd_mapped(&memory.platform().pin(), quire_frame::Kind::Anonymous, -3));
}

#[test]
fn meminfo_counts_anonymous_memory_of_all_spaces() {
    let machine = small(1);
    let line = || {
        text(&machine, texts::meminfo).lines().find(|line| line.starts_with("AnonPages:")).unwrap().to_owned()
    };
    assert_eq!(line(), "AnonPages:             0 kB");
    let spaces: Vec<_> = (1..=3)
        .map(|pages| {
            let space = machine.memory().create_space().unwrap();
            let addr = space.mmap(&MapRequest::anonymous(8 * PAGE_SIZE, RW)).unwrap();
            space.madvise(addr, pages * PAGE_SIZE, Advice::PopulateWrite).unwrap();
            space
        })
        .collect();
    assert_eq!(line(), "AnonPages:            24 kB");
    drop(spaces);
    assert_eq!(line(), "AnonPages:             0 kB");
}

/// The orders that a space's mappings may use follow flags, the range, the process's wish and what is mapped.
#[test]
fn a_space_knows_its_orders() {
    const MIB: u64 = 1 << 20;
    const BASE: u64 = 1 << 32;
    let machine = small(1);
    let memory = machine.memory();
    let space = memory.create_space().unwrap();
    let map = |at: u64, len: u64, flags: MapFlags| {
        let request = MapRequest {
            addr: Some(VirtAddr(at)),
            flags: flags | MapFlags::FIXED,
            ..MapRequest::anonymous(len, RW)
        };
        space.mmap(&request).unwrap()
    };
    let orders = |purpose, at: u64| space.mappings().huge_orders(purpose, VirtAddr(at));
    let largest = |at| orders(HugeUse::Fault, at).largest().map(Order::get);
    find("enabled").write(memory, "always").unwrap();
    find("hugepages-64kB/enabled").write(memory, "always").unwrap();

    // From 1 MiB above a border of 2 MiB on, 60 KiB short of the end.
    map(BASE + MIB, 5 * MIB - (60 << 10), MapFlags::empty());
    assert_eq!(largest(BASE + MIB), Some(4));
    assert_eq!(largest(BASE + 2 * MIB + 12345), Some(9));
    assert_eq!(largest(BASE + 5 * MIB), Some(4));
    assert_eq!(largest(BASE + 6 * MIB - (61 << 10)), None);
    assert_eq!(largest(BASE + 7 * MIB), None);
    assert_eq!(orders(HugeUse::Smaps, BASE + MIB).largest(), Some(Order::PMD));

    // No collapse before there are private pages.
    let middle = BASE + 2 * MIB;
    assert_eq!(orders(HugeUse::Collapse, middle), OrderSet::EMPTY);
    space.madvise(VirtAddr(BASE + MIB), PAGE_SIZE, Advice::PopulateWrite).unwrap();
    assert_eq!(orders(HugeUse::Collapse, middle), OrderSet::PMD);
    assert_eq!(orders(HugeUse::Khugepaged, middle), OrderSet::PMD);
    assert_eq!(orders(HugeUse::Collapse, BASE + MIB), OrderSet::EMPTY);

    // The process does without, and its child too.
    space.prctl().set_huge_disable(HugeDisable::ExceptAdvised);
    assert_eq!(largest(middle), None);
    assert_eq!(space.fork().unwrap().prctl().huge_disable(), HugeDisable::ExceptAdvised);
    space.madvise(VirtAddr(middle), 2 * MIB, Advice::HugePage).unwrap();
    assert_eq!(largest(middle), Some(9));
    space.prctl().set_huge_disable(HugeDisable::Completely);
    assert_eq!(largest(middle), None);
    space.prctl().set_huge_disable(HugeDisable::No);
    space.madvise(VirtAddr(middle), 2 * MIB, Advice::NoHugePage).unwrap();
    assert_eq!(orders(HugeUse::Smaps, middle), OrderSet::EMPTY);

    // Not of a shared mapping, nor of a thread's stack.
    for flags in [MapFlags::SHARED, MapFlags::STACK] {
        map(2 * BASE, 4 * MIB, flags);
        assert_eq!(largest(2 * BASE), None, "{flags:?}");
    }
    // Nor of huge pages of the program's choice, which are in a file of their own.
    let chosen = MapRequest {
        addr: Some(VirtAddr(4 * BASE)),
        flags: MapFlags::FIXED | MapFlags::NORESERVE,
        huge_pages: Some((quire_mm::space::HugePages::Mib2, 0)),
        ..MapRequest::anonymous(4 * MIB, RW)
    };
    space.mmap(&chosen).unwrap();
    assert_eq!(orders(HugeUse::Smaps, 4 * BASE), OrderSet::EMPTY);
}

/// A mapping of this process, as Linux shows it.
struct Shown {
    start: u64,
    eligible: bool,
}

/// Private mappings without a file in this process's smaps.
fn shown() -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    let mut start = 0;
    for line in fs::read_to_string("/proc/self/smaps").unwrap_or_default().lines() {
        let words = crate::common::words(line);
        match words[..] {
            [range, permissions, _, _, _, ..] if !range.ends_with(':') && permissions.len() == 4 => {
                start = u64::from_str_radix(range.split('-').next().unwrap(), 16).unwrap();
            }
            ["THPeligible:", figure] => shown.push(Shown { start, eligible: figure == "1" }),
            _ => {}
        }
    }
    shown
}

/// Whether Linux and a space that is mapped alike agree on `THPeligible`, whatever the machine's policy is.
#[test]
fn linux_shows_the_same_mappings_as_eligible() {
    use rustix::mm;
    const MIB: u64 = 1 << 20;
    let machine: Machine = small(1);
    let memory = machine.memory();
    if !follow_linux(memory) || !fs::read_to_string("/proc/self/status").unwrap().contains("THP_enabled:\t1")
    {
        println!("THPeligible is not compared");
        return;
    }
    let before = state(memory);
    let space = memory.create_space().unwrap();
    // An area far from everything, with room between the mappings.
    let mut at = 0x1000_0000_0000;
    let mut mapped = Vec::new();
    for offset in [0, MIB] {
        for len in [PAGE_SIZE, 16 << 10, 100 << 10, MIB, 2 * MIB, 3 * MIB, 4 * MIB] {
            for (advice, linux_advice) in [
                (None, None),
                (Some(Advice::HugePage), Some(mm::Advice::LinuxHugepage)),
                (Some(Advice::NoHugePage), Some(mm::Advice::LinuxNoHugepage)),
            ] {
                at += 8 * MIB;
                let addr = VirtAddr(at + offset);
                let place = std::ptr::without_provenance_mut(addr.0 as usize);
                let protection = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
                let flags = mm::MapFlags::PRIVATE | mm::MapFlags::FIXED_NOREPLACE;
                // SAFETY: nothing that is there is replaced, and the new memory is not used.
                unsafe { mm::mmap_anonymous(place, len as usize, protection, flags) }.unwrap();
                let request =
                    MapRequest { addr: Some(addr), flags: MapFlags::FIXED, ..MapRequest::anonymous(len, RW) };
                space.mmap(&request).unwrap();
                if let (Some(advice), Some(linux_advice)) = (advice, linux_advice) {
                    // SAFETY: the advice changes no contents, and the memory is the test's.
                    unsafe { mm::madvise(place, len as usize, linux_advice) }.unwrap();
                    space.madvise(addr, len, advice).unwrap();
                }
                mapped.push((addr, len, advice));
            }
        }
    }
    let shown = shown();
    let differences: Vec<String> = mapped
        .iter()
        .filter_map(|&(addr, len, advice)| {
            let linux = shown.iter().find(|mapping| mapping.start == addr.0).expect("it was mapped");
            let ours = !space.mappings().huge_orders(HugeUse::Smaps, addr).is_empty();
            (linux.eligible != ours)
                .then(|| format!("{len} bytes at {addr:?}, {advice:?}: Linux says {}", linux.eligible))
        })
        .collect();
    for &(addr, len, ..) in &mapped {
        // SAFETY: mapped above, and not used.
        unsafe { mm::munmap(std::ptr::without_provenance_mut(addr.0 as usize), len as usize) }.unwrap();
    }
    // The comparison means nothing if another process changed the policy meanwhile.
    if follow_linux(memory) && state(memory) == before {
        assert!(differences.is_empty(), "{differences:#?}");
    }
}
