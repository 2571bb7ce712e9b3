//! Replays of uses that were sampled or imported.

use quire_replay::{AlreadyPresent, Replay, ReplayOptions, ReplayReport};
use quire_trace::event::{
    Access, Call, CallDetail, Compressibility, Denial, Event, EventKind, ExitStatus, Fault, Mode, Outcome,
    Reuse, ReuseAccess, ReuseRun, ReuseSource, TaskId,
};
use quire_trace::format::{TraceReader, TraceWriter};
use quire_trace::import::{ImportError, lackey};
use std::fs::{self, File};
use std::path::Path;
use tempfile::{Builder, TempPath};

const DATA: u64 = 0x500_0000;

/// A file of this test's own.
#[derive(Debug)]
struct Scratch(TempPath);

impl Scratch {
    fn new() -> Self {
        Self(Builder::new().prefix("quire-reuse-").tempfile().unwrap().into_temp_path())
    }
}

fn import(text: &str) -> Result<(Scratch, Vec<Event>), ImportError> {
    let (input, output) = (Scratch::new(), Scratch::new());
    fs::write(&input.0, text).unwrap();
    lackey(&input.0, &output.0, false)?;
    let events = TraceReader::open(&output.0).unwrap().collect::<Result<_, _>>().unwrap();
    Ok((output, events))
}

/// A trace of a program with 64 pages of data, and these events of its own before its end.
fn trace(kinds: Vec<EventKind>) -> Scratch {
    let text: String = (0..64).map(|page| format!(" S {:08x},8\n", DATA + page * 4096)).collect();
    let (file, mut events) = import(&text).unwrap();
    let header = TraceReader::open(&file.0).unwrap().header().clone();
    events.retain(|event| matches!(event.kind, EventKind::Exec(_)));
    let event = |kind| Event { time_ns: 1, task: TaskId(0), cpu: 0, kind };
    events.extend(kinds.into_iter().chain([EventKind::Exit(ExitStatus::Code(0))]).map(event));
    let output = Scratch::new();
    let mut writer = TraceWriter::new(File::create(&output.0).unwrap(), &header, 3).unwrap();
    for event in &events {
        writer.push(event).unwrap();
    }
    writer.finish(0, 0).unwrap();
    output
}

fn run(page: u64, pages: u64, access: ReuseAccess) -> ReuseRun {
    ReuseRun { start: DATA + page * 4096, pages, access }
}

fn replay(file: &Path, contents: bool) -> ReplayReport {
    let options = ReplayOptions { paranoid: true, contents, ..ReplayOptions::default() };
    let report = Replay::open(file, options).unwrap().run(&mut |_, _| {}).unwrap();
    assert!(report.is_good(), "{report:#?}");
    report
}

/// A run of pages that a file claims at the end of all addresses does not go on at their beginning.
#[test]
fn a_run_does_not_wrap_around() {
    const PLACE: u64 = 16 * 4096;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    let args = [PLACE, 4096, 3, flags, u64::MAX, 0];
    let number = libc::SYS_mmap as u32;
    let map = Call { number, args, result: PLACE as i64, detail: CallDetail::None };
    let last = u64::MAX - 4095;
    let use_at = |start| {
        let runs = vec![ReuseRun { start, pages: 20, access: ReuseAccess::Write }];
        EventKind::Reuse(Reuse { source: ReuseSource::Exact, runs })
    };
    let file = trace(vec![EventKind::Call(map.clone()), use_at(last)]);
    let report = replay(&file.0, false);
    assert_eq!((report.reuses, report.reuses_gone), (0, 20));
    let file = trace(vec![EventKind::Call(map), use_at(0)]);
    let report = replay(&file.0, false);
    assert_eq!((report.reuses, report.reuses_gone), (1, 19));
}

#[test]
fn each_use_is_one_touch() {
    let sampled = |runs| EventKind::Reuse(Reuse { source: ReuseSource::MappingCounts, runs });
    let file = trace(vec![
        sampled(vec![run(0, 10, ReuseAccess::Write), run(20, 4, ReuseAccess::Read)]),
        sampled(vec![run(0, 10, ReuseAccess::Unknown), run(60, 8, ReuseAccess::Write)]),
    ]);
    let report = replay(&file.0, false);
    // Four of the last eight lie behind the end of the data.
    assert_eq!((report.reuses, report.reuses_gone), (10 + 4 + 10 + 4, 4));
    // Ten and four pages were written; four that were only read have the page of zeros.
    assert_eq!(report.processes[0].quire.resident_anonymous, 14 * 4096);
    // Each page faults once, and each that is not there once more.
    assert_eq!(report.machine.faults, 10 + 4 + 4 + 4);
    assert_eq!(report.machine.tlb_hits + report.machine.tlb_misses - report.machine.faults, report.reuses);
}

/// Linux can fault where the page is present here. Such a touch is no difference, and it is counted.
#[test]
fn touches_that_do_not_fault_here_are_counted() {
    let (access, mode, outcome, inferred) = (Access::Write, Mode::User, Outcome::Minor, false);
    let first = Fault { addr: DATA, access, mode, outcome, inferred };
    let fault = |access| EventKind::Fault(Fault { access, ..first });
    let file = trace([Access::Write, Access::Read, Access::Write, Access::Write].map(fault).into());
    let report = replay(&file.0, false);
    assert_eq!(report.processes[0].faults, 4);
    let found = report.processes[0].already_present;
    assert_eq!(found, AlreadyPresent { tlb_hits: 3, table_walks: 0 });

    let refused = Fault { outcome: Outcome::Denied(Denial::NotMapped), addr: 0x1000, ..first };
    let file = trace(vec![EventKind::Fault(refused), EventKind::Fault(first)]);
    let report = replay(&file.0, false);
    assert_eq!((report.processes[0].faults, report.processes[0].already_present.total()), (2, 0));
}

#[test]
fn contents_are_written_where_the_program_wrote() {
    let mut sample = Compressibility::default();
    sample.sizes[7] = 5;
    let written = Reuse { source: ReuseSource::Exact, runs: vec![run(0, 9, ReuseAccess::Write)] };
    let read = Reuse { source: ReuseSource::Exact, runs: vec![run(9, 3, ReuseAccess::Read)] };
    let file =
        trace(vec![EventKind::Reuse(written), EventKind::Reuse(read), EventKind::Compressibility(sample)]);
    let (without, with) = (replay(&file.0, false), replay(&file.0, true));
    assert_eq!(without.reuses, with.reuses);
    assert_eq!(without.processes[0].quire.resident_anonymous, with.processes[0].quire.resident_anonymous);
    let accesses = |report: &ReplayReport| report.machine.tlb_hits + report.machine.tlb_misses;
    assert_eq!(accesses(&with) - accesses(&without), 9, "each page that is written is filled by one access");
}

#[test]
fn an_import_replays_each_page_that_was_used() {
    let mut text = "==77== Command: prog x y\n==77== \n".to_owned();
    // More pages than are remembered, twice, so that each is used twice.
    for _ in 0..2 {
        for page in 0..40_u64 {
            text += &format!("I  04000000,3\n L {:08x},8\n", DATA + page * 4096);
        }
    }
    text += &format!(" S {:08x},8\n", DATA + 3 * 4096 - 4);
    let (file, events) = import(&text).unwrap();
    let EventKind::Exec(image) = &events[0].kind else { panic!("{:?}", events[0]) };
    assert_eq!((image.pid, &image.program[..], image.mappings.len()), (77, &b"prog"[..], 2));
    assert!(image.mappings[0].execute && !image.mappings[1].execute);
    let report = replay(&file.0, false);
    // The data twice, the last store once in each of two pages, the code whenever 15 others were kept since.
    assert_eq!((report.reuses, report.reuses_gone), (80 + 2 + 5, 0));
    assert_eq!(report.processes[0].quire.resident_anonymous, 41 * 4096, "the first use of a page writes it");
}

#[test]
fn wrong_imports_are_told_with_their_place() {
    let error = import("I  04000000,3\n L 05000000,8\nsome output\n").unwrap_err();
    assert!(matches!(error, ImportError::Line { line: 3, offset: 28, .. }), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    assert!(matches!(import("==1== Lackey\n"), Err(ImportError::Empty { .. })));
    let file = Scratch::new();
    fs::write(&file.0, "I  04000000,3\n").unwrap();
    assert!(matches!(lackey(&file.0, &file.0, true), Err(ImportError::Same { .. })));
    assert_eq!(fs::read(&file.0).unwrap(), b"I  04000000,3\n");
    let missing = lackey(Path::new("/nowhere/x"), &Scratch::new().0, false).unwrap_err();
    assert!(missing.to_string().starts_with("/nowhere/x: "), "{missing}");
}
