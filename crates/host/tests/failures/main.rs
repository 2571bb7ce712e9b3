//! Every allocation of every call fails: nothing is left half done, and each failure is reported as in Linux.
//!
//! One loop ([`driver`]) drives a list of scenarios ([`scenarios`]) under one fail plan after another. A
//! report ([`report`]) collects what each caller of the allocator went through. A scan of the sources
//! ([`sources`]) checks it: every call that can fail for want of memory must have failed. See
//! docs/failures.md.

#[path = "../common/mod.rs"]
mod common;

mod construction;
mod driver;
mod full;
mod limits;
mod public_api;
mod report;
mod scenario;
mod scenarios;
mod scene;
mod sources;
mod threads;

use driver::Driver;
use quire_frame::{FailAim, FailClass, FailPlan, FailSite};
use report::Report;
use std::sync::OnceLock;

/// Calls in the sources that never allocate, by file and function (and what it calls, if it calls more), with
/// the reason.
const NEVER: &[(&str, &str, &str)] = &[
    (
        "crates/vma-tree/src/tree/writer/insert.rs",
        "insert",
        "a section reserves its nodes before it inserts, so the stock is there",
    ),
    ("crates/space/src/calls/detach.rs", "detach_once", "it unmaps whole mappings, of which none is split"),
    (
        "crates/file/src/cache/ends.rs",
        "free_end",
        "no scenario has a full file system: `past_end` of the tests of shared memory makes it fail",
    ),
    ("crates/file/src/cache/truncate.rs", "punch: make", SAME_NAME),
    ("crates/file/src/cache/truncate.rs", "remove_pages: make", SAME_NAME),
    ("crates/memcg/src/lists/node.rs", "remove", SAME_NAME),
    ("crates/memcg/src/lists/node.rs", "insert", SAME_NAME),
    ("crates/memcg/src/folios/split.rs", "relabel", SAME_NAME),
    ("crates/memcg/src/folios/split.rs", "put_beside", SAME_NAME),
    ("crates/swap/src/allocate.rs", "try_hint", SAME_NAME),
    ("crates/swap/src/allocate.rs", "try_lists", SAME_NAME),
    ("crates/swap/src/device/compressed/pool/mod.rs", "allocate: reserve", SAME_NAME),
    ("crates/swap/src/device/compressed/pool/mod.rs", "take_whole", SAME_NAME),
    ("crates/swap/src/device/compressed/pool/mod.rs", "insert", SAME_NAME),
    ("crates/swap/src/held/mod.rs", "ensure_table", SAME_NAME),
    ("crates/space/src/space/mappings/smaps.rs", "figures_from", SAME_NAME),
    ("crates/mm/src/memory.rs", "create_memcg", SAME_NAME),
    ("crates/space/src/space.rs", "create_once: create", SAME_NAME),
    ("crates/swap/src/device/compressed/lz4.rs", "compress", SAME_NAME),
    ("crates/swap/src/device/memory.rs", "fill", SAME_NAME),
    ("crates/swap/src/io.rs", "read_past_cache", "only a technique that goes past the cache reads so"),
    (
        "crates/space/src/spaces/shortage.rs",
        "has_room",
        "asks whether there is a frame, beside others that reclaim",
    ),
];

/// The scan does not know types: what is called is another function.
const SAME_NAME: &str = "a function with the name and as many arguments as one that allocates";

/// The report of each caller with each single allocation failing. Several tests read it, one makes it.
fn each_in_turn() -> &'static Report {
    static REPORT: OnceLock<Report> = OnceLock::new();
    REPORT.get_or_init(|| {
        let mut report = Report::default();
        construction::each_failure(&mut report);
        let driver = Driver::new();
        for scenario in scenarios::all() {
            driver.each_failure(scenario, &mut report);
        }
        println!("{report}");
        report
    })
}

#[test]
fn every_allocation_of_every_call_fails_whole() {
    assert!(each_in_turn().runs() > 300, "only {} runs", each_in_turn().runs());
}

#[test]
fn every_kth_allocation_fails() {
    let (driver, mut report) = (Driver::new(), Report::default());
    for scenario in scenarios::all() {
        let struck = (1..=8).filter(|&period| driver.run(scenario, FailPlan::every(period), &mut report));
        let (struck, least) = (struck.count() as u64, *scenario.allocations.start());
        assert!(struck >= least.min(8), "`{}` failed under {struck} plans only", scenario.name);
    }
    println!("each 1st to 8th: {}", report.summary());
}

/// Aimed at a kind, a name or a line, a plan fails those allocations and no others.
#[test]
fn allocations_of_one_kind_fail() {
    let classes = [FailClass::Frames, FailClass::Object].map(FailAim::Class);
    let sites = ["vm_area_struct", "range_node", "mm_struct", "anon_vma"];
    let sites = driver::FRAMES.into_iter().chain(sites).map(|name| FailAim::Site(FailSite::new(name)));
    let mut lines: Vec<_> = each_in_turn().rows().map(|row| row.line()).collect();
    lines.dedup();
    let driver = Driver::new();
    for aim in classes.into_iter().chain(sites).chain(lines) {
        let mut report = Report::default();
        for scenario in scenarios::all() {
            driver.run(scenario, FailPlan::every(1).at(aim), &mut report);
            driver.run(scenario, FailPlan::every(2).at(aim), &mut report);
        }
        for row in report.rows() {
            let of_frames = driver::FRAMES.contains(&row.site());
            let meant = match aim {
                FailAim::Class(class) => of_frames == (class == FailClass::Frames),
                FailAim::Site(site) => row.site() == site.name(),
                _ => row.line() == aim,
            };
            assert!(meant, "{row} was counted under {aim:?}");
        }
        println!("{aim:?}: {}", report.summary());
    }
}

#[test]
fn allocations_fail_by_seed() {
    let first = common::setting("QUIRE_SEED", 1);
    let (driver, mut report) = (Driver::new(), Report::default());
    let mut struck = 0;
    for scenario in scenarios::all() {
        for seed in first..first + 6 {
            // Many calls make a dozen allocations, forks a hundred: both often get past the first.
            for per_mille in [30, 200] {
                let plan = FailPlan::seeded(seed, per_mille);
                struck += u64::from(driver.run(scenario, plan, &mut report));
            }
        }
    }
    assert!(struck > 100, "only {struck} runs met a failure");
    println!("seeds from {first}: {}", report.summary());
}

#[test]
fn every_call_that_can_fail_was_made_to() {
    if !cfg!(debug_assertions) {
        return println!("skipped: release builds do not know the callers");
    }
    let (report, calls) = (each_in_turn(), sources::fallible_calls());
    assert!(calls.len() > 20, "the scan found only {} calls", calls.len());
    let mut wrong = Vec::new();
    for call in &calls {
        let excepted = NEVER.iter().any(|&(file, function, _)| call.is_in(file, function));
        match (excepted, report.failures_at(&call.file, call.line, call.column)) {
            (false, None) => wrong.push(format!("{call} was never reached")),
            (false, Some(0)) => wrong.push(format!("{call} was reached, and never made to fail")),
            (true, Some(_)) => wrong.push(format!("{call} was reached, though it is said that it never is")),
            (false, Some(_)) | (true, None) => {}
        }
    }
    for (file, function, reason) in NEVER {
        if !calls.iter().any(|call| call.is_in(file, function)) {
            wrong.push(format!("{file}: there is no such call in `{function}` any more ({reason})"));
        }
    }
    for row in report.rows() {
        if row.site() != driver::DEVICE
            && !calls.iter().any(|call| row.is_at(&call.file, call.line, call.column))
        {
            wrong.push(format!("{row} is not in the sources: the scan misses it"));
        }
        if row.failed() == 0 {
            wrong.push(format!("{row} was reached, and never made to fail"));
        }
    }
    assert!(wrong.is_empty(), "{} calls of the allocator:\n{}", wrong.len(), wrong.join("\n"));
}
