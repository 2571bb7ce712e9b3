//! Recordings of programs on this machine: those of `tests/programs`, and others.

#![allow(dead_code, reason = "each of the test programs uses a part of this")]

use quire_record::{CallChoice, RecordError, RecordOptions, RecordSummary, record};
use quire_replay::{Replay, ReplayOptions, ReplayReport};
use quire_trace::event::{Call, Event, EventKind, Fault};
use quire_trace::format::TraceReader;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The program that has all the programs of `tests/programs`.
pub(crate) const PROGRAMS: &str = env!("CARGO_BIN_EXE_quire-record-programs");

/// A file that is gone when the test is over, unless `QUIRE_KEEP` is set.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("quire-trace-{name}-");
        // The name only: some tests look whether there is a file.
        let made = tempfile::Builder::new().prefix(&name).suffix(".qtr").make(|_| Ok(()));
        Self(made.unwrap().into_temp_path().keep().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// All events of the recording that the file is.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut reader = TraceReader::open(&self.0).unwrap_or_else(|error| panic!("{error}"));
        let events: Result<Vec<Event>, _> = (&mut reader).collect();
        let events = events.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(reader.trailer().unwrap().events, events.len() as u64);
        // What is known of its files stands before the first image.
        let first = events.iter().find(|event| !matches!(event.kind, EventKind::File(_)));
        assert!(first.is_some_and(|event| matches!(event.kind, EventKind::Exec(_))), "{first:?}");
        events
    }

    pub(crate) fn replay(&self, options: ReplayOptions) -> ReplayReport {
        let replay = Replay::open(&self.0, options).unwrap_or_else(|error| panic!("{error}"));
        replay.run(&mut |_, _| {}).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Replays the recording, and expects no difference from Linux.
    pub(crate) fn assert_replays(&self) -> ReplayReport {
        let report = self.replay(ReplayOptions::default());
        assert!(report.is_good(), "{report:#?}");
        report
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::env::var_os("QUIRE_KEEP").is_none() {
            drop(std::fs::remove_file(&self.0));
        }
    }
}

/// A program's recording.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) summary: RecordSummary,
    pub(crate) events: Vec<Event>,
    pub(crate) file: Scratch,
}

impl Recording {
    /// Records one of the programs. `None`, with a message, where this machine lets us follow no program.
    pub(crate) fn of(program: &str) -> Option<Self> {
        Self::with(program, |_| {})
    }

    /// Records one of the programs twice, each way where it is permitted: without a stop at the calls that
    /// tracepoints tell of, and with stops at all memory calls.
    pub(crate) fn in_both_ways(program: &str) -> impl Iterator<Item = Self> {
        let ways = [CallChoice::Tracepoints, CallChoice::Stops].into_iter();
        ways.filter_map(move |way| Self::with(program, |options| options.calls = way))
    }

    /// Records one of the programs with other options. `None` also if the source of page faults is not
    /// permitted here.
    pub(crate) fn with(program: &str, change: impl FnOnce(&mut RecordOptions)) -> Option<Self> {
        Self::of_command(&[PROGRAMS, program], change)
    }

    /// Records any command in the same way.
    pub(crate) fn of_command(command: &[&str], change: impl FnOnce(&mut RecordOptions)) -> Option<Self> {
        let file = Scratch::new("recording");
        let command = command.iter().map(OsString::from).collect();
        let mut options = RecordOptions::new(command, file.path().to_path_buf());
        change(&mut options);
        let summary = permitted(record(&options))?.unwrap_or_else(|error| panic!("{error}"));
        Some(Self { summary, events: file.events(), file })
    }

    /// How many events are of this kind.
    pub(crate) fn count(&self, is: impl Fn(&EventKind) -> bool) -> usize {
        self.events.iter().filter(|event| is(&event.kind)).count()
    }

    /// The recorded calls with this number.
    pub(crate) fn calls(&self, number: i64) -> impl Iterator<Item = &Call> + Clone {
        self.events.iter().filter_map(move |event| match &event.kind {
            EventKind::Call(call) if i64::from(call.number) == number => Some(call),
            _ => None,
        })
    }

    pub(crate) fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.events.iter().filter_map(|event| match &event.kind {
            EventKind::Fault(fault) => Some(fault),
            _ => None,
        })
    }

    pub(crate) fn assert_each_thread_ends_once(&self) {
        let born = self.count(|kind| matches!(kind, EventKind::Clone(_)));
        let ended = self.count(|kind| matches!(kind, EventKind::Exit(_)));
        assert_eq!(ended, born + 1, "each thread ends once, and the first was not born");
    }
}

/// `None`, with a message, if what was asked for is not permitted on this machine.
pub(crate) fn permitted<T>(result: Result<T, RecordError>) -> Option<Result<T, RecordError>> {
    if let Err(
        error @ (RecordError::Ptrace { .. }
        | RecordError::Faults { .. }
        | RecordError::Calls { .. }
        | RecordError::ShownLimit { .. }),
    ) = result
    {
        eprintln!("skipped: {error}");
        return None;
    }
    Some(result)
}
