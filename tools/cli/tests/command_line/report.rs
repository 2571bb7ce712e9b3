//! Pages of `--report`, and exported traces. What a browser makes of a page is looked at by
//! `scripts/check-report.sh`.

use crate::{lab, python, quire};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempPath;

fn recording(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings").join(format!("{name}.qtr"));
    path.to_str().expect("a plain path").to_owned()
}

/// A file of a test's own, gone when the test ends.
struct Place(TempPath);

impl Place {
    fn new(name: &str) -> Self {
        // The name only.
        let made = tempfile::Builder::new().suffix(name).make(|_| Ok(()));
        Self(made.expect("a temporary folder").into_temp_path())
    }

    fn text(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }
}

/// Runs a command with `--json --report`: the objects that it printed, and the page.
pub(crate) fn page_of(name: &str, arguments: &[&str]) -> (Vec<Value>, String) {
    let place = Place::new(name);
    let output = quire(&[arguments, &["--json", "--report", place.text()]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("text");
    let objects = lines.lines().map(|line| serde_json::from_str(line).expect("an object a line"));
    (objects.collect(), std::fs::read_to_string(&place.0).expect("a page"))
}

/// What stands between two texts, each time.
fn between<'t>(text: &'t str, before: &'t str, after: &'t str) -> impl Iterator<Item = &'t str> {
    text.split(before).skip(1).map(move |rest| rest.split(after).next().unwrap_or_default())
}

/// The page has what was printed, and its tables have the numbers of its pictures and no others.
#[track_caller]
fn numbers_are_those_of_json(objects: &[Value], page: &str) {
    let data = between(page, "<script type=\"application/json\" id=\"data\">", "</script>").next();
    let data: Vec<Value> = serde_json::from_str(data.expect("data")).expect("JSON");
    assert_eq!(data, objects);
    let pictures: Vec<&Value> = data.iter().filter(|object| object["picture"].is_string()).collect();
    let tables: Vec<&str> = between(page, "<details ", "</details>").collect();
    assert!(!pictures.is_empty() && pictures.len() == tables.len(), "{} tables", tables.len());
    for (picture, table) in pictures.into_iter().zip(tables) {
        let shown: Vec<f64> =
            between(table, "data-value=\"", "\"").map(|number| number.parse().expect("a number")).collect();
        let rows = picture["rows"].as_array().expect("rows");
        let cells = rows.iter().flat_map(|row| row.as_array().expect("a row"));
        let told: Vec<f64> = cells.filter_map(Value::as_f64).collect();
        assert_eq!(shown, told, "{}", picture["picture"]);
        let columns = picture["columns"].as_array().map_or(0, Vec::len);
        assert!(rows.iter().all(|row| row.as_array().map_or(0, Vec::len) == columns), "{picture}");
    }
}

/// Nothing is fetched, and nothing runs.
#[track_caller]
fn stands_alone(page: &str) {
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    for reference in between(page, "href=\"", "\"").chain(between(page, "src=\"", "\"")) {
        assert!(reference.starts_with("data:image/png;base64,"), "{reference:.60}");
    }
    for word in
        ["url(", "@import", "<link", "<iframe", "<object", "<embed", "<form", "javascript:", " onload"]
    {
        assert!(!page.contains(word), "{word}");
    }
    let scripts: Vec<&str> = between(page, "<script", ">").collect();
    assert_eq!(scripts, [" type=\"application/json\" id=\"data\""]);
    assert!(page.contains("content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\""));
    let (figures, labels) = (page.matches("<figure").count(), page.matches("role=\"img\"").count());
    assert!(figures > 0 && labels == 2 * figures && page.matches("<figcaption>").count() == figures);
}

fn picture<'o>(objects: &'o [Value], name: &str) -> &'o Value {
    objects.iter().find(|object| object["picture"] == name).unwrap_or_else(|| panic!("no picture {name}"))
}

/// A column of a picture, by its heading.
fn column(picture: &Value, name: &str) -> Vec<f64> {
    let columns = picture["columns"].as_array().expect("columns");
    let place = columns.iter().position(|column| column == name).expect("the column");
    picture["rows"].as_array().expect("rows").iter().filter_map(|row| row[place].as_f64()).collect()
}

#[test]
fn a_page_of_advice_has_the_numbers_of_json() {
    let (objects, page) = page_of("advise.html", &["advise", &recording("realloc-growth")]);
    numbers_are_those_of_json(&objects, &page);
    stands_alone(&page);
    let peaks = picture(&objects, "peak-memory")["rows"].as_array().expect("rows");
    let settings: Vec<&Value> = objects.iter().filter(|object| object["present"].is_boolean()).collect();
    assert!(settings.len() >= 14 && peaks.len() == settings.len());
    for (row, setting) in peaks.iter().zip(&settings) {
        assert_eq!(row[1], setting["peak_anonymous"], "{row}");
    }
    // Anonymous memory is not all that is needed.
    let charge = &settings[0]["peak_charge_range"][1];
    let charge = charge.as_f64().or(settings[0]["peak_charge"].as_f64()).expect("a number");
    assert!(Some(charge) > settings[0]["peak_anonymous"].as_f64());
    let needed = format!("the machine must have {} there", quire_report::Unit::Bytes.text(charge));
    assert!(page.contains(&needed), "{needed}");
    // Over time the highest point is the peak.
    let over_time = picture(&objects, "memory-over-time");
    let never = settings.iter().find(|setting| setting["setting"] == "thp=never").expect("a row");
    let highest = column(over_time, "thp=never").into_iter().fold(0.0, f64::max);
    assert_eq!(Some(highest), never["peak_anonymous"].as_f64());
    // Where every page was touched nothing is wasted, and where 2 MiB come at a time much is.
    let [first, second] =
        ["addresses-over-time-1", "addresses-over-time-2"].map(|name| picture(&objects, name));
    let sum = |picture, name| column(picture, name).iter().sum::<f64>();
    assert_eq!(sum(first, "never touched"), 0.0);
    assert!(sum(first, "touched before") + sum(first, "touched at that time") > 10e6, "{first}");
    assert!(sum(second, "never touched") >= 0.0 && page.contains("data:image/png;base64,"));
    // The host of a test is not calibrated: there are no estimates.
    assert!(picture(&objects, "page-faults")["rows"].is_array() && !page.contains("fault-latency"));
    for words in [
        "Transparent huge pages",
        "Lost page faults and calls",
        "Verdict: ",
        "prefers-color-scheme: dark",
        "@media print",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn a_page_of_replays_has_a_section_each() {
    let files = [recording("git-log"), recording("sort-threads")];
    let arguments = ["replay", &files[0], &files[1], "--setting", "thp=always"];
    let (objects, page) = page_of("replay.html", &arguments);
    numbers_are_those_of_json(&objects, &page);
    stands_alone(&page);
    assert_eq!(page.matches("<section>").count(), 2);
    let addresses: Vec<&Value> =
        objects.iter().filter(|object| object["picture"] == "addresses-over-time").collect();
    assert_eq!(addresses.len(), 2);
    let resident = |picture: &Value| -> f64 {
        let names = ["touched at that time", "touched before", "never touched"];
        names.iter().flat_map(|name| column(picture, name)).sum()
    };
    // What lies at which address at the end of a column is no more than the peak.
    let peak = column(picture(&objects, "memory-over-time"), "thp=always").into_iter().fold(0.0, f64::max);
    assert!(
        resident(addresses[0]) > 0.0 && resident(addresses[0]) <= peak,
        "{} {peak}",
        resident(addresses[0])
    );
    assert!(column(addresses[1], "never touched").iter().sum::<f64>() > 0.0, "{}", addresses[1]);
}

#[test]
fn what_is_paged_out_is_told() {
    let file = recording("xz-threads");
    let limited = ["--limit", "12M", "--swap", "zram:64M", "--assume-no-reuse"];
    let (objects, page) = page_of("limited.html", &[&["replay", file.as_str()][..], &limited].concat());
    numbers_are_those_of_json(&objects, &page);
    let addresses = picture(&objects, "addresses-over-time");
    assert!(column(addresses, "paged out").iter().sum::<f64>() > 1e6, "{addresses}");
    assert_eq!(column(addresses, "never touched").iter().sum::<f64>(), 0.0);
}

#[test]
fn a_page_of_techniques_has_the_numbers_of_json() {
    let (objects, page) = page_of("compare.html", &["compare", &recording("realloc-growth")]);
    numbers_are_those_of_json(&objects, &page);
    stands_alone(&page);
    let techniques = picture(&objects, "techniques")["rows"].as_array().expect("rows");
    for row in techniques {
        let words = row[0].as_str().expect("a name").split_once(": ").expect("a technique and a figure");
        let metric = words.1.replace(' ', "_");
        let same = |object: &&Value| {
            object["technique"] == words.0 && object["metric"] == *metric && object["setting"] == row[1]
        };
        let object = objects.iter().find(same).expect("an object");
        assert_eq!((&object["before"], &object["after"]), (&row[2], &row[3]), "{row}");
    }
    assert!(techniques.len() > 4);
}

#[test]
fn an_experiment_has_a_page() {
    let (objects, page) = lab::tables();
    numbers_are_those_of_json(objects, page);
    stands_alone(page);
    let records = objects.iter().filter(|object| object["experiment"] == "tables").count();
    let rows: usize = objects.iter().filter_map(|object| Some(object["rows"].as_array()?.len())).sum();
    assert!(records > 10 && rows >= records, "{records} {rows}");
}

#[track_caller]
fn complaint(output: &Output, code: i32) -> String {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{line}");
    assert!(line.lines().count() == 1 && line.starts_with("quire: "), "{line}");
    line
}

#[test]
fn a_page_is_whole_or_not_there() {
    let file = recording("git-log");
    for command in ["advise", "replay", "compare"] {
        let output = quire(&[command, &file, "--report", "/nonexistent/page.html"]);
        assert!(complaint(&output, 2).contains("/nonexistent/page.html"));
        assert!(output.stdout.is_empty(), "the place is looked at before the work");
    }
    let output = quire(&["lab", "pcp", "--quick", "--report", "/"]);
    complaint(&output, 2);
    // A file that is no page is not replaced: the next argument may be a recording.
    let other = Place::new("other.qtr");
    std::fs::write(&other.0, "not a page").expect("a file");
    let output = quire(&["replay", &file, "--report", other.text()]);
    assert!(complaint(&output, 2).contains("is no page"));
    assert_eq!(std::fs::read_to_string(&other.0).expect("the file"), "not a page");
    let output = quire(&["replay", &file, "--report", "/dev/full"]);
    assert!(complaint(&output, 1).contains("/dev/full was not written"));
}

/// What a command prints on a terminal.
fn on_a_terminal(arguments: &[&str], no_colour: bool) -> String {
    let spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
    let mut command = Command::new(python());
    command.args(["-c", spawn, env!("CARGO_BIN_EXE_quire")]).args(arguments).stdin(Stdio::null());
    command.env("XDG_CACHE_HOME", "/nonexistent").env_remove("NO_COLOR");
    if no_colour {
        command.env("NO_COLOR", "1");
    }
    let output = command.output().expect("python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn tables_have_drawings_on_a_terminal_only() {
    let file = recording("git-log");
    let has_blocks = |text: &str| text.contains('\u{2581}') && text.contains('\u{2588}');
    assert!(has_blocks(&on_a_terminal(&["advise", &file], false)));
    assert!(!has_blocks(&on_a_terminal(&["advise", &file], true)));
    assert!(!has_blocks(&on_a_terminal(&["advise", "--plain", &file], false)));
    let piped = quire(&["advise", &file]);
    assert!(!has_blocks(&String::from_utf8_lossy(&piped.stdout)));
}

/// A field of a message of protobuf: its number, and what is in it.
enum Field<'b> {
    Number(u64),
    Bytes(&'b [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (&byte, rest) = bytes.split_first().expect("a byte");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

/// The fields of a message, by the wire format alone.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (field, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(field)
            }
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, field));
    }
    found
}

fn number(fields: &[(u64, Field<'_>)], wanted: u64) -> Option<u64> {
    fields.iter().find_map(|(field, value)| match value {
        Field::Number(value) if *field == wanted => Some(*value),
        _ => None,
    })
}

fn bytes<'b>(fields: &[(u64, Field<'b>)], wanted: u64) -> Option<&'b [u8]> {
    fields.iter().find_map(|(field, value)| match value {
        Field::Bytes(value) if *field == wanted => Some(*value),
        _ => None,
    })
}

/// An exported trace, read with the field numbers of Perfetto's schema.
#[test]
fn a_replay_is_exported_for_perfetto() {
    let place = Place::new("trace.perfetto");
    let file = recording("sort-threads");
    let output = quire(&["export", "perfetto", &file, "-o", place.text()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
    let trace = std::fs::read(&place.0).expect("a trace");
    let (mut counters, mut last_ns) = (HashMap::new(), 0);
    let (mut values, mut faults, mut depth, mut calls) = (HashMap::<_, Vec<u64>>::new(), 0, 0i64, 0);
    for (key, packet) in fields(&trace) {
        let Field::Bytes(packet) = packet else { panic!("field {key} is no packet") };
        assert_eq!(key, 1);
        let packet = fields(packet);
        if let Some(track) = bytes(&packet, 60).map(fields) {
            if bytes(&track, 8).is_some() {
                let name = String::from_utf8_lossy(bytes(&track, 2).expect("a name")).into_owned();
                counters.insert(number(&track, 1).expect("a track"), name);
            }
            continue;
        }
        let time_ns = number(&packet, 8).expect("a time");
        assert!(time_ns >= last_ns, "events are in order");
        last_ns = time_ns;
        let event = fields(bytes(&packet, 11).expect("an event"));
        let track = number(&event, 11).expect("a track");
        match number(&event, 9).expect("a type") {
            1 => {
                depth += 1;
                let notes = event.iter().filter_map(|(field, value)| match value {
                    Field::Bytes(note) if *field == 4 => Some(fields(note)),
                    _ => None,
                });
                let mut notes = notes.filter(|note| bytes(note, 10) == Some(b"count"));
                faults += number(&notes.next().expect("a count"), 3).expect("a number");
            }
            2 => depth -= 1,
            3 => calls += 1,
            4 => {
                values
                    .entry(counters[&track].clone())
                    .or_default()
                    .push(number(&event, 30).expect("a value"));
            }
            other => panic!("an event of type {other}"),
        }
    }
    // As many page faults as a replay has, and its peak.
    let output = quire(&["replay", "--json", &file]);
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let processes: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let sum = |name: &str| processes.iter().filter_map(|process| process[name].as_u64()).sum::<u64>();
    assert_eq!((faults, depth), (sum("faults"), 0));
    assert!(calls >= sum("calls"), "{calls}");
    let most = values["Anonymous memory"].iter().max().copied().unwrap_or(0);
    assert!(most > 4 << 20, "{most}");
    assert!(values["Page tables"].iter().any(|&bytes| bytes > 0));
    assert!(values["Free blocks of 256 KiB"].len() > 10 && values["Pages in swap"] == [0]);

    let output = quire(&["export", "perfetto", &file, "-o", "/nonexistent/trace"]);
    complaint(&output, 2);
    let output = quire(&["export", "perfetto", &file, "-o", &file]);
    assert!(complaint(&output, 2).contains("is no trace for Perfetto"));
}
