//! Runs a program and traces all its processes.
//!
//! Three threads: the launcher, which starts the program; the tracer, which gets a ptrace stop at each
//! start, `exec` and end; and the sampler, which reads how much memory there is every two milliseconds.

mod folios;
mod huge;
mod launch;
mod peaks;
mod proc;
mod ptrace;
pub(crate) mod quiet;

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, setpriority_process};

use crate::counters::HostCounters;
use crate::error::MeasureError;
use crate::limit::{LimitTruth, Limited};
use crate::truth::{Options, Truth};
use huge::HugeFaults;
use launch::Launch;
use peaks::Peaks;
pub(crate) use peaks::processor_time;
pub(crate) use proc::Status;
use ptrace::Stop;
use quiet::Quiet;

/// Runs `command` and returns what it used, with all processes that it starts, when the last of them has
/// ended. Input and output are as the command says. It ends with this process.
///
/// # Errors
///
/// The program cannot be started or traced, it ran longer than it may, or its limit cannot be set up or taken
/// away.
pub fn measure(command: Command, options: &Options) -> Result<Truth, MeasureError> {
    let _quiet = Quiet::start();
    let program = command.get_program().to_string_lossy().into_owned();
    let page = rustix::param::page_size() as u64;
    let limited = options.limit.as_ref().map(Limited::start).transpose()?;
    let entrance = limited.as_ref().map(Limited::entrance).transpose()?;
    let before = HostCounters::now();
    let peaks = Mutex::new(Peaks::new(page, options.folios, limited));
    let run = Run { peaks: &peaks, over: &AtomicBool::new(false), late: &AtomicBool::new(false) };
    let traced = thread::scope(|scope| {
        let tracer = scope.spawn(|| run.trace(command, options, entrance, &program));
        let sampler = scope.spawn(|| run.sample(options));
        let traced = tracer.join();
        // Pairs with the acquiring load of the sampler.
        run.over.store(true, Ordering::Release);
        sampler.thread().unpark();
        traced
    });
    let Ok(traced) = traced else {
        return Err(MeasureError::system("the tracer", io::Error::other("it panicked")));
    };
    let end = traced?;
    let late = run.late.load(Ordering::Relaxed);
    let host = HostCounters::now().since(&before);
    let mut peaks = peaks.into_inner().unwrap_or_else(PoisonError::into_inner);
    let limited = peaks.limited.take().map(Limited::finish).transpose()?;
    if let (true, Some(after)) = (late, options.timeout) {
        return Err(match limited {
            Some(LimitTruth { oom_kills: kills @ 1.., .. }) => MeasureError::Killed { after, kills },
            _ => MeasureError::Timeout(after),
        });
    }
    let at_peak = peaks.at_peak.take();
    let mut truth = Truth {
        status: end.status,
        wall: end.wall,
        stopped: end.stopped,
        user: peaks.usage.user,
        system: peaks.usage.system,
        minor_faults: peaks.usage.minor_faults,
        major_faults: peaks.usage.major_faults,
        peak_anonymous: 0,
        peak_anonymous_all: peaks.anonymous_all,
        peak_anonymous_once: peaks.once,
        mean_anonymous_once: peaks.mean.get(),
        end_anonymous_once: peaks.end,
        peak_resident: 0,
        peak_resident_all: peaks.resident_all,
        peak_page_tables: 0,
        peak_page_tables_all: peaks.page_tables_all,
        unseen: peaks.unseen,
        at_peak,
        limited,
        huge_faults: end.huge_faults,
        host,
        samples: peaks.samples,
        longest_gap: peaks.longest_gap,
        processes: peaks.into_processes(),
    };
    for process in &truth.processes {
        truth.peak_anonymous = truth.peak_anonymous.max(process.peak_anonymous);
        truth.peak_resident = truth.peak_resident.max(process.peak_resident);
        truth.peak_page_tables = truth.peak_page_tables.max(process.peak_page_tables);
    }
    Ok(truth)
}

/// A measurement that runs.
#[derive(Clone, Copy)]
struct Run<'a> {
    peaks: &'a Mutex<Peaks>,
    /// The last process has ended.
    over: &'a AtomicBool,
    /// The program was killed, since it ran too long.
    late: &'a AtomicBool,
}

/// How it ended.
struct End {
    status: ExitStatus,
    wall: Duration,
    stopped: Duration,
    huge_faults: Option<u64>,
}

impl<'a> Run<'a> {
    fn peaks(self) -> MutexGuard<'a, Peaks> {
        self.peaks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the program and traces its processes until there is none.
    fn trace(
        self,
        command: Command,
        options: &Options,
        entrance: Option<File>,
        program: &str,
    ) -> Result<End, MeasureError> {
        let failed = |why| MeasureError::Start { program: program.to_owned(), why };
        let launch = Launch::start(command, options.thp_disabled, entrance).map_err(failed)?;
        let root = launch.pid();
        if let Err(why) = ptrace::seize(root) {
            launch.cancel();
            return Err(MeasureError::Trace(why));
        }
        let counter = options.huge_faults.then(|| HugeFaults::of(root, rustix::param::page_size() as u64));
        // Where it is not permitted there is only the host's count.
        let mut counter = counter.and_then(Result::ok);
        hurry();
        self.peaks().launched(root);
        let started = Instant::now();
        launch.release();
        let mut end = None;
        let mut stopped = Duration::ZERO;
        while let Some(stop) = ptrace::wait().map_err(MeasureError::Trace)? {
            let since = Instant::now();
            match stop.stop {
                Stop::Attached => self.peaks().started(stop.thread),
                Stop::Exec => self.peaks().replaced(stop.thread),
                Stop::Fork => self.peaks().forks(),
                Stop::Ending => self.peaks().ends(stop.thread),
                Stop::Halted | Stop::Signal(_) => {}
                Stop::Gone(status) => {
                    self.peaks().gone(stop.thread, stop.usage);
                    if stop.thread == root {
                        end = Some((ExitStatus::from_raw(status), started.elapsed()));
                    }
                    continue;
                }
            }
            ptrace::resume(stop.thread, stop.stop);
            stopped += since.elapsed();
        }
        launch.finish().map_err(failed)?;
        let (status, wall) = end
            .ok_or_else(|| MeasureError::Trace(io::Error::other("another process waited for the program")))?;
        let huge_faults = counter.as_mut().and_then(|counter| counter.count().ok());
        Ok(End { status, wall, stopped, huge_faults })
    }

    /// Samples periodically, and kills programs that run for too long.
    fn sample(self, options: &Options) {
        hurry();
        let started = Instant::now();
        let mut next = started;
        // Pairs with the releasing store when the tracer has been joined.
        while !self.over.load(Ordering::Acquire) {
            let mut peaks = self.peaks();
            peaks.sample();
            if options.timeout.is_some_and(|timeout| started.elapsed() > timeout) {
                self.late.store(true, Ordering::Relaxed);
                // None of them can have been waited for, and its pid reused: that takes the lock.
                for pid in peaks.running().filter_map(Pid::from_raw) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            drop(peaks);
            // After a late sample not several at once.
            next = (next + options.sample_every).max(Instant::now());
            thread::park_timeout(next.saturating_duration_since(Instant::now()));
        }
    }
}

/// Runs this thread before others: it needs little, and on a busy host it would come late. Only root may.
fn hurry() {
    let _ = setpriority_process(None, -20);
}
