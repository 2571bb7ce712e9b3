//! Each text has the shape of Linux's own of the same name on the machine that the tests run on: headings,
//! columns and their places, names and their order.

use crate::common::{ends, in_order, label, linux, text, two_zones, words};
use quire_arch::Order;
use quire_frame::{Migratetype, VmEvent};
use quire_mm::{
    proc,
    space::{MapRequest, Protection},
    swap::{CompressedRam, Lz4, RamDisk, SwapOnOptions},
};

/// The first word of each line.
fn names(text: &str) -> Vec<&str> {
    text.lines().map(|line| words(line)[0]).collect()
}

/// The heading of `/proc/lock_stat`, which few kernels have.
const LOCK_STAT: [&str; 12] = [
    "con-bounces",
    "contentions",
    "waittime-min",
    "waittime-max",
    "waittime-total",
    "waittime-avg",
    "acq-bounces",
    "acquisitions",
    "holdtime-min",
    "holdtime-max",
    "holdtime-total",
    "holdtime-avg",
];

#[test]
fn buddyinfo() {
    let ours = text(&two_zones(1), proc::buddyinfo);
    let first = ends(ours.lines().next().unwrap());
    assert_eq!(first.len(), "Node 0, zone DMA32".split(' ').count() + Order::COUNT);
    let linux = linux("buddyinfo").unwrap_or_default();
    // A count may be wider than its column.
    let is_narrow = |line: &&str| words(line)[4..].iter().all(|count| count.len() <= 6);
    for line in ours.lines().chain(linux.lines().filter(is_narrow)) {
        assert_eq!((words(line)[0], words(line)[2]), ("Node", "zone"), "{line:?}");
        assert_eq!(ends(line), first, "{line:?}");
        assert!(line.ends_with(' '), "{line:?}");
    }
}

#[test]
fn extfrag() {
    let machine = two_zones(1);
    for (name, ours, first) in [
        ("extfrag_index", text(&machine, proc::extfrag_index), "Node 0, zone    DMA32 -1.000 -1.000 "),
        ("unusable_index", text(&machine, proc::unusable_index), "Node 0, zone    DMA32 0.000 0.0"),
    ] {
        assert!(ours.starts_with(first), "{ours}");
        // Readable by root, where debugfs is mounted.
        let linux = std::fs::read_to_string(format!("/sys/kernel/debug/extfrag/{name}")).unwrap_or_default();
        let first = ends(ours.lines().next().unwrap());
        assert_eq!(first.len(), "Node 0, zone DMA32".split(' ').count() + Order::COUNT);
        for line in ours.lines().chain(linux.lines()) {
            assert_eq!(ends(line), first, "{line:?}");
            assert!(line.ends_with(' '), "{line:?}");
        }
    }
}

#[test]
fn pagetypeinfo() {
    /// Every kind of line once: headings as they are, of lines with figures the type and where the columns
    /// end.
    fn shape(text: &str) -> Vec<(&str, Vec<usize>)> {
        let mut shapes = Vec::new();
        for line in text.lines() {
            let name = match words(line).as_slice() {
                ["Node", _, _, _, "type", migratetype, ..] => migratetype,
                ["Node", ..] => "page blocks",
                _ => line,
            };
            let shape = (name, ends(line));
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        shapes
    }
    let ours = text(&two_zones(1), proc::pagetypeinfo);
    let names: Vec<&str> = shape(&ours).into_iter().map(|shape| shape.0).collect();
    assert_eq!(names[..2], ["Page block order: 9", "Pages per block:  512"]);
    assert_eq!(names[4..9], Migratetype::ALL.map(Migratetype::name));
    match linux("pagetypeinfo") {
        // A type more, by the kernel's configuration.
        Some(linux) if linux.contains("CMA") => println!("/proc/pagetypeinfo is not compared: it has CMA"),
        // Linux counts in wider columns where it has more than a hundred thousand.
        Some(linux) if !linux.contains('>') => assert_eq!(shape(&ours), shape(&linux), "{ours}{linux}"),
        _ => {}
    }
}

#[test]
fn zoneinfo() {
    /// The part of each zone that has frames.
    fn parts(text: &str) -> Vec<&str> {
        text.split("Node ").filter(|part| part.contains("start_pfn")).collect()
    }
    /// The names in a zone's part, each once, with the blanks around them.
    fn labels(part: &str) -> Vec<&str> {
        let mut labels = Vec::new();
        for line in part.lines().skip(1) {
            let label = label(line.split('(').next().unwrap_or(line));
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
        labels
    }
    let ours = text(&two_zones(2), proc::zoneinfo);
    let Some(linux) = linux("zoneinfo") else { return };
    let heading = |text: &str| ends(text.lines().next().unwrap());
    assert_eq!(heading(&ours), heading(&linux));
    assert_eq!(parts(&ours).len(), 2);
    for mine in parts(&ours) {
        // The first zone of a node tells of the node too.
        let of_node = |part: &str| part.contains("per-node stats");
        assert_eq!(labels(mine).len(), if of_node(mine) { 25 } else { 19 }, "{mine}");
        for theirs in parts(&linux).into_iter().filter(|theirs| of_node(theirs) == of_node(mine)) {
            assert_eq!(in_order(&labels(mine), &labels(theirs)), [""; 0], "{theirs}");
        }
    }
}

#[test]
fn slabinfo() {
    let machine = two_zones(1);
    let _space = machine.memory().create_space().unwrap();
    let ours = text(&machine, proc::slabinfo);
    let Some(linux) = linux("slabinfo") else { return };
    assert_eq!(ours.lines().take(2).collect::<Vec<_>>(), linux.lines().take(2).collect::<Vec<_>>());
    // Names and figures may be wider than their columns; the narrowest line has none that is.
    let narrowest = |text: &str| text.lines().skip(2).map(|line| ends(line)[1..].to_vec()).min();
    assert_eq!(narrowest(&ours), narrowest(&linux), "{ours}");
    for line in ours.lines().skip(2).chain(linux.lines().skip(2)) {
        let words = words(line);
        assert_eq!((words.len(), words[7], words[12]), (16, "tunables", "slabdata"), "{line:?}");
    }
}

#[test]
fn vmstat() {
    let ours = text(&two_zones(1), proc::vmstat);
    let Some(linux) = linux("vmstat") else { return };
    // Only debug builds of Linux have these (CONFIG_DEBUG_TLBFLUSH).
    let debug = |name: &&str| name.starts_with("nr_tlb_");
    let has_debug = names(&linux).iter().any(debug);
    let mine: Vec<_> = names(&ours).into_iter().filter(|name| has_debug || !debug(name)).collect();
    // What Linux counts comes first; the rest says that it is Quire's own.
    let own = in_order(&mine, &names(&linux));
    assert!(mine.ends_with(&own), "{own:?}");
    let first = VmEvent::ALL.iter().position(|event| *event == VmEvent::MemstallNs).unwrap();
    assert_eq!(own, VmEvent::ALL[first..].iter().map(|event| event.name()).collect::<Vec<_>>());
    assert!(ours.lines().chain(linux.lines()).all(|line| words(line).len() == 2));
}

#[test]
fn meminfo() {
    let ours = text(&two_zones(1), proc::meminfo);
    let Some(linux) = linux("meminfo") else { return };
    assert_eq!(in_order(&names(&ours), &names(&linux)), [""; 0]);
    let is_narrow = |line: &&str| line.ends_with("kB") && words(line)[1].len() <= 8;
    for line in ours.lines().chain(linux.lines()).filter(is_narrow) {
        assert_eq!(ends(line)[1..], [24, 27], "{line:?}");
    }
}

#[test]
fn lock_stat() {
    let ours = text(&two_zones(1), proc::lock_stat);
    let mut lines = ours.lines();
    let heading = lines.next().unwrap();
    assert_eq!(in_order(&words(heading)[2..], &LOCK_STAT), [""; 0]);
    assert_eq!(&heading[30..41], "class name ");
    let zones: Vec<&str> = lines.collect();
    assert_eq!(zones.len(), 2);
    for line in zones {
        assert_eq!(ends(line)[1..], ends(heading)[2..], "{line:?}");
        assert_eq!(line.find(':'), Some(40), "{line:?}");
        assert!(
            words(line)[3..].iter().all(|time| time.split('.').nth(1).is_some_and(|part| part.len() == 2))
        );
    }
}

/// A machine with a swap device of each kind, one of them with a page on it.
fn with_swap() -> quire_host::Machine {
    let machine = two_zones(1);
    let memory = machine.memory();
    memory.swapon(RamDisk::new(memory.frames(), 1000).unwrap(), SwapOnOptions::default()).unwrap();
    memory
        .swapon(CompressedRam::new(memory.frames(), 3_000_000, Lz4).unwrap(), SwapOnOptions::default())
        .unwrap();
    machine
}

#[test]
fn swaps() {
    let machine = with_swap();
    let ours = text(&machine, proc::swaps);
    let lines: Vec<&str> = ours.lines().collect();
    // As swapon(8) shows a partition and one of more than ten million kibibytes on Linux 6.18.
    let blanks = " ".repeat(40 - "ramdisk0".len());
    assert_eq!(lines[1], format!("ramdisk0{blanks}partition\t4000\t\t0\t\t-2"));
    let blanks = " ".repeat(40 - "zram1".len());
    assert_eq!(lines[2], format!("zram1{blanks}partition\t12000000\t0\t\t-3"));
    let Some(linux) = linux("swaps") else { return };
    assert_eq!(lines[0], linux.lines().next().unwrap());
}

#[test]
fn mm_stat() {
    let machine = with_swap();
    let report = machine.memory().swap().devices().reports().find(|device| device.kind == "zram").unwrap();
    let ours = text(&machine, |_, out| proc::mm_stat(&report, out));
    assert_eq!(ends(ours.trim_end()).len(), 8);
    let linux = std::fs::read_to_string("/sys/block/zram0/mm_stat").unwrap_or_default();
    let is_narrow = |line: &&str| words(line).iter().all(|figure| figure.len() <= 8);
    for line in linux.lines().filter(is_narrow) {
        assert_eq!(ends(ours.trim_end()), ends(line)[..8], "{line:?}");
    }
}

#[test]
fn status() {
    let machine = two_zones(1);
    let space = machine.memory().create_space().unwrap();
    let ours = text(&machine, |_, out| proc::status(&space.figures(), out));
    let Some(linux) = linux("self/status") else { return };
    assert_eq!(in_order(&names(&ours), &names(&linux)), [""; 0]);
    let of_memory = |line: &&str| names(&ours).contains(&words(line)[0]);
    for line in ours.lines().chain(linux.lines().filter(of_memory)) {
        assert_eq!(line.split('\t').nth(1).map(ends), Some(vec![8, 11]), "{line:?}");
    }
}

#[test]
fn smaps() {
    let machine = two_zones(1);
    let space = machine.memory().create_space().unwrap();
    space.mmap(&MapRequest::anonymous(12 << 10, Protection::READ | Protection::WRITE)).unwrap();
    let ours = text(&machine, |_, out| proc::smaps(&space, out));
    let Some(linux) = linux("self/smaps") else { return };
    // The first mapping, up to its flags, which both have in the end.
    let shape = |text: &str| -> Vec<(String, Vec<usize>)> {
        let lines = text.lines().skip(1).take_while(|line| !line.starts_with("VmFlags"));
        lines.map(|line| (words(line)[0].to_owned(), ends(line)[1..].to_vec())).collect()
    };
    // A kernel may be built with protection keys.
    let linux: Vec<_> = shape(&linux).into_iter().filter(|line| line.0 != "ProtectionKey:").collect();
    assert_eq!(shape(&ours), linux);
}

#[test]
fn oom_score() {
    let machine = two_zones(1);
    let space = machine.memory().create_space().unwrap();
    let score = || -> u64 {
        text(&machine, |memory, out| proc::oom_score(memory, &space, out)).trim().parse().unwrap()
    };
    assert!((666..670).contains(&score()), "{}", score());
    space.oom().set_score_adj(1000);
    assert!((1320..=1333).contains(&score()), "{}", score());
    space.oom().set_score_adj(-1000);
    assert_eq!(score(), 0);
    if let Some(linux) = linux("self/oom_score") {
        let linux: u64 = linux.trim().parse().unwrap();
        assert!(linux <= 2000, "{linux}");
    }
}
