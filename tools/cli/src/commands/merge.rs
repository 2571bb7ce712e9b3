//! `quire advise --from`: advice from the results of a sweep.

use super::{at_once, other_place};
use crate::args::AdviseArguments;
use crate::failure::{FOUND_FAILURE, Failure};
use crate::output::{advice, fleet, progress::Bar, say_json, spark::may_draw, warn};
use crate::pictures::{self, ReportPage};
use quire_advise::{AdviseError, Fleet, Host, Merge, MergedProgram, heat_of};
use std::path::PathBuf;
use std::process::ExitCode;

/// Names of files in a folder of results end so.
const EXTENSIONS: [&str; 2] = ["json", "jsonl"];

pub(super) fn run(
    arguments: &AdviseArguments,
    host: &Host,
    mut report: ReportPage,
) -> Result<ExitCode, Failure> {
    let mut merge = Merge::default();
    files(&arguments.from).iter().for_each(|file| merge.read(file));
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
fn files(named: &[PathBuf]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in named {
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let Ok(entries) = entries else {
            // No folder; or it is told why it cannot be read.
            files.push(path.clone());
            continue;
        };
        let mut found: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        let is_result = |file: &PathBuf| {
            file.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
        };
        found.retain(is_result);
        found.sort();
        files.extend(found);
    }
    files
}

/// Prints what `quire advise` would print for the recordings of a program. Returns whether its verdict is
/// one.
fn show(
    program: &MergedProgram,
    arguments: &AdviseArguments,
    report: &mut ReportPage,
) -> Result<bool, Failure> {
    let prediction = &program.prediction;
    if arguments.json {
        advice::objects(prediction, &[], None).iter().for_each(say_json);
    } else {
        advice::print(prediction, may_draw(arguments.plain));
    }
    if report.is_wanted() {
        let places: Vec<usize> = std::iter::once(0).chain(other_place(prediction)).collect();
        let heats = heats(program, &places, arguments)?;
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
    program: &MergedProgram,
    places: &[usize],
    arguments: &AdviseArguments,
) -> Result<Vec<(usize, quire_advise::Heat)>, Failure> {
    if let Err(why) = program.is_at_hand() {
        warn(format_args!(
            "{}: {why}, so that the page has no pictures of memory by address and time",
            program.first.display()
        ));
        return Ok(Vec::new());
    }
    match heat_of(&program.first, &program.prediction, places, at_once(arguments.jobs)) {
        Err(error @ AdviseError::HostIsShort(_)) => {
            warn(format_args!("{error}: the page has no pictures of memory by address and time"));
            Ok(Vec::new())
        }
        other => Ok(other?),
    }
}
