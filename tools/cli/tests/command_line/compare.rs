//! `quire compare`.

use crate::{Folder, python, quire};
use serde_json::Value;
use std::collections::HashSet;
use std::process::Command;

fn objects(arguments: &[&str]) -> Vec<Value> {
    let output = quire(&[&["compare", "--json"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8_lossy(&output.stdout);
    lines.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

fn recording(name: &str) -> String {
    format!("{}/../../recordings/{name}.qtr", env!("CARGO_MANIFEST_DIR"))
}

/// The figure of `metric` under a setting whose name begins so, before and after.
fn figure(objects: &[Value], setting: &str, metric: &str) -> (f64, f64) {
    let is = |object: &&Value| {
        object["metric"] == metric && object["setting"].as_str().is_some_and(|name| name.starts_with(setting))
    };
    let object = objects.iter().find(is).unwrap_or_else(|| panic!("{metric} under {setting}: {objects:#?}"));
    let number = |name: &str| object[name].as_f64().expect("a number");
    (number("before"), number("after"))
}

#[test]
fn each_technique_changes_what_it_is_about() {
    let all = objects(&[&recording("python-structures")]);
    let techniques: HashSet<&str> = all.iter().filter_map(|object| object["technique"].as_str()).collect();
    assert_eq!(techniques.len(), 5, "{techniques:?}");

    let (before, after) = figure(&all, "thp=madvise", "zone_lock_takes");
    assert!(after < before / 2.0, "the lists serve most: {before} {after}");
    let (before, after) = figure(&all, "thp=madvise", "rmap_removals");
    assert!(before == after && before > 50_000.0, "there are no large folios: {before} {after}");
    let (before, after) = figure(&all, "mthp=64K", "rmap_removals");
    assert!(after < before / 5.0, "a run has up to 16 pages: {before} {after}");
    let (before, after) = figure(&all, "mthp=64K", "descriptors_written");
    assert!(after < before / 4.0 && after > before / 64.0, "{before} {after}");
    let (before, after) = figure(&all, "mthp=64K,", "swap_cache");
    // Not the same pages are out at the peak.
    assert!(after <= before * 1.25, "a word for a folio: {before} {after}");
    let (before, after) = figure(&all, "mthp=64K,", "major_faults");
    assert!(after < before / 2.0, "a folio comes back whole: {before} {after}");
    let (before, after) = figure(&all, "thp=madvise", "entries_moved");
    assert!(before == after && before > 1000.0, "moved to other places within a table: {before} {after}");
}

/// A program made for two techniques: it empties tables under a mapping that stays, and moves 8 MiB.
#[test]
fn freed_tables_and_moved_tables_are_counted() {
    let folder = Folder::new("compare");
    let file = folder.0.join("moves.qtr");
    let name = file.to_str().expect("a plain path");
    let program = "
import mmap
anywhere = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
sparse = mmap.mmap(-1, 256 << 20, flags=anywhere)
sparse.madvise(mmap.MADV_NOHUGEPAGE)
for start in range(0, 256 << 20, 2 << 20):
    sparse[start] = 1
    sparse.madvise(mmap.MADV_DONTNEED, start, 2 << 20)
moved = mmap.mmap(-1, 64 << 20, flags=anywhere)
moved.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(0, 64 << 20, 4096):
    moved[page] = 1
beside = mmap.mmap(-1, 4 << 20, flags=anywhere)
moved.resize(256 << 20)
";
    let recorded = quire(&["record", "-o", name, "--", python(), "-c", program]);
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    let all = objects(&[name, "--technique", "tables", "--technique", "mremap"]);
    assert!(all.iter().all(|object| object["technique"] == "tables" || object["technique"] == "mremap"));
    let (before, after) = figure(&all, "", "empty_tables_freed");
    assert!(before == 0.0 && after >= 100.0, "{before} {after}");
    let (before, after) = figure(&all, "", "peak_page_tables");
    assert!(after < before, "{before} {after}");
    let (before, after) = figure(&all, "", "entries_moved");
    assert!(before >= 16_384.0 && after <= before, "{before} {after}");
}

#[test]
fn a_technique_that_changes_nothing_is_told_in_words() {
    let output = quire(&["compare", &recording("git-log")]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    // Sentences end between words at the end of a line.
    let shown = String::from_utf8_lossy(&output.stdout).replace('\n', " ");
    for words in [
        "0 differences from Linux",
        "tables does nothing for this program under thp=madvise: no table was left empty under a mapping",
        "mremap does nothing for this program under thp=madvise: no mapping was moved",
        "| pcp: ",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(!shown.contains("| tables: "), "{shown}");
}

#[test]
fn wrong_usage_is_told_in_a_line() {
    for (arguments, words) in [
        (&["compare"][..], "FILE"),
        (&["compare", "--technique", "pcb", "x.qtr"], "pcb"),
        (&["compare", "/nonexistent/file.qtr"], "/nonexistent/file.qtr"),
        (&["replay", &recording("git-log"), "--setting", "thp=sometimes"], "thp=always"),
    ] {
        let output = quire(arguments);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {line}");
        assert!(line.lines().count() == 1 && line.contains(words), "{arguments:?}: {line}");
    }
}

/// The same numbers each time, and fewer with the technique.
#[test]
fn instructions_are_counted() {
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: valgrind is missing; install it with: apt-get install valgrind");
        return;
    }
    let file = recording("git-log");
    let all = objects(&[&file, "--instructions", "--technique", "gather"]);
    let (before, after) = figure(&all, "mthp=64K", "manager_instructions");
    assert!(after > 100_000.0 && after < before, "{before} {after}");
}
