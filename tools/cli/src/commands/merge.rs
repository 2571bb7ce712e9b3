//! `quire advise --from`: advice from the results of a sweep.

use super::replay::refuse_pipe;
use super::{at_once, other_place};
use crate::args::AdviseArguments;
use crate::exit::{FOUND_FAILURE, Failure};
use crate::output::{advice, fleet, progress::Bar, say_json, spark::may_draw, warn};
use crate::pictures::{self, Report};
use quire_advise::{Fleet, Host, Merge, MergedProgram, heat_of};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Names of files in a folder of results end so.
const EXTENSIONS: [&str; 2] = ["json", "jsonl"];

pub(super) fn run(arguments: &AdviseArguments, host: &Host, mut report: Report) -> Result<ExitCode, Failure> {
    let mut merge = Merge::default();
    for file in files(&arguments.from)? {
        refuse_pipe(&file)?;
        merge.read(&file).map_err(|error| Failure::input(format!("{}: {error}", file.display())))?;
    }
    let bar = Bar::new("advise", "programs");
    let merged =
        merge.finish(at_once(arguments.jobs), host, &|done, total| bar.set(done as u64, total as u64));
    bar.finish();
    merged.remarks.iter().for_each(warn);
    if merged.programs.is_empty() {
        return Err(Failure::input("no result that advice can be made of"));
    }
    let mut is_good = !merged.is_lacking;
    for program in &merged.programs {
        is_good &= show(program, arguments, &mut report)?;
    }
    if merged.programs.len() > 1 {
        let fleet = Fleet::of(&merged.programs);
        if arguments.json {
            fleet::objects(&fleet).iter().for_each(say_json);
        } else {
            fleet::print(&fleet);
        }
        if report.is_wanted() {
            report.add(pictures::fleet(&fleet), arguments.json);
        }
    }
    report.write()?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(FOUND_FAILURE) })
}

/// The files, in the order of their names where a folder is named.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let failed = |error| Failure::input(format!("{}: {error}", path.display()));
        let entries = std::fs::read_dir(path).map_err(failed)?;
        let entries = entries.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let mut found: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        let is_result = |file: &PathBuf| {
            file.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
        };
        found.retain(is_result);
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

/// Prints what `quire advise` would print for the recordings of a program. Returns whether its verdict is
/// one.
fn show(program: &MergedProgram, arguments: &AdviseArguments, report: &mut Report) -> Result<bool, Failure> {
    let MergedProgram { prediction, first } = program;
    if arguments.json {
        advice::objects(prediction, &[], None).iter().for_each(say_json);
    } else {
        advice::print(prediction, may_draw(arguments.plain));
    }
    if report.is_wanted() {
        let places: Vec<usize> = std::iter::once(0).chain(other_place(prediction)).collect();
        let heats = heats(first, prediction, &places, arguments)?;
        report.add(pictures::advice(prediction, &heats, &[], None), arguments.json);
    }
    let Some(why) = &prediction.unreliable else { return Ok(true) };
    if arguments.json {
        warn(format_args!("no verdict, and no limit: {why}"));
    }
    Ok(false)
}

/// Memory by address and time, where the recording is at hand: no line has that.
fn heats(
    first: &Path,
    prediction: &quire_advise::Prediction,
    places: &[usize],
    arguments: &AdviseArguments,
) -> Result<Vec<(usize, quire_advise::Heat)>, Failure> {
    if !first.exists() {
        warn(format_args!(
            "{}: not here, so that the page has no pictures of memory by address and time",
            first.display()
        ));
        return Ok(Vec::new());
    }
    Ok(heat_of(first, prediction, places, at_once(arguments.jobs))?)
}
