//! Recordings that are damaged, or that claim what no program did: each command says what is wrong, in one
//! line, or does its work.

use crate::{Folder, quire, recording_of};
use quire_trace::event::{
    Call, CallDetail, CloneFacts, Event, EventKind, ExecImage, Lost, LostCause, Mapping, PageRun, TaskId,
};
use quire_trace::format::{TraceReader, TraceWriter};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const START: u64 = 0x1000_0000_0000;

const MADVISE: u32 = 28;
const MLOCK: u32 = 149;
const MADV_POPULATE_WRITE: u64 = 23;

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Every command that reads a recording, of this one.
fn commands(file: &Path, folder: &Folder) -> Vec<(Vec<String>, PathBuf)> {
    let out = folder.0.join("out");
    let line = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
    let (file, to) = (text(file), text(&out));
    [
        line(&["replay", file]),
        line(&["replay", "--salvage", file]),
        line(&["advise", file]),
        line(&["compare", file]),
        line(&["trace", "dump", file]),
        line(&["trace", "dump", "--salvage", file]),
        line(&["trace", "strip", file, to]),
        line(&["export", "perfetto", file, "-o", to]),
        line(&["import", "lackey", file, "-o", to]),
    ]
    .into_iter()
    .map(|line| (line, out.clone()))
    .collect()
}

/// Runs every command. Those in whose words all of `good` are do their work (or find something: exit code 1);
/// each other one says in one line what is wrong with the file.
#[track_caller]
fn check(name: &str, bytes: &[u8], good: &[&str], wrong: &str) {
    let folder = Folder::new("hostile");
    let file = folder.0.join(name);
    fs::write(&file, bytes).expect("a file");
    for (line, out) in commands(&file, &folder) {
        let _ = fs::remove_file(&out);
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        let output = quire(&words);
        let said = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code().unwrap_or_else(|| panic!("{words:?} was killed: {said}"));
        assert!(!said.contains("panicked"), "{words:?}: {said}");
        let does_work = good.iter().any(|good| words.join(" ").starts_with(good));
        if does_work {
            assert!(code == 0 || code == 1, "{words:?}: {code}, {said}");
            continue;
        }
        assert_eq!((code, said.lines().count()), (2, 1), "{words:?}: {said}");
        assert!(said.starts_with("quire: ") && said.contains(text(&file)), "{words:?}: {said}");
        let is_import = words[0] == "import";
        assert!(said.contains(wrong) || is_import, "{words:?} does not say `{wrong}`: {said}");
        // Nothing is left of what was to be written.
        assert!(!out.exists(), "{words:?}");
        assert_eq!(folder.names(), [name], "{words:?}");
    }
}

/// A recording of these events of a small program.
fn made_of(events: Vec<(u32, EventKind)>) -> Vec<u8> {
    let folder = Folder::new("hostile");
    let file = folder.0.join("made.qtr");
    let header = TraceReader::open(recording_of("git-log")).expect("a recording").header().clone();
    let mut writer = TraceWriter::new(File::create(&file).expect("a file"), &header, 3).expect("a writer");
    for (time_ns, (task, kind)) in (0..).zip(events) {
        writer.push(&Event { time_ns, task: TaskId(task), cpu: 0, kind }).expect("it is written");
    }
    writer.finish(1, 1).expect("an end");
    fs::read(&file).expect("the file")
}

fn program(bytes: u64) -> (u32, EventKind) {
    let mapping = Mapping { start: START, end: START + bytes, read: true, write: true, ..Mapping::default() };
    (0, EventKind::Exec(Box::new(ExecImage { pid: 1, mappings: vec![mapping], ..ExecImage::default() })))
}

fn call(number: u32, args: [u64; 6], result: i64) -> (u32, EventKind) {
    (0, EventKind::Call(Call { number, args, result, detail: CallDetail::None }))
}

#[test]
fn a_file_that_is_no_recording_is_named_by_each_command() {
    check("notes.qtr", b"my notes\n", &[], "not a Quire trace");
    check("empty.qtr", b"", &[], "not a Quire trace");
    check("noise.qtr", &[0xff; 5000], &[], "not a Quire trace");
}

#[test]
fn a_damaged_recording_is_named_with_the_place_and_the_way_out() {
    let whole = fs::read(recording_of("shell-pipes")).expect("a recording");
    let salvage = ["replay --salvage", "trace dump --salvage"];
    let mut damaged = whole.clone();
    let place = whole.len() / 2;
    damaged[place] ^= 0x5a;
    check("damaged.qtr", &damaged, &salvage, "--salvage");
    check("cut.qtr", &whole[..whole.len() / 2], &salvage, "--salvage");
    // Of a part of the header nothing can be saved.
    check("header.qtr", &whole[..40], &[], "cut short");
}

/// No page of its own ever comes in: it cannot be short of memory.
#[test]
fn a_program_without_anonymous_memory_is_compared() {
    let bytes = made_of(vec![program(1 << 20)]);
    check("none.qtr", &bytes, &["replay", "advise", "compare", "trace", "export"], "");
}

/// Runs of resident pages that add up to more than 64 bits.
#[test]
fn an_image_with_more_pages_than_a_number_can_tell_is_read() {
    let (task, mut image) = program(1 << 40);
    if let EventKind::Exec(image) = &mut image {
        let run = PageRun { start: START, pages: u64::MAX, file: true };
        image.mappings[0].resident = vec![run; 1000];
    }
    let bytes = made_of(vec![(task, image)]);
    check("resident.qtr", &bytes, &["replay", "advise", "compare", "trace", "export"], "");
}

/// A few bytes that name terabytes, and as many forks of it as fit into a kilobyte.
#[test]
fn a_recording_that_claims_much_takes_little() {
    const TIB: u64 = 1 << 40;
    let reads = ["replay", "advise", "compare", "trace", "export"];
    let populate = [START, 32 * TIB, MADV_POPULATE_WRITE, 0, 0, 0];
    check("populates.qtr", &made_of(vec![program(32 * TIB), call(MADVISE, populate, 0)]), &reads, "");
    let locks = [START, 32 * TIB, 0, 0, 0, 0];
    check("locks.qtr", &made_of(vec![program(32 * TIB), call(MLOCK, locks, 0)]), &reads, "");
    let mut forks = vec![program(TIB), call(MLOCK, [START, 4 << 20, 0, 0, 0, 0], 0)];
    for child in 1..50 {
        let facts = CloneFacts {
            child: TaskId(child),
            child_tid: child + 1,
            child_pid: child + 1,
            flags: 0,
            shares_memory: false,
            same_process: false,
        };
        forks.push((0, EventKind::Clone(facts)));
    }
    check("forks.qtr", &made_of(forks), &reads, "");
}

/// What is compared is of the part before that event, which is no success.
#[test]
fn a_comparison_of_a_part_says_so() {
    const TIB: u64 = 1 << 40;
    let populate = [START, 32 * TIB, MADV_POPULATE_WRITE, 0, 0, 0];
    let folder = Folder::new("part");
    let file = folder.0.join("part.qtr");
    fs::write(&file, made_of(vec![program(32 * TIB), call(MADVISE, populate, 0)])).expect("a file");
    let why = "out of proportion: at event 1";
    let output = quire(&["compare", text(&file)]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("But the recording is {why}")), "{shown}");
    let output = quire(&["compare", "--json", text(&file)]);
    let (shown, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.starts_with("quire: ") && said.contains(why), "{said}");
    for line in shown.lines() {
        let object: serde_json::Value = serde_json::from_str(line).expect("an object");
        assert!(object["does_not_fit"].as_str().is_some_and(|told| told.contains(why)), "{object}");
    }
}

/// Of this program most page faults are missing: no figure of it can be relied on.
#[test]
fn advice_tells_what_was_not_recorded() {
    let lost = |count, cause| (0, EventKind::Lost(Lost { count, cause }));
    let events = vec![program(1 << 20), lost(5000, LostCause::RingFull), lost(3000, LostCause::Unheard)];
    let folder = Folder::new("lost");
    let file = folder.0.join("lost.qtr");
    fs::write(&file, made_of(events)).expect("a file");
    let output = quire(&["advise", text(&file)]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "it is no advice");
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for told in [
        "But 5000 page faults and calls were not recorded",
        "But 3000 page faults of programs with other privileges were not recorded",
        "No verdict, and no limit: 8000 page faults were not recorded",
    ] {
        assert!(words.contains(told), "{told}: {shown}");
    }
    for untold in ["it needs", "fits", "nothing changes"] {
        assert!(!words.contains(untold), "{untold}: {shown}");
    }
    let output = quire(&["advise", "--json", text(&file)]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "for who reads no JSON");
    let last = String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned();
    let verdict: serde_json::Value = serde_json::from_str(&last).expect("the verdict");
    assert!(verdict["lost_faults"] == 8000 && verdict["unheard_faults"] == 3000, "{verdict}");
    assert!(verdict["unreliable"].is_string() && verdict["nothing_changes"] == false, "{verdict}");
    assert!(verdict["enough_memory"].is_null(), "{verdict}");
}
