//! Names and arguments of others, on a terminal and in files: nothing in them is obeyed.

use crate::{Folder, python, quire, quire_with, recording_of};
use quire_trace::event::{CallDetail, EventKind};
use quire_trace::format::{TraceReader, TraceWriter};
use serde_json::Value;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

/// Sets the title of the window, clears the screen, moves the cursor by C1, turns the text round, begins a
/// line of its own, has a joiner, a filler and a selector that cannot be seen, and is no UTF-8 at its end.
const NAME: &[u8] = b"\x1b]0;PWNED\x07\x1b[2J\xc2\x9b1A\xe2\x80\xaefed\xe2\x80\xac\nFAKE \x7f\r\
    \xe2\x80\x8d\xe3\x85\xa4\xef\xb8\x8f\xff";

/// The name in the parts of a command line and of a path that can have it.
fn named(before: &str) -> Box<[u8]> {
    [before.as_bytes(), NAME].concat().into()
}

/// A recording whose every name is such.
fn hostile(folder: &Folder) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    let source = TraceReader::open(recording_of("git-log")).expect("a recording");
    let mut header = source.header().clone();
    header.command = vec![named("/bin/x"), named("--")];
    for text in [&mut header.recorder, &mut header.kernel, &mut header.machine] {
        *text = String::from_utf8_lossy(NAME).into_owned();
    }
    if let Some(settings) = &mut header.settings {
        settings.thp_files.push((String::from_utf8_lossy(NAME).into_owned(), "\u{1b}[31m".to_owned()));
    }
    // No reader of paths in this test takes what is no UTF-8.
    let name = [&NAME[..NAME.len() - 1], b".qtr"].concat();
    let path = folder.0.join(std::ffi::OsStr::from_bytes(&name));
    let mut writer = TraceWriter::new(File::create(&path).expect("a file"), &header, 3).expect("a writer");
    for event in source {
        let mut event = event.expect("an event");
        match &mut event.kind {
            EventKind::Exec(image) => {
                image.program = named("/bin/");
                image.args = vec![named("x")];
                let files = image.mappings.iter_mut().filter(|mapping| mapping.inode != 0);
                files.for_each(|mapping| mapping.name = named("/lib/"));
            }
            EventKind::Call(call) => {
                if let CallDetail::File(file) = &mut call.detail {
                    Arc::make_mut(file).name = named("/lib/");
                }
            }
            _ => {}
        }
        writer.push(&event).expect("it is written");
    }
    writer.finish(0, 0).expect("an end");
    path
}

/// Whether a terminal or a reader is misled.
fn is_harmful(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            | '\u{3164}' | '\u{fe0f}'
        )
}

#[track_caller]
fn assert_harmless(what: &str, text: &[u8]) {
    let text = str::from_utf8(text).expect("UTF-8");
    let found = text.chars().find(|letter| *letter != '\n' && is_harmful(*letter));
    assert_eq!(found, None, "{what}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("FAKE")), "{what}: {text}");
}

#[track_caller]
fn assert_output_harmless(what: &str, output: &Output) {
    assert_harmless(what, &output.stdout);
    assert_harmless(what, &output.stderr);
}

#[test]
fn names_in_a_recording_are_shown_and_not_obeyed() {
    let folder = Folder::new("escapes");
    let file = hostile(&folder);
    let name = file.to_str().expect("UTF-8");
    for arguments in [&["replay"][..], &["compare", "--technique", "pcp"], &["advise"], &["trace", "dump"]] {
        let output = quire(&[arguments, &[name]].concat());
        assert_output_harmless(&arguments.join(" "), &output);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("\\u{1b}]0;PWNED\\u{7}\\u{1b}[2J\\u{9b}1A\\u{202e}"), "{text}");
    }
}

/// JSON has the names as they are, in escapes of its own.
#[test]
fn names_in_json_and_pages_are_not_obeyed() {
    let folder = Folder::new("escapes");
    let file = hostile(&folder);
    let (name, page) = (file.to_str().expect("UTF-8"), folder.0.join("page.html"));
    for command in ["replay", "compare", "advise"] {
        let output = quire(&[command, "--json", name, "--report", page.to_str().expect("UTF-8")]);
        assert_output_harmless(command, &output);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = str::from_utf8(&output.stdout).expect("UTF-8").lines();
        let objects: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert!(command == "advise" || objects.iter().any(|object| object["file"] == name), "{command}");
        assert_harmless("a page", &fs::read(&page).expect("a page"));
    }
}

#[test]
fn names_in_messages_are_on_one_line() {
    let missing = format!("/nowhere/{}", String::from_utf8_lossy(&NAME[..NAME.len() - 1]));
    let git = recording_of("git-log");
    let git = git.to_str().expect("UTF-8");
    for arguments in [
        &["replay", &missing][..],
        &["advise", &missing],
        &["trace", "dump", &missing],
        &["diff", &missing],
        &["import", "lackey", &missing, "-o", "/dev/null"],
        &["record", "-o", &missing, "--", "true"],
        &["run", "--", &missing],
        &["replay", git, "--report", &missing],
        &["replay", git, "--setting", &missing],
        &["lab", &missing],
        &["man", "/proc/none\u{1b}[2J"],
        &[&missing],
        &["replay", git, &format!("--{missing}")],
    ] {
        let output = quire(arguments);
        assert_output_harmless(arguments[0], &output);
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.lines().count() == 1 && said.starts_with("quire: "), "{said}");
    }
    let output = quire_with(&["run", "--", "true"], |command| {
        command.env("TMPDIR", &missing);
    });
    assert_output_harmless("TMPDIR", &output);
}

/// A bar shows the name of the file that is replayed.
#[test]
fn names_beside_a_bar_are_not_obeyed() {
    let folder = Folder::new("escapes");
    let file = hostile(&folder);
    let spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
    let mut command = Command::new(python());
    command
        .args(["-c", spawn, env!("CARGO_BIN_EXE_quire"), "replay"])
        .arg(&file)
        .stdin(std::process::Stdio::null());
    let output = command.output().expect("python starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("PWNED") && text.contains("events"), "{text:?}");
    for harm in ["\u{1b}]0;", "\u{1b}[2J\u{9b}", "\u{9b}", "\u{202e}", "\u{7f}"] {
        assert!(!text.contains(harm), "{text:?}");
    }
}
