//! The standard input of a command that `advise` runs several times.

use crate::{Folder, HOST_SETTINGS};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{PoisonError, RwLockReadGuard};
use std::time::{Duration, Instant};

/// `advise` of a shell's script, which writes to the file `told`.
fn advise(folder: &Folder, options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(["advise", "--no-limits"]).args(options).args(["--", "sh", "-c", script]);
    command.current_dir(&folder.0).env("XDG_CACHE_HOME", "/nonexistent").stdout(Stdio::null());
    command
}

/// Held while a command records: where another test changes the host's settings meanwhile, a run is made
/// again.
fn settings_stay() -> RwLockReadGuard<'static, ()> {
    HOST_SETTINGS.read().unwrap_or_else(PoisonError::into_inner)
}

/// What the runs wrote, a line each; none if programs cannot be followed here.
fn told(folder: &Folder, mut command: Command) -> Option<Vec<String>> {
    let _settings = settings_stay();
    let output = command.stderr(Stdio::piped()).output().expect("quire starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("not permitted here") {
        eprintln!("skipped: {said}");
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{said}");
    Some(lines(&folder.0.join("told")))
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(|line| line.trim().to_owned()).collect()
}

/// From where the file's offset is: something else may have read what is before.
#[test]
fn each_run_reads_all_of_a_file() {
    let folder = Folder::new("input");
    let path = folder.0.join("input");
    fs::write(&path, vec![b'x'; 200_000]).expect("a file");
    let mut file = File::open(&path).expect("the file");
    file.seek(SeekFrom::Start(1000)).expect("it is as long");
    let mut command = advise(&folder, &["--runs", "3"], "cat | wc -c >>told");
    command.stdin(file);
    let Some(told) = told(&folder, command) else { return };
    assert_eq!(told, ["199000"; 3]);
}

#[test]
fn each_run_reads_all_of_a_pipe() {
    let folder = Folder::new("input");
    fs::write(folder.0.join("input"), vec![b'x'; 300_000]).expect("a file");
    let mut writer =
        Command::new("cat").arg(folder.0.join("input")).stdout(Stdio::piped()).spawn().expect("cat");
    // The second run takes less than the first, the third more again.
    let script = "if [ $(wc -l <told) = 1 ]; then head -c 10 | wc -c; else cat | wc -c; fi >>told";
    fs::write(folder.0.join("told"), "").expect("a file");
    let mut command = advise(&folder, &["--runs", "3"], script);
    command.stdin(writer.stdout.take().expect("a pipe"));
    let told = told(&folder, command);
    writer.wait().expect("it ends");
    let Some(told) = told else { return };
    assert_eq!(told, ["300000", "10", "300000"]);
}

/// The pipe's other end waits for the program's output before it writes.
#[test]
fn a_program_is_not_kept_waiting_for_the_end_of_a_pipe() {
    let folder = Folder::new("input");
    let script = "echo ready >>told; read line; echo $line >>told";
    let _settings = settings_stay();
    let mut command = advise(&folder, &["--runs", "2"], script);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("quire starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    let begun = Instant::now();
    while lines(&folder.0.join("told")).is_empty() && begun.elapsed() < Duration::from_secs(60) {
        if let Some(status) = child.try_wait().expect("its state") {
            return eprintln!("skipped: {status}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    pipe.write_all(b"a line\n").expect("it is read");
    // The pipe stays open: nothing waits for its end.
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(lines(&folder.0.join("told")), ["ready", "a line", "ready", "a line"]);
    drop(pipe);
}

#[test]
fn an_input_without_an_end_is_read_as_far_as_the_program_does() {
    let folder = Folder::new("input");
    let mut writer = Command::new("yes").stdout(Stdio::piped()).spawn().expect("yes");
    let mut command = advise(&folder, &["--runs", "2"], "head -c 100000 | wc -c >>told");
    command.stdin(writer.stdout.take().expect("a pipe"));
    let told = told(&folder, command);
    writer.wait().expect("it ends by SIGPIPE");
    let Some(told) = told else { return };
    assert_eq!(told, ["100000"; 2]);
}

/// The peer of a socket goes away in the middle of the input, and no run comes after.
#[test]
fn an_input_that_ends_in_an_error_is_told_after_the_last_run() {
    let folder = Folder::new("input");
    let (mut input, mut peer) = UnixStream::pair().expect("sockets");
    // The peer never reads it: when it closes, the reader gets ECONNRESET.
    input.write_all(b"x").expect("it is sent");
    peer.write_all(b"a line\n").expect("it is sent");
    let mut command = advise(&folder, &["--runs", "1"], "read line; echo ready >told; cat >rest");
    let _settings = settings_stay();
    command.stdin(OwnedFd::from(input)).stderr(Stdio::piped());
    let mut child = command.spawn().expect("quire starts");
    let begun = Instant::now();
    while lines(&folder.0.join("told")).is_empty()
        && begun.elapsed() < Duration::from_secs(60)
        && child.try_wait().expect("its state").is_none()
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop((peer, command));
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("not permitted here") {
        return eprintln!("skipped: {said}");
    }
    assert_eq!(output.status.code(), Some(1), "{said}");
    let told = said.lines().filter(|line| line.contains("the standard input cannot be given to each run: "));
    assert_eq!(told.count(), 1, "{said}");
}

/// Runs that measure are runs, too.
#[test]
fn runs_that_are_measured_read_all_of_the_input() {
    let folder = Folder::new("input");
    fs::write(folder.0.join("input"), vec![b'x'; 50_000]).expect("a file");
    let mut command = advise(&folder, &["--validate", "--runs", "1"], "cat | wc -c >>told");
    command.stdin(File::open(folder.0.join("input")).expect("the file")).stderr(Stdio::piped());
    let _settings = HOST_SETTINGS.write().unwrap_or_else(PoisonError::into_inner);
    let output = command.output().expect("quire starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(0) {
        return eprintln!("skipped: {said}");
    }
    let told = lines(&folder.0.join("told"));
    // The recording and two settings. Linux may kill a run that is measured within a limit after them.
    assert!(told.len() >= 2 && told.iter().take(3).all(|bytes| bytes == "50000"), "{told:?}");
}
