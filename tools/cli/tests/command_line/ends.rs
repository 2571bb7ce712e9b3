//! How commands end where something is missing or stops them: one line, an exit code, and nothing left
//! behind.

use crate::{Folder, python, quire, quire_with};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::{env, fs};

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

/// The lines that are quire's own. None, with a message, where programs cannot be followed.
fn lines(output: &Output) -> Option<Vec<String>> {
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("not permitted here") {
        eprintln!("skipped: {text}");
        return None;
    }
    Some(text.lines().filter(|line| line.starts_with("quire: ")).map(str::to_owned).collect())
}

/// Runs quire where only 64 KiB can be written. `None`, with a message, where none may be mounted.
fn with_a_full_disk(folder: &Folder, arguments: &[&str]) -> Option<Output> {
    let script = "mount -t tmpfs -o size=64k quire-test \"$1\" || exit 77
        shift; \"$@\"; code=$?; ls \"$TMPDIR\" >&2; exit $code";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&folder.0);
    command.arg(env!("CARGO_BIN_EXE_quire")).args(arguments).env("TMPDIR", &folder.0);
    let output = command.output().ok().filter(|output| output.status.code() != Some(77));
    let is_mounted = |output: &Output| !String::from_utf8_lossy(&output.stderr).contains("unshare failed");
    let output = output.filter(is_mounted);
    if output.is_none() {
        eprintln!("skipped: no file system can be mounted here");
    }
    output
}

/// Faults so much, and in such an order, that the recording does not fit.
const MANY_FAULTS: &str = "
import mmap, random
area = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
random.seed(1)
for page in random.sample(range(65536), 40000): area[page << 12] = 1
";

#[test]
fn a_full_disk_is_told_in_a_line_and_no_file_is_left() {
    let folder = Folder::new("full");
    let file = folder.0.join("a.qtr");
    let name = file.to_str().expect("a plain path");
    let record = ["record", "-o", name, "--", python(), "-c", MANY_FAULTS];
    let advise = ["advise", "--no-limits", "--runs=1", "--", python(), "-c", MANY_FAULTS];
    for (arguments, place) in [(&record[..], name), (&advise, folder.0.to_str().expect("a plain path"))] {
        let Some(output) = with_a_full_disk(&folder, arguments) else { return };
        let Some(lines) = lines(&output) else { return };
        assert_eq!(output.status.code(), Some(1), "{lines:?}");
        // Another one says what page faults are known from where perf is not permitted.
        let last = lines.last().expect("a line");
        assert!(last.contains(place) && last.contains("No space left"), "{last}");
        // The list of what is there.
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !errors.lines().any(|line| line.contains(".qtr") && !line.starts_with("quire: ")),
            "{errors}"
        );
        assert!(output.stdout.is_empty());
    }
}

/// A recording is larger than the limit of files: that of a full disk. The program has the limit, and runs to
/// its end.
#[test]
fn a_limit_of_files_is_told_in_a_line_and_the_program_runs_to_its_end() {
    let folder = Folder::new("file-limit");
    let file = folder.0.join("a.qtr");
    let program = format!("{MANY_FAULTS}\nimport os\nos.system('ulimit -f')");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 64; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_quire"), "record", "-o"]);
    let output = command.arg(&file).args(["--", python(), "-c", &program]).output().expect("a shell");
    let Some(lines) = lines(&output) else { return };
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(lines.last().is_some_and(|line| line.contains("File too large")), "{lines:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "64\n");
}

/// The standard error output is on a full disk, or a pipe that is closed.
#[test]
fn the_code_of_the_program_is_passed_on_where_messages_cannot_be_written() {
    let folder = Folder::new("no-messages");
    let file = folder.0.join("a.qtr");
    let record = |errors: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command.args(["record", "--force", "-o"]).arg(&file).args(["--", "sh", "-c", "exit 7"]);
        command.stderr(errors).spawn().expect("quire starts")
    };
    let output = record(Stdio::piped()).wait_with_output().expect("it ends");
    if lines(&output).is_none() {
        return;
    }
    assert_eq!(output.status.code(), Some(7));
    let full = fs::File::options().write(true).open("/dev/full").expect("a device that is always full");
    assert_eq!(record(full.into()).wait().expect("it ends").code(), Some(7));
    let mut closed = record(Stdio::piped());
    drop(closed.stderr.take());
    assert_eq!(closed.wait().expect("it ends").code(), Some(7));
}

#[test]
fn a_program_has_the_dispositions_of_signals_that_the_recorder_inherited() {
    let folder = Folder::new("dispositions");
    let file = folder.0.join("a.qtr");
    let recorder =
        [env!("CARGO_BIN_EXE_quire"), "record", "--force", "-o", file.to_str().expect("a path"), "--"];
    for ignored in ["USR2", "USR2 PIPE", "XFSZ TSTP"] {
        let run = |recorder: &[&str]| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("trap '' {ignored}; exec \"$@\""), "sh"]).args(recorder);
            command.args(["grep", "SigIgn", "/proc/self/status"]).output().expect("a shell")
        };
        let (alone, recorded) = (run(&[]), run(&recorder));
        if lines(&recorded).is_none() {
            return;
        }
        let set = |output: &Output| {
            let text = String::from_utf8_lossy(&output.stdout);
            let set = text.strip_prefix("SigIgn:").expect("the line").trim();
            // The C library uses 32 and 33 for itself.
            u64::from_str_radix(set, 16).expect("a set") & !(3 << 31)
        };
        assert_eq!(set(&alone), set(&recorded), "{ignored}");
    }
}

/// Runs quire as a user who may nothing. `None`, with a message, where the test is not root itself.
fn as_another_user(folder: &Folder, arguments: &[&str]) -> Option<Output> {
    if !is_root() {
        eprintln!("skipped: only root can be another user");
        return None;
    }
    // The program lies where other users may have no access.
    let program = folder.0.join("quire");
    if !program.exists() {
        crate::copy_program(&program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program).args(arguments);
    command.env("HOME", "/nonexistent").env("TMPDIR", &folder.0).current_dir(&folder.0);
    Some(command.output().expect("setpriv starts"))
}

fn perf_is_for_root() -> bool {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    text.trim().parse().is_ok_and(|level: i32| level > 1)
}

#[test]
fn without_privileges_advice_is_given_and_says_what_it_lacks() {
    let folder = Folder::new("user");
    let program = [python(), "-c", "pages = bytearray(8 << 20)"];
    let Some(output) = as_another_user(&folder, &[&["advise", "--runs=1", "--"][..], &program].concat())
    else {
        return;
    };
    let Some(lines) = lines(&output) else { return };
    assert_eq!(output.status.code(), Some(0), "{lines:?}");
    if perf_is_for_root() {
        assert!(lines.iter().any(|line| line.contains("pagemap")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("limits cost is not predicted")), "{lines:?}");
    }
    assert!(String::from_utf8_lossy(&output.stdout).contains("Verdict: "));

    let validate = [&["advise", "--validate", "--no-limits", "--runs=1", "--"][..], &program].concat();
    let output = as_another_user(&folder, &validate).expect("it was before");
    let errors = String::from_utf8_lossy(&output.stderr);
    // Settings that are as they should be need no root.
    if output.status.code() != Some(0) {
        assert_eq!(output.status.code(), Some(1), "{errors}");
        let last = errors.lines().last().expect("a line");
        assert!(last.starts_with("quire: ") && last.contains("needs root"), "{errors}");
    }
    assert_eq!(folder.names(), ["quire"], "nothing is left");
}

/// The last touches are learnt after Linux's figures were taken, those of shared memory, too.
#[test]
fn without_privileges_shared_memory_that_is_touched_last_is_not_missing() {
    let folder = Folder::new("user");
    let program = "import mmap, os\nmemory = os.memfd_create('last')\nos.ftruncate(memory, 16 << 20)\n\
        pages = mmap.mmap(memory, 16 << 20)\nfor page in range(0, 16 << 20, 4096): pages[page] = 1\n\
        os._exit(0)";
    let arguments = ["advise", "--runs=1", "--", python(), "-c", program];
    let Some(output) = as_another_user(&folder, &arguments) else { return };
    let Some(lines) = lines(&output) else { return };
    assert_eq!(output.status.code(), Some(0), "{lines:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("16.0 MiB shared"), "{output:?}");
}

/// Pressure needs page faults from perf. Without them nothing is started.
#[test]
fn pressure_without_privileges_is_refused_before_the_program_runs() {
    let folder = Folder::new("pressure");
    let arguments = ["record", "--pressure=1M", "-o", "a.qtr", "--", "touch", "it-ran"];
    let Some(output) = as_another_user(&folder, &arguments) else { return };
    if lines(&output).is_none() || !perf_is_for_root() {
        return;
    }
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(lines(&output).expect("as before").len(), 1, "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(folder.names(), ["quire"]);
}

/// What a program does that is killed. No other run of these tests has the same words.
fn sleeps() -> String {
    format!("sleep 1000.{}", std::process::id())
}

/// A command that has said that its program runs. It is in a process group of its own.
fn started(arguments: &[&str], folder: &Folder) -> Child {
    let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"))
        .args(arguments)
        .args(["--", "sh", "-c", &format!("echo started >&2; exec {}", sleeps())])
        .env("TMPDIR", &folder.0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("quire starts");
    let mut errors = BufReader::new(quire.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("started") {
        line.clear();
        if errors.read_line(&mut line).expect("a line") == 0 {
            break;
        }
    }
    quire
}

/// Processes that run so.
fn running(words: &str) -> usize {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).replace('\0', " ").trim() == words).count()
}

/// Of a command that is killed outright: its program goes with it, and no file of it stays.
#[test]
fn a_killed_command_leaves_nothing_behind() {
    let folder = Folder::new("killed");
    let file = folder.0.join("a.qtr");
    let name = file.to_str().expect("a plain path");
    for arguments in [&["record", "-o", name][..], &["advise", "--runs=1"]] {
        let mut quire = started(arguments, &folder);
        quire.kill().expect("it can be killed");
        let status = quire.wait().expect("it ends");
        assert_eq!(status.code(), None);
        assert!(!file.exists(), "no file that looks whole");
    }
    // What a recorder was writing has a name that says so.
    let left = folder.names();
    assert!(left.iter().all(|name| name.ends_with(".part")), "{left:?}");
    for _ in 0..6000 {
        if running(&sleeps()) == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the program outlived the recorder");
}

/// The children of a process, whichever of its threads made them.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    texts.flat_map(|text| text.split_whitespace().map(str::parse).collect::<Vec<_>>()).flatten().collect()
}

/// A command that is interrupted says so in a line, and ends by the signal, so that a script ends, too.
#[test]
fn an_interrupted_command_says_so() {
    // A shell has what it runs in the background ignore SIGINT, and tests inherit that.
    let mut quire = Command::new("env")
        .args(["--default-signal=INT", env!("CARGO_BIN_EXE_quire"), "diff", "--seed=1", "--ops=1000000000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("quire starts");
    let id = quire.id();
    // It has a handler of its own.
    let catches = || {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
    };
    // The oracle's processes have its standard error open: they have to end before this test waits for it.
    let compares = || children(id).iter().any(|template| !children(*template).is_empty());
    while !catches() || !compares() {
        assert!(quire.try_wait().is_ok_and(|ended| ended.is_none()), "it ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let sent = Command::new("kill").args(["-INT", &id.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
    let output = quire.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.signal(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.starts_with("quire: interrupted; "), "{said}");
}

/// A program that cannot be started, and one that a signal ends.
#[test]
fn programs_that_fail_are_told() {
    let folder = Folder::new("fail");
    let output = quire(&["advise", "--no-limits", "--", "/nonexistent/program"]);
    let Some(said) = lines(&output) else { return };
    assert_eq!((output.status.code(), said.len()), (Some(2), 1), "{said:?}");
    assert!(said[0].contains("/nonexistent/program"), "{said:?}");
    let killed = ["advise", "--no-limits", "--runs=1", "--json", "--", "sh", "-c", "kill -SEGV $$"];
    let output = quire_with(&killed, |command| {
        command.current_dir(&folder.0);
    });
    let said = lines(&output).expect("as before");
    assert_eq!(output.status.code(), Some(1), "{said:?}");
    assert!(said.iter().any(|line| line.contains("ended with code 139 (run 1)")), "{said:?}");
    assert!(output.stdout.is_empty() && folder.names().iter().all(|name| name.starts_with("core")));
}

/// What the host's settings of huge pages are, by size. Empty where it has none.
fn settings() -> BTreeMap<PathBuf, String> {
    let folder = Path::new("/sys/kernel/mm/transparent_hugepage");
    let sizes = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = sizes.chain([folder.to_path_buf()]).map(|size| size.join("enabled"));
    files.filter_map(|file| Some((file.clone(), fs::read_to_string(file).ok()?))).collect()
}

/// When huge pages are used on this host, until it is dropped. It takes no lock: quire takes it.
struct Enabled(String);

impl Enabled {
    const FILE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

    fn set(word: &str) -> Option<Self> {
        let words = fs::read_to_string(Self::FILE).ok()?;
        let before = Self(words.split(['[', ']']).nth(1)?.to_owned());
        fs::write(Self::FILE, word).ok().map(|()| before)
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        fs::write(Self::FILE, &self.0).expect("what it was can be set");
    }
}

/// Settings that a command holds while its program runs come back when it is killed.
#[test]
fn settings_come_back_when_a_validation_is_killed() {
    if !is_root() {
        eprintln!("skipped: only root can change settings");
        return;
    }
    let _settings = crate::HOST_SETTINGS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Where huge pages are always on the other setting is without.
    for word in ["madvise", "always"] {
        let Some(_enabled) = Enabled::set(word) else {
            eprintln!("skipped: this host has no setting of huge pages");
            return;
        };
        a_killed_validation_restores_the_settings();
    }
}

fn a_killed_validation_restores_the_settings() {
    let before = settings();
    let folder = Folder::new("settings");
    // It is recorded, then measured under the present setting, then under another one: then it runs on.
    let script = "touch run.$$; [ $(ls run.* | wc -l) -lt 3 ] || { touch last; exec sleep 1000; }";
    let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"))
        .args(["advise", "--validate", "--no-limits", "--runs=1", "--", "sh", "-c", script])
        .current_dir(&folder.0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("quire starts");
    let last = folder.0.join("last");
    let soon = || (0..6000).inspect(|_| std::thread::sleep(std::time::Duration::from_millis(10)));
    let ran = soon().any(|_| last.exists() || quire.try_wait().expect("its state").is_some());
    assert!(ran, "it does not come to the second setting");
    let during = settings();
    let was_there = last.exists();
    quire.kill().expect("it can be killed");
    let output = quire.wait_with_output().expect("it ends");
    if !was_there {
        eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    assert_ne!(during, before, "the program ran under another setting");
    // The shell that puts them back lives longer.
    assert!(soon().any(|_| settings() == before), "{before:?} became {:?}", settings());
}
