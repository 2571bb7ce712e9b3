//! What `--json` prints is what the schemas in docs/schema say.

use crate::quire_with;
use quire_trace::format::{TraceReader, TraceWriter, UseSource};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether `value` has one of the types that `names` names.
fn has_type(value: &Value, names: &Value) -> bool {
    let is = |name: &Value| match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        other => panic!("the schema names the type {other:?}"),
    };
    names.as_array().map_or_else(|| is(names), |names| names.iter().any(is))
}

/// Where `value` is not what `schema` says, for the words of JSON Schema that the schemas use. Any other word
/// fails.
fn check(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    for (word, says) in schema.as_object().expect("a schema is an object") {
        let holds = match word.as_str() {
            "$schema" | "title" | "description" => true,
            "type" => has_type(value, says),
            "enum" => says.as_array().is_some_and(|values| values.contains(value)),
            "minimum" => value.as_f64().is_none_or(|number| Some(number) >= says.as_f64()),
            "required" => {
                let names = says.as_array().expect("names").iter().filter_map(Value::as_str);
                let missing = names.filter(|name| value.is_object() && value.get(name).is_none());
                match missing.collect::<Vec<_>>()[..] {
                    [] => true,
                    [first, ..] => return Err(format!("{at}: `{first}` is missing")),
                }
            }
            "anyOf" => {
                let found = says.as_array().expect("schemas").iter().map(|schema| check(schema, value, at));
                let errors: Vec<String> = found.filter_map(Result::err).collect();
                if errors.len() == says.as_array().map_or(0, Vec::len) {
                    return Err(errors.join("; or "));
                }
                true
            }
            "items" => {
                for (place, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(says, item, &format!("{at}[{place}]"))?;
                }
                true
            }
            "properties" => {
                for (name, schema) in says.as_object().expect("properties") {
                    if let Some(property) = value.get(name) {
                        check(schema, property, &format!("{at}.{name}"))?;
                    }
                }
                true
            }
            "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                for (name, property) in value.as_object().into_iter().flatten() {
                    if known.is_some_and(|known| known.contains_key(name)) {
                        continue;
                    }
                    if says == &Value::Bool(false) {
                        return Err(format!("{at}: the schema does not know `{name}`"));
                    }
                    check(says, property, &format!("{at}.{name}"))?;
                }
                true
            }
            other => panic!("the schema uses the word {other}, which this test does not know"),
        };
        if !holds {
            return Err(format!("{at}: {value} is not {word} {says}"));
        }
    }
    Ok(())
}

/// The objects of the lines, each of which fits the schema.
#[track_caller]
pub(crate) fn checked(schema: &str, lines: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(root().join("docs/schema").join(schema)).expect("a schema");
    let schema: Value = serde_json::from_str(&text).expect("JSON");
    let objects = lines.lines().map(|line| {
        let value = serde_json::from_str(line).expect("an object a line");
        check(&schema, &value, "$").unwrap_or_else(|error| panic!("{error}\n{line}"));
        value
    });
    objects.collect()
}

/// Runs `quire`, holds each line against the schema, and returns how many there were.
#[track_caller]
fn lines_of(schema: &str, arguments: &[&str]) -> usize {
    let output = quire_with(arguments, |command| {
        command.current_dir(root());
    });
    checked(schema, &String::from_utf8(output.stdout).expect("text")).len()
}

#[test]
fn a_replay_prints_what_its_schema_says() {
    let many = ["replay", "--json", "recordings/shell-pipes.qtr", "recordings/xz-threads.qtr"];
    assert!(lines_of("replay.json", &many) > 10);
    let pictures = ["replay", "--json", "--report", "/dev/null", "recordings/git-log.qtr"];
    assert!(lines_of("replay.json", &pictures) > 4);
    let limited = ["replay", "--json", "--memory", "32M", "--swap", "zram:256M", "recordings/xz-threads.qtr"];
    assert!(lines_of("replay.json", &limited) > 0);
    let too_little = ["replay", "--json", "--memory", "16M", "recordings/python-structures.qtr"];
    assert_eq!(lines_of("replay.json", &too_little), 2);
}

#[test]
fn a_comparison_prints_what_its_schema_says() {
    let arguments = ["diff", "--ops", "300", "--concurrent", "10", "--json"];
    assert_eq!(lines_of("diff.json", &arguments), 3);
    assert_eq!(
        lines_of("diff.json", &["diff", "--ops", "300", "--concurrent", "0", "--coverage", "--json"]),
        1
    );
}

#[test]
fn advice_prints_what_its_schema_says() {
    assert!(lines_of("advise.json", &["advise", "--json", "recordings/git-log.qtr"]) > 14);
    let command = ["advise", "--json", "--runs", "1", "--", "true"];
    assert!(lines_of("advise.json", &command) > 14);
    // With numbers for limits: a recording whose header says that it has each use.
    let source = TraceReader::open(root().join("recordings/git-log.qtr")).expect("a recording");
    let mut header = source.header().clone();
    header.uses = UseSource::Exact;
    let known = tempfile::Builder::new().suffix(".qtr").tempfile().expect("a file");
    let mut writer = TraceWriter::new(known.as_file(), &header, 3).expect("a writer");
    for event in source {
        writer.push(&event.expect("an event")).expect("it is written");
    }
    writer.finish(0, 0).expect("an end");
    let lines = lines_of("advise.json", &["advise", "--json", known.path().to_str().expect("a plain path")]);
    assert!(lines > 14 + 9 + 4, "limits, and a curve: {lines}");
}

#[test]
fn compared_techniques_print_what_their_schema_says() {
    let arguments = ["compare", "--json", "recordings/realloc-growth.qtr", "recordings/git-log.qtr"];
    assert!(lines_of("compare.json", &arguments) > 30);
}

/// A schema that everything fits would be worth nothing.
#[test]
fn a_wrong_object_is_found() {
    let schema = r#"{"anyOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}},
        "required": ["a"], "additionalProperties": false}]}"#;
    let schema = serde_json::from_str(schema).expect("JSON");
    for (value, is_right) in [
        (r#"{"a": 1}"#, true),
        (r#"{"a": -1}"#, false),
        (r#"{"a": "1"}"#, false),
        (r#"{"a": 1, "b": 2}"#, false),
        ("{}", false),
        ("[]", false),
    ] {
        let value = serde_json::from_str(value).expect("JSON");
        assert_eq!(check(&schema, &value, "$").is_ok(), is_right, "{value}");
    }
}
