//! The size of the machine that a recording gets.

use super::life::{BASE, Invented, SECOND};
use quire_mm::frame::VmEvent;
use quire_mm::thp::{HugeConfig, HugeEnabled, HugePolicy};
use quire_replay::{Audits, Replay, ReplayOptions};
use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;

/// Each bundled recording fits the machine that it gets, and finds a huge page wherever one may come in. The
/// machine is at most twice as large as what was resident with its page tables, beside what each machine
/// needs. Under `always` a heap that has grown to the end of a block by and by could still be collapsed.
#[test]
fn machines_fit_and_are_not_twice_too_large() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings");
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "qtr") {
            continue;
        }
        for enabled in [HugeEnabled::Never, HugeEnabled::Always] {
            let huge =
                HugeConfig { policy: HugePolicy::default().with_enabled(enabled), ..HugeConfig::default() };
            let options =
                ReplayOptions { huge, life: true, audits: Audits::Never, ..ReplayOptions::default() };
            let replay = Replay::open(&path, options).unwrap().load().unwrap();
            let machine = replay.machine().unwrap();
            let (report, name) = (replay.run_on(&machine).unwrap(), path.display());
            let fallbacks = machine.memory().frames().events().sum(VmEvent::ThpFaultFallback);
            assert_eq!(fallbacks, 0, "{name} {enabled:?}");
            assert!(report.does_not_fit.is_none(), "{name} {enabled:?}: {:?}", report.does_not_fit);
            let life = report.life.unwrap();
            let used = life.peak_resident + life.peak_page_tables;
            let spare = if enabled == HugeEnabled::Always { 28 } else { 1 };
            assert!(
                report.ram <= 2 * used + spare * MIB,
                "{name} {enabled:?}: {} MiB for {} MiB",
                report.ram / MIB,
                used / MIB
            );
        }
    }
}

/// A file claims that a move succeeded whose flags no kernel takes. What it names permits nothing, and so it
/// stays.
#[test]
fn a_move_that_is_refused_opens_nothing() {
    let mut program = Invented::new("refused");
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let none = [BASE, 64 * MIB, 0, flags as u64, u64::MAX, 0];
    program.call(0, libc::SYS_mmap, none, BASE);
    program.call(SECOND, libc::SYS_mremap, [BASE, 64 * MIB, 64 * MIB, 0x6a, BASE, 0], BASE);
    program.call(2 * SECOND, libc::SYS_mlock, [BASE, 64 * MIB, 0, 0, 0, 0], 0);
    let report = program.report(ReplayOptions::default());
    assert!(report.does_not_fit.is_none() && report.processes[0].mismatches > 0, "{report:#?}");
    assert_eq!(report.processes[0].quire.resident_anonymous, 0);
}
