//! Random concurrent programs, on the host's Linux and on Quire.
//!
//! `QUIRE_SEED`, `QUIRE_PROGRAMS` and `QUIRE_THREADS` make other and longer runs; `QUIRE_TRIES` is how hard a
//! failing program is made smaller.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use quire_diff::threads::{Side, ThreadOptions, ThreadReport, linux_is_recent, run};
use std::sync::{Mutex, PoisonError};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// One run at a time: threads of two would meet less often among themselves.
static TURN: Mutex<()> = Mutex::new(());

/// Runs `programs` programs for each number of threads, or for the one that is asked for.
fn run_all(side: Side, programs: u64) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = setting("QUIRE_SEED", 1);
    let asked = setting("QUIRE_THREADS", 0) as usize;
    for threads in [2, 3, 4].into_iter().filter(|&threads| asked == 0 || asked == threads) {
        let programs = setting("QUIRE_PROGRAMS", programs);
        println!("seed {seed}, {programs} programs of {threads} threads on {side:?}");
        let tries = setting("QUIRE_TRIES", 200) as u32;
        let options = ThreadOptions { side, seed, programs, threads, tries, ..ThreadOptions::default() };
        let report = run(&options, &mut |_, _| ());
        println!("{report}");
        assert!(report.failures.is_empty(), "seed {seed}: {} failures", report.failures.len());
        assert_eq!(report.programs, programs);
        assert_met_everything(&report);
    }
}

/// The run is worth something: every operation was made, with every outcome that matters, and nearly all was
/// decided.
fn assert_met_everything(report: &ThreadReport) {
    assert!(report.undecided <= 1 + report.programs / 500, "{} undecided", report.undecided);
    if report.programs < 300 {
        return;
    }
    for outcome in [
        ("read", "zero"),
        ("read", "value"),
        ("read", "maperr"),
        ("read", "accerr"),
        ("write", "done"),
        ("write", "maperr"),
        ("write", "accerr"),
        ("mmap", "done"),
        ("munmap", "done"),
        ("mprotect", "done"),
        ("mprotect", "ENOMEM"),
        ("dontneed", "done"),
        ("dontneed", "ENOMEM"),
        ("dontneed", "EINVAL"),
        ("populate", "done"),
        ("populate", "ENOMEM"),
        ("populate", "EINVAL"),
        ("mremap", "done"),
        ("mremap", "EFAULT"),
        ("mremap", "EINVAL"),
        ("mlock", "done"),
        ("mlock", "ENOMEM"),
        ("munlock", "done"),
        ("munlock", "ENOMEM"),
        ("fork", "done"),
    ] {
        assert!(report.outcomes.contains_key(&outcome), "no {outcome:?}");
    }
}

#[test]
fn what_linux_does_can_be_explained() {
    if linux_is_recent() {
        run_all(Side::Linux, 300);
    } else {
        println!("skipped: the model is that of Linux 6.17 and later");
    }
}

#[test]
fn what_quire_does_can_be_explained() {
    run_all(Side::Quire, 600);
}
