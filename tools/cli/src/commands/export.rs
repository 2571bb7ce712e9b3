//! `quire export`.

use super::replay::{failure, prepared, refuse_pipe};
use crate::args::{ExportArguments, ExportFormat, MachineArguments};
use crate::failure::{FOUND_FAILURE, Failure};
use crate::output::{progress::Bar, warn};
use quire_output::Shown;
use quire_replay::{Counters, Moment};
use quire_report::perfetto::{Counted, Detail, Trace, Track};
use quire_report::trace_file;
use quire_trace::event::{Call, Event, EventKind, Fault, TaskId};
use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(arguments: &ExportArguments) -> Result<ExitCode, Failure> {
    let ExportFormat::Perfetto { file, output, salvage, machine } = &arguments.format;
    let place = trace_file(output)?;
    let (trace, good) = perfetto(file, machine, *salvage)?;
    place.write(&trace)?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(FOUND_FAILURE) })
}

/// The trace of a replay, and whether every result was Linux's.
fn perfetto(file: &Path, machine: &MachineArguments, salvage: bool) -> Result<(Vec<u8>, bool), Failure> {
    refuse_pipe(file)?;
    let (replay, mut options) = prepared(file, machine, salvage)?;
    options.life = true;
    let bar = Bar::new(&file.display().to_string(), "events");
    let mut export = Export::new(replay.needs().time_ns());
    let report = replay.with(options).run_watched(&mut |done, total| bar.set(done, total), &mut |moment| {
        export.look(&moment);
    });
    bar.finish();
    let report = report.map_err(failure)?;
    if let Some(finding) = &report.does_not_fit {
        warn(finding);
    }
    Ok((export.finish(), report.is_good()))
}

/// Times of which counters are taken, beside those of calls.
const LOOKS: u64 = 4096;
/// Calls whose counters are taken; of more, those so far apart.
const MOST_LOOKS: u64 = 65_536;
/// Page faults of a thread that are so close are one slice, in nanoseconds.
const CLOSE_NS: u64 = 100_000;

/// Counters of all programs, and where they are shown.
struct Tracks {
    anonymous: Track,
    resident: Track,
    page_tables: Track,
    swapped: Track,
    swap_ram: Track,
    major_faults: Track,
    free_blocks: Vec<Track>,
}

/// Page faults of one thread, one soon after the other.
#[derive(Clone, Copy)]
struct FaultBurst {
    from_ns: u64,
    to_ns: u64,
    count: u64,
    first: u64,
    last: u64,
}

/// A thread and its track.
struct Thread {
    pid: u32,
    tid: u32,
    name: String,
    track: Option<Track>,
    faults: Option<FaultBurst>,
}

/// A trace in progress.
struct Export {
    trace: Trace,
    tracks: Option<Tracks>,
    threads: HashMap<TaskId, Thread>,
    /// The last counters, and when they were read.
    last: Option<Counters>,
    major_faults: u64,
    looked_ns: u64,
    looked_apart_ns: u64,
    calls_apart_ns: u64,
}

impl Export {
    fn new(time_ns: u64) -> Self {
        Self {
            trace: Trace::default(),
            tracks: None,
            threads: HashMap::new(),
            last: None,
            major_faults: 0,
            looked_ns: 0,
            looked_apart_ns: time_ns / LOOKS,
            calls_apart_ns: time_ns / MOST_LOOKS,
        }
    }

    /// What an event did.
    fn look(&mut self, moment: &Moment<'_>) {
        let Event { time_ns, task, kind, .. } = moment.event;
        match kind {
            EventKind::Exec(image) => {
                let name = Shown::bytes(&image.program).to_string();
                self.end_faults(*task);
                // The first event of the trace is the root process's; later ones are of threads that are
                // known.
                let tid = self.threads.get(task).map_or(image.pid, |thread| thread.tid);
                self.begin_thread(*task, image.pid, tid, &name, true);
                self.instant(*task, *time_ns, "exec", &[("program", Detail::Text(name))]);
            }
            EventKind::Clone(clone) => {
                self.instant(
                    *task,
                    *time_ns,
                    if clone.same_process { "clone" } else { "fork" },
                    &[("child", Detail::Number(clone.child_tid.into()))],
                );
                let name = if clone.same_process { "thread" } else { "process" };
                self.begin_thread(clone.child, clone.child_pid, clone.child_tid, name, !clone.same_process);
            }
            EventKind::Call(call) => self.call(*task, *time_ns, call),
            EventKind::Fault(fault) => self.fault(*task, *time_ns, fault),
            EventKind::Exit(_) => {
                self.instant(*task, *time_ns, "exit", &[]);
                self.end_faults(*task);
            }
            _ => {}
        }
        let apart =
            if matches!(kind, EventKind::Fault(_)) { self.looked_apart_ns } else { self.calls_apart_ns };
        if self.last.is_none() || *time_ns >= self.looked_ns + apart {
            self.looked_ns = *time_ns;
            self.count(*time_ns, moment.counters(), moment.major_faults());
        }
    }

    fn begin_thread(&mut self, task: TaskId, pid: u32, tid: u32, name: &str, is_process: bool) {
        if is_process {
            self.trace.process(pid, name);
        }
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        self.threads.insert(task, Thread { pid, tid, name, track: None, faults: None });
    }

    fn track(&mut self, task: TaskId) -> Option<Track> {
        let thread = self.threads.get_mut(&task)?;
        let trace = &mut self.trace;
        Some(*thread.track.get_or_insert_with(|| trace.thread(thread.pid, thread.tid, &thread.name)))
    }

    fn instant(&mut self, task: TaskId, time_ns: u64, name: &str, details: &[(&str, Detail)]) {
        if let Some(track) = self.track(task) {
            self.trace.instant(track, time_ns, name, "call", details);
        }
    }

    /// A recording has the moment of a call and not how long it took.
    fn call(&mut self, task: TaskId, time_ns: u64, call: &Call) {
        self.end_faults(task);
        let [first, second, ..] = call.args;
        let result = match call.errno() {
            Some(errno) => Detail::Text(format!("errno {errno}")),
            None => Detail::Address(call.result as u64),
        };
        let details = [
            ("argument 1", Detail::Address(first)),
            ("argument 2", Detail::Number(second)),
            ("result", result),
        ];
        self.instant(task, time_ns, &Moment::call_name(call.number), &details);
    }

    fn fault(&mut self, task: TaskId, time_ns: u64, fault: &Fault) {
        let Some(thread) = self.threads.get_mut(&task) else { return };
        if let Some(faults) = thread.faults.as_mut().filter(|faults| time_ns <= faults.to_ns + CLOSE_NS) {
            (faults.to_ns, faults.count, faults.last) =
                (time_ns.max(faults.to_ns), faults.count + 1, fault.addr);
            return;
        }
        self.end_faults(task);
        let began =
            FaultBurst { from_ns: time_ns, to_ns: time_ns, count: 1, first: fault.addr, last: fault.addr };
        if let Some(thread) = self.threads.get_mut(&task) {
            thread.faults = Some(began);
        }
    }

    fn end_faults(&mut self, task: TaskId) {
        let Some(faults) = self.threads.get_mut(&task).and_then(|thread| thread.faults.take()) else {
            return;
        };
        let Some(track) = self.track(task) else { return };
        let name = if faults.count == 1 { "page fault" } else { "page faults" };
        let details = [
            ("count", Detail::Number(faults.count)),
            ("first address", Detail::Address(faults.first)),
            ("last address", Detail::Address(faults.last)),
        ];
        self.trace.slice(track, (faults.from_ns, faults.to_ns), name, "fault", &details);
    }

    /// Counters that changed.
    fn count(&mut self, time_ns: u64, now: Counters, major_faults: u64) {
        let trace = &mut self.trace;
        let tracks = self.tracks.get_or_insert_with(|| {
            let mut bytes = |name: &str| trace.counter(name, Counted::Bytes, None);
            let (anonymous, resident) = (bytes("Anonymous memory"), bytes("Resident memory"));
            let (page_tables, swapped) = (bytes("Page tables"), bytes("Pages in swap"));
            let swap_ram = bytes("RAM that swap takes");
            let major_faults = trace.counter("Major page faults", Counted::Things, None);
            let free_blocks = (0..now.free_blocks.len())
                .map(|order| {
                    trace.counter(&format!("Free blocks of {} KiB", 4 << order), Counted::Things, None)
                })
                .collect();
            Tracks { anonymous, resident, page_tables, swapped, swap_ram, major_faults, free_blocks }
        });
        let last = self.last.as_ref();
        let mut tell = |track: Track, value: u64, before: Option<u64>| {
            if before != Some(value) {
                trace.count(track, time_ns, value);
            }
        };
        tell(tracks.anonymous, now.anonymous, last.map(|last| last.anonymous));
        tell(tracks.resident, now.resident, last.map(|last| last.resident));
        tell(tracks.page_tables, now.page_tables, last.map(|last| last.page_tables));
        tell(tracks.swapped, now.swapped, last.map(|last| last.swapped));
        tell(tracks.swap_ram, now.swap_ram, last.map(|last| last.swap_ram));
        tell(tracks.major_faults, major_faults, last.map(|_| self.major_faults));
        for (order, (&track, &blocks)) in tracks.free_blocks.iter().zip(&now.free_blocks).enumerate() {
            tell(track, blocks, last.map(|last| last.free_blocks[order]));
        }
        self.last = Some(now);
        self.major_faults = major_faults;
    }

    fn finish(mut self) -> Vec<u8> {
        let mut tasks: Vec<TaskId> = self.threads.keys().copied().collect();
        tasks.sort_unstable();
        tasks.into_iter().for_each(|task| self.end_faults(task));
        self.trace.finish()
    }
}
