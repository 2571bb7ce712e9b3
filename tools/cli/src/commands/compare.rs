//! `quire compare`: each technique off and on for a recording.

use super::replay::recordings_among;
use super::{at_once, instructions};
use crate::args::CompareArguments;
use crate::failure::{FOUND_FAILURE, Failure};
use crate::output::{progress::Bar, say_json, techniques, warn};
use crate::pictures::{self, ReportPage};
use quire_advise::{AdviseError, Comparison, Instructions, compare};
use quire_output::Shown;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(arguments: &CompareArguments) -> Result<ExitCode, Failure> {
    let mut page = ReportPage::new(arguments.report.as_deref(), "quire compare")?;
    let instructions = arguments.instructions.then(instructions::counter).transpose()?;
    let names: Vec<&str> = arguments.techniques.iter().map(String::as_str).collect();
    let mut good = true;
    for file in recordings_among(&arguments.files)? {
        let comparison =
            with_progress(file, &names, arguments.jobs, instructions.as_deref().map(|c| c as _))?;
        if arguments.json {
            techniques::objects(&comparison).iter().for_each(say_json);
        } else {
            techniques::print(&comparison);
        }
        if page.is_wanted() {
            page.add(pictures::comparison(&comparison), arguments.json);
        }
        if arguments.json
            && let Some(why) = techniques::why_not_good(&comparison.report)
        {
            warn(format_args!("{}: {why}", Shown::new(file)));
        }
        good &= comparison.report.is_good();
    }
    page.write()?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(FOUND_FAILURE) })
}

/// Compares the techniques of these names, or all, with progress on a terminal.
pub(crate) fn with_progress(
    file: &Path,
    names: &[&str],
    jobs: Option<usize>,
    instructions: Option<Instructions<'_>>,
) -> Result<Comparison, Failure> {
    let all = quire_advise::technique_names();
    let names = if names.is_empty() { &all } else { names };
    let bar = Bar::new(&file.display().to_string(), "comparisons");
    let comparison = compare(file, names, at_once(jobs), instructions, &|done, total| {
        bar.set(done as u64, total as u64);
    });
    bar.finish();
    comparison.map_err(|error| match error {
        AdviseError::DoesNotFit(..) | AdviseError::Instructions(_) => Failure::work(error),
        _ => Failure::input(error),
    })
}
