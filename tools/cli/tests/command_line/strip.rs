//! Recordings without names: what is left in them, and what is found in them.

use crate::{Folder, quire, recording_of};
use quire_trace::event::{Call, CallDetail, Event, EventKind};
use quire_trace::format::{TraceHeader, TraceReader, TraceWriter};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[track_caller]
fn done(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    str::from_utf8(&output.stdout).expect("UTF-8")
}

fn read(file: &Path) -> (TraceHeader, Vec<Event>) {
    let mut reader = TraceReader::open(file).expect("a recording");
    let events = (&mut reader).collect::<Result<_, _>>().expect("events");
    (reader.header().clone(), events)
}

/// Each name, argument and word in a recording.
fn names(file: &Path) -> Vec<String> {
    let (header, events) = read(file);
    let mut names = header.command;
    for event in events {
        match event.kind {
            EventKind::Exec(image) => {
                names.push(image.program);
                names.extend(image.args);
                names.extend(image.mappings.into_iter().map(|mapping| mapping.name));
            }
            EventKind::Call(Call { detail: CallDetail::File(file), .. }) => names.push(file.name.clone()),
            EventKind::Call(Call { detail: CallDetail::Name(Some(name)), .. }) => names.push(name),
            _ => {}
        }
    }
    let names = names.into_iter().map(|name| String::from_utf8_lossy(&name).into_owned());
    names.chain([header.kernel]).collect()
}

/// A recording of a program in which everything that has a name has a secret one.
fn secret(folder: &Folder) -> PathBuf {
    let (mut header, events) = read(&recording_of("git-log"));
    header.command = vec![b"/home/secret/secret.sh"[..].into(), b"--password=secret"[..].into()];
    header.kernel += "-secret";
    let file = folder.0.join("secret.qtr");
    let mut writer = TraceWriter::new(File::create(&file).expect("a file"), &header, 3).expect("a writer");
    for mut event in events {
        match &mut event.kind {
            EventKind::Exec(image) => {
                image.program = b"/home/secret/secret.sh"[..].into();
                image.args = vec![b"secret"[..].into()];
                for mapping in image.mappings.iter_mut().filter(|mapping| mapping.inode != 0) {
                    mapping.name = [b"/home/secret/", &*mapping.name].concat().into();
                    (mapping.device, mapping.inode) = (mapping.device + 7, mapping.inode + 123_456_789);
                }
                for mapping in image.mappings.iter_mut().filter(|mapping| mapping.name.is_empty()) {
                    mapping.name = b"[anon:secret]"[..].into();
                }
            }
            EventKind::Call(call) => {
                if let CallDetail::File(file) = &mut call.detail {
                    let file = Arc::make_mut(file);
                    file.name = [b"/home/secret/", &*file.name].concat().into();
                    (file.device, file.inode) = (file.device + 7, file.inode + 123_456_789);
                }
            }
            _ => {}
        }
        writer.push(&event).expect("it is written");
    }
    writer.finish(1, 1).expect("an end");
    file
}

#[test]
fn no_name_is_left_in_a_stripped_recording() {
    let folder = Folder::new("strip");
    let (file, out) = (secret(&folder), folder.0.join("out.qtr"));
    assert!(names(&file).iter().filter(|name| name.contains("secret")).count() > 10);
    done(&quire(&["trace", "strip", text(&file), text(&out)]));
    for name in names(&out) {
        let is_number =
            |name: &str| name.rsplit_once('-').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
        let kernels = name.is_empty() || name.starts_with('[') && !name.contains("secret");
        let version = name.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
        assert!(kernels || is_number(&name) || version || name == "stripped", "{name}");
    }
    let (header, events) = read(&out);
    assert_eq!(header.started, 0);
    let calls = events.iter().filter_map(|event| match &event.kind {
        EventKind::Call(call) => call.file(),
        _ => None,
    });
    assert!(calls.into_iter().all(|file| file.device < 100 && file.inode < 100));
    // In place, with the last parts of names.
    done(&quire(&["trace", "strip", "--keep-names", text(&file), text(&file)]));
    let names = names(&file);
    assert!(!names.iter().any(|name| name.contains('/')), "{names:?}");
    assert!(names.iter().any(|name| name == "secret.sh") && names.iter().any(|name| name == "libc.so.6"));
    assert_eq!(read(&file).0.command[1][..], b"--password=secret"[..], "a word is kept, its folders are not");
}

/// What a command found, without names and times of the host.
fn found(arguments: &[&str], file: &Path) -> Vec<Value> {
    fn without(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for name in
                    ["file", "program", "mapping", "command", "seconds", "events_per_second", "memstall_ns"]
                {
                    fields.remove(name);
                }
                fields.values_mut().for_each(without);
            }
            Value::Array(values) => values.iter_mut().for_each(without),
            _ => {}
        }
    }
    let output = quire(&[arguments, &["--json", text(file)]].concat());
    let lines = done(&output).lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let mut objects: Vec<Value> = lines.collect();
    objects.iter_mut().for_each(without);
    assert!(!objects.is_empty());
    objects
}

#[test]
fn a_stripped_recording_gives_the_same_results() {
    let folder = Folder::new("strip");
    let out = folder.0.join("out.qtr");
    for (name, commands) in [
        ("shell-pipes", &[&["replay"][..], &["compare"]][..]),
        ("sqlite-queries", &[&["advise"]]),
        ("realloc-growth", &[&["replay", "--limit", "8M", "--swap", "zram:64M", "--assume-no-reuse"]]),
    ] {
        let file = recording_of(name);
        done(&quire(&["trace", "strip", text(&file), text(&out)]));
        for command in commands {
            assert_eq!(found(command, &out), found(command, &file), "{name}: {command:?}");
        }
    }
}

#[test]
fn what_cannot_be_stripped_changes_nothing() {
    let folder = Folder::new("strip");
    let (whole, cut, notes) = (recording_of("git-log"), folder.0.join("cut.qtr"), folder.0.join("notes"));
    let bytes = fs::read(&whole).expect("a recording");
    fs::write(&cut, &bytes[..bytes.len() - 100]).expect("a file");
    fs::write(&notes, "my notes").expect("a file");
    for (from, to) in
        [(&cut, folder.0.join("new")), (&cut, cut.clone()), (&whole, notes.clone()), (&notes, cut.clone())]
    {
        let output = quire(&["trace", "strip", text(from), text(&to)]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    }
    assert_eq!(fs::read(&cut).expect("the file"), bytes[..bytes.len() - 100]);
    assert_eq!(fs::read_to_string(&notes).expect("the file"), "my notes");
    assert_eq!(folder.names().len(), 2, "{:?}", folder.names());
}

/// They say nothing of the machine that made them, and whose it is.
#[test]
fn bundled_recordings_hold_no_path() {
    let folder = recording_of("git-log").parent().expect("a folder").to_owned();
    let mut looked = 0;
    for entry in fs::read_dir(folder).expect("the recordings") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "qtr") {
            for name in names(&path) {
                assert!(!name.contains('/') && !name.contains("tmp."), "{}: {name}", path.display());
            }
            looked += 1;
        }
    }
    assert!(looked >= 15, "{looked}");
}
