//! What each source of page faults makes of programs.

use super::recording::Recording;
use super::shared::PAGE;
use quire_record::{FaultChoice, RecordOptions};
use quire_replay::ReplayOptions;
use quire_trace::event::{Access, EventKind, ExitStatus, Mode};
use quire_trace::format::{FaultSource, TraceReader, UseSource};

const SOURCES: [FaultSource; 3] = [FaultSource::Tracepoint, FaultSource::Software, FaultSource::Pagemap];

/// Records a command with a source; `None` if it is not permitted here.
fn recorded(command: &[&str], source: FaultSource) -> Option<Recording> {
    let recorded = Recording::of_command(command, |options| options.faults = FaultChoice::Only(source))?;
    assert_eq!(recorded.summary.status, ExitStatus::Code(0), "{}", recorded.summary);
    Some(recorded)
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
            let Some(recorded) = recorded(program, source) else { continue };
            let report = recorded.file.replay(ReplayOptions::default());
            assert!(report.is_good(), "{} {program:?}: {report:#?}", source.name());
        }
    }
}

/// With the software event the accesses of the program are read from its instructions, also those that it
/// makes just before it ends.
#[test]
fn accesses_are_decoded_before_the_program_is_gone() {
    let command = ["sort", "-o", "/dev/null", "/etc/passwd"];
    let Some(recorded) = recorded(&command, FaultSource::Software) else { return };
    let reader = TraceReader::open(recorded.file.path()).unwrap();
    assert_eq!(reader.header().uses, UseSource::Sampled { interval_ms: 100 }, "by default");
    let user = |kind: &EventKind, wanted: &dyn Fn(Access) -> bool| match kind {
        EventKind::Fault(fault) => fault.mode == Mode::User && wanted(fault.access),
        _ => false,
    };
    let all = recorded.count(|kind| user(kind, &|_| true));
    let unknown = recorded.count(|kind| user(kind, &|access| access == Access::Unknown));
    // Only instructions that copy leave it open.
    assert!(all > 50 && unknown * 4 < all, "{unknown} of {all}");
}

#[test]
fn hostile_arguments_are_recorded_with_every_source() {
    for source in SOURCES {
        let only = |options: &mut RecordOptions| options.faults = FaultChoice::Only(source);
        let Some(recorded) = Recording::with("makes_hostile_calls", only) else { continue };
        assert_eq!(recorded.summary.status, ExitStatus::Code(17), "{}", source.name());
        let made = recorded.calls(libc::SYS_mprotect).filter(|call| call.args[1] == -8192_i64 as u64);
        assert_eq!(made.count(), 14, "{}", source.name());
        let mapped = recorded.calls(libc::SYS_mmap).find(|call| call.args[1] == 64 * PAGE as u64);
        let start = mapped.unwrap().result as u64;
        let inside = start..start + 64 * PAGE as u64;
        let touched = recorded.faults().filter(|fault| inside.contains(&fault.addr));
        assert!(touched.count() >= 64, "{}: the calls hide no touched page", source.name());
    }
}
