//! Recordings that `quire advise` makes of a command.

use super::at_once;
use super::input::{Input, failed};
use super::record::{not_recorded, pressure, swap_to_keep};
use crate::args::AdviseArguments;
use crate::failure::Failure;
use crate::interrupt::with_signals_blocked;
use crate::output::warn;
use quire_advise::{LimitSetting, Need, need};
use quire_measure::{Costs, HostSwap, limit_files};
use quire_output::temporary_file;
use quire_record::{RecordError, RecordOptions, RecordTarget, ShownLimit, record};
use quire_trace::format::{HostSettings, Pressure, TraceReader};
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Under pressure this share of the peak of anonymous memory stays resident: half of the smallest limit that
/// is tried for every program.
const PRESSURE_PERCENT: u64 = 25;
/// The least that stays resident.
const LEAST_PRESSURE: u64 = 1 << 20;
/// From this peak on one block in so many is paged out that about half of it is: a program of gigabytes would
/// be slowed many times.
const SAMPLED_PEAK: u64 = 512 << 20;
/// A program that takes so many times as long under pressure is recorded so once.
const TOO_SLOW: f64 = 4.0;

/// While a recording under pressure goes on it is told when it took so many times as long as the program, and
/// at least so long.
const TELLS_SLOW: f64 = 10.0;
const LEAST_SLOW: Duration = Duration::from_secs(2);

/// Does `work`, and calls `warn_slow` while it still goes on after `time`.
fn warning_if_slow<T>(time: Duration, warn_slow: impl FnOnce() + Send, work: impl FnOnce() -> T) -> T {
    let (ended, end) = mpsc::channel::<()>();
    let wait = move || {
        if end.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
            warn_slow();
        }
    };
    thread::scope(|scope| {
        let spawn = || thread::Builder::new().name("quire-slow".into()).spawn_scoped(scope, wait);
        // Without the thread only the warning is missing.
        let _ = with_signals_blocked(spawn);
        let done = work();
        drop(ended);
        done
    })
}

/// Recordings of one command.
pub(super) struct Recordings {
    pub(super) files: Vec<PathBuf>,
    /// Those that were made here have no names: they exist until all is replayed.
    open: Vec<Arc<File>>,
    /// The file in which the command read its memory limit, if it did.
    opened: Option<PathBuf>,
    /// Each run of the command has all of it.
    input: Input,
    /// The host's settings in the first run, once that was made.
    settings: Option<Option<HostSettings>>,
}

/// How often a run is made again.
const MOST_TRIES: u32 = 5;

/// The settings of the host that a recording was made on.
fn settings_of(file: &Path) -> Result<Option<HostSettings>, Failure> {
    Ok(TraceReader::open(file).map_err(Failure::input)?.header().settings.clone())
}

/// How a command is recorded.
#[derive(Clone, Copy, Default)]
struct Way {
    pressure: Option<Pressure>,
    /// The memory limit that it is shown.
    limit: Option<u64>,
}

impl Recordings {
    /// Those in these files; each run of the command has this input.
    pub(super) fn of(files: Vec<PathBuf>, input: Input) -> Self {
        Self { files, open: Vec::new(), opened: None, input, settings: None }
    }

    /// The standard input of a run that is not recorded.
    pub(super) fn stdio(&self) -> io::Result<Stdio> {
        self.input.stdio()
    }

    /// All runs that are not recorded have ended.
    pub(super) fn end_input(&self) -> Result<(), Failure> {
        self.input.end().map_err(failed)
    }

    /// Records the command so many times. Returns how long it ran the first time.
    pub(super) fn record(&mut self, command: &[OsString], runs: u16) -> Result<Duration, Failure> {
        let mut first = None;
        for run in 1..=runs {
            let wall =
                self.record_once(command, Way::default(), run)?.map_err(|error| not_recorded(error, None))?;
            first.get_or_insert(wall);
        }
        Ok(first.unwrap_or_default())
    }

    /// Records it as often under pressure, so that it is known what memory limits cost; once if it takes much
    /// longer than `plain` then. Where that cannot be done, the advice goes without.
    pub(super) fn record_under_pressure(
        &mut self,
        arguments: &AdviseArguments,
        plain: Duration,
    ) -> Result<(), Failure> {
        let need = need(&self.files, at_once(arguments.jobs), Costs::kept().as_ref())?;
        let peak = need.anonymous;
        let bytes = (peak * PRESSURE_PERCENT / 100).max(LEAST_PRESSURE);
        let usual = (peak / (SAMPLED_PEAK / 2)).clamp(1, 4096).next_power_of_two() as u32;
        let one_in = arguments.sample.unwrap_or(usual);
        let part =
            if one_in == 1 { "all of its memory".to_owned() } else { format!("one block of {one_in}") };
        let goes_without = |why: &dyn fmt::Display| {
            warn(format_args!("what memory limits cost is not predicted: {why}"));
        };
        // Until the last recording ends.
        let swap = match swap_to_keep() {
            Ok(swap) => swap,
            Err(error) => {
                goes_without(&error.line());
                return Ok(());
            }
        };
        let mut runs = 0;
        for run in 1..=arguments.runs {
            let way = Way { pressure: Some(pressure(bytes, one_in)), limit: None };
            let warn_slow = || {
                warn(format_args!(
                    "this recording has taken over {TELLS_SLOW} times as long as the program; --quick goes \
                     without, --sample N slows it less"
                ));
            };
            let slow = plain.mul_f64(TELLS_SLOW).max(LEAST_SLOW);
            match warning_if_slow(slow, warn_slow, || self.record_once(&arguments.command, way, run))? {
                Ok(wall) => {
                    let [plain, pressed] = [plain, wall].map(|time| time.as_secs_f64());
                    warn(format_args!(
                        "recorded under pressure in {pressed:.1} s, {:.1} times as long as without (on {part}; \
                         --sample N slows it less)",
                        pressed / plain.max(1e-3)
                    ));
                    runs = run;
                    if pressed > plain * TOO_SLOW {
                        break;
                    }
                }
                Err(RecordError::Pressure(why)) => {
                    goes_without(&why);
                    break;
                }
                Err(error) => return Err(not_recorded(error, None)),
            }
        }
        if runs > 0 {
            self.record_with_limits(&arguments.command, runs, need, || pressure(bytes, one_in))?;
        }
        swap.map_or(Ok(()), HostSwap::finish).map_err(Failure::work)
    }

    /// Records a command that read its memory limit so many times with each limit that is tried.
    fn record_with_limits(
        &mut self,
        command: &[OsString],
        runs: u16,
        need: Need,
        pressure: impl Fn() -> Pressure,
    ) -> Result<(), Failure> {
        let Some(file) = &self.opened else { return Ok(()) };
        warn(format_args!(
            "the program read its memory limit in {}, and may size itself by it: it is recorded again with each \
             limit that is tried",
            file.display()
        ));
        for limit in LimitSetting::tried(need) {
            for run in 1..=runs {
                let way = Way { pressure: Some(pressure()), limit: Some(limit) };
                match self.record_once(command, way, run)? {
                    Ok(_) => {}
                    Err(error @ RecordError::ShownLimit { .. }) => {
                        warn(format_args!("{error}; its limits are predicted as if it did not read them"));
                        return Ok(());
                    }
                    Err(error) => return Err(not_recorded(error, None)),
                }
            }
        }
        Ok(())
    }

    /// Records it in run `run`, in this way. Returns how long it ran. Another program may change the host's
    /// settings, and restore them: then it runs again.
    fn record_once(
        &mut self,
        command: &[OsString],
        way: Way,
        run: u16,
    ) -> Result<Result<Duration, RecordError>, Failure> {
        for _ in 0..MOST_TRIES {
            let wall = match self.record_run(command, way, run)? {
                Ok(wall) => wall,
                Err(error) => return Ok(Err(error)),
            };
            let made = self.files.last().map(|file| settings_of(file)).transpose()?.flatten();
            if self.settings.get_or_insert_with(|| made.clone()) == &made {
                return Ok(Ok(wall));
            }
            warn(format_args!(
                "the host's settings of huge pages have changed since the first run: run {run} is made again"
            ));
            self.files.pop();
            self.open.pop();
        }
        Err(Failure::work("the host's settings of huge pages change while the program is recorded"))
    }

    fn record_run(
        &mut self,
        command: &[OsString],
        way: Way,
        run: u16,
    ) -> Result<Result<Duration, RecordError>, Failure> {
        let open = Arc::new(temporary_file()?);
        let mut options = RecordOptions::new(command.to_vec(), RecordTarget::Open(Arc::clone(&open)));
        let Way { pressure, limit } = way;
        options.reuse = None;
        options.pressure = pressure;
        match limit {
            Some(bytes) => options.shown_limit = Some(ShownLimit { files: limit_files(), bytes }),
            None => options.watched = limit_files(),
        }
        options.stdout_is_taken = true;
        options.stdin = self.input.next().map_err(failed)?.map(Arc::new);
        let summary = match record(&options) {
            Ok(summary) => summary,
            Err(error) => return Ok(Err(error)),
        };
        self.end_input()?;
        if self.opened.is_none() {
            self.opened.clone_from(&summary.opened);
        }
        let run = if pressure.is_some() { format!("{run} under pressure") } else { run.to_string() };
        if let Some(signal) = summary.interrupted {
            return Err(Failure::work(format!(
                "interrupted by signal {signal} in run {run}; nothing is kept"
            )));
        }
        if summary.exit_code() != 0 {
            return Err(Failure::work(format!(
                "the program ended with code {} (run {run}); a run that fails is no measurement",
                summary.exit_code()
            )));
        }
        self.files.push(PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd())));
        self.open.push(open);
        Ok(Ok(summary.wall))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{SigSet, Signal};

    #[test]
    fn what_goes_on_for_long_is_told_to_be_slow_and_nothing_else() {
        let hour = Duration::from_secs(3600);
        assert_eq!(warning_if_slow(hour, || panic!("it has ended"), || 7), 7);
        let (tell, told) = mpsc::channel();
        let warn_slow = move || tell.send(()).unwrap();
        assert_eq!(warning_if_slow(Duration::ZERO, warn_slow, || told.recv()), Ok(()));
    }

    /// An interrupt would otherwise not end the wait for the program.
    #[test]
    fn the_thread_that_warns_takes_no_signals() {
        let (tell, told) = mpsc::channel();
        let warn_slow = move || tell.send(SigSet::thread_get_mask()).unwrap();
        let mask = warning_if_slow(Duration::ZERO, warn_slow, || told.recv());
        assert!(mask.unwrap().unwrap().contains(Signal::SIGINT));
        assert!(!SigSet::thread_get_mask().unwrap().contains(Signal::SIGINT));
    }
}
