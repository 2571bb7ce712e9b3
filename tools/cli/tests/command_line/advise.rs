//! `quire advise`.

use crate::{quire, quire_with};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

fn advise(arguments: &[&str]) -> Output {
    quire(&[&["advise"], arguments].concat())
}

fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings").join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn objects(output: &Output) -> Vec<Value> {
    let lines = String::from_utf8_lossy(&output.stdout);
    lines.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

#[track_caller]
fn complaint(output: &Output) -> String {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.lines().count() == 1 && line.starts_with("quire: ") && output.stdout.is_empty(), "{line}");
    line
}

/// Each setting has a row, and the words of the verdict name what the figures say.
#[test]
fn a_recording_is_replayed_under_each_setting() {
    let file = recording("python-structures.qtr");
    let output = advise(&["--json", text(&file)]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let objects = objects(&output);
    let (verdict, rows) = objects.split_last().expect("rows and a verdict");
    let named = |name: &str| rows.iter().find(|row| row["setting"] == name).expect("a row");
    assert!(rows.len() >= 14 && rows[0]["present"] == true && rows[0]["setting"] == "thp=madvise");
    let peak = |name: &str| named(name)["peak_largest"]["median"].as_f64().expect("a number");
    // What each setting may do to a program that gives no advice.
    assert_eq!(peak("thp=never"), peak("thp=madvise"));
    assert!(peak("thp=always") >= peak("thp=never") && peak("mthp=1M") >= peak("mthp=16K"));
    assert_eq!(named("thp=never")["never_touched"]["max"], 0.0);
    assert_eq!(named("thp=never")["huge_faults"]["max"], 0.0);
    assert!(named("mthp=64K")["large_share"]["median"].as_f64() > Some(0.5));
    assert!(rows.iter().all(|row| row["fallbacks"] == 0), "the machine is large enough");
    assert_eq!((&verdict["differences"], &verdict["recordings"]), (&Value::from(0), &Value::from(1)));
    let words = verdict["verdict"].as_array().expect("sentences");
    assert!(
        words.iter().any(|line| line.as_str().is_some_and(|line| line.starts_with("Verdict: "))),
        "{words:?}"
    );
    assert_eq!(
        verdict["nothing_changes"],
        verdict["least_memory"].is_null() && verdict["fewest_faults"].is_null()
    );

    // The same again in words.
    let output = advise(&[text(&file)]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("| thp=madvise (now)") && shown.contains("Not predicted:"), "{shown}");
    assert!(
        shown.lines().filter(|line| line.starts_with('|')).all(|line| line.chars().count() <= 130),
        "{shown}"
    );
}

/// The program's output is not mixed with the advice, and its exit code is told.
#[test]
fn a_command_is_recorded_and_its_output_kept_apart() {
    let output = advise(&["--runs", "2", "--json", "--", "sh", "-c", "echo from the program; exit 3"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(errors.lines().filter(|line| *line == "from the program").count(), 2, "{errors}");
    assert!(errors.contains("ended with code 3 (run 2)"), "{errors}");
    let objects = objects(&output);
    assert_eq!(objects.last().map(|verdict| &verdict["recordings"]), Some(&Value::from(2)));
}

#[test]
fn what_cannot_be_predicted_from_is_refused_in_a_line() {
    for (arguments, words) in [
        (&[][..], "FILE"),
        (&["--validate", "x.qtr"], "CMD"),
        (&["/nonexistent/file.qtr"], "/nonexistent/file.qtr"),
        (&["--runs", "0", "--", "true"], "--runs"),
    ] {
        let line = complaint(&advise(arguments));
        assert!(line.contains(words), "{arguments:?}: {line}");
    }
    let (one, other) = (recording("git-log.qtr"), recording("shell-pipes.qtr"));
    let line = complaint(&advise(&[text(&one), text(&other)]));
    assert!(line.contains("one command") && line.contains("shell-pipes"), "{line}");
}

/// With huge pages on a recording does not tell which pages a program touches.
#[test]
fn a_recording_with_huge_pages_on_is_refused() {
    let file = std::env::temp_dir().join(format!("quire-advise-{}.qtr", std::process::id()));
    let recorded = quire(&["record", "--thp=on", "-o", text(&file), "--", "true"]);
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    let output = advise(&[text(&file)]);
    let _ = std::fs::remove_file(&file);
    if std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|text| text.contains("[never]"))
    {
        eprintln!("skipped: this host has transparent huge pages off");
        return;
    }
    let line = complaint(&output);
    assert!(line.contains(text(&file)) && line.contains("quire record"), "{line}");
}

/// The program itself runs under two settings, and the host has its own again afterwards.
#[test]
fn predictions_are_held_against_the_program_itself() {
    let enabled = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    let before = std::fs::read_to_string(enabled);
    let output = advise(&["--validate", "--json", "--runs", "1", "--", "true"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(1) && (errors.contains("root") || errors.contains("another measurement"))
    {
        eprintln!("skipped: {errors}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let objects = objects(&output);
    let found = |figure: &str| {
        let lines = objects.iter().filter(|line| line["figure"] == figure);
        lines.map(|line| (line["predicted"].clone(), line["measured"].clone())).collect::<Vec<_>>()
    };
    assert_eq!((found("peak anonymous").len(), found("run time").len()), (2, 2));
    for (predicted, measured) in found("peak anonymous") {
        let of = |range: &Value| range["median"].as_f64().expect("a number");
        let (predicted, measured) = (of(&predicted), of(&measured));
        assert!((predicted / measured - 1.0).abs() < 0.2, "{predicted} and {measured}");
    }
    assert_eq!(before.ok(), std::fs::read_to_string(enabled).ok());
}

#[test]
fn a_calibration_prints_what_faults_cost() {
    let folder = std::env::temp_dir().join(format!("quire-costs-{}", std::process::id()));
    let output = quire_with(&["calibrate", "--json"], |command| {
        command.env("XDG_CACHE_HOME", &folder);
    });
    let kept = std::fs::read_dir(folder.join("quire")).map_or(0, Iterator::count);
    let _ = std::fs::remove_dir_all(&folder);
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("another measurement") {
        eprintln!("skipped: {errors}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let costs: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let total = |size: &str| costs["faults"][size]["total"]["median"].as_f64().expect("a time");
    assert!(total("4096") > 0.0 && total("2097152") > total("4096"), "{costs}");
    assert_eq!(kept, 1);
}
