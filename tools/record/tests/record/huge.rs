//! Transparent huge pages while a program is recorded.

use super::recording::{PROGRAMS, Recording, Scratch};
use super::shared;
use quire_record::CallChoice;
use quire_record::RecordOptions;
use quire_replay::{ReplayOptions, recorded_huge_config};
use quire_trace::event::{Call, ThpDisable};
use quire_trace::format::{HostSettings, TraceHeader, TraceReader};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const HUGE: u64 = 2 << 20;
const MADV_COLLAPSE: u64 = 25;
const EXCEPT_ADVISED: libc::c_ulong = 2;

fn header(file: &Scratch) -> TraceHeader {
    TraceReader::open(file.path()).unwrap_or_else(|error| panic!("{error}")).header().clone()
}

fn settings(file: &Scratch) -> HostSettings {
    header(file).settings.expect("this version has them")
}

/// A file of `/sys/kernel/mm/transparent_hugepage`, as it is.
fn sys(name: &str) -> Option<String> {
    fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{name}")).ok()
}

/// What the calls of a recording that set and ask for the setting came to.
fn results(recorded: &Recording) -> Vec<(u64, i64)> {
    let all = recorded.calls(libc::SYS_prctl).map(|call| (call.args[0], call.result));
    all.filter(|(option, _)| [41, 42].contains(option)).collect()
}

#[test]
fn a_program_sees_its_own_setting_of_huge_pages() {
    let said = Scratch::new("said");
    let to_file = format!("exec {PROGRAMS} disables_huge_pages > {}", said.path().display());
    assert!(Command::new("sh").args(["-c", &to_file]).status().unwrap().success());
    let alone = fs::read_to_string(said.path()).unwrap();
    assert!(alone.lines().count() > 30, "{alone}");
    let mut all = Vec::new();
    for (thp, calls) in [
        (false, CallChoice::Stops),
        (false, CallChoice::EveryCall),
        (true, CallChoice::Stops),
        (false, CallChoice::Auto),
    ] {
        let change = |options: &mut RecordOptions| (options.thp, options.calls) = (thp, calls);
        let Some(recorded) = Recording::of_command(&["sh", "-c", &to_file], change) else { return };
        assert_eq!(recorded.summary.exit_code(), 0);
        assert_eq!(fs::read_to_string(said.path()).unwrap(), alone, "thp {thp}, {calls:?}");
        assert_eq!(settings(&recorded.file).thp_turned_off, !thp);
        let report = recorded.file.assert_replays();
        assert!(report.processes.iter().all(|process| process.settings_dependent == 0));
        all.push(results(&recorded));
    }
    assert!(all[0].len() > 60 && all.iter().all(|one| *one == all[0]), "{all:?}");
}

#[test]
fn a_program_begins_with_the_setting_of_the_recorders_caller() {
    let file = Scratch::new("caller");
    let mut recorder = Command::new(PROGRAMS);
    recorder.args(["record", "says_its_setting"]).arg(file.path()).stdout(Stdio::piped());
    // SAFETY: the child makes one system call, which takes numbers only.
    unsafe {
        recorder.pre_exec(|| {
            libc::prctl(libc::PR_SET_THP_DISABLE, 1 as libc::c_ulong, EXCEPT_ADVISED, 0_u64, 0_u64);
            Ok(())
        });
    }
    let output = recorder.output().unwrap();
    if output.status.code() == Some(shared::NOT_PERMITTED) {
        return eprintln!("skipped: following programs is not permitted");
    }
    let expected = match settings(&file).thp_disable {
        ThpDisable::ExceptAdvised => "3\n",
        // A kernel without the flag.
        other => {
            assert_eq!(other, ThpDisable::No);
            "0\n"
        }
    };
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    file.assert_replays();
}

/// Faults in the 8 MiB, and the result of COLLAPSE in memory that did not ask for huge pages.
fn touched(recorded: &Recording) -> (usize, Vec<Call>) {
    let advised = recorded.calls(libc::SYS_madvise).find(|call| call.args[2] == libc::MADV_HUGEPAGE as u64);
    let advised = advised.expect("it asks for huge pages");
    assert_eq!((advised.args[1], advised.result), (4 * HUGE, 0));
    let inside = advised.args[0]..advised.args[0] + 4 * HUGE;
    let faults = recorded.faults().filter(|fault| inside.contains(&fault.addr)).count();
    let collapses = recorded.calls(libc::SYS_madvise).filter(|call| call.args[2] == MADV_COLLAPSE);
    (faults, collapses.cloned().collect())
}

#[test]
fn each_page_is_seen_where_huge_pages_are_asked_for() {
    let Some(recorded) = Recording::of("touches_huge_memory") else { return };
    let (faults, collapses) = touched(&recorded);
    assert_eq!(faults, 2048);
    assert!(collapses.iter().all(|call| call.errno() == Some(libc::EINVAL)), "{collapses:?}");
    assert_eq!(header(&recorded.file).supports_thp_predictions(), Ok(()));
    // Quire has huge pages, so that the first succeeds there; the second is refused by both.
    let report = recorded.file.assert_replays();
    assert_eq!(report.processes[0].settings_dependent, 1);
    let present = report.processes[0].already_present.total();
    assert!(present >= 2044, "a huge page has the rest: {present}");
}

#[test]
fn huge_pages_stay_on_if_that_is_asked_for() {
    let Some(recorded) = Recording::with("touches_huge_memory", |options| options.thp = true) else { return };
    let settings = settings(&recorded.file);
    let (faults, collapses) = touched(&recorded);
    let other_sizes = settings.thp_files.iter().any(|(name, word)| {
        name.starts_with("hugepages-") && name != "hugepages-2048kB/enabled" && word != "never"
    });
    // A block has one fault, or one for each of its pages where there is no huge page to be had.
    assert!(faults >= 4 && (other_sizes || (faults - 4).is_multiple_of(511)), "{faults}");
    let never = settings.thp_is_never();
    assert_eq!(header(&recorded.file).supports_thp_predictions().is_err(), !never);
    let report = recorded.file.replay(ReplayOptions::default());
    let default_settings =
        recorded_huge_config(&report.header).unwrap().policy == ReplayOptions::default().huge.policy;
    if default_settings && collapses[0].result == 0 {
        assert!(report.is_good(), "{report:#?}");
        assert_eq!(report.processes[0].settings_dependent, 0);
    }
}

#[test]
fn the_header_has_the_settings_of_the_host() {
    let Some(recorded) = Recording::of("nothing") else { return };
    let settings = settings(&recorded.file);
    assert!(settings.thp_turned_off);
    assert_eq!((settings.thp_disable, settings.no_randomize), (ThpDisable::No, false));
    let random = fs::read_to_string("/proc/sys/kernel/randomize_va_space").unwrap();
    assert_eq!(settings.randomize_va_space, random.trim().parse().ok());
    for (name, text) in &settings.thp_files {
        let now = sys(name).unwrap();
        assert!(now.trim() == text || now.contains(&format!("[{text}]")), "{name}: {text}, now {now}");
    }
    for name in ["enabled", "defrag", "khugepaged/max_ptes_none", "hugepages-2048kB/enabled"] {
        assert_eq!(settings.thp_file(name).is_some(), sys(name).is_some(), "{name}");
    }
    let Some(recorded) = Recording::of_command(&["setarch", "-R", "true"], |_| {}) else { return };
    assert!(!self::settings(&recorded.file).no_randomize, "the command sets that itself");
}
