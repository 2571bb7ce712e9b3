//! What a replay does on its CPUs.

use quire_replay::{Replay, ReplayOptions};
use std::path::Path;

/// A process of one thread runs on one CPU at a time. Where it was before, another thread runs or none: a
/// shootdown would interrupt a CPU that does not run the space.
#[test]
fn only_processes_of_several_threads_shoot_at_other_cpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings");
    for (name, threaded) in [("gcc-compile", false), ("realloc-growth", false), ("xz-threads", true)] {
        let path = folder.join(name).with_extension("qtr");
        let replay =
            Replay::open(&path, ReplayOptions { paranoid: true, ..ReplayOptions::default() }).unwrap();
        let report = replay.run(&mut |_, _| {}).unwrap();
        assert_eq!(report.processes.iter().any(|process| process.threads > 1), threaded, "{name}");
        assert!(report.header.cpus > 1, "{name}");
        assert_eq!(report.machine.shootdowns > 0, threaded, "{name}: {}", report.machine.shootdowns);
        for process in &report.processes {
            assert!(process.audit.is_empty(), "{name}: {:#?}", process.audit);
        }
    }
}
