//! `quire replay`.

use crate::args::{MachineArguments, ReplayArguments, chosen_techniques};
use crate::failure::{FOUND_FAILURE, Failure};
use crate::output::{json, progress::Bar, replay as words, say_json, warn};
use crate::pictures::{self, ReportPage};
use quire_advise::{HEAT_COLUMNS, Setting, grid, touched_pages};
use quire_replay::{Replay, ReplayError, ReplayOptions, ReplayReport};
use quire_report::Section;
use quire_trace::format::{EXTENSION, TraceErrorKind, TraceHeader, TraceReader, UseSource};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) fn run(arguments: &ReplayArguments) -> Result<ExitCode, Failure> {
    let mut page = ReportPage::new(arguments.report.as_deref(), "quire replay")?;
    let mut good = true;
    for file in recordings_among(&arguments.files)? {
        let report = replay(file, &arguments.machine, arguments.salvage, page.is_wanted())?;
        show(file, &report, arguments.json);
        if page.is_wanted() {
            page.add(section(file, &report, arguments)?, arguments.json);
        }
        good &= report.is_good();
    }
    page.write()?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(FOUND_FAILURE) })
}

/// The section of a page. Touched memory is found by one more replay.
fn section(file: &Path, report: &ReplayReport, arguments: &ReplayArguments) -> Result<Section, Failure> {
    let options = ReplayOptions { salvage: arguments.salvage, ..ReplayOptions::default() };
    let touched = Replay::open(file, options).and_then(|replay| touched_pages(&replay, arguments.salvage));
    let machine = &arguments.machine;
    let setting = machine.setting.as_deref().unwrap_or("as Quire's defaults are");
    let name = match (machine.limit, machine.memory) {
        (Some(bytes), _) => format!("{setting}, limited to {} KiB", bytes >> 10),
        (None, Some(bytes)) => format!("{setting}, {} KiB of RAM", bytes >> 10),
        (None, None) => setting.to_owned(),
    };
    Ok(pictures::replay(file, report, &touched.map_err(failure)?, &name))
}

/// What to replay of the files that were named. Of several, as `recordings/*` gives them, files that neither
/// have the name nor the beginning of a recording are skipped with a message. If all are, the first is taken,
/// so that its error is reported.
pub(crate) fn recordings_among(files: &[PathBuf]) -> Result<Vec<&PathBuf>, Failure> {
    files.iter().try_for_each(|file| refuse_pipe(file))?;
    let (wanted, others): (Vec<_>, Vec<_>) = files.iter().partition(|file| {
        file.extension().is_some_and(|extension| extension == EXTENSION) || !is_something_else(file)
    });
    if wanted.is_empty() {
        return Ok(files.first().into_iter().collect());
    }
    for file in others {
        warn(format_args!("{}: not a recording, passed over", file.display()));
    }
    Ok(wanted)
}

/// A recording is read several times, which a pipe cannot be.
pub(crate) fn refuse_pipe(file: &Path) -> Result<(), Failure> {
    let kind = fs::metadata(file).map(|facts| facts.file_type());
    if kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket()) {
        return Err(Failure::input(format!(
            "{}: a recording is read more than once, and this is a pipe; write it to a file first",
            file.display()
        )));
    }
    Ok(())
}

/// A folder, or a file that does not begin as a recording does. A file that is missing or damaged is neither.
fn is_something_else(file: &Path) -> bool {
    let opened = TraceReader::open(file);
    file.is_dir() || opened.is_err_and(|error| matches!(error.kind(), TraceErrorKind::NotATrace))
}

/// Replays one recording, with progress on a terminal; `followed` memory is reported over time and by
/// address.
pub(crate) fn replay(
    file: &Path,
    machine: &MachineArguments,
    salvage: bool,
    followed: bool,
) -> Result<ReplayReport, Failure> {
    let (replay, mut options) = prepared(file, machine, salvage)?;
    (options.life, options.heat) = (followed, followed.then_some(HEAT_COLUMNS));
    let bar = Bar::new(&file.display().to_string(), "events");
    let report = replay.with(options).run(&mut |done, total| bar.set(done, total)).map_err(failure);
    bar.finish();
    report
}

/// A recording, looked through, and how it is to be replayed.
pub(crate) fn prepared(
    file: &Path,
    machine: &MachineArguments,
    salvage: bool,
) -> Result<(Replay, ReplayOptions), Failure> {
    let is_limited = machine.memory.is_some() || machine.limit.is_some();
    let mut options = ReplayOptions {
        memory: machine.memory,
        limit: machine.limit,
        beside: machine.beside,
        peak: machine.peak,
        techniques: chosen_techniques(&machine.techniques),
        paranoid: machine.paranoid,
        salvage,
        swap: machine.swap.clone(),
        // Pages of zeros would take no room in swap.
        contents: machine.contents || is_limited,
        ..ReplayOptions::default()
    };
    let replay = Replay::open(file, options.clone()).map_err(failure)?;
    if let Some(name) = &machine.setting {
        let setting = setting(&replay.header().map_err(failure)?, name)?;
        (options.huge, options.shmem) = (setting.huge, Some(setting.shmem));
    }
    if is_limited && !machine.assume_no_reuse {
        refuse_without_uses(file, &replay)?;
    }
    if machine.swap.is_none() && machine.techniques.iter().any(|(name, _)| name == "swap") {
        warn("--technique swap= changes nothing without --swap");
    }
    Ok((replay, options))
}

/// What the setting of this name stands for, where the program was recorded.
fn setting(header: &TraceHeader, name: &str) -> Result<Setting, Failure> {
    let settings = grid(header);
    let found = settings.iter().find(|setting| setting.name == name).cloned();
    found.ok_or_else(|| {
        let names: Vec<&str> = settings.iter().map(|setting| setting.name.as_str()).collect();
        Failure::input(format!("--setting {name}: there is no such setting; known: {}", names.join(" ")))
    })
}

/// Reuse decides the cost of little memory: without it a replay would find far too few faults.
fn refuse_without_uses(file: &Path, replay: &Replay) -> Result<(), Failure> {
    if replay.uses().map_err(failure)? != UseSource::None {
        return Ok(());
    }
    let command = replay.command().map_err(failure)?.join(" ");
    Err(Failure::input(format!(
        "{}: the recording does not say what the program used again, so a replay under a limit would find too few \
         major faults; record it again with `quire record -o FILE -- {command}`, or go on with --assume-no-reuse",
        file.display()
    )))
}

/// Prints what a replay found.
pub(crate) fn show(file: &Path, report: &ReplayReport, as_json: bool) {
    if as_json {
        json::objects(file, report).iter().for_each(say_json);
    } else {
        words::print(file, report);
    }
}

pub(crate) fn failure(error: ReplayError) -> Failure {
    match error {
        ReplayError::Trace(error) => Failure::input(error),
        error @ ReplayError::Impossible(..) => Failure::input(error),
        ReplayError::Machine(error) => {
            Failure::input(format!("the machine could not be built: {error}; try another --memory"))
        }
        ReplayError::Swap(error) => Failure::input(error),
        other => Failure::work(other),
    }
}
