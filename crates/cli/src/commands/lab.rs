//! `quire lab`.

use crate::args::LabArguments;
use crate::exit::{FOUND_FAILURE, Failure};
use crate::output::{progress::Bar, say};
use quire_lab::pcp::{self, Progress, Scale};
use quire_lab::{LabError, PcpTechnique, Record, Report};
use std::process::ExitCode;

/// How much slower a case may be before it is named as slower.
const TOLERANCE: f64 = 0.02;

type Run = fn(&Scale, Progress<'_>) -> Result<Report, LabError>;

/// Every experiment, by its name.
const EXPERIMENTS: [(&str, Run); 1] = [(pcp::NAME, pcp::run)];

pub(crate) fn run(arguments: &LabArguments) -> Result<ExitCode, Failure> {
    let chosen = choose(&arguments.experiments)?;
    let scale = if arguments.quick { Scale::QUICK } else { Scale::FULL };
    let mut good = true;
    for (name, run) in chosen {
        let bar = Bar::new(name, "steps");
        let report = run(&scale, &mut |what, done, total| {
            bar.name(&format!("{name}: {what}"));
            bar.set(done, total);
        });
        bar.finish();
        let report = report.map_err(|error| Failure::work(format!("lab {name}: {error}")))?;
        show(&report, arguments.json);
        good &= report.findings.is_empty();
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(FOUND_FAILURE) })
}

/// The experiments of these names, each once; all without a name.
fn choose(names: &[String]) -> Result<Vec<(&'static str, Run)>, Failure> {
    let unknown = names.iter().find(|name| EXPERIMENTS.iter().all(|(known, _)| known != name));
    if let Some(unknown) = unknown {
        let known = EXPERIMENTS.map(|(name, _)| name).join(", ");
        return Err(Failure::input(format!(
            "there is no experiment {unknown} in this version; there is: {known}"
        )));
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    Ok(EXPERIMENTS.into_iter().filter(|(name, _)| wanted(name)).collect())
}

fn show(report: &Report, as_json: bool) {
    if as_json {
        Record::of(report).for_each(|record| say(record.line()));
    } else {
        for section in &report.sections {
            say(format_args!("{section}\n"));
        }
        slower(report);
    }
    for finding in &report.findings {
        eprintln!("quire: lab {}: {finding}", report.experiment);
    }
}

/// The unfavourable cases, after all the others.
fn slower(report: &Report) {
    let mut any = false;
    for figure in report.slower(TOLERANCE) {
        if !any {
            say(format_args!("Slower than with lists of order 0 only by more than {} %:", TOLERANCE * 100.0));
        }
        any = true;
        let ratio = figure.of(PcpTechnique::All).unwrap_or_default();
        say(format_args!("  {}: {:+.1} %", figure.case, (ratio - 1.0) * 100.0));
    }
    if !any {
        say(format_args!(
            "No case is slower than with lists of order 0 only by more than {} %.",
            TOLERANCE * 100.0
        ));
    }
}
