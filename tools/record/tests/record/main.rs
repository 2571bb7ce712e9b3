//! Recording real programs on this machine: those of `tests/programs`, and some that every machine has.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod beside;
mod calls;
#[path = "../common/mod.rs"]
mod common;
mod confined;
mod cpus;
mod ends;
mod figures;
mod files;
mod hidden;
mod huge;
mod pressure;
#[path = "../common/recording.rs"]
mod recording;
mod recordings;
#[path = "../programs/shared.rs"]
mod shared;
mod sources;
mod stay;
mod without_stops;

use common::Model;
use quire_output::FileError;
use quire_record::{CallChoice, FaultChoice, RecordError, RecordOptions, record};
use quire_replay::{ReplayOptions, SwapKind, SwapSpec};
use quire_trace::event::{
    CallDetail, Compressibility, Denial, EventKind, ExitStatus, Fault, FileKind, LimitKind, Outcome,
};
use quire_trace::format::{CallSource, FaultSource};
use recording::{Recording, Scratch, permitted};
use shared::PAGE;

/// What is used again is sampled, within what is there; and the pages that it wrote compress well.
#[test]
fn uses_are_sampled_when_that_is_asked_for() {
    let every = std::time::Duration::from_millis(20);
    let Some(recorded) = Recording::with("uses_again", |options| options.reuse = Some(every)) else { return };
    assert_fits_into_less(&recorded.file);
    let events = &recorded.events;
    Model::play(events).check();
    let pages = 600 * PAGE as u64;
    let mapped = recorded.calls(libc::SYS_mmap).find(|call| call.args[1] == pages).unwrap().result as u64;
    let here = |start: u64| (mapped..mapped + pages).contains(&start);
    let samples = recorded.events.iter().filter_map(|event| match &event.kind {
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
    let faults = recorded.faults().filter(|fault| here(fault.addr)).count();
    assert!(faults <= 600, "{faults}");
    // A look at more than the pages of libraries and of the stack; when there is one depends on the CPUs.
    let mut looks = recorded.events.iter().filter_map(|event| match &event.kind {
        EventKind::Compressibility(sample) if sample.pages() > 200 => Some(sample),
        _ => None,
    });
    let small = |sample: &Compressibility| sample.sizes[0] > 100;
    assert!(looks.all(small), "pages with one byte that is not zero compress to almost nothing");
}

/// Linux gives a process copies of its own of pages that are read in some ways.
#[test]
fn pages_that_processes_share_stay_shared_when_they_are_sampled() {
    let every = std::time::Duration::from_millis(20);
    let sampled = |options: &mut RecordOptions| options.reuse = Some(every);
    let Some(recorded) = Recording::with("keeps_pages_that_it_shares", sampled) else { return };
    if recorded.summary.status == ExitStatus::Code(shared::NOT_PERMITTED as u8) {
        return eprintln!("skipped: only root sees frames");
    }
    let child = recorded.events.iter().any(|event| match &event.kind {
        EventKind::Compressibility(sample) => event.task.0 == 1 && sample.pages() >= 64,
        _ => false,
    });
    assert!(child, "the contents of the child's pages were read");
    assert_eq!(recorded.summary.status, ExitStatus::Code(0), "so many pages were copied");
}

/// The program runs in less memory than it used, and ends with the same data: what it uses again comes back.
fn assert_fits_into_less(file: &Scratch) {
    let all = ReplayOptions { contents: true, digest: true, paranoid: true, ..ReplayOptions::default() };
    let free = file.replay(all.clone());
    let swap = Some(SwapSpec { kind: SwapKind::Ram, bytes: 64 << 20 });
    let memory = Some(free.processes[0].quire.peak_resident);
    let limited = file.replay(ReplayOptions { memory, swap, ..all });
    assert!(free.is_good() && limited.is_good(), "{limited:#?}");
    assert!(limited.pressure.pages_out > 0 && limited.pressure.pages_in > 0, "{:?}", limited.pressure);
    assert_eq!(free.processes[0].digest, limited.processes[0].digest);
}

#[test]
fn calls_of_many_threads_are_in_their_true_order() {
    for recorded in Recording::in_both_ways("threads") {
        assert_eq!(recorded.summary.status, ExitStatus::Code(3));
        assert!(recorded.count(|kind| matches!(kind, EventKind::Clone(facts) if facts.same_process)) >= 6);
        let model = Model::play(&recorded.events);
        assert!(model.placed > 1800, "{}", model.placed);
        model.check();
        if recorded.summary.faults == FaultSource::Pagemap {
            return eprintln!("skipped: perf is not permitted, the order of faults is not known");
        }
        assert!(model.checked_faults > 6 * 300, "{}", model.checked_faults);
        let last = recorded.events.iter().rev().find_map(|event| match &event.kind {
            EventKind::Figures(figures) => Some(figures),
            _ => None,
        });
        assert!(last.is_some_and(|figures| figures.threads_peak >= 7), "{last:?}");
    }
}

#[test]
fn a_tree_of_processes_is_followed() {
    for recorded in Recording::in_both_ways("forks") {
        assert_eq!((recorded.summary.status, recorded.summary.processes), (ExitStatus::Code(0), 5));
        let copies = recorded.count(|kind| matches!(kind, EventKind::Clone(facts) if !facts.shares_memory));
        assert_eq!(copies, 4);
        for (code, expected) in [(10, 3), (11, 1)] {
            assert_eq!(recorded.count(|kind| *kind == EventKind::Exit(ExitStatus::Code(code))), expected);
        }
        assert_eq!(recorded.count(|kind| matches!(kind, EventKind::Figures(_))), 5);
        Model::play(&recorded.events).check();
    }
}

#[test]
fn vfork_and_exec_do_not_block_others() {
    for recorded in Recording::in_both_ways("spawns") {
        assert_eq!(recorded.summary.status, ExitStatus::Code(0));
        assert_eq!(recorded.count(|kind| matches!(kind, EventKind::Exec(_))), 4);
        let shared = |kind: &EventKind| matches!(kind, EventKind::Clone(facts) if facts.shares_memory && !facts.same_process);
        assert!(recorded.count(shared) >= 3, "posix_spawn shares memory");
        assert!(recorded.calls(libc::SYS_execve).any(|call| call.errno() == Some(libc::ENOENT)));
        // The makers' address spaces live on when their children execute: figures come at real ends only.
        assert_eq!(recorded.count(|kind| matches!(kind, EventKind::Figures(_))), 4);
        Model::play(&recorded.events).check();
    }
}

#[test]
fn exec_by_another_thread_replaces_all() {
    for recorded in Recording::in_both_ways("executes_from_thread") {
        assert_eq!(recorded.summary.status, ExitStatus::Code(0));
        assert_eq!(recorded.count(|kind| matches!(kind, EventKind::Exec(_))), 2);
        Model::play(&recorded.events).check();
        let ends = recorded.count(|kind| matches!(kind, EventKind::Exit(_)));
        assert_eq!(ends as u32, recorded.summary.threads, "every thread ends once");
    }
}

#[test]
fn refused_touches_are_told_from_others() {
    for recorded in Recording::in_both_ways("guard") {
        assert_eq!(recorded.summary.status, ExitStatus::Code(0));
        let refused =
            |denial| recorded.faults().filter(|fault| fault.outcome == Outcome::Denied(denial)).count();
        assert_eq!((refused(Denial::NotMapped), refused(Denial::NotAllowed)), (2, 2));
        let model = Model::play(&recorded.events);
        assert_eq!(model.denied, 4);
        model.check();
    }
}

#[test]
fn a_killed_program_leaves_a_whole_trace() {
    let Some(recorded) = Recording::of("killed") else { return };
    assert_eq!((recorded.summary.status, recorded.summary.exit_code()), (ExitStatus::Signal(9), 137));
    assert_eq!(
        recorded.events.last().map(|event| &event.kind),
        Some(&EventKind::Exit(ExitStatus::Signal(9)))
    );
}

#[test]
fn threads_that_are_alive_at_the_end_are_ended() {
    for recorded in Recording::in_both_ways("leaves_threads") {
        assert_eq!(recorded.summary.status, ExitStatus::Code(5));
        assert_eq!(
            recorded.count(|kind| matches!(kind, EventKind::Exit(_))) as u32,
            recorded.summary.threads
        );
        assert_eq!(recorded.count(|kind| matches!(kind, EventKind::Figures(_))), 1);
        Model::play(&recorded.events).check();
    }
}

#[test]
fn what_arguments_point_to_is_recorded() {
    for recorded in Recording::in_both_ways("details") {
        assert_eq!(recorded.summary.status, ExitStatus::Code(3));
        let limit = recorded.events.iter().find_map(|event| match event.kind {
            EventKind::Limit(limit) if limit.kind == LimitKind::Data => Some((limit.soft, limit.hard)),
            _ => None,
        });
        assert_eq!(limit, Some((1 << 30, 1 << 31)));
        let file = |is: FileKind| {
            recorded.calls(libc::SYS_mmap).find(|call| call.file().is_some_and(|f| f.kind == is))
        };
        let memory = file(FileKind::Memory).and_then(|call| call.file()).expect("the memfd was mapped");
        assert_eq!((&memory.name[..], memory.size), (&b"/memfd:some memory (deleted)"[..], 2 * PAGE as u64));
        assert!(memory.readable && memory.writable);
        assert_eq!(
            file(FileKind::BadDescriptor).and_then(quire_trace::event::Call::errno),
            Some(libc::EBADF)
        );
        assert!(file(FileKind::Regular).is_some(), "libraries are mapped");
        let details: Vec<&CallDetail> = recorded
            .events
            .iter()
            .filter_map(
                |event| if let EventKind::Call(call) = &event.kind { Some(&call.detail) } else { None },
            )
            .collect();
        assert!(details.contains(&&CallDetail::Resident { pages: 3 }));
        assert!(details.contains(&&CallDetail::Name(Some((*b"fine name").into()))));
        assert!(details.iter().any(|detail| matches!(detail, CallDetail::Mapped { bytes: 0x3000, .. })));
        let sites = details.iter().filter_map(|detail| match detail {
            CallDetail::Site { instruction, on_stack } => Some((*instruction, *on_stack)),
            _ => None,
        });
        assert!(sites.clone().count() > 0, "anonymous memory is mapped");
        assert!(sites.clone().all(|(instruction, _)| instruction != 0), "{:x?}", sites.collect::<Vec<_>>());
        let moved = recorded.calls(libc::SYS_mremap).any(|call| call.result as u64 != call.args[0]);
        assert!(moved, "a large block moves when it can not grow in place");
    }
}

#[test]
fn every_source_of_faults_finds_the_touched_pages() {
    for source in [FaultSource::Tracepoint, FaultSource::Software, FaultSource::Pagemap] {
        let only = |options: &mut RecordOptions| options.faults = FaultChoice::Only(source);
        let Some(recorded) = Recording::with("forks", only) else { continue };
        assert_eq!(recorded.summary.faults, source);
        // The eight pages that the child maps first and touches, in its own process.
        let mapped = recorded.calls(libc::SYS_mmap).filter(|call| call.args[1] == 8 * PAGE as u64).last();
        let start = mapped.expect("the child maps eight pages").result as u64;
        let written = |fault: &&Fault| (start..start + 8 * PAGE as u64).contains(&fault.addr);
        let written = recorded.faults().filter(written).count();
        assert!(written >= 8, "{}: {written}", source.name());
        if source != FaultSource::Pagemap {
            // First the eight, then what each process writes again after a fork.
            assert!(written >= 8 + 8 + 7 + 6, "{}: {written}", source.name());
            Model::play(&recorded.events).check();
        }
    }
}

#[test]
fn calls_of_another_abi_are_told() {
    let Some(recorded) = Recording::of("foreign") else { return };
    if recorded.summary.status != ExitStatus::Code(0) {
        return eprintln!("skipped: the kernel has no i386 calls");
    }
    assert_eq!(recorded.count(|kind| matches!(kind, EventKind::Unsupported(_))), 1);
}

/// A kernel without x32 refuses such calls, of whatever number. Nothing has changed then.
#[test]
fn calls_of_an_abi_that_the_kernel_does_not_have_are_no_gap() {
    let Some(recorded) = Recording::of("asks_by_x32") else { return };
    if recorded.summary.status != ExitStatus::Code(0) {
        return eprintln!("skipped: the kernel has x32 calls");
    }
    assert_eq!(recorded.count(|kind| matches!(kind, EventKind::Unsupported(_))), 0);
}

#[test]
fn stopping_at_every_call_records_the_same() {
    let sequence = |choice, source| {
        let recorded = Recording::with("forks", |options| options.calls = choice)?;
        let summary = &recorded.summary;
        assert_eq!((summary.status, summary.processes, summary.calls), (ExitStatus::Code(0), 5, source));
        Model::play(&recorded.events).check();
        let copies = recorded.count(|kind| matches!(kind, EventKind::Clone(facts) if !facts.shares_memory));
        let lengths: Vec<u64> = recorded.calls(libc::SYS_mmap).map(|call| call.args[1]).collect();
        Some((copies, lengths))
    };
    let all = sequence(CallChoice::EveryCall, CallSource::EveryCall);
    assert_eq!(sequence(CallChoice::Stops, CallSource::Seccomp), all);
    if let Some(without) = sequence(CallChoice::Tracepoints, CallSource::Seccomp) {
        assert_eq!(Some(without), all);
    }
}

#[test]
fn the_first_image_is_complete() {
    let Some(recorded) = Recording::of("nothing") else { return };
    let image = recorded.events.iter().find_map(|event| match &event.kind {
        EventKind::Exec(image) => Some(image),
        _ => None,
    });
    let image = image.unwrap();
    assert!(image.mappings.iter().any(|mapping| *mapping.name == *b"[stack]" && mapping.flags.has(*b"gd")));
    assert!(image.args.iter().any(|arg| **arg == *b"nothing"));
    assert!(image.max_map_count > 0 && image.brk >= image.start_brk && image.start_brk > 0);
    assert!(image.mappings.iter().any(|mapping| !mapping.resident.is_empty()));
    let base = image.mmap_base.expect("it can be asked for");
    // The first mapping of a program's own is placed right below all that exec has placed there.
    let first =
        recorded.calls(libc::SYS_mmap).find(|call| call.args[0] == 0 && call.errno().is_none()).unwrap();
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
    let file = Scratch::new("none");
    let path = file.path();
    let options = RecordOptions::new(vec!["/nowhere/quire-no-such-program".into()], path.to_path_buf());
    let Some(result) = permitted(record(&options)) else { return };
    let error = result.unwrap_err();
    assert_eq!(error.exit_code(), 127);
    assert!(error.to_string().contains("quire-no-such-program: No such file"), "{error}");
    assert!(!path.exists(), "no empty trace is left behind");
    // A file that cannot be executed, and an old trace that must not be harmed.
    std::fs::write(path, b"old").unwrap();
    let options = RecordOptions::new(vec!["/etc/passwd".into()], path.to_path_buf());
    let error = record(&options).unwrap_err();
    assert!(matches!(error, RecordError::Output(FileError::OtherFile { .. })), "{error}");
    let error = record(&RecordOptions { force: true, ..options }).unwrap_err();
    assert_eq!(error.exit_code(), 126);
    assert_eq!(std::fs::read(path).unwrap(), b"old");
    std::fs::remove_file(path).unwrap();
    let error = record(&RecordOptions::new(Vec::new(), path.to_path_buf())).unwrap_err();
    assert!(matches!(error, RecordError::Command(_)));
    let error = record(&RecordOptions::new(vec!["ls".into()], "/nowhere/x.qtr")).unwrap_err();
    assert!(matches!(error, RecordError::Output(FileError::Folder { .. })));
}
