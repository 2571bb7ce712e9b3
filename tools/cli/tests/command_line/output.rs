//! What `quire record` and `quire run` write, and where.

use crate::{Folder, python, quire};
use std::fs;
use std::process::{Command, Output};

/// Whether programs can be followed here; says so if not.
fn is_permitted(output: &Output) -> bool {
    let text = String::from_utf8_lossy(&output.stderr);
    let refused = text.contains("not permitted here");
    if refused {
        eprintln!("skipped: {text}");
    }
    !refused
}

#[test]
fn only_recordings_are_replaced() {
    let folder = Folder::new("replaced");
    let file = folder.0.join("a.qtr");
    let name = file.to_str().expect("a plain path");
    fs::write(&file, b"a letter").expect("a file");
    let refused = quire(&["record", "-o", name, "--", "true"]);
    assert_ne!(refused.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--force"));
    assert_eq!(fs::read(&file).expect("the file"), b"a letter");
    let forced = quire(&["record", "-o", name, "--force", "--", "true"]);
    if !is_permitted(&forced) {
        return;
    }
    assert_eq!(forced.status.code(), Some(0));
    let first = fs::read(&file).expect("the file");
    assert!(first.starts_with(b"\x89QTR"));
    assert_eq!(quire(&["record", "-o", name, "--", "sh", "-c", "exit 3"]).status.code(), Some(3));
    assert_ne!(fs::read(&file).expect("the file"), first, "a recording is replaced by the next");
    assert_eq!(folder.names(), ["a.qtr"], "nothing else is left");
}

#[test]
fn a_recording_goes_to_standard_output_and_the_program_to_standard_error() {
    let output = quire(&["record", "-o", "-", "--", "echo", "said by the program"]);
    if !is_permitted(&output) {
        return;
    }
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("said by the program"));
    let folder = Folder::new("stdout");
    let file = folder.0.join("b.qtr");
    fs::write(&file, &output.stdout).expect("a file");
    let replay = quire(&["replay", file.to_str().expect("a plain path")]);
    assert_eq!(replay.status.code(), Some(0), "{}", String::from_utf8_lossy(&replay.stderr));
}

/// `record` turns huge pages off unless it is told not to; `run` leaves them on. A dump says so.
#[test]
fn a_dump_says_what_became_of_huge_pages() {
    let folder = Folder::new("thp");
    let file = folder.0.join("c.qtr");
    let name = file.to_str().expect("a plain path");
    let (off, on) =
        ("transparent huge pages turned off by the recorder", "transparent huge pages as the host has them");
    for (arguments, expected) in [
        (&["record", "-o", name, "--", "true"][..], off),
        (&["record", "--thp=off", "-o", name, "--", "true"], off),
        (&["record", "--thp=on", "-o", name, "--", "true"], on),
        (&["run", "-o", name, "--", "true"], on),
    ] {
        let made = quire(arguments);
        if !is_permitted(&made) {
            return;
        }
        let said = String::from_utf8_lossy(&made.stderr);
        let last = said.lines().last().expect("a summary");
        assert!(last.starts_with("cost ") && last.contains("stops") && last.contains("recorder"), "{said}");
        let dump = quire(&["trace", "dump", name]);
        let text = String::from_utf8_lossy(&dump.stdout);
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert!(
            text.contains("the caller did not disable them") && text.contains("randomize_va_space "),
            "{text}"
        );
    }
}

/// A file in memory: what it had when it was mapped, and that it is the program's.
#[test]
fn a_dump_says_what_a_file_in_memory_had() {
    let folder = Folder::new("held");
    let file = folder.0.join("c.qtr");
    let name = file.to_str().expect("a plain path");
    let program = "import mmap, os\nmemory = os.memfd_create('kept')\nos.ftruncate(memory, 16384)\n\
        os.pwrite(memory, b'x', 8192)\nmmap.mmap(memory, 16384)";
    let made = quire(&["record", "-o", name, "--", python(), "-c", program]);
    if !is_permitted(&made) {
        return;
    }
    let dump = quire(&["trace", "dump", name]);
    let text = String::from_utf8_lossy(&dump.stdout);
    assert!(text.contains("Memory rw 16384 bytes (4096 held, changed) /memfd:kept"), "{text}");
}

/// `record` takes calls from tracepoints where it can; `run` has the program stop at each.
#[test]
fn a_summary_says_where_calls_came_from() {
    let folder = Folder::new("calls");
    let file = folder.0.join("c.qtr");
    let name = file.to_str().expect("a plain path");
    let said = |arguments: &[&str]| {
        let made = quire(arguments);
        is_permitted(&made).then(|| String::from_utf8_lossy(&made.stderr).into_owned())
    };
    let told = ", calls: tracepoints, and seccomp where more than registers is read\n";
    for arguments in [&["record", "--calls=stops", "-o", name, "--", "true"][..], &["run", "--", "true"]] {
        let Some(said) = said(arguments) else { return };
        assert!(!said.contains(told) && said.contains(", calls: "), "{said}");
    }
    let forced = quire(&["record", "--calls=tracepoints", "-o", name, "--", "true"]);
    let text = String::from_utf8_lossy(&forced.stderr);
    if forced.status.success() {
        assert!(text.contains(told), "{text}");
        let by_default = said(&["record", "-o", name, "--", "true"]);
        assert!(by_default.is_none_or(|said| said.contains(told)));
    } else {
        assert!(text.contains("calls cannot be obtained from tracepoints"), "{text}");
    }
}

#[test]
fn run_leaves_nothing_behind_when_its_output_is_closed() {
    let folder = Folder::new("run");
    let mut run = Command::new(env!("CARGO_BIN_EXE_quire"));
    run.args(["run", "--", "true"]).env("TMPDIR", &folder.0).stdout(std::process::Stdio::piped());
    let mut child = run.spawn().expect("quire starts");
    drop(child.stdout.take());
    child.wait().expect("it ends");
    assert!(folder.names().is_empty(), "{:?}", folder.names());
}
