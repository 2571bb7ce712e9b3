//! What each source of page faults makes of programs.

use super::children::PAGE;
use super::{calls, count, output, record_child_with};
use quire_trace::event::{Access, EventKind, ExitStatus};
use quire_trace::format::{FaultSource, TraceReader, UseSource};
use quire_trace::record::{FaultChoice, RecordError, RecordOptions, record};
use quire_trace::replay::{Replay, ReplayOptions, ReplayReport};
use std::ffi::OsString;
use std::path::PathBuf;

const SOURCES: [FaultSource; 3] = [FaultSource::Tracepoint, FaultSource::Software, FaultSource::Pagemap];

/// Records a command with a source; `None` if it is not permitted here.
fn recorded(command: &[&str], source: FaultSource) -> Option<PathBuf> {
    let path = output("exactness");
    let command = command.iter().map(OsString::from).collect();
    let faults = FaultChoice::Only(source);
    match record(&RecordOptions { faults, ..RecordOptions::new(command, path.clone()) }) {
        Ok(summary) => assert_eq!(summary.status, ExitStatus::Code(0), "{summary}"),
        Err(error @ (RecordError::Faults { .. } | RecordError::Ptrace { .. })) => {
            eprintln!("skipped: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    }
    Some(path)
}

fn replayed(path: &PathBuf) -> ReplayReport {
    let report = Replay::open(path, ReplayOptions::default()).unwrap().run(&mut |_, _| {}).unwrap();
    std::fs::remove_file(path).unwrap();
    report
}

#[test]
fn no_source_of_faults_makes_a_difference() {
    let programs: [&[&str]; 4] = [
        &["sh", "-c", "exec ls -R /usr/lib/x86_64-linux-gnu > /dev/null"],
        &["sh", "-c", "(ls | sort | uniq; (exit 0); echo $(ls /)) > /dev/null"],
        &["awk", "BEGIN { for (i = 0; i < 20000; i++) a[i] = i \"\" }"],
        &["sort", "-o", "/dev/null", "/etc/services", "/etc/passwd"],
    ];
    for source in SOURCES {
        for program in programs {
            let Some(path) = recorded(program, source) else { continue };
            let report = replayed(&path);
            assert!(report.is_good(), "{} {program:?}: {report:#?}", source.name());
        }
    }
}

/// With the software event the accesses of the program are read from its instructions, also those that it
/// makes just before it ends.
#[test]
fn accesses_are_decoded_before_the_program_is_gone() {
    let Some(path) = recorded(&["sort", "-o", "/dev/null", "/etc/passwd"], FaultSource::Software) else {
        return;
    };
    let reader = TraceReader::open(&path).unwrap();
    assert_eq!(reader.header().uses, UseSource::Sampled { interval_ms: 100 }, "by default");
    let events: Vec<_> = reader.map(Result::unwrap).collect();
    std::fs::remove_file(path).unwrap();
    let user = |kind: &EventKind, wanted: &dyn Fn(Access) -> bool| match kind {
        EventKind::Fault(fault) => fault.mode == quire_trace::event::Mode::User && wanted(fault.access),
        _ => false,
    };
    let all = count(&events, |kind| user(kind, &|_| true));
    let unknown = count(&events, |kind| user(kind, &|access| access == Access::Unknown));
    // Only instructions that copy leave it open.
    assert!(all > 50 && unknown * 4 < all, "{unknown} of {all}");
}

#[test]
fn hostile_arguments_are_recorded_with_every_source() {
    for source in SOURCES {
        let child = "child_makes_hostile_calls";
        let Some((summary, events)) = record_hostile(child, source) else { continue };
        assert_eq!(summary, ExitStatus::Code(17), "{}", source.name());
        let made = calls(&events, libc::SYS_mprotect).filter(|call| call.args[1] == -8192_i64 as u64).count();
        assert_eq!(made, 13, "{}", source.name());
        let mapped = calls(&events, libc::SYS_mmap).find(|call| call.args[1] == 64 * PAGE as u64);
        let start = mapped.unwrap().result as u64;
        let touched =
            super::faults(&events).filter(|fault| (start..start + 64 * PAGE as u64).contains(&fault.addr));
        assert!(touched.count() >= 64, "{}: the calls hide no touched page", source.name());
    }
}

fn record_hostile(child: &str, source: FaultSource) -> Option<(ExitStatus, Vec<quire_trace::event::Event>)> {
    // A source that is not permitted here is no failure of the test.
    drop(recorded(&["true"], source).map(std::fs::remove_file)?);
    let module = format!("hostile::{child}");
    let (summary, events) = record_child_with(&module, FaultChoice::Only(source))?;
    Some((summary.status, events))
}
