//! Programs whose memory is known to the page.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::NamedTempFile;

use quire_measure::{HostSettings, MeasureError, Options, Truth, measure};

const PROGRAMS: &str = env!("CARGO_BIN_EXE_quire-measure-programs");
const MIB: u64 = 1 << 20;
/// What the program prints is read with a few pages less than it ends with.
const LAST_PAGES: u64 = 16 << 10;

fn small() -> Options {
    Options { thp_disabled: true, timeout: Some(Duration::from_secs(120)), ..Options::default() }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAMS);
    command.args(words);
    command
}

/// What it used, and the lines that it printed.
fn run(mut command: Command, options: &Options) -> (Truth, Vec<String>) {
    let output = NamedTempFile::new().expect("a file for the output");
    command.stdin(Stdio::null()).stdout(output.reopen().expect("the same file"));
    let truth = measure(command, options).expect("a measurement");
    let text = fs::read_to_string(output.path()).expect("its output");
    (truth, text.lines().map(str::to_owned).collect())
}

/// Bytes of a line `RssAnon:   8320 kB`.
fn anonymous(line: &str) -> u64 {
    let number = line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
    number.expect("a number of kB") << 10
}

fn assert_near(measured: u64, expected: u64, slack: u64) {
    assert!(measured.abs_diff(expected) <= slack, "{measured} is not {expected} to {slack}");
}

#[test]
fn a_program_that_ends_at_its_peak() {
    let (truth, lines) = run(command(&["touch", "8"]), &small());
    let said = anonymous(&lines[0]);
    assert!((8 * MIB..9 * MIB).contains(&said), "{said}");
    assert!(truth.status.success());
    assert_near(truth.peak_anonymous, said, LAST_PAGES);
    assert_eq!(truth.peak_anonymous_all, truth.peak_anonymous);
    assert_near(truth.peak_anonymous_once, said, LAST_PAGES);
    assert_eq!(truth.end_anonymous_once, truth.peak_anonymous_once);
    assert!(truth.mean_anonymous_once > 0.0 && truth.mean_anonymous_once <= truth.peak_anonymous as f64);
    assert!(truth.peak_resident > truth.peak_anonymous);
    // 8 MiB of small pages have four tables.
    assert!(truth.peak_page_tables >= 4 << 12, "{}", truth.peak_page_tables);
    assert!(truth.minor_faults >= 2048, "{}", truth.minor_faults);
    let at_peak = truth.at_peak.unwrap();
    assert_eq!((at_peak.anonymous, at_peak.huge), (truth.peak_anonymous, 0));
    assert_eq!(truth.processes.len(), 1);
    assert!(truth.processes[0].program.starts_with("quire-measure"), "{:?}", truth.processes);
    assert!(truth.wall > truth.stopped);
}

#[test]
fn huge_pages_by_advice_and_none_when_they_are_off() {
    let host = HostSettings::default();
    let (truth, _) = run(command(&["huge", "8"]), &small());
    assert_eq!(truth.at_peak.unwrap().huge, 0);
    match host.word("enabled") {
        Ok(word) if word != "never" => {}
        word => return eprintln!("skipped: huge pages of this host: {word:?}"),
    }
    let options = Options { thp_disabled: false, folios: true, huge_faults: true, ..small() };
    let (truth, _) = run(command(&["huge", "8"]), &options);
    if truth.host.huge_fallbacks > 0 || truth.host.huge_faults < 4 {
        return eprintln!(
            "skipped: this host has no huge pages left, or their size is off: {:?}",
            truth.host
        );
    }
    // None where perf is for root. What else runs on the host is not in it.
    assert!(truth.huge_faults.is_none_or(|faults| faults == 4), "{:?}", truth.huge_faults);
    let at_peak = truth.at_peak.unwrap();
    assert_eq!(at_peak.huge, 8 * MIB);
    assert!(at_peak.huge_share() > 0.9);
    if at_peak.folios.values().sum::<u64>() == 0 {
        return eprintln!("skipped: the sizes of folios need root");
    }
    assert_eq!(at_peak.folios.get(&(2 * MIB)), Some(&(8 * MIB)));
    assert_eq!(at_peak.folios.values().sum::<u64>(), at_peak.anonymous);
    assert!(at_peak.large_share().unwrap() > 0.9);
}

#[test]
fn a_child_that_is_larger() {
    let (truth, lines) = run(command(&["forks", "4", "8"]), &small());
    let child = anonymous(&lines[0]);
    assert!(child >= 12 * MIB);
    assert_near(truth.peak_anonymous, child, LAST_PAGES);
    let [parent, second] = &truth.processes[..] else { panic!("{:?}", truth.processes) };
    assert_eq!(second.peak_anonymous, truth.peak_anonymous);
    assert_near(parent.peak_anonymous, 4 * MIB, MIB);
    assert_near(truth.peak_anonymous_all, child + parent.peak_anonymous, LAST_PAGES);
    // The parent's 4 MiB are there once, though two map them.
    assert_near(truth.peak_anonymous_once, truth.peak_anonymous, MIB / 2);
    assert_near(truth.end_anonymous_once, parent.peak_anonymous, MIB / 2);
}

#[test]
fn a_child_of_another_thread() {
    let (truth, lines) = run(command(&["thread-forks", "8"]), &small());
    assert_near(truth.peak_anonymous, anonymous(&lines[0]), LAST_PAGES);
    assert_eq!(truth.processes.len(), 2);
}

#[test]
fn memory_lent_to_a_child_counts_once() {
    let (truth, _) = run(command(&["starts", "16", "/bin/true"]), &small());
    assert_eq!(truth.processes.len(), 21);
    assert_near(truth.peak_anonymous_all, truth.peak_anonymous, 4 * MIB);
}

#[test]
fn a_program_that_is_replaced() {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec {PROGRAMS} touch 8")]);
    let (truth, lines) = run(shell, &small());
    assert_near(truth.peak_anonymous, anonymous(&lines[0]), LAST_PAGES);
    assert_eq!(truth.processes.len(), 1);
}

#[test]
fn memory_between_two_samples_is_known_to_be_unseen() {
    let rarely = Options { sample_every: Duration::from_secs(60), ..small() };
    let (truth, _) = run(command(&["brief", "64"]), &rarely);
    // The kernel's own peak leaves out what its counters for each CPU hold back.
    assert!(truth.peak_resident >= 60 * MIB);
    assert!(truth.peak_anonymous + truth.unseen >= 60 * MIB, "{} {}", truth.peak_anonymous, truth.unseen);
}

#[test]
fn processor_time_of_orphans() {
    for (words, milliseconds) in [(["spin", "60"], 60), (["leaves", "60"], 60)] {
        let (truth, _) = run(command(&words), &small());
        let used = truth.user + truth.system;
        assert!(used >= Duration::from_millis(milliseconds), "{words:?}: {used:?}");
        assert!(used < Duration::from_millis(3 * milliseconds), "{words:?}: {used:?}");
    }
}

#[test]
fn a_program_that_is_halted_goes_on() {
    let (truth, lines) = run(command(&["halts"]), &small());
    assert_eq!(lines, ["continued"]);
    assert!(truth.status.success());
}

#[test]
fn signals_are_delivered() {
    let (truth, lines) = run(command(&["signals", "100"]), &small());
    assert_eq!(lines, ["100"]);
    assert!(truth.status.success());
}

#[test]
fn how_a_program_ends_is_passed_on() {
    let shell = |text: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", text]);
        run(shell, &small()).0.status
    };
    assert_eq!(shell("exit 3").code(), Some(3));
    assert_eq!(shell("kill -9 $$").signal(), Some(9));
}

#[test]
fn a_program_that_is_not_there() {
    let error = measure(Command::new("/nonexistent/program"), &small()).unwrap_err();
    assert!(
        matches!(&error, MeasureError::Start { program, .. } if program == "/nonexistent/program"),
        "{error}"
    );
}

#[test]
fn a_program_that_runs_too_long_is_ended() {
    let options = Options { timeout: Some(Duration::from_millis(50)), ..small() };
    let mut sleeper = command(&["sleep"]);
    sleeper.stdout(Stdio::null());
    let error = measure(sleeper, &options).unwrap_err();
    assert!(matches!(error, MeasureError::Timeout(_)), "{error}");
}

#[test]
fn the_program_ends_with_the_measuring_process() {
    let mut measurer = command(&["measures", PROGRAMS]).stdout(Stdio::piped()).spawn().unwrap();
    let mut child = String::new();
    BufReader::new(measurer.stdout.take().unwrap()).read_line(&mut child).unwrap();
    let child = child.trim();
    measurer.kill().unwrap();
    measurer.wait().unwrap();
    // Its number is free, or what is left of it waits to be noticed.
    let lives = || {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    while lives() {
        std::thread::yield_now();
    }
}
