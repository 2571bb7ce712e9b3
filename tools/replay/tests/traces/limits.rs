//! Replays on machines with too little memory.

use quire_replay::{ProcessReport, Replay, ReplayOptions, ReplayReport, SwapKind, SwapSpec};
use std::path::{Path, PathBuf};

fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings").join(name).with_extension("qtr")
}

fn replay(name: &str, options: ReplayOptions) -> ReplayReport {
    Replay::open(&recording(name), options).unwrap().run(&mut |_, _| {}).unwrap()
}

/// The machine has `memory` bytes of RAM and swap of this kind.
fn limited(memory: u64, kind: SwapKind) -> ReplayOptions {
    let swap = Some(SwapSpec { kind, bytes: 256 << 20 });
    ReplayOptions { memory: Some(memory), swap, contents: true, digest: true, ..ReplayOptions::default() }
}

fn digests(report: &ReplayReport) -> Vec<u64> {
    report.processes.iter().map(|process| process.digest).collect()
}

/// What its pages hold at the end is what they hold without a limit.
#[track_caller]
fn assert_same(name: &str, report: &ReplayReport) {
    assert!(report.is_good(), "{name}: {report:#?}");
    let free = replay(name, ReplayOptions { contents: true, digest: true, ..ReplayOptions::default() });
    assert!(free.is_good() && digests(&free).iter().any(|&digest| digest != 0));
    assert_eq!(digests(report), digests(&free), "{name}");
    assert_eq!((free.pressure.pages_out, free.pressure.pages_in, free.pressure.major_faults), (0, 0, 0));
}

/// A quarter of what the program had resident at most.
fn quarter(name: &str) -> u64 {
    let report = replay(name, ReplayOptions::default());
    report.processes.iter().map(|process| process.quire.peak_resident).max().unwrap() / 4
}

#[test]
fn a_program_runs_in_a_quarter_of_its_memory_and_keeps_its_data() {
    let name = "python-structures";
    let report = replay(name, ReplayOptions { paranoid: true, ..limited(quarter(name), SwapKind::Ram) });
    assert_same(name, &report);
    let pressure = &report.pressure;
    assert!(pressure.pages_out > 1000 && pressure.pages_in > 1000, "{pressure:?}");
    assert!(pressure.major_faults > 1000 && pressure.refaults > 0 && pressure.stalled_ns > 0, "{pressure:?}");
    assert!(pressure.swap.used > 1000 && pressure.swap.compressed_bytes == 0, "{pressure:?}");
}

/// What is compressed stays in the same RAM: it is enough here, since the program's pages come to about a
/// quarter of their size, as was sampled.
#[test]
fn compressed_pages_make_room_in_the_same_memory() {
    let name = "python-structures";
    let report = replay(name, limited(3 * quarter(name), SwapKind::Zram));
    assert_same(name, &report);
    let swap = &report.pressure.swap;
    let ratio = swap.ratio().unwrap();
    assert!((3.0..6.0).contains(&ratio), "{swap:?}");
    assert!(swap.used >= swap.stored && swap.ram_bytes >= swap.compressed_bytes, "{swap:?}");
}

#[test]
fn a_program_that_does_not_fit_is_a_finding() {
    let name = "python-structures";
    let little = SwapSpec { kind: SwapKind::Ram, bytes: 1 << 20 };
    let options = ReplayOptions { swap: Some(little), ..limited(quarter(name), SwapKind::Ram) };
    let report = replay(name, options);
    let finding = report.does_not_fit.as_ref().unwrap();
    assert!(!report.is_good() && report.events < 55_000, "{finding}");
    let said = finding.to_string();
    assert!(said.contains("kB of RAM and 1024 kB of swap; held by") && said.ends_with("suffices"), "{said}");
    // Nearly all of the machine is held by what swap has no space for.
    assert!(finding.held.anonymous > finding.ram / 2 && finding.suffices > finding.ram, "{finding:?}");
    assert_eq!(finding.event + 1, report.events);
    assert!(report.processes.iter().all(ProcessReport::is_good), "{report:#?}");
}

/// A file completes late, and the later the busier the host is.
#[test]
fn a_program_keeps_its_data_on_a_file() {
    let name = "python-structures";
    let report =
        replay(name, ReplayOptions { paranoid: true, ..limited(quarter(name), SwapKind::File(None)) });
    assert_same(name, &report);
    let pressure = &report.pressure;
    assert!(pressure.pages_out > 1000 && pressure.pages_in > 1000, "{pressure:?}");
}

/// What goes to zswap stays in memory of the machine, and what goes to a disk is read ahead: fewer faults
/// wait.
#[test]
fn a_disk_is_read_ahead_with_and_without_a_compressed_cache() {
    let name = "python-structures";
    let [ram, zswap, disk] = [SwapKind::Ram, SwapKind::Zswap, SwapKind::Disk].map(|kind| {
        let report = replay(name, in_a_group(quarter(name), kind));
        assert_same(name, &report);
        report.pressure
    });
    for ahead in [zswap, disk] {
        assert!(ahead.major_faults < ram.major_faults && ahead.pages_in > ahead.major_faults, "{ahead:?}");
    }
    assert!(zswap.swap.ratio().unwrap() > 3.0 && disk.swap.ratio().is_none(), "{zswap:?} {disk:?}");
}

/// The programs may have `limit` bytes together, with swap of this kind.
fn in_a_group(limit: u64, kind: SwapKind) -> ReplayOptions {
    ReplayOptions { limit: Some(limit), memory: None, ..limited(0, kind) }
}

/// What a device keeps in RAM is not charged to the programs: the same pages go out, whatever the device is.
#[test]
fn compressed_pages_are_not_part_of_a_groups_limit() {
    let name = "python-structures";
    let [ram, zram] = [SwapKind::Ram, SwapKind::Zram].map(|kind| {
        let report = replay(name, in_a_group(quarter(name), kind));
        assert_same(name, &report);
        assert_eq!(report.limit, Some(quarter(name)));
        report.pressure
    });
    assert!(ram.major_faults > 1000 && ram.pages_out > 1000, "{ram:?}");
    assert_eq!(
        (ram.major_faults, ram.pages_out, ram.pages_in),
        (zram.major_faults, zram.pages_out, zram.pages_in)
    );
    assert!(zram.swap.ratio().unwrap() > 3.0, "{zram:?}");
}

#[test]
fn a_lower_limit_costs_more_major_faults() {
    let name = "python-structures";
    let faults = [4, 3, 2, 1].map(|quarters| {
        let report = replay(name, in_a_group(quarters * quarter(name), SwapKind::Ram));
        assert!(report.is_good(), "{quarters} quarters: {report:#?}");
        report.pressure.major_faults
    });
    assert!(faults.is_sorted() && faults[3] > faults[1], "{faults:?}");
}

#[test]
fn a_program_that_does_not_fit_under_its_limit_is_a_finding() {
    let name = "python-structures";
    let little = SwapSpec { kind: SwapKind::Ram, bytes: 1 << 20 };
    let report =
        replay(name, ReplayOptions { swap: Some(little), ..in_a_group(quarter(name), SwapKind::Ram) });
    let finding = report.does_not_fit.as_ref().unwrap();
    let said = finding.to_string();
    assert!(said.contains("kB under the limit and 1024 kB of swap") && said.contains("; --limit "), "{said}");
    assert!(finding.held.free > finding.held.anonymous, "the machine has memory: {said}");
}
