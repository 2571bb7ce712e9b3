//! Calls that fail, that depend on what a descriptor names, and that are not built: recorded, and replayed.

use super::recording::Recording;
use super::shared::FAILING;
use quire_replay::{ProcessReport, ReplayOptions};
use quire_trace::event::{Denial, FileKind, MapTrial, Outcome};

/// Records one of the programs, and replays what was recorded: the recording, and the report of the only
/// process.
fn replayed(program: &str) -> Option<(Recording, ProcessReport)> {
    // The results are those of a Linux that has huge pages.
    let recorded = Recording::with(program, |options| options.thp = true)?;
    assert_eq!(recorded.summary.exit_code(), 0);
    let mut report = recorded.file.replay(ReplayOptions { paranoid: true, ..ReplayOptions::default() });
    assert_eq!(report.processes.len(), 1);
    let process = report.processes.remove(0);
    assert_eq!(process.first_mismatches, [], "{program}");
    assert_eq!(process.audit, Vec::<String>::new());
    Some((recorded, process))
}

fn gaps(process: &ProcessReport) -> Vec<(&str, u64)> {
    process.gaps.iter().map(|(gap, count)| (gap.0.as_str(), *count)).collect()
}

#[test]
fn a_call_that_linux_refused_is_no_gap() {
    let Some((recorded, process)) = replayed("fails") else { return };
    assert_eq!(gaps(&process), []);
    for (number, _) in FAILING {
        assert!(recorded.calls(number).any(|call| call.errno().is_some()), "{number}");
    }
}

#[test]
fn the_descriptor_decides_what_can_be_mapped() {
    let Some((recorded, process)) = replayed("maps_descriptors") else { return };
    assert_eq!(gaps(&process), []);
    let trial = |name: &[u8]| -> Vec<MapTrial> {
        let all = recorded.calls(libc::SYS_mmap).filter_map(|call| call.file());
        all.filter(|file| file.name.starts_with(name)).filter_map(|file| file.trial).collect()
    };
    let no_device = MapTrial { refused: Some(19), ..MapTrial::default() };
    assert!(trial(b"/dev/null").iter().all(|trial| *trial == no_device) && !trial(b"/dev/null").is_empty());
    let sealed = MapTrial { write_refused: Some(1), ..MapTrial::default() };
    assert!(trial(b"/memfd:sealed").contains(&sealed), "{:?}", trial(b"/memfd:sealed"));
    let ring = trial(b"anon_inode:[io_uring]");
    assert!(ring.is_empty() || ring[0].refused.is_none() && ring[1].refused.is_some(), "{ring:?}");
    assert!(recorded.calls(libc::SYS_mmap).filter_map(|call| call.file()).any(|f| f.kind == FileKind::Zero));
}

#[test]
fn zeros_lie_where_linux_puts_them() {
    let Some((_, process)) = replayed("maps_zeros") else { return };
    assert_eq!(gaps(&process), []);
}

/// Segments are attached as Linux does it; calls for rings are gaps. The mappings that come after lie where
/// Linux put them.
#[test]
fn segments_and_rings_come_and_go() {
    let Some((_, process)) = replayed("attaches") else { return };
    assert_eq!(gaps(&process), [("io_destroy", 1), ("io_setup", 1)]);
}

/// The host may have a pool of huge pages: then a mapping with pages is a gap.
#[test]
fn huge_pages_of_the_programs_choice_are_mapped_as_by_linux() {
    let Some((recorded, process)) = replayed("maps_huge_pages") else { return };
    let reserved = 0x4_0022;
    let pool = recorded.calls(libc::SYS_mmap).any(|call| call.args[3] == reserved && call.errno().is_none());
    let gap = ("mmap with MAP_PRIVATE|MAP_ANONYMOUS|MAP_HUGETLB", 1);
    assert_eq!(gaps(&process), if pool { vec![gap] } else { Vec::new() });
}

#[test]
fn mincore_faults_on_a_bad_vector() {
    let Some((_, process)) = replayed("asks_into_bad_vectors") else { return };
    assert_eq!(gaps(&process), []);
}

#[test]
fn collapse_of_shared_memory_is_a_gap() {
    let Some((recorded, process)) = replayed("collapses") else { return };
    let collapse = recorded.calls(libc::SYS_madvise).find(|call| call.args[2] == 25).unwrap();
    let name = "madvise with MADV_COLLAPSE of files and shared memory";
    let expected: &[_] = if collapse.errno() == Some(libc::EINVAL) { &[] } else { &[(name, 1)] };
    assert_eq!(gaps(&process), expected);
}

/// The vdso and rings of perf events.
#[test]
fn special_mappings_are_not_divided() {
    let Some((_, process)) = replayed("divides_special_mappings") else { return };
    assert_eq!(gaps(&process), []);
}

/// Each guard that the program touches ends in a signal on both sides, also those that a child inherits.
#[test]
fn guard_pages_are_replayed() {
    let Some(recorded) = Recording::with("installs_guards", |options| options.thp = true) else { return };
    assert_eq!(recorded.summary.exit_code(), 0);
    let installs = recorded.calls(libc::SYS_madvise).filter(|call| call.args[2] == 102);
    let installed = installs.filter(|call| call.errno().is_none()).count();
    let refused =
        recorded.faults().filter(|fault| fault.outcome == Outcome::Denied(Denial::NotMapped)).count();
    assert_eq!(refused, 3 * installed);
    let report = recorded.file.replay(ReplayOptions { paranoid: true, ..ReplayOptions::default() });
    for process in &report.processes {
        assert_eq!(process.first_mismatches, []);
        assert_eq!(gaps(process), []);
        assert_eq!(process.audit, Vec::<String>::new());
    }
}

/// Linux starts such mappings at a random place, which a replay takes over.
#[test]
fn places_below_2g_are_those_of_the_recording() {
    let Some((_, process)) = replayed("maps_below_2g") else { return };
    assert_eq!(gaps(&process), []);
}
