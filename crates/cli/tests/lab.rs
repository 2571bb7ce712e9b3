//! `quire lab` as scripts see it: exit codes, one clear line for a wrong name, JSON.

use std::process::{Command, Output};

fn quire(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quire")).args(arguments).output().expect("quire starts")
}

#[test]
fn an_experiment_that_does_not_exist_is_one_line_and_exit_code_2() {
    for names in [&["lab", "pcq"][..], &["lab", "gather", "--quick"], &["lab", "pcp", "mremap", "--json"]] {
        let output = quire(names);
        assert_eq!(output.status.code(), Some(2), "{names:?}");
        let line = String::from_utf8(output.stderr).expect("text");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.starts_with("quire: ") && line.contains("pcp"), "{line}");
        assert!(output.stdout.is_empty(), "{names:?}");
    }
}

#[test]
fn a_quick_run_prints_an_object_a_line_and_nothing_else() {
    let output = quire(&["lab", "pcp", "--quick", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let mut takes = None;
    for line in text.lines() {
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(line).expect("an object");
        let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            ["after", "before", "better", "case", "experiment", "linux", "metric", "unit"],
            "{line}"
        );
        assert_eq!(object["experiment"], "pcp");
        assert!(["lower", "higher"].map(Some).contains(&object["better"].as_str()), "{line}");
        assert!(object["before"].is_number() && object["after"].is_number(), "{line}");
        if object["case"] == "pair order 3, 2 threads" && object["metric"] == "zone_lock_takes" {
            takes = object["before"].as_f64().zip(object["after"].as_f64());
        }
    }
    let (before, after) = takes.expect("pairs of order 3 are among them");
    assert!(before >= 1000.0 && after <= 10.0, "{before} {after}");
}
