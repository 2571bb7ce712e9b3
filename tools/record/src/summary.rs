//! What a recording did.

use quire_trace::event::{EventKind, ExitStatus};
use quire_trace::format::{CallSource, FaultSource, Trailer};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What a recording did and what it cost. Displays as a few lines.
#[derive(Debug, Clone, Default)]
pub struct RecordSummary {
    /// How the program ended.
    pub status: ExitStatus,
    /// How long it ran, including the processes that it left behind.
    pub wall: Duration,
    /// How long threads were stopped for the recorder, in total: from the recorder's notice of a stop to
    /// the resumption of the thread. The switch to the recorder and back comes on top.
    pub stopped: Duration,
    /// How many times a thread was stopped.
    pub stops: u64,
    /// CPU time of the programs, including their own part of each stop.
    pub programs_cpu: Duration,
    /// How long the context switch from the recorder to a thread and back takes: once for each stop.
    pub switch: Duration,
    /// Samples of page faults and calls received from the kernel.
    pub samples: u64,
    /// CPU time of the recorder itself.
    pub recorder_cpu: Duration,
    /// Where the page faults came from.
    pub faults: FaultSource,
    /// How calls were caught.
    pub calls: CallSource,
    /// The calls that programs make most come from tracepoints, without a stop.
    pub without_stops: bool,
    /// Bytes of the file.
    pub bytes: u64,
    /// The totals of the trace.
    pub totals: Trailer,
    /// Processes that were followed.
    pub processes: u32,
    /// Threads that were followed.
    pub threads: u32,
    /// Calls that were resumed before the one ahead of them had ended, because it took too long: their
    /// order in the trace is the order of their ends.
    pub unordered_calls: u64,
    /// Page faults of threads that the recorder did not know (yet, or any more); they are not in the trace.
    pub stray_faults: u64,
    /// Programs whose perf events Linux removed, since they have other privileges, and which could not be
    /// opened anew: their page faults, and calls without a stop, are not in the trace.
    pub unheard_programs: u32,
    /// How many page faults Linux counted for these. The lost samples of [`RecordSummary::totals`] include
    /// them.
    pub unheard_faults: u64,
    /// Threads that continue unrecorded: their parent was killed before its clone event.
    pub orphans: u64,
    /// The first SIGINT, SIGTERM or SIGHUP that the recorder got.
    pub interrupted: Option<u8>,
    /// The signal on which the recorder detached from the programs before they had ended.
    pub released: Option<u8>,
    /// Threads that could not be detached in time; they were killed.
    pub not_released: usize,
    /// The first of the watched files ([`RecordOptions::watched`]) that the program opened, as far as that is
    /// known: it needs root.
    ///
    /// [`RecordOptions::watched`]: super::RecordOptions::watched
    pub opened: Option<PathBuf>,
    /// What is known of mapped files.
    pub files: FilesSummary,
    /// What the recorder paged out, if it did.
    pub pressure: Option<PressureSummary>,
}

/// What is known of the files that programs mapped. Displays as lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FilesSummary {
    /// Regular files that are not in memory.
    pub files: u64,
    /// Those of which the recorder may not know what is cached.
    pub unknown: u64,
    /// Those of FUSE and of network file systems, of which nothing is asked; they are not among
    /// [`FilesSummary::files`].
    pub left_out: u64,
    /// The first of them.
    pub first_left_out: Option<PathBuf>,
    /// Events that tell of pages which entered or left the page cache.
    pub changes: u64,
    /// How such changes are known.
    pub pages: PageSource,
    /// Files were taken out of the page cache before they were mapped.
    pub cold: bool,
    /// Files that could not be taken out of it whole, as others had them mapped, and the pages that remained.
    pub warm: u64,
    /// See [`FilesSummary::warm`].
    pub warm_pages: u64,
    /// The first of them.
    pub first_warm: Option<PathBuf>,
}

/// How changes of the page cache are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageSource {
    /// From tracepoints, each at its time.
    Tracepoints,
    /// The files were looked at from time to time.
    #[default]
    Looks,
    /// From tracepoints until there were too many changes or files; then these were looked at.
    TooMany,
}

impl fmt::Display for FilesSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, unknown, changes, pages, cold, warm, warm_pages, .. } = self;
        if let Some(first) = &self.first_left_out {
            writeln!(
                f,
                "left out  lengths and cached pages of {} files that processes or other machines serve: {}, ...",
                self.left_out,
                first.display()
            )?;
        }
        if *files == 0 {
            return Ok(());
        }
        let how = match pages {
            PageSource::Tracepoints => "tracepoints",
            PageSource::Looks => "looks at them, as tracepoints are not permitted",
            PageSource::TooMany => "looks at them, as tracepoints would tell too much",
        };
        write!(f, "files     {files} mapped; {changes} changes of the page cache from {how}")?;
        match unknown {
            0 => writeln!(f)?,
            unknown => writeln!(f, "; of {unknown} the recorder may not know what is cached")?,
        }
        match &self.first_warm {
            Some(first) => writeln!(
                f,
                "cold      {warm} files stay in the page cache with {warm_pages} pages, since others have them mapped: {}, ...",
                first.display()
            ),
            None if *cold => writeln!(f, "cold      all files were taken out of the page cache"),
            None => Ok(()),
        }
    }
}

/// Pages that the recorder paged out so that later uses were page faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PressureSummary {
    /// Pages; one that was paged out several times counts each time.
    pub pages_out: u64,
    /// Page faults that brought such pages back.
    pub pages_back: u64,
    /// How long the recorder took for it.
    pub took: Duration,
    /// The most bytes of anonymous memory that were resident when it checked, which it does at the end of a
    /// process as well; of a sample, of that.
    pub most_resident: u64,
}

/// The time of a page fault that brings a page back from compressed memory, in nanoseconds, as `quire advise`
/// estimates it.
const BACK_NS: u64 = 6000;

/// The time that the kernel takes for a sample of a page fault or a call, in nanoseconds: measured in a
/// virtual machine.
pub const SAMPLE_NS: u64 = 1000;

/// At least such a share of the programs' CPU time is their own, whatever samples and switches are estimated
/// to take of it: a host can be faster than those that were measured.
const LEAST_OWN: u32 = 10;

impl RecordSummary {
    /// An estimate of what the recorder took of the programs' CPU time: half of each switch, samples and
    /// refaults.
    fn taken(&self) -> Duration {
        let estimate = self.switches() / 2 + self.sampling() + self.coming_back();
        estimate.min(self.programs_cpu - self.programs_cpu / LEAST_OWN)
    }

    /// An estimate of the programs' CPU time without the recorder.
    fn own_cpu(&self) -> Duration {
        self.programs_cpu - self.taken()
    }

    /// An estimate of the kernel's time for samples of page faults and calls.
    fn sampling(&self) -> Duration {
        Duration::from_nanos(self.samples.saturating_mul(SAMPLE_NS))
    }

    /// An estimate of the time of page faults that brought back what the recorder had paged out.
    fn coming_back(&self) -> Duration {
        let pages = self.pressure.map_or(0, |pressure| pressure.pages_back);
        Duration::from_nanos(pages.saturating_mul(BACK_NS))
    }

    /// All switches to threads and back.
    fn switches(&self) -> Duration {
        self.switch.mul_f64(self.stops as f64)
    }

    /// An estimate of what recording cost, in percent of the programs' own CPU time: the time that their
    /// threads were stopped, plus switches, samples and refaults. `None` if they took no time that was seen.
    #[must_use]
    pub fn cost_percent(&self) -> Option<f64> {
        let cost = self.stopped + self.switches() / 2 + self.taken();
        let own = self.own_cpu();
        (!own.is_zero()).then(|| 100.0 * cost.as_secs_f64() / own.as_secs_f64())
    }

    /// Whether the program itself has ended, if not all that it left behind.
    fn has_ended(&self) -> bool {
        self.status != ExitStatus::Unknown
    }

    /// The code that a command line should exit with: the program's own, or 128 plus the signal's
    /// number.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if let Some(signal) = self.released.filter(|_| !self.has_ended()) {
            return 128_u8.saturating_add(signal);
        }
        match self.status {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal(signal) => 128_u8.saturating_add(signal),
            ExitStatus::Replaced | ExitStatus::Unknown => 1,
        }
    }
}

impl fmt::Display for RecordSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(signal) = self.released {
            let which = match self.has_ended() {
                true => "a signal after the program's end",
                false => "a second signal",
            };
            write!(f, "early     the recording ends at {which} ({signal}), the programs were let go")?;
            match self.not_released {
                0 => writeln!(f)?,
                left => writeln!(f, "; {left} threads did not stop in time and were killed")?,
            }
        }
        let kinds = EventKind::NAMES.iter().zip(self.totals.kinds).filter(|(_, count)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(name, count)| format!("{name} {count}")).collect();
        writeln!(f, "events    {} ({}) in {} bytes", self.totals.events, kinds.join(", "), self.bytes)?;
        writeln!(f, "followed  {} processes, {} threads", self.processes, self.threads)?;
        let calls = match (self.calls, self.without_stops) {
            (CallSource::Seccomp, true) => "tracepoints, and seccomp where more than registers is read",
            (CallSource::Seccomp, false) => "seccomp",
            (CallSource::EveryCall, _) => "every call (seccomp is not permitted)",
        };
        writeln!(f, "sources   faults: {}, calls: {calls}", self.faults.name())?;
        writeln!(f, "exactness {}", self.faults.exactness())?;
        writeln!(
            f,
            "overhead  {:.3} s wall, {:.3} s stopped",
            self.wall.as_secs_f64(),
            self.stopped.as_secs_f64()
        )?;
        let lost = self.totals.lost_samples.saturating_sub(self.unheard_faults);
        let what = if self.without_stops { "page faults and calls" } else { "page faults" };
        if lost > 0 {
            writeln!(f, "lost      {lost} {what} (the kernel's ring was full)")?;
        }
        if self.unheard_programs > 0 {
            writeln!(
                f,
                "unheard   {what} of {} programs with other privileges, {} faults (perf events were removed)",
                self.unheard_programs, self.unheard_faults
            )?;
        }
        if self.stray_faults > 0 {
            writeln!(f, "strays    {} page faults of unknown threads", self.stray_faults)?;
        }
        if self.orphans > 0 {
            writeln!(
                f,
                "orphans   {} threads of makers that were killed, not in the recording",
                self.orphans
            )?;
        }
        if self.unordered_calls > 0 {
            writeln!(f, "unordered {} calls ran beside one that took too long", self.unordered_calls)?;
        }
        if let Some(pressure) = &self.pressure {
            writeln!(
                f,
                "pressure  {} pages paged out in {:.3} s, {} of them came back by page faults, at most {:.1} MiB resident",
                pressure.pages_out,
                pressure.took.as_secs_f64(),
                pressure.pages_back,
                pressure.most_resident as f64 / f64::from(1 << 20)
            )?;
        }
        write!(f, "{}", self.files)?;
        let (stops, samples, recorder) = (self.stops, self.samples, self.recorder_cpu.as_secs_f64());
        write!(f, "cost      {stops} stops, {samples} samples, recorder {recorder:.3} s CPU")?;
        match self.cost_percent() {
            Some(percent) => {
                let own = self.own_cpu().as_secs_f64() * 1e3;
                writeln!(f, "; an estimated {percent:.0} % of the programs' own {own:.1} ms CPU")
            }
            None => writeln!(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// 10 000 calls in 25 ms: samples are estimated to take more than all of the programs' time.
    #[test]
    fn the_cost_is_of_time_that_programs_can_have_had() {
        let quick = RecordSummary {
            stops: 20_000,
            samples: 70_000,
            stopped: 40 * MS,
            switch: Duration::from_micros(2),
            programs_cpu: 50 * MS,
            ..RecordSummary::default()
        };
        // 45 of the 50 ms, half of the switches, and the stops.
        assert_eq!((quick.own_cpu(), quick.cost_percent().map(f64::round)), (5 * MS, Some(2100.0)));
        assert!(
            quick.to_string().ends_with("an estimated 2100 % of the programs' own 5.0 ms CPU\n"),
            "{quick}"
        );
        let long = RecordSummary { programs_cpu: 290 * MS, ..quick };
        assert_eq!((long.own_cpu(), long.cost_percent().map(f64::round)), (200 * MS, Some(75.0)));
        let unknown = RecordSummary::default();
        assert!(unknown.to_string().ends_with("recorder 0.000 s CPU\n"), "{unknown}");
    }
}
