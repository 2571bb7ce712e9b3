//! What the command line takes.

mod machine;
mod sweep;

pub(crate) use machine::{MachineArguments, chosen_techniques, size, technique};
pub(crate) use sweep::{SweepArguments, percent, words as line_words};

use crate::examples;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use quire_diff::program::Store;
use quire_record::{CallChoice, FaultChoice};
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs the memory management of a Linux-class kernel inside a process: feeds it the memory life of a real
/// program and shows what each mechanism costs and saves. Without a command: a short tour on the bundled
/// recordings.
#[derive(Debug, Parser)]
#[command(name = "quire", version, max_term_width = 100, after_help = examples::QUIRE)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Record what a program does with its memory
    #[command(after_help = examples::RECORD)]
    Record(RecordArguments),
    /// Make a recording of what another tool wrote about a program
    #[command(after_help = examples::IMPORT)]
    Import(ImportArguments),
    /// Look at a recording
    #[command(after_help = examples::TRACE)]
    Trace(TraceArguments),
    /// Run recorded programs again on Quire and compare every result with Linux's
    #[command(after_help = examples::REPLAY)]
    Replay(ReplayArguments),
    /// Write a replay in another tool's format
    #[command(after_help = examples::EXPORT)]
    Export(ExportArguments),
    /// Record a program and replay it at once
    #[command(after_help = examples::RUN)]
    Run(RunArguments),
    /// Predict what settings of huge pages would do for a program
    #[command(after_help = examples::ADVISE)]
    Advise(AdviseArguments),
    /// Print command lines that replay recordings under many settings, on as many machines as there are
    #[command(after_help = examples::SWEEP)]
    Sweep(Box<SweepArguments>),
    /// Show what each technique changes for a recorded program: off and on, side by side
    #[command(after_help = examples::COMPARE)]
    Compare(CompareArguments),
    /// Measure what page faults cost on this host, for the estimates of `advise`
    #[command(after_help = examples::CALIBRATE)]
    Calibrate(CalibrateArguments),
    /// Make random memory calls on Linux and on Quire side by side and compare everything
    #[command(after_help = examples::DIFF)]
    Diff(DiffArguments),
    /// Measure what a technique saves and costs, with it off and on
    #[command(after_help = examples::LAB)]
    Lab(LabArguments),
    /// Print a script that completes commands and options in a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell
        #[arg(value_name = "SHELL", value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write the pages of all commands into a folder
    #[command(after_help = examples::MAN)]
    Man {
        /// Write quire.1, quire-advise.1 and so on into this folder, which is created if it is missing
        #[arg(value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    /// The file to write, or - for the standard output (the program's own then goes to the standard error
    /// output). A second SIGINT, SIGTERM or SIGHUP ends the recording while the program runs on
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: PathBuf,
    /// Replace FILE even if it is not a recording
    #[arg(long, help_heading = "Output")]
    pub(crate) force: bool,
    /// Source of page faults: auto, tracepoint, software or pagemap
    #[arg(long, value_name = "SOURCE", default_value = "auto", help_heading = "What is seen")]
    pub(crate) faults: FaultChoice,
    /// How memory calls are recorded: stops, at some 50 us a call; tracepoints, which cost little and record
    /// the most frequent calls (root only); or auto, tracepoints where they are permitted
    #[arg(long, value_name = "SOURCE", default_value = "auto", help_heading = "What is seen")]
    pub(crate) calls: CallChoice,
    /// Take each file out of the page cache before the program maps it, as far as no other program has it
    /// mapped (root only, for files of others)
    #[arg(long, help_heading = "What is seen")]
    pub(crate) cold: bool,
    /// Transparent huge pages during the recording: off, so that each page that is touched is seen, or on, as
    /// the host has them
    #[arg(long, value_name = "on|off", value_enum, hide_possible_values = true, default_value_t = Switch::Off, help_heading = "What is seen")]
    pub(crate) thp: Switch,
    /// Interval, in milliseconds, at which to sample what is used again and how well it compresses, for
    /// replays under a memory limit
    #[arg(
        long,
        value_name = "INTERVAL_MS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "100",
        default_value = "100",
        value_parser = clap::value_parser!(u64).range(20..=60_000), help_heading = "Later uses of pages")]
    pub(crate) reuse: u64,
    /// Do not sample what is used again
    #[arg(long, conflicts_with = "reuse", help_heading = "Later uses of pages")]
    pub(crate) no_reuse: bool,
    /// Page anonymous memory out so that about SIZE of it stays resident: each later use is then a page
    /// fault, which predictions of memory limits need. Take less than the smallest limit; it needs root and
    /// swap space
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Later uses of pages")]
    pub(crate) pressure: Option<u64>,
    /// Page out one block in N only, chosen by a hash: for programs of gigabytes, and for programs that must
    /// not be slowed. Blocks have 64 KiB to 2 MiB. Predictions are made of that part
    #[arg(long, value_name = "N", requires = "pressure", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Later uses of pages")]
    pub(crate) sample: Option<u32>,
    /// Show the program this memory limit in the files of its cgroup, without enforcing it: for predictions
    /// of this limit for programs that size themselves by theirs, such as node and java. It needs root
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "pressure", help_heading = "Later uses of pages")]
    pub(crate) show_limit: Option<u64>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Something that is on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    #[command(subcommand)]
    pub(crate) format: ImportFormat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImportFormat {
    /// What `valgrind --tool=lackey --trace-mem=yes --log-file=FILE CMD` writes
    Lackey {
        /// The file that valgrind wrote, or a pipe
        #[arg(value_name = "FILE")]
        input: PathBuf,
        /// The recording to write
        #[arg(short, long, value_name = "TRACE", help_heading = "Output")]
        output: PathBuf,
        /// Replace TRACE even if it is not a recording
        #[arg(long, help_heading = "Output")]
        force: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TraceArguments {
    #[command(subcommand)]
    pub(crate) action: TraceAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TraceAction {
    /// Print a recording as text, one line per event
    Dump {
        /// The recording
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print the intact part of a damaged recording
        #[arg(long)]
        salvage: bool,
    },
    /// Write a recording again without what a replay does not need: names of files and programs, the command
    /// and its arguments, the time. Replays, advice and comparisons find the same in it
    Strip {
        /// The recording
        #[arg(value_name = "IN")]
        input: PathBuf,
        /// The recording to write, which may be the same
        #[arg(value_name = "OUT")]
        output: PathBuf,
        /// Keep names without their folders: the last parts of paths, and the words of the command
        #[arg(long)]
        keep_names: bool,
        /// Replace OUT even if it is not a recording
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArguments {
    /// Recordings
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Read the intact part of a damaged recording
    #[arg(long)]
    pub(crate) salvage: bool,
    /// Write the results with pictures to this file, as one self-contained HTML page
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,
    /// Print one JSON object per process
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) machine: MachineArguments,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    #[command(subcommand)]
    pub(crate) format: ExportFormat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExportFormat {
    /// A trace for Perfetto: memory, page tables, free blocks and swap as counters, calls and page faults on
    /// the tracks of their threads
    Perfetto {
        /// The recording
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The trace to write
        #[arg(short, long, value_name = "OUT", help_heading = "Output")]
        output: PathBuf,
        /// Read the intact part of a damaged recording
        #[arg(long)]
        salvage: bool,
        #[command(flatten)]
        machine: Box<MachineArguments>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Keep the recording in this file
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// Replace FILE even if it is not a recording
    #[arg(long, requires = "output", help_heading = "Output")]
    pub(crate) force: bool,
    /// Print one JSON object per process
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) machine: MachineArguments,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct AdviseArguments {
    /// Recordings of one command, made by `quire record`
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Read results of `quire sweep` instead, of any programs: files, or folders of such. For each program it
    /// prints what it would print for its recordings, and then what that says for all of them
    #[arg(
        long,
        value_name = "RESULTS",
        num_args = 1..,
        conflicts_with_all = ["files", "command", "validate", "runs", "no_limits", "sample"]
    )]
    pub(crate) from: Vec<PathBuf>,
    /// Run the program itself, too, under the present setting and the one that is advised, and within a
    /// memory limit, and print what was measured beside what was predicted. With FILE it needs CMD as well.
    /// Changes this host's settings for the time of the runs (root only)
    #[arg(long, requires = "command", help_heading = "Measuring")]
    pub(crate) validate: bool,
    /// Number of recordings of the command: differences between runs become a range. Each run has the whole
    /// standard input, if that is a file or a pipe
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100), help_heading = "Recording")]
    pub(crate) runs: u16,
    /// Do not record the command under memory pressure as well: what memory limits cost is not predicted
    /// then, only whether it fits
    #[arg(long, visible_alias = "quick", help_heading = "Recording")]
    pub(crate) no_limits: bool,
    /// Put pressure on one block of memory in N only: for a program that must not be slowed, such as a server
    /// under load. By default on all, and of larger programs on some 256 MiB
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["files", "no_limits"],
        value_parser = clap::value_parser!(u32).range(1..=4096),
        help_heading = "Recording"
    )]
    pub(crate) sample: Option<u32>,
    /// Number of replays at once; by default one per CPU
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<usize>,
    /// Write the results with pictures to this file, as one self-contained HTML page
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,
    /// Draw no bars in tables: the default in a pipe, and where NO_COLOR is set
    #[arg(long, help_heading = "Output")]
    pub(crate) plain: bool,
    /// Print JSON objects, one per line: one per setting, one per memory limit, then the verdict
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// The program to record, and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArguments {
    /// Recordings
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Compare only this technique; may be given several times (pcp, gather, swap, tables, mremap)
    #[arg(long = "technique", value_name = "NAME", value_parser = technique_names(), help_heading = "What is compared")]
    pub(crate) techniques: Vec<String>,
    /// Count the instructions of the memory manager, too, by valgrind: takes some fifty times as long
    #[arg(long, help_heading = "What is compared")]
    pub(crate) instructions: bool,
    /// Number of replays at once; by default one per CPU
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<usize>,
    /// Write the results with pictures to this file, as one self-contained HTML page
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,
    /// Print one JSON object per figure
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

fn technique_names() -> PossibleValuesParser {
    PossibleValuesParser::new(quire_advise::technique_names())
}

#[derive(Debug, Args)]
pub(crate) struct CalibrateArguments {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// Programs to run, as `--save` writes them, instead of random ones
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Seed of the random programs
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Random programs")]
    pub(crate) seed: u64,
    /// Operations of one process at a time, in all
    #[arg(long, value_name = "N", default_value_t = 200_000, help_heading = "Random programs")]
    pub(crate) ops: u64,
    /// Number of small programs with several threads in one address space
    #[arg(long, value_name = "N", default_value_t = 2_000, help_heading = "Random programs")]
    pub(crate) concurrent: u64,
    /// Number of programs at once; by default one per CPU
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<usize>,
    /// Write the failing program, minimised, to this file, which may be a program that was saved before
    #[arg(long, value_name = "FILE", help_heading = "A program that fails")]
    pub(crate) save: Option<PathBuf>,
    /// Give both sides swap space of this size, so that MADV_PAGEOUT pages out: the host gets a zram device
    /// for the time of the run (root only)
    #[arg(long, value_name = "SIZE", value_parser = size, num_args = 0..=1, require_equals = true,
          default_missing_value = "256M", help_heading = "Machine")]
    pub(crate) swap: Option<u64>,
    /// Where the file that programs map is: memory (tmpfs), disk (the folder TMPDIR, or /tmp), or large
    /// (there, with large folios); by default each program says
    #[arg(long, value_name = "memory|disk|large", help_heading = "Machine")]
    pub(crate) file: Option<Store>,
    /// Seconds to spend on minimising a failing program; 0 leaves it as it is
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "A program that fails")]
    pub(crate) shrink: u64,
    /// Print every combination of call, flag and result with its count, not only those that never occurred
    #[arg(long, help_heading = "Output")]
    pub(crate) coverage: bool,
    /// Choose a strategy for a technique; may be given several times (pcp=order0|posted|all,
    /// gather=pages|runs, tables=keep|free, mremap=ptes|puds, swap=bypass|all)
    #[arg(long = "technique", value_name = "NAME=VALUE", value_parser = technique, help_heading = "Machine")]
    pub(crate) techniques: Vec<(String, String)>,
    /// Print JSON objects
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabArguments {
    /// What to measure; without a name everything. There are: pcp, gather, tables, mremap, swap
    #[arg(value_name = "EXPERIMENT")]
    pub(crate) experiments: Vec<String>,
    /// Take seconds instead of minutes
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the results with pictures to this file, as one self-contained HTML page
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,
    /// Draw no bars in tables: the default in a pipe, and where NO_COLOR is set
    #[arg(long, help_heading = "Output")]
    pub(crate) plain: bool,
    /// Print one JSON object per figure
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Leave the host's own swap alone: as root `swap` makes a zram device for the time of the experiment
    #[arg(long)]
    pub(crate) no_host_swap: bool,
}
