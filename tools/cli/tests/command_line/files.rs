//! The files that commands write: whole or not there, and nothing in their way is harmed.

use crate::{Folder, quire, quire_with, recording_of};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

/// A trace of lackey's.
const ACCESSES: &str = "==9== Command: ls -l\nI  04000000,4\n S 05000000,8\n";

/// The one line on stderr of a command that was refused with this code.
#[track_caller]
fn complaint(output: &Output, code: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.starts_with("quire: ") && text.lines().count() == 1, "{text}");
    text
}

#[test]
fn an_import_is_whole_or_not_there() {
    let folder = Folder::new("import");
    let [notes, input, wrong, output] = ["notes.txt", "lackey.txt", "wrong.txt", "new.qtr"]
        .map(|name| folder.0.join(name).to_str().expect("a plain path").to_owned());
    fs::write(&notes, "my notes").expect("a file");
    fs::write(&input, ACCESSES).expect("a file");
    fs::write(&wrong, format!("{ACCESSES}hello\n")).expect("a file");
    let import = |from: &str, to: &str, more: &[&str]| {
        quire(&[&["import", "lackey", from, "-o", to][..], more].concat())
    };
    let line = complaint(&import(&input, &notes, &[]), 2);
    assert!(line.contains("notes.txt") && line.contains("--force"), "{line}");
    complaint(&import(&input, &input, &["--force"]), 2);
    complaint(&import(&wrong, &output, &[]), 2);
    complaint(&import(&wrong, &notes, &["--force"]), 2);
    assert_eq!(fs::read_to_string(&notes).expect("the file"), "my notes");
    assert_eq!(fs::read_to_string(&input).expect("the file"), ACCESSES);
    assert_eq!(folder.names().len(), 3, "{:?}", folder.names());
    for (to, more) in [(&output, &[][..]), (&output, &[]), (&notes, &["--force"])] {
        assert_eq!(import(&input, to, more).status.code(), Some(0));
        assert_eq!(quire(&["replay", to]).status.code(), Some(0));
    }
    assert_eq!(folder.names().len(), 4, "{:?}", folder.names());
}

/// The file is read twice, which a pipe is not.
#[test]
fn an_import_takes_a_pipe() {
    let folder = Folder::new("pipe");
    let output = folder.0.join("new.qtr");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(["import", "lackey", "/dev/stdin", "-o"]).arg(&output);
    let mut import = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("quire starts");
    import.stdin.take().expect("a pipe").write_all(ACCESSES.as_bytes()).expect("it reads");
    let said = import.wait_with_output().expect("it ends");
    assert_eq!(said.status.code(), Some(0), "{}", String::from_utf8_lossy(&said.stderr));
    assert!(String::from_utf8_lossy(&said.stderr).contains("2 uses"), "{said:?}");
    assert_eq!(folder.names(), ["new.qtr"]);
}

/// Where a recording is read several times a pipe is refused; where once, it is as good as a file.
#[test]
fn a_recording_from_a_pipe_is_read_or_refused() {
    let folder = Folder::new("pipe");
    let bytes = fs::read(recording_of("git-log")).expect("a recording");
    let piped = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command.args(arguments).current_dir(&folder.0).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("quire starts");
        // It may not read all of it.
        let _ = child.stdin.take().expect("a pipe").write_all(&bytes);
        child.wait_with_output().expect("it ends")
    };
    for arguments in [
        &["replay", "/dev/stdin"][..],
        &["compare", "/dev/stdin"],
        &["advise", "/dev/stdin"],
        &["export", "perfetto", "/dev/stdin", "-o", "x"],
    ] {
        let line = complaint(&piped(arguments), 2);
        assert!(line.contains("/dev/stdin: ") && line.contains("pipe"), "{line}");
    }
    assert!(folder.names().is_empty(), "{:?}", folder.names());
    for arguments in [&["trace", "dump", "/dev/stdin"][..], &["trace", "strip", "/dev/stdin", "x.qtr"]] {
        let output = piped(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(folder.names(), ["x.qtr"]);
}

/// A user's link waits in the folder for temporary files, under the name that root's command would take.
#[test]
fn links_in_the_folder_for_temporary_files_are_not_written_through() {
    let folder = Folder::new("links");
    let [made, file] = [folder.0.join("made"), recording_of("git-log")];
    // The shell's process becomes quire's.
    let script =
        "for name in swap-$$-0 $$-0.qtr $$-recordings; do ln -s made $TMPDIR/quire-$name; done; exec \"$@\"";
    let swap = ["replay", "--memory", "64M", "--swap", "file:64M", "--assume-no-reuse"];
    for arguments in [&swap[..], &["run", "--", "true"]] {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_quire")]).args(arguments);
        if arguments[0] == "replay" {
            command.arg(&file);
        }
        let output = command.env("TMPDIR", &folder.0).output().expect("a shell");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(0) || said.contains("not permitted here"), "{said}");
        assert!(!made.exists(), "{arguments:?}");
    }
    let left = folder.names().into_iter().filter(|name| !name.starts_with("quire-"));
    assert_eq!(left.count(), 0, "{:?}", folder.names());
}

#[test]
fn each_command_replaces_files_of_its_own_kind_only() {
    let folder = Folder::new("kinds");
    let notes = folder.0.join("notes");
    let [name, file] =
        [&notes, &recording_of("git-log")].map(|path| path.to_str().expect("a plain path").to_owned());
    fs::write(&notes, "my notes").expect("a file");
    for arguments in [
        &["diff", "--ops", "1", "--concurrent", "0", "--save", &name][..],
        &["replay", &file, "--report", &name],
        &["export", "perfetto", &file, "-o", &name],
        &["import", "lackey", "/dev/null", "-o", &name],
        &["record", "-o", &name, "--", "true"],
        &["run", "-o", &name, "--", "true"],
    ] {
        let line = complaint(&quire(arguments), 2);
        assert!(line.contains(&name) && line.contains("left as it is"), "{line}");
        assert_eq!(fs::read_to_string(&notes).expect("the file"), "my notes", "{arguments:?}");
    }
    let page = folder.0.join("quire-lab.1");
    fs::write(&page, "my notes").expect("a file");
    complaint(&quire(&["man", folder.0.to_str().expect("a plain path")]), 2);
    assert_eq!(fs::read_to_string(&page).expect("the file"), "my notes");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let file = recording_of("git-log");
    let file = file.to_str().expect("a plain path");
    for arguments in [
        &["diff", "--ops", "1", "--save", "/proc/none/x"][..],
        &["replay", file, "--report", "/proc/none/x"],
        &["export", "perfetto", file, "-o", "/proc/none/x"],
        &["import", "lackey", "/dev/null", "-o", "/proc/none/x"],
        &["record", "-o", "/proc/none/x", "--", "true"],
    ] {
        let line = complaint(&quire(arguments), 2);
        assert!(line.contains("/proc/none/x: ") && line.contains("folder /proc/none: "), "{line}");
    }
    for arguments in [&["run", "--", "true"][..], &["advise", "--runs", "1", "--", "true"]] {
        let output = quire_with(arguments, |command| {
            command.env("TMPDIR", "/proc/none");
        });
        let line = complaint(&output, 2);
        assert!(line.contains("/proc/none: ") && line.contains("TMPDIR"), "{line}");
    }
}

/// Nothing may be written to a file: each write fails, and Linux sends a signal that would end the command.
#[test]
fn a_limit_of_files_is_a_full_disk_for_each_command() {
    let folder = Folder::new("limit");
    let file = recording_of("git-log");
    let file = file.to_str().expect("a plain path");
    let accesses = folder.0.join("lackey.txt");
    fs::write(&accesses, ACCESSES).expect("a file");
    let under_limit = |arguments: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -f 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_quire")]).args(arguments);
        command.current_dir(&folder.0).env("TMPDIR", &folder.0).output().expect("a shell")
    };
    for arguments in [
        &["trace", "strip", file, "new"][..],
        &["import", "lackey", "lackey.txt", "-o", "new"],
        &["export", "perfetto", file, "-o", "new"],
        &["replay", file, "--report", "new"],
        &["compare", file, "--report", "new"],
        &["advise", file, "--no-limits", "--report", "new"],
        &["replay", file, "--memory", "64M", "--swap", "file:64M", "--assume-no-reuse"],
        &["man", "."],
        &["diff", "--ops", "1000", "--concurrent", "0"],
    ] {
        let output = under_limit(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        let ours: Vec<&str> = said.lines().filter(|line| line.starts_with("quire: ")).collect();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}: {output:?}");
        assert!(ours.last().is_some_and(|line| line.contains("File too large")), "{arguments:?}: {said}");
        assert_eq!(folder.names(), ["lackey.txt"], "{arguments:?}");
    }
    // What is executed has the default action, or the one that this process was given.
    for (trap, ignored) in [("", "0"), ("trap '' XFSZ; ", "1")] {
        let script = format!("{trap}exec \"$@\"");
        let shown = "grep SigIgn /proc/self/status | cut -c 8- | { read mask; echo $((0x$mask >> 24 & 1)); }";
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_quire"), "record", "-o", "new.qtr"]);
        command.args(["--force", "--", "sh", "-c", shown]).current_dir(&folder.0);
        let output = command.output().expect("a shell");
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("not permitted here") {
            return eprintln!("skipped: {said}");
        }
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), ignored, "{said}");
    }
}

/// Commands that write to `output`, and make a file `ran` if they do what comes before the writing.
fn writers<'c>(output: &'c str, file: &'c str, ran: &'c str) -> [Vec<&'c str>; 6] {
    [
        vec!["record", "-o", output, "--", "touch", ran],
        vec!["run", "-o", output, "--", "touch", ran],
        vec!["advise", "--no-limits", "--report", output, "--", "touch", ran],
        vec!["trace", "strip", file, output],
        vec!["export", "perfetto", file, "-o", output],
        vec!["replay", file, "--report", output],
    ]
}

/// Before the program runs: its recording would be lost.
#[test]
fn names_that_no_file_can_get_are_told_before_the_program_runs() {
    let folder = Folder::new("names");
    let file = recording_of("git-log");
    let [file, ran] = [&file, &folder.0.join("ran")].map(|path| path.to_str().expect("plain").to_owned());
    let long = "x".repeat(256);
    fs::create_dir(folder.0.join("old")).expect("a folder");
    for (name, why) in
        [("new/", "directory"), ("old", "directory"), ("old/", "directory"), (&long, "too long")]
    {
        let output = folder.0.join(name);
        let output = output.to_str().expect("plain");
        for arguments in writers(output, &file, &ran) {
            let line = complaint(&quire(&arguments), 2);
            assert!(line.contains(output) && line.contains(why), "{line}");
        }
    }
    assert_eq!(folder.names(), ["old"]);
}

/// Neither can be replaced, and a device not be undone.
#[test]
fn mounted_files_and_block_devices_are_left_alone() {
    let folder = Folder::new("mounts");
    let file = recording_of("git-log");
    let [file, ran] = [&file, &folder.0.join("ran")].map(|path| path.to_str().expect("plain").to_owned());
    // A device that no driver has, and a file on which another is mounted, for the command only.
    let script = "touch mounted other && mount --bind other mounted && \
        { [ -e block ] || mknod block b 240 77; } && exec \"$@\"";
    for (name, why) in [("mounted", "mounted on"), ("block", "block device")] {
        for arguments in writers(name, &file, &ran) {
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_quire")]).args(&arguments);
            let output = command.current_dir(&folder.0).output().expect("util-linux");
            let said = String::from_utf8_lossy(&output.stderr);
            if !said.starts_with("quire: ") {
                return eprintln!("skipped: {said}");
            }
            let line = complaint(&output, 2);
            assert!(line.contains(name) && line.contains(why), "{line}");
        }
    }
    let left = ["block", "mounted", "other"];
    assert!(folder.names().iter().all(|name| left.contains(&name.as_str())), "{:?}", folder.names());
}

/// Who may write in the folder could rename another file over it.
#[test]
fn a_file_that_must_not_be_written_is_not_replaced() {
    let folder = Folder::new("mode");
    let [recording, program] = ["old.qtr", "quire"].map(|name| folder.0.join(name));
    fs::copy(recording_of("git-log"), &recording).expect("a recording");
    crate::copy_program(&program);
    let before = fs::read(&recording).expect("the file");
    fs::set_permissions(&recording, Permissions::from_mode(0o444)).expect("its mode");
    fs::set_permissions(&folder.0, Permissions::from_mode(0o777)).expect("its mode");
    let mut command = Command::new(&program);
    command.args(["record", "-o", "old.qtr", "--", "touch", "ran"]).current_dir(&folder.0);
    if fs::File::options().write(true).open(&recording).is_ok() {
        // Root may: another user.
        command.uid(65534).gid(65534);
    }
    let Ok(output) = command.output() else { return eprintln!("skipped: no other user can be had") };
    let line = complaint(&output, 2);
    assert!(line.contains("old.qtr: ") && line.to_lowercase().contains("permission denied"), "{line}");
    assert_eq!(fs::read(&recording).expect("the file"), before);
    assert!(!folder.0.join("ran").exists());
}

/// The program itself makes the file, or takes its folder away.
#[test]
fn a_recording_that_cannot_get_its_name_is_kept() {
    let folder = Folder::new("kept");
    let temporary = folder.0.join("temporary");
    fs::create_dir(&temporary).expect("a folder");
    for script in ["echo notes >sub/new.qtr", "rm -r sub"] {
        let sub = folder.0.join("sub");
        fs::create_dir_all(&sub).expect("a folder");
        let output = quire_with(&["record", "-o", "sub/new.qtr", "--", "sh", "-c", script], |command| {
            command.current_dir(&folder.0).env("TMPDIR", &temporary);
        });
        if String::from_utf8_lossy(&output.stderr).contains("not permitted here") {
            return eprintln!("skipped: {output:?}");
        }
        let line = complaint(&output, 1);
        let kept = line.trim_end().rsplit_once(" is complete in ").expect("where it is").1;
        // A path is relative to where the command ran.
        assert_eq!(
            quire(&["replay", folder.0.join(kept).to_str().expect("plain")]).status.code(),
            Some(0),
            "{line}"
        );
        if sub.exists() {
            assert_eq!(fs::read_to_string(sub.join("new.qtr")).expect("the file"), "notes\n");
            fs::remove_dir_all(sub).expect("it goes");
        }
    }
    assert_eq!(folder.names(), ["temporary"]);
}
