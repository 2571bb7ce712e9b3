//! What to record, and how.

use quire_output::{Manner, Printed};
use quire_trace::format::{FaultSource, Pressure, TraceWriter};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// What to record, and how.
#[derive(Debug, Clone)]
pub struct RecordOptions {
    /// The program and its arguments. The program is searched for in `PATH`.
    pub command: Vec<OsString>,
    /// Where the recording goes.
    pub output: RecordTarget,
    /// Replace a file that is not a recording, too.
    pub force: bool,
    /// Where to take the page faults from.
    pub faults: FaultChoice,
    /// Where to take the calls from.
    pub calls: CallChoice,
    /// Take each file out of the page cache before the programs map it first, as far as no other program has
    /// it mapped: the recording shows how they begin when nothing is cached.
    pub cold: bool,
    /// Leave transparent huge pages as the host has them. Otherwise they are off for the program while it is
    /// recorded, so that each page of 4 KiB that it touches is seen.
    pub thp: bool,
    /// What the program has as its standard input; `None` is the caller's.
    pub stdin: Option<Arc<File>>,
    /// The program writes to the standard error output instead of the standard output, which the recorder
    /// needs. It does so anyway where the recording goes to the standard output.
    pub stdout_is_taken: bool,
    /// The shortest interval at which reuse and compressibility are sampled; `None` is never. Where a sample
    /// takes long there are fewer, so that they take a few percent of the time. Less than the recorder's tick
    /// of 20 ms makes no difference.
    pub reuse: Option<Duration>,
    /// Page anonymous memory out so that about so much stays resident: every later use is then a page fault.
    /// Needs swap space and `CAP_SYS_NICE`.
    pub pressure: Option<Pressure>,
    /// A memory limit that the program is shown: other files are mounted over those of its memory cgroup, in
    /// a mount namespace of its own. Needs `CAP_SYS_ADMIN`.
    pub shown_limit: Option<ShownLimit>,
    /// Files of which it is wanted to know whether the program opens them ([`RecordSummary::opened`]): those
    /// that tell it its memory limit. Files that do not exist are ignored.
    ///
    /// [`RecordSummary::opened`]: super::RecordSummary::opened
    pub watched: Vec<PathBuf>,
    /// zstd's level, 1 to 19.
    pub level: i32,
    /// Called with what the user should know while the program runs (one line, without a line end).
    pub notify: fn(&str),
}

impl RecordOptions {
    /// The default interval at which uses are sampled.
    pub const REUSE_EVERY: Duration = Duration::from_millis(100);

    /// Options that suit most programs: the best source of faults, samples of reuse, no transparent huge
    /// pages, notices on the standard error output.
    #[must_use]
    pub fn new(command: Vec<OsString>, output: impl Into<RecordTarget>) -> Self {
        let output = output.into();
        let level = TraceWriter::<File>::DEFAULT_LEVEL;
        let (faults, calls) = (FaultChoice::Auto, CallChoice::Auto);
        Self {
            command,
            output,
            force: false,
            faults,
            calls,
            cold: false,
            thp: false,
            stdin: None,
            stdout_is_taken: false,
            reuse: Some(Self::REUSE_EVERY),
            pressure: None,
            shown_limit: None,
            watched: Vec::new(),
            level,
            notify: |line| {
                // The recording goes on if it cannot be written.
                let _ = writeln!(io::stderr(), "quire: {}", Printed(line, Manner::Line));
            },
        }
    }
}

/// A memory limit that a program is shown instead of its own: for a program that sizes itself by its limit.
/// It is not enforced.
#[derive(Debug, Clone)]
pub struct ShownLimit {
    /// The files in which the program would read its own. Those that do not exist are ignored.
    pub files: Vec<PathBuf>,
    /// In bytes.
    pub bytes: u64,
}

/// Where a recording goes.
#[derive(Debug, Clone)]
pub enum RecordTarget {
    /// A file of this name. It is written in the same folder under a name that ends in `.part`, and renamed
    /// when it is complete.
    File(PathBuf),
    /// The standard output. The recorded program's own goes to the standard error output.
    Stdout,
    /// An open, empty file.
    Open(Arc<File>),
}

impl From<PathBuf> for RecordTarget {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl From<&str> for RecordTarget {
    fn from(path: &str) -> Self {
        Self::File(path.into())
    }
}

/// Where to take page faults from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FaultChoice {
    /// The best source that is permitted.
    #[default]
    Auto,
    /// This source or none.
    Only(FaultSource),
}

/// Where to take memory calls from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallChoice {
    /// As with [`CallChoice::Tracepoints`] where page faults come from tracepoints, too, and memory is not
    /// paged out; else as with [`CallChoice::Stops`].
    #[default]
    Auto,
    /// The calls that programs make most (`mmap` of anonymous memory, `munmap`, `mprotect`, `brk`, `mremap`,
    /// `madvise`) from the kernel's tracepoints, without a stop. A seccomp filter stops the program at the
    /// others.
    Tracepoints,
    /// A seccomp filter stops the program at each memory call, if such a filter is permitted.
    Stops,
    /// The program stops at each call that it makes.
    EveryCall,
}

impl FromStr for CallChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "auto" => Ok(Self::Auto),
            "tracepoints" => Ok(Self::Tracepoints),
            "stops" => Ok(Self::Stops),
            _ => Err(format!("`{name}` is no source of calls; take auto, tracepoints or stops")),
        }
    }
}

impl FromStr for FaultChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "auto" => Ok(Self::Auto),
            "tracepoint" => Ok(Self::Only(FaultSource::Tracepoint)),
            "software" => Ok(Self::Only(FaultSource::Software)),
            "pagemap" => Ok(Self::Only(FaultSource::Pagemap)),
            _ => Err(format!(
                "`{name}` is no source of page faults; take auto, tracepoint, software or pagemap"
            )),
        }
    }
}
