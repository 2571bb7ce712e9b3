//! Recording real programs on this machine.
//!
//! The programs are functions in `children`: each is a test that is left out of normal runs, and that the
//! recorder starts by running this very test program again.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod beside;
mod calls;
mod children;
#[path = "../common/mod.rs"]
mod common;
mod cpus;
mod ends;
mod figures;
mod hostile;
mod sources;
mod stay;

use common::Model;
use quire_trace::event::{
    CallDetail, Denial, Event, EventKind, ExitStatus, Fault, FileKind, LimitKind, Outcome,
};
use quire_trace::format::{CallSource, FaultSource, TraceReader};
use quire_trace::record::{FaultChoice, RecordError, RecordOptions, RecordSummary, record};
use quire_trace::replay::{Replay, ReplayOptions, SwapKind, SwapSpec};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use children::PAGE;

/// Whether this machine lets us follow programs at all; says so if not.
fn is_permitted(result: &Result<RecordSummary, RecordError>) -> bool {
    if let Err(error @ RecordError::Ptrace { .. }) = result {
        eprintln!("skipped: {error}");
        return false;
    }
    true
}

fn output(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("quire-record-{}-{number}-{name}.qtr", std::process::id()))
}

fn record_command(
    name: &str,
    command: Vec<OsString>,
    faults: FaultChoice,
) -> Option<(RecordSummary, Vec<Event>)> {
    let path = output(name);
    let options = RecordOptions { faults, ..RecordOptions::new(command, path.clone()) };
    let result = record(&options);
    if !is_permitted(&result) {
        return None;
    }
    let summary = result.unwrap_or_else(|error| panic!("{error}"));
    let mut reader = TraceReader::open(&path).unwrap();
    let events: Vec<Event> =
        (&mut reader).map(|event| event.unwrap_or_else(|error| panic!("{error}"))).collect();
    assert_eq!(reader.trailer().unwrap().events, events.len() as u64);
    if std::env::var_os("QUIRE_KEEP").is_none() {
        std::fs::remove_file(&path).unwrap();
    }
    assert!(matches!(events[0].kind, EventKind::Exec(_)), "{:?}", events[0]);
    Some((summary, events))
}

/// What is used again is sampled, within what is there; and the pages that it wrote compress well.
#[test]
fn uses_are_sampled_when_that_is_asked_for() {
    let program = std::env::current_exe().unwrap().into_os_string();
    let words =
        ["children::child_uses_again", "--exact", "--ignored", "--nocapture", "--quiet", "--test-threads=1"];
    let command = std::iter::once(program).chain(words.map(OsString::from)).collect();
    let path = output("reuse");
    let reuse = Some(std::time::Duration::from_millis(20));
    let result = record(&RecordOptions { reuse, ..RecordOptions::new(command, path.clone()) });
    if !is_permitted(&result) {
        return;
    }
    let events: Vec<Event> = TraceReader::open(&path).unwrap().map(Result::unwrap).collect();
    assert_fits_into_less(&path);
    std::fs::remove_file(&path).unwrap();
    Model::play(&events).check();
    let pages = 600 * PAGE as u64;
    let mapped = calls(&events, libc::SYS_mmap).find(|call| call.args[1] == pages).unwrap().result as u64;
    let here = |start: u64| (mapped..mapped + pages).contains(&start);
    let samples = events.iter().filter_map(|event| match &event.kind {
        EventKind::Reuse(reuse) => {
            let runs = reuse.runs.iter().filter(|run| here(run.start));
            Some(runs.map(|run| run.pages).sum::<u64>())
        }
        _ => None,
    });
    let samples: Vec<u64> = samples.collect();
    assert!(
        samples.iter().any(|pages| *pages > 0) && samples.iter().all(|pages| *pages <= 600),
        "{samples:?}"
    );
    // It goes on with 200 of them.
    assert!(samples.iter().any(|pages| (1..=300).contains(pages)), "{samples:?}");
    // Sampling makes no faults of its own.
    let faults = faults(&events).filter(|fault| here(fault.addr)).count();
    assert!(faults <= 600, "{faults}");
    let looked = events.iter().find_map(|event| match &event.kind {
        EventKind::Compressibility(sample) if sample.sizes[0] > 100 => Some(sample),
        _ => None,
    });
    assert!(looked.is_some(), "pages with one byte that is not zero compress to almost nothing");
}

/// The program runs in less memory than it used, and ends with the same data: what it uses again comes back.
fn assert_fits_into_less(path: &std::path::Path) {
    let all = ReplayOptions { contents: true, digest: true, paranoid: true, ..ReplayOptions::default() };
    let run = |options| Replay::open(path, options).unwrap().run(&mut |_, _| {}).unwrap();
    let free = run(all.clone());
    let swap = Some(SwapSpec { kind: SwapKind::Ram, bytes: 64 << 20 });
    let memory = Some(free.processes[0].quire.peak_resident);
    let limited = run(ReplayOptions { memory, swap, ..all });
    assert!(free.is_good() && limited.is_good(), "{limited:#?}");
    assert!(limited.pressure.pages_out > 0 && limited.pressure.pages_in > 0, "{:?}", limited.pressure);
    assert_eq!(free.processes[0].digest, limited.processes[0].digest);
}

/// Replays a recording, which then goes away, and expects no difference from Linux.
fn assert_replays(path: &std::path::Path) {
    let replay = Replay::open(path, ReplayOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let report = replay.run(&mut |_, _| {}).unwrap_or_else(|error| panic!("{error}"));
    assert!(report.is_good(), "{report:#?}");
    if std::env::var_os("QUIRE_KEEP").is_none() {
        std::fs::remove_file(path).unwrap();
    }
}

/// Records one of the children below.
fn record_child_with(child: &str, faults: FaultChoice) -> Option<(RecordSummary, Vec<Event>)> {
    let program = std::env::current_exe().unwrap();
    // Most children are in one module; others are named with theirs.
    let name = if child.contains("::") { child.to_owned() } else { format!("children::{child}") };
    let words = [&name, "--exact", "--ignored", "--nocapture", "--quiet", "--test-threads=1"];
    let command = std::iter::once(program.into_os_string()).chain(words.map(OsString::from)).collect();
    record_command(child.rsplit(':').next().unwrap(), command, faults)
}

fn record_child(child: &str) -> Option<(RecordSummary, Vec<Event>)> {
    record_child_with(child, FaultChoice::Auto)
}

fn count(events: &[Event], is: impl Fn(&EventKind) -> bool) -> usize {
    events.iter().filter(|event| is(&event.kind)).count()
}

fn calls(events: &[Event], number: i64) -> impl Iterator<Item = &quire_trace::event::Call> {
    events.iter().filter_map(move |event| match &event.kind {
        EventKind::Call(call) if i64::from(call.number) == number => Some(call),
        _ => None,
    })
}

fn faults(events: &[Event]) -> impl Iterator<Item = &Fault> {
    events.iter().filter_map(|event| match &event.kind {
        EventKind::Fault(fault) => Some(fault),
        _ => None,
    })
}

/// The end of the child is how libtest would end it, unless it ends itself.
#[test]
fn calls_of_many_threads_are_in_their_true_order() {
    let Some((summary, events)) = record_child("child_threads") else { return };
    assert_eq!(summary.status, ExitStatus::Code(3));
    assert!(count(&events, |kind| matches!(kind, EventKind::Clone(facts) if facts.same_process)) >= 6);
    let model = Model::play(&events);
    assert!(model.placed > 1800, "{}", model.placed);
    model.check();
    if summary.faults == FaultSource::Pagemap {
        return eprintln!("skipped: perf is not permitted, the order of faults is not known");
    }
    assert!(model.checked_faults > 6 * 300, "{}", model.checked_faults);
    let last = events.iter().rev().find_map(|event| match &event.kind {
        EventKind::Figures(figures) => Some(figures),
        _ => None,
    });
    assert!(last.is_some_and(|figures| figures.threads_peak >= 7), "{last:?}");
}

#[test]
fn a_tree_of_processes_is_followed() {
    let Some((summary, events)) = record_child("child_forks") else { return };
    assert_eq!((summary.status, summary.processes), (ExitStatus::Code(0), 5));
    let copies = count(&events, |kind| matches!(kind, EventKind::Clone(facts) if !facts.shares_memory));
    assert_eq!(copies, 4);
    for (code, expected) in [(10, 3), (11, 1)] {
        assert_eq!(count(&events, |kind| *kind == EventKind::Exit(ExitStatus::Code(code))), expected);
    }
    assert_eq!(count(&events, |kind| matches!(kind, EventKind::Figures(_))), 5);
    Model::play(&events).check();
}

#[test]
fn vfork_and_exec_do_not_block_others() {
    let Some((summary, events)) = record_child("child_spawns") else { return };
    assert_eq!(summary.status, ExitStatus::Code(0));
    assert_eq!(count(&events, |kind| matches!(kind, EventKind::Exec(_))), 4);
    let shared = |kind: &EventKind| matches!(kind, EventKind::Clone(facts) if facts.shares_memory && !facts.same_process);
    assert!(count(&events, shared) >= 3, "posix_spawn shares memory");
    assert!(calls(&events, libc::SYS_execve).any(|call| call.errno() == Some(libc::ENOENT)));
    // The makers' address spaces live on when their children execute: figures come at real ends only.
    assert_eq!(count(&events, |kind| matches!(kind, EventKind::Figures(_))), 4);
    Model::play(&events).check();
}

#[test]
fn exec_by_another_thread_replaces_all() {
    let Some((summary, events)) = record_child("child_executes_from_thread") else { return };
    assert_eq!(summary.status, ExitStatus::Code(0));
    assert_eq!(count(&events, |kind| matches!(kind, EventKind::Exec(_))), 2);
    Model::play(&events).check();
    let ends = count(&events, |kind| matches!(kind, EventKind::Exit(_)));
    assert_eq!(ends as u32, summary.threads, "every thread ends once");
}

/// Where the guard of `child_guard` is.
#[test]
fn refused_touches_are_told_from_others() {
    let Some((summary, events)) = record_child("child_guard") else { return };
    assert_eq!(summary.status, ExitStatus::Code(0));
    let refused = |denial| faults(&events).filter(|fault| fault.outcome == Outcome::Denied(denial)).count();
    assert_eq!((refused(Denial::NotMapped), refused(Denial::NotAllowed)), (2, 2));
    let model = Model::play(&events);
    assert_eq!(model.denied, 4);
    model.check();
}

#[test]
fn a_killed_program_leaves_a_whole_trace() {
    let Some((summary, events)) = record_child("child_killed") else { return };
    assert_eq!((summary.status, summary.exit_code()), (ExitStatus::Signal(9), 137));
    assert_eq!(events.last().map(|event| &event.kind), Some(&EventKind::Exit(ExitStatus::Signal(9))));
}

#[test]
fn threads_that_are_alive_at_the_end_are_ended() {
    let Some((summary, events)) = record_child("child_leaves_threads") else { return };
    assert_eq!(summary.status, ExitStatus::Code(5));
    assert_eq!(count(&events, |kind| matches!(kind, EventKind::Exit(_))) as u32, summary.threads);
    assert_eq!(count(&events, |kind| matches!(kind, EventKind::Figures(_))), 1);
    Model::play(&events).check();
}

#[test]
fn what_arguments_point_to_is_recorded() {
    let Some((summary, events)) = record_child("child_details") else { return };
    assert_eq!(summary.status, ExitStatus::Code(3));
    let limit = events.iter().find_map(|event| match event.kind {
        EventKind::Limit(limit) if limit.kind == LimitKind::Data => Some((limit.soft, limit.hard)),
        _ => None,
    });
    assert_eq!(limit, Some((1 << 30, 1 << 31)));
    let file =
        |is: FileKind| calls(&events, libc::SYS_mmap).find(|call| call.file().is_some_and(|f| f.kind == is));
    let memory = file(FileKind::Memory).and_then(|call| call.file()).expect("the memfd was mapped");
    assert_eq!((&memory.name[..], memory.size), (&b"/memfd:some memory (deleted)"[..], 2 * PAGE as u64));
    assert!(memory.readable && memory.writable);
    assert_eq!(file(FileKind::BadDescriptor).and_then(quire_trace::event::Call::errno), Some(libc::EBADF));
    assert!(file(FileKind::Regular).is_some(), "libraries are mapped");
    let details: Vec<&CallDetail> = events
        .iter()
        .filter_map(|event| if let EventKind::Call(call) = &event.kind { Some(&call.detail) } else { None })
        .collect();
    assert!(details.contains(&&CallDetail::Resident { pages: 3 }));
    assert!(details.contains(&&CallDetail::Name(Some((*b"fine name").into()))));
    assert!(details.iter().any(|detail| matches!(detail, CallDetail::Mapped { bytes: 0x3000, .. })));
    let moved = calls(&events, libc::SYS_mremap).any(|call| call.result as u64 != call.args[0]);
    assert!(moved, "a large block moves when it can not grow in place");
}

#[test]
fn every_source_of_faults_finds_the_touched_pages() {
    for source in [FaultSource::Tracepoint, FaultSource::Software, FaultSource::Pagemap] {
        let program = std::env::current_exe().unwrap();
        let words = ["children::child_forks", "--exact", "--ignored", "--quiet"];
        let command = std::iter::once(program.into_os_string()).chain(words.map(OsString::from)).collect();
        let path = output("source");
        let options =
            RecordOptions { faults: FaultChoice::Only(source), ..RecordOptions::new(command, path.clone()) };
        match record(&options) {
            Err(error @ (RecordError::Faults { .. } | RecordError::Ptrace { .. })) => {
                eprintln!("skipped: {error}");
                continue;
            }
            result => assert_eq!(result.unwrap().faults, source),
        }
        let events: Vec<Event> = TraceReader::open(&path).unwrap().map(Result::unwrap).collect();
        std::fs::remove_file(&path).unwrap();
        // The eight pages that the child maps first and touches, in its own process.
        let mapped = calls(&events, libc::SYS_mmap).filter(|call| call.args[1] == 8 * PAGE as u64).last();
        let start = mapped.expect("the child maps eight pages").result as u64;
        let written = |fault: &&Fault| (start..start + 8 * PAGE as u64).contains(&fault.addr);
        let written = faults(&events).filter(written).count();
        assert!(written >= 8, "{}: {written}", source.name());
        if source != FaultSource::Pagemap {
            // First the eight, then what each process writes again after a fork.
            assert!(written >= 8 + 8 + 7 + 6, "{}: {written}", source.name());
            Model::play(&events).check();
        }
    }
}

#[test]
fn calls_of_another_abi_are_told() {
    let Some((summary, events)) = record_child("child_foreign") else { return };
    if summary.status != ExitStatus::Code(0) {
        return eprintln!("skipped: the kernel has no i386 calls");
    }
    assert_eq!(count(&events, |kind| matches!(kind, EventKind::Unsupported(_))), 1);
}

#[test]
fn stopping_at_every_call_records_the_same() {
    let sequence = |source| {
        let program = std::env::current_exe().unwrap();
        let words = ["children::child_forks", "--exact", "--ignored", "--quiet"];
        let command = std::iter::once(program.into_os_string()).chain(words.map(OsString::from)).collect();
        let path = output("calls");
        let options = RecordOptions { calls: source, ..RecordOptions::new(command, path.clone()) };
        let result = record(&options);
        if !is_permitted(&result) {
            return None;
        }
        let summary = result.unwrap();
        assert_eq!((summary.status, summary.processes, summary.calls), (ExitStatus::Code(0), 5, source));
        let events: Vec<Event> = TraceReader::open(&path).unwrap().map(Result::unwrap).collect();
        std::fs::remove_file(&path).unwrap();
        Model::play(&events).check();
        // The test runner's own threads differ from run to run, what the program does itself does not.
        let copies = count(&events, |kind| matches!(kind, EventKind::Clone(facts) if !facts.shares_memory));
        let own = |call: &&quire_trace::event::Call| {
            [8, 2].map(|pages| pages * PAGE as u64).contains(&call.args[1])
        };
        let lengths: Vec<u64> = calls(&events, libc::SYS_mmap).filter(own).map(|call| call.args[1]).collect();
        Some((copies, lengths))
    };
    assert_eq!(sequence(CallSource::Seccomp), sequence(CallSource::EveryCall));
}

#[test]
fn the_first_image_is_complete() {
    let Some((_, events)) = record_child("child_nothing") else { return };
    let EventKind::Exec(image) = &events[0].kind else { panic!("{:?}", events[0]) };
    assert!(image.mappings.iter().any(|mapping| *mapping.name == *b"[stack]" && mapping.flags.has(*b"gd")));
    assert!(image.args.iter().any(|arg| **arg == *b"children::child_nothing"));
    assert!(image.max_map_count > 0 && image.brk >= image.start_brk && image.start_brk > 0);
    assert!(image.mappings.iter().any(|mapping| !mapping.resident.is_empty()));
    let base = image.mmap_base.expect("it can be asked for");
    // The first mapping of a program's own is placed right below all that exec has placed there.
    let first =
        calls(&events, libc::SYS_mmap).find(|call| call.args[0] == 0 && call.errno().is_none()).unwrap();
    let end = first.result as u64 + first.args[1].next_multiple_of(PAGE as u64);
    assert!(end <= base.addr, "{first:x?} {base:x?}");
    let between = image.mappings.iter().filter(|mapping| (end..base.addr).contains(&mapping.start));
    let taken: u64 = between.map(|mapping| mapping.end - mapping.start).sum();
    assert!(
        taken > 0 && base.addr - end - taken < (first.args[1] + 0x10000),
        "nothing was left free in between"
    );
}

#[test]
fn a_program_that_does_not_exist_is_told() {
    let path = output("none");
    let result = record(&RecordOptions::new(vec!["/nowhere/quire-no-such-program".into()], path.clone()));
    if !is_permitted(&result) {
        return;
    }
    let error = result.unwrap_err();
    assert_eq!(error.exit_code(), 127);
    assert!(error.to_string().contains("quire-no-such-program: No such file"), "{error}");
    assert!(!path.exists(), "no empty trace is left behind");
    // A file that cannot be executed, and an old trace that must not be harmed.
    std::fs::write(&path, b"old").unwrap();
    let options = RecordOptions::new(vec!["/etc/passwd".into()], path.clone());
    let error = record(&options).unwrap_err();
    assert!(matches!(error, RecordError::NotARecording { .. }), "{error}");
    let error = record(&RecordOptions { force: true, ..options }).unwrap_err();
    assert_eq!(error.exit_code(), 126);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    std::fs::remove_file(&path).unwrap();
    let error = record(&RecordOptions::new(Vec::new(), path)).unwrap_err();
    assert!(matches!(error, RecordError::Command(_)));
    let error = record(&RecordOptions::new(vec!["ls".into()], "/nowhere/x.qtr")).unwrap_err();
    assert!(matches!(error, RecordError::Output { .. }));
}
