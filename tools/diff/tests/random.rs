//! Random programs on both sides. `QUIRE_SEED` and `QUIRE_OPS` make other and longer runs.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use quire_diff::program::Program;
use quire_diff::{DiffOptions, Setup, run};
use std::time::Duration;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn random_programs_end_alike_on_linux_and_on_quire() {
    let first = setting("QUIRE_SEED", 1);
    for seed in first..first + 2 {
        let ops = setting("QUIRE_OPS", 40_000);
        println!("seed {seed}, {ops} operations");
        let shrink = Duration::from_secs(30);
        let options = DiffOptions { seed, ops, jobs: 2, shrink, setup: Setup::default() };
        let report = run(&options, &mut |_, _| ()).expect("Linux can be asked");
        if let Some(failure) = &report.failure {
            panic!("seed {seed}, program {}:\n{failure}\n{}", failure.number, failure.program);
        }
        assert!(report.compared >= ops);
        let holes = report.coverage.holes();
        // A host with swap of its own leaves out more, and few programs come to the limit on mappings.
        assert!(holes.len() < 40, "little was covered: {holes:?}");
        assert!(report.not_made * 3 < report.compared, "{} operations could not be made", report.not_made);
    }
}

#[test]
fn one_seed_is_always_the_same_programs() {
    for number in 0..50 {
        let program = Program::random(9, number, 200);
        assert_eq!(program, Program::random(9, number, 200));
        assert_ne!(program, Program::random(10, number, 200));
    }
}
