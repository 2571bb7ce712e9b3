//! Tracing a program on this machine.
//!
//! [`record`] starts the program, traces it and all its children with ptrace, takes page faults from perf
//! events, and writes both, in one order, to a trace.
//!
//! # Modules, lowest first
//!
//! - `error`: why a recording failed.
//! - `options`: what to record, and how.
//! - `summary`: what a recording did.
//! - `calls`: which calls are recorded, and how each affects the order of events.
//! - `ranges`: the pages that a call's raw arguments refer to.
//! - `seccomp`: the filter that stops a program at memory calls only.
//! - `shown_limit`: another memory limit in the files in which the program reads its own.
//! - `target`: the file that a recording is written to.
//! - `sys`: thin safe wrappers around system calls.
//! - `launch`: starting the program.
//! - `opened`: whether the program opens certain files.
//! - `output`: writing the trace on a thread of its own.
//! - `proc`: what `/proc` says about processes and the machine.
//! - `files`: mapped files: how long they are, and what of them is cached.
//! - `perf`: page faults, calls and changes of the page cache from perf events.
//! - `merge`: putting calls and page faults into one order.
//! - `tracer`: tracing threads: the stops of each, and how they are handled.

mod calls;
mod error;
mod files;
mod launch;
mod merge;
mod opened;
mod options;
mod output;
mod perf;
mod proc;
mod ranges;
mod seccomp;
mod shown_limit;
mod summary;
mod sys;
mod target;
mod tracer;

pub use error::RecordError;
pub use options::{CallChoice, FaultChoice, RecordOptions, RecordTarget, ShownLimit};
pub use ranges::{PageRange, pages_after_call, pages_before_call};
pub use summary::{FilesSummary, PageSource, PressureSummary, RecordSummary, SAMPLE_NS};

use launch::{Child, Outer, ThpOff};
use nix::sys::signal::Signal;
use output::Output;
use perf::PerfSession;
use proc::system;
use quire_trace::format::{CallSource, FaultSource, HostSettings, TraceHeader, UseSource};
use seccomp::Stops;
use shown_limit::LimitMounts;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use sys::signals::SignalGuard;
use sys::time::{now, thread_cpu};
use sys::{Tid, memory, process, ptrace, signals};
use target::Target;
use tracer::{Attached, TraceResult, Tracer};

/// Records a program until it, and every process that it started, has ended.
///
/// The program has the standard input and outputs of the caller, and gets the signals that the terminal
/// sends. If the recorder's process dies, the program is killed: otherwise it would run on, and its
/// memory calls would fail. The first SIGINT, SIGTERM or SIGHUP is the program's; after a second one, or one
/// that comes when the program has ended and processes of it have not, the recorder detaches from all
/// processes and ends with what it has.
pub fn record(options: &RecordOptions) -> Result<RecordSummary, RecordError> {
    if options.command.is_empty() {
        return Err(RecordError::Command("no command was given"));
    }
    // A thread of its own: waiting for children is per thread, so that the caller may have others.
    let blocked = signals::Blocked::new();
    let thread = std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("quire-tracer".into());
        let follow = || {
            blocked.undo_in_this_thread();
            follow(options)
        };
        builder.spawn_scoped(scope, follow).map(std::thread::ScopedJoinHandle::join)
    });
    match thread {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(RecordError::Broken),
        Err(source) => Err(RecordError::Start { source }),
    }
}

/// Bytes of RAM and of swap space that this host has.
#[must_use]
pub fn host_memory() -> (u64, u64) {
    system::memory()
}

fn follow(options: &RecordOptions) -> Result<RecordSummary, RecordError> {
    let target = Target::open(options)?;
    let seen = signals::seen();
    let signals = SignalGuard::install();
    let to_stderr = options.stdout_is_taken || matches!(options.output, RecordTarget::Stdout);
    let shown = options.shown_limit.as_ref().map(LimitMounts::prepare).transpose();
    let shown = shown.map_err(|source| RecordError::ShownLimit { source })?;
    let outer = Outer { stdin: options.stdin.as_deref(), to_stderr, signals: &signals.saved() };
    let mut child = Child::start(&options.command, &outer, shown.as_ref())?;
    let pid = child.pid;
    let result = follow_child(options, &mut child).and_then(|attached| {
        let started = now();
        let header = header(options, &attached);
        let output = target.file().and_then(|file| Output::start(file, header, options.level));
        let output = output.map_err(|source| RecordError::Start { source })?;
        let followed = Tracer::new(pid, attached, &output, options, started).run(child)?;
        Ok((followed, output))
    });
    match result {
        Ok((TraceResult { exec_error: Some(source), .. }, output)) => {
            drop(output);
            let program = options.command[0].to_string_lossy().into_owned();
            Err(RecordError::Exec { program, source })
        }
        Ok((followed, output)) => {
            let mut summary = finish(followed.summary, output, target)?;
            drop(signals);
            // One that came while the recording was written, too: from here on they are the caller's.
            let late = signals::new_since(&seen).map(|place| signals::NOTED[place] as u8);
            summary.interrupted = summary.interrupted.or(late);
            Ok(summary)
        }
        Err(error) => {
            // The child has not executed yet; it must not do so untraced.
            signals::send(pid, Signal::SIGKILL);
            Err(error)
        }
    }
}

/// Prepares the tracing of the child: ptrace, page faults, huge pages and filter, in this order.
fn follow_child(options: &RecordOptions, child: &mut Child) -> Result<Attached, RecordError> {
    ptrace::seize(child.pid).map_err(|source| RecordError::Ptrace { source })?;
    if options.shown_limit.is_some() {
        child.show_limit().map_err(|source| RecordError::ShownLimit { source })?;
    }
    let Sources { mut perf, faults, mut without_stops } = open_sources(options, child.pid)?;
    if options.pressure.is_some() {
        check_pressure(child.pid, perf.is_some())?;
    }
    let thp_off = if options.thp { None } else { turn_thp_off(options, child) };
    let wanted = options.calls != CallChoice::EveryCall;
    let stops = if without_stops { Stops::WhereMoreIsRead } else { Stops::All };
    let filtered = wanted && child.install_filter(stops).map_err(|source| RecordError::Start { source })?;
    let calls = if filtered { CallSource::Seccomp } else { CallSource::EveryCall };
    if wanted && !filtered {
        (options.notify)(
            "seccomp filters are not permitted here: the program stops at every call, which is slow",
        );
        if std::mem::take(&mut without_stops) {
            let open = PerfSession::open(child.pid, faults, false);
            perf = Some(open.map_err(|source| RecordError::Start { source })?);
        }
    }
    Ok(Attached { perf, calls, without_stops, faults, thp_off })
}

/// Whether pages can be paged out, and their refaults are seen.
fn check_pressure(pid: Tid, sees_faults: bool) -> Result<(), RecordError> {
    if !sees_faults {
        return Err(RecordError::Pressure(
            "page faults cannot be obtained from perf, so that uses of pages are not seen; run as root, or set \
             kernel.perf_event_paranoid to 1 or less",
        ));
    }
    if system::memory().1 == 0 {
        return Err(RecordError::Pressure("this host has no swap space; set up some, such as zram"));
    }
    if !memory::may_page_out(pid) {
        return Err(RecordError::Pressure(
            "process_madvise(MADV_PAGEOUT) is not permitted; run as root (CAP_SYS_NICE)",
        ));
    }
    Ok(())
}

/// Turns transparent huge pages off for the program; if that fails, they stay as the host has them.
fn turn_thp_off(options: &RecordOptions, child: &mut Child) -> Option<ThpOff> {
    let done = child.turn_thp_off();
    if let Err(error) = &done {
        (options.notify)(&format!(
            "transparent huge pages cannot be turned off ({error}): a fault that maps one hides which of its pages are \
             touched"
        ));
    }
    done.ok()
}

/// Where page faults come from, and whether calls come from there, too.
struct Sources {
    perf: Option<PerfSession>,
    faults: FaultSource,
    without_stops: bool,
}

/// Opens the best source of page faults that is permitted, with calls if it can provide them.
fn open_sources(options: &RecordOptions, pid: Tid) -> Result<Sources, RecordError> {
    // The paged-out pages must be those that the trace has by then, so no call may be made
    // meanwhile.
    let may_go_on = options.pressure.is_none();
    let wanted = matches!(options.calls, CallChoice::Auto | CallChoice::Tracepoints) && may_go_on;
    let from_tracepoints =
        matches!(options.faults, FaultChoice::Auto | FaultChoice::Only(FaultSource::Tracepoint));
    let mut why = match may_go_on {
        true => "page faults must come from tracepoints, too".to_owned(),
        false => "with --pressure programs must stop".to_owned(),
    };
    if wanted && from_tracepoints {
        match PerfSession::open(pid, FaultSource::Tracepoint, true) {
            Ok(session) => {
                let (perf, faults) = (Some(session), FaultSource::Tracepoint);
                return Ok(Sources { perf, faults, without_stops: true });
            }
            Err(error) => why = error.to_string(),
        }
    }
    if options.calls == CallChoice::Tracepoints {
        return Err(RecordError::Calls { why });
    }
    let (perf, faults) = open_faults(options, pid)?;
    Ok(Sources { perf, faults, without_stops: false })
}

/// Opens the best source of page faults that is permitted.
fn open_faults(options: &RecordOptions, pid: Tid) -> Result<(Option<PerfSession>, FaultSource), RecordError> {
    let wanted = match options.faults {
        FaultChoice::Only(FaultSource::Pagemap | FaultSource::None) => {
            return Ok((None, FaultSource::Pagemap));
        }
        FaultChoice::Only(wanted) => vec![wanted],
        FaultChoice::Auto => vec![FaultSource::Tracepoint, FaultSource::Software],
    };
    let mut failed = None;
    for source in wanted {
        match PerfSession::open(pid, source, false) {
            Ok(session) => return Ok((Some(session), source)),
            Err(error) => failed = Some((source, error)),
        }
    }
    let (wanted, source) =
        failed.unwrap_or((FaultSource::Software, io::Error::from_raw_os_error(libc::ENOSYS)));
    if options.faults != FaultChoice::Auto {
        return Err(RecordError::Faults { wanted: wanted.name(), source });
    }
    // It is refused with that reason.
    if options.pressure.is_some() {
        return Ok((None, FaultSource::Pagemap));
    }
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    (options.notify)(&format!(
        "page faults cannot be obtained from perf ({source}): touched pages are learnt from pagemap, without their \
         order; for exact faults run as root, or set kernel.perf_event_paranoid to 1 or less (now {})",
        level.trim()
    ));
    Ok((None, FaultSource::Pagemap))
}

fn header(options: &RecordOptions, attached: &Attached) -> TraceHeader {
    let (kernel, machine) = system::kernel();
    let (ram, swap) = system::memory();
    TraceHeader {
        recorder: env!("CARGO_PKG_VERSION").to_owned(),
        kernel,
        machine,
        page_size: 4096,
        cpus: system::cpus().len() as u32,
        ram,
        swap,
        faults: attached.faults,
        calls: attached.calls,
        uses: match (options.pressure, options.reuse) {
            (Some(_), _) => UseSource::Pressure,
            (None, Some(every)) => {
                UseSource::Sampled { interval_ms: u32::try_from(every.as_millis()).unwrap_or(u32::MAX) }
            }
            (None, None) => UseSource::None,
        },
        settings: Some(HostSettings {
            thp_turned_off: attached.thp_off.is_some(),
            thp_disable: process::thp_disable(),
            thp_files: system::thp_files(),
            randomize_va_space: system::sysctl("kernel/randomize_va_space"),
            no_randomize: process::no_randomize(),
        }),
        pressure: options.pressure,
        shown_limit: options.shown_limit.as_ref().map(|shown| shown.bytes),
        fault_around: system::fault_around().unwrap_or(TraceHeader::default().fault_around),
        read_ahead: system::read_ahead(&options.command[0]),
        started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        command: options.command.iter().map(|word| word.as_bytes().into()).collect(),
    }
}

fn finish(mut summary: RecordSummary, output: Output, target: Target) -> Result<RecordSummary, RecordError> {
    let early = summary.released.is_some();
    let [wall_ns, stopped_ns] = [summary.wall, summary.stopped].map(|time| time.as_nanos() as u64);
    let written = output.finish(wall_ns, stopped_ns, early)?.ok_or(RecordError::Broken)?;
    target.name()?;
    summary.recorder_cpu = Duration::from_nanos(thread_cpu() + written.cpu_ns);
    (summary.bytes, summary.totals) = (written.bytes, written.totals);
    Ok(summary)
}
