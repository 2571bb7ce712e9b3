//! `quire lab` as scripts see it: exit codes, one clear line for a wrong name, JSON.

use crate::{quire, report, schema};
use serde_json::Value;
use std::sync::OnceLock;

#[test]
fn an_experiment_that_does_not_exist_is_one_line_and_exit_code_2() {
    for names in [&["lab", "pcq"][..], &["lab", "gathers", "--quick"], &["lab", "pcp", "mremaps", "--json"]] {
        let output = quire(names);
        assert_eq!(output.status.code(), Some(2), "{names:?}");
        let line = String::from_utf8(output.stderr).expect("text");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.starts_with("quire: ") && line.contains("pcp, gather, tables, mremap"), "{line}");
        assert!(output.stdout.is_empty(), "{names:?}");
    }
}

/// A quick run of one experiment: its objects, which must be as agreed.
fn quick_run(experiment: &str) -> Vec<Value> {
    let output = quire(&["lab", experiment, "--quick", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let objects: Vec<Value> = schema::checked("lab.json", &text);
    for object in &objects {
        assert_eq!(object["experiment"], experiment);
        assert!(object["before"].is_number() && object["after"].is_number(), "{object}");
    }
    objects
}

/// The objects of a quick run of `tables`, pictures among them, and its page: two tests look at them.
pub(crate) fn tables() -> &'static (Vec<Value>, String) {
    static RUN: OnceLock<(Vec<Value>, String)> = OnceLock::new();
    RUN.get_or_init(|| report::page_of("lab.html", &["lab", "tables", "--quick"]))
}

/// A figure before and after.
fn figure(objects: &[Value], case: &str, metric: &str) -> (f64, f64) {
    let mut objects = objects.iter();
    let object = objects.find(|object| object["case"] == case && object["metric"] == metric);
    let object = object.unwrap_or_else(|| panic!("{case}, {metric} is not among them"));
    object["before"].as_f64().zip(object["after"].as_f64()).expect("numbers")
}

#[test]
fn a_quick_run_prints_an_object_a_line_and_nothing_else() {
    let (before, after) = figure(&quick_run("pcp"), "pair order 3, 2 threads", "zone_lock_takes");
    assert!(before >= 1000.0 && after <= 10.0, "{before} {after}");
}

#[test]
fn a_quick_run_of_gather_says_the_same_of_teardown() {
    let objects = quick_run("gather");
    let interrupts = figure(&objects, "munmap of all, another CPU runs it", "interrupts");
    assert_eq!(interrupts, (1.0, 1.0));
    assert!(
        objects
            .iter()
            .any(|object| object["case"] == "munmap, pages of 4 KiB" && object["linux"].is_number())
    );
}

#[test]
fn a_quick_run_of_tables_says_what_is_left_of_empty_ones() {
    let (objects, _) = tables();
    for emptying in ["DONTNEED of 64 KiB", "munmap of every second 1 MiB", "mremap of every second 1 MiB"] {
        let case = format!("4 GiB, {emptying}, a page in 32");
        let (before, after) = figure(objects, &case, "page_tables_at_the_end");
        assert!(before >= 8192.0 && after <= 28.0, "{emptying}: {before} {after}");
    }
}

#[test]
fn a_quick_run_of_mremap_times_moves() {
    let objects = quick_run("mremap");
    for case in ["1 GiB, aligned to 1 GiB, a page in 16", "1 GiB, aligned to 2 MiB, a page in 16"] {
        let (before, after) = figure(&objects, case, "time_min");
        assert!(before > 0.0 && after > 0.0, "{case}: {before} {after}");
    }
}
