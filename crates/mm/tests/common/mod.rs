//! Reading texts in the format of `/proc`, Linux's own and Quire's by the same code: split at blanks, as
//! people's scripts do. And machines to make Quire's on.

#![allow(dead_code, reason = "each test binary uses its own part")]

use quire_arch::{Order, Pfn, PfnRange, Platform};
use quire_frame::{AllocRequest, FailSite, ZoneReport};
use quire_host::{HostConfig, HostPlatform, Machine};
use quire_mm::{Memory, MemoryConfig};
use std::fmt;

pub(crate) type HostMemory = Memory<HostPlatform>;

/// Frames of a bank of RAM: 16 MiB.
pub(crate) const BANK: u64 = 0x1000;
/// First frame at 4 GiB, where the upper zone begins.
pub(crate) const UPPER: u64 = 1 << 20;

/// A machine with RAM at these ranges, audited at its end. Nothing of it is set aside.
pub(crate) fn machine(ram: &[(u64, u64)], nodes: usize, cpus: usize) -> Machine {
    machine_with(ram, nodes, cpus, MemoryConfig { min_free_kib: Some(0), ..MemoryConfig::default() })
}

pub(crate) fn machine_with(ram: &[(u64, u64)], nodes: usize, cpus: usize, config: MemoryConfig) -> Machine {
    let ram = ram.iter().map(|&(start, end)| PfnRange::new(Pfn(start), Pfn(end))).collect();
    let host = HostConfig { ram, audit_at_end: true, ..HostConfig::with_ram(0) }.nodes(nodes).cpus(cpus);
    Machine::new(&host, config).expect("a machine can be built")
}

/// One node, one zone.
pub(crate) fn small(cpus: usize) -> Machine {
    machine(&[(BANK, 2 * BANK)], 1, cpus)
}

/// One node, two zones of the same size.
pub(crate) fn two_zones(cpus: usize) -> Machine {
    machine(&[(UPPER - BANK, UPPER + BANK)], 1, cpus)
}

/// Two nodes with a zone each.
pub(crate) fn two_nodes(cpus: usize) -> Machine {
    machine(&[(BANK, 2 * BANK), (4 * BANK, 5 * BANK)], 2, cpus)
}

/// Blocks that a test got on one of the machine's CPUs.
pub(crate) fn allocate(machine: &Machine, cpu: usize, request: AllocRequest, count: usize) -> Vec<Pfn> {
    let frames = machine.memory().frames();
    machine.vcpu(cpu).unwrap().run(|| {
        let pin = frames.platform().pin();
        (0..count).map(|_| frames.allocate(&pin, request).expect("a block")).collect()
    })
}

/// Gives blocks back on one of the machine's CPUs.
pub(crate) fn free(machine: &Machine, cpu: usize, order: Order, blocks: Vec<Pfn>) {
    let frames = machine.memory().frames();
    machine.vcpu(cpu).unwrap().run(|| {
        let pin = frames.platform().pin();
        blocks.into_iter().for_each(|pfn| frames.free(&pin, pfn, order).expect("a block is given back"));
    });
}

/// A block of the tests' own.
pub(crate) fn block(order: u8) -> AllocRequest {
    AllocRequest::new(Order::new(order).unwrap(), FailSite::new("test"))
}

/// A text of `machine`.
pub(crate) fn text(machine: &Machine, write: impl FnOnce(&HostMemory, &mut String) -> fmt::Result) -> String {
    let mut text = String::new();
    write(machine.memory(), &mut text).expect("a string takes every text");
    text
}

/// The first release of Linux whose texts have all that Quire's have.
const LINUX: [u32; 2] = [6, 18];

/// Linux's own text, or `None` with a note where it cannot be read (some need root) or is an older one's.
pub(crate) fn linux(name: &str) -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version =
        release.split(['.', '-', '\n']).filter_map(|part| part.parse().ok()).take(2).collect::<Vec<u32>>();
    if version[..] < LINUX[..] {
        println!("/proc/{name} is not compared: this is Linux {release}");
        return None;
    }
    match std::fs::read_to_string(format!("/proc/{name}")) {
        Ok(text) => Some(text),
        Err(error) => {
            println!("/proc/{name} is not compared: {error}");
            None
        }
    }
}

/// The zones of a machine in numbers.
pub(crate) fn zones(machine: &Machine) -> Vec<ZoneReport> {
    machine.memory().frames().reports().zone_reports().collect()
}

/// The words of a line.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// The numbers in a line, whatever stands between them.
pub(crate) fn numbers(line: &str) -> Vec<u64> {
    words(line).iter().filter_map(|word| word.trim_matches(['(', ')', ',', '>']).parse().ok()).collect()
}

/// Where the words of a line end: columns that are aligned at the right, which figures are, end where those
/// of another line do.
pub(crate) fn ends(line: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut previous = ' ';
    for (place, letter) in line.char_indices().chain([(line.len(), ' ')]) {
        if letter == ' ' && previous != ' ' {
            ends.push(place);
        }
        previous = letter;
    }
    ends
}

/// A line up to the figure at its end: a name with the blanks before and behind it. Without a figure, all of
/// it.
pub(crate) fn label(line: &str) -> &str {
    let last = words(line).last().copied().unwrap_or_default();
    if last.parse::<u64>().is_ok() { &line[..line.len() - last.len()] } else { line }
}

/// Panics unless `names`, where they are in `all` at all, have the same order there. Returns those that are
/// not.
#[track_caller]
pub(crate) fn in_order<'n>(names: &[&'n str], all: &[&str]) -> Vec<&'n str> {
    let mut places = Vec::new();
    let mut unknown = Vec::new();
    for &name in names {
        match all.iter().position(|other| *other == name) {
            Some(place) => places.push(place),
            None => unknown.push(name),
        }
    }
    assert!(places.is_sorted_by(|one, next| one < next), "not in Linux's order: {names:?}");
    unknown
}
