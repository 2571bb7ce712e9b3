//! `quire lab`.

use crate::args::LabArguments;
use crate::failure::{FOUND_FAILURE, Failure};
use crate::output::{progress::Bar, say, say_json, spark::may_draw, warn};
use crate::pictures::{self, ReportPage};
use quire_lab::{EXPERIMENTS, Experiment, IS_FOR_FIGURES, Report, Scale, table};
use std::process::ExitCode;

/// How much slower a case may be before it is named as slower.
const TOLERANCE: f64 = 0.02;

pub(crate) fn run(arguments: &LabArguments) -> Result<ExitCode, Failure> {
    let mut page = ReportPage::new(arguments.report.as_deref(), "quire lab")?;
    let mut good = true;
    let scale = if arguments.quick { Scale::QUICK } else { Scale::FULL };
    let scale = if arguments.no_host_swap { scale.without_host_swap() } else { scale };
    for experiment in choose(&arguments.experiments)? {
        let name = experiment.technique.name;
        let bar = Bar::new(name, "steps");
        let report = experiment.run(scale, &mut |what, done, total| {
            bar.name(&format!("{name}: {what}"));
            bar.set(done, total);
        });
        bar.finish();
        let report = report.map_err(|error| Failure::work(format!("lab {name}: {error}")))?;
        show(&report, arguments, &mut page);
        good &= report.findings.is_empty();
    }
    page.write()?;
    if !(IS_FOR_FIGURES || arguments.json) {
        warn("lab: times are lower in a build for figures: cargo run --profile measure -- lab");
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(FOUND_FAILURE) })
}

/// The experiments of these names, each once; all without a name.
fn choose(names: &[String]) -> Result<Vec<Experiment>, Failure> {
    let name = |experiment: &Experiment| experiment.technique.name;
    let unknown = names.iter().find(|wanted| EXPERIMENTS.iter().all(|known| name(known) != *wanted));
    if let Some(unknown) = unknown {
        let known = EXPERIMENTS.map(|known| name(&known)).join(", ");
        return Err(Failure::input(format!(
            "there is no experiment {unknown} in this version; there is: {known}"
        )));
    }
    let is_wanted = |known: &Experiment| names.is_empty() || names.iter().any(|wanted| wanted == name(known));
    Ok(EXPERIMENTS.into_iter().filter(is_wanted).collect())
}

/// Prints the results of an experiment, as JSON or as text, and adds them to the page.
fn show(report: &Report, arguments: &LabArguments, page: &mut ReportPage) {
    if arguments.json {
        report.records().for_each(|record| say_json(record.line()));
    } else {
        // With bars in the tables, where they may be drawn.
        let drawn = may_draw(arguments.plain);
        report.sections.iter().for_each(|section| say(format_args!("{}\n", table(section, drawn))));
        slower(report).iter().for_each(say);
    }
    if page.is_wanted() {
        page.add(pictures::experiment(report, slower(report)), arguments.json);
    }
    let name = report.technique.name;
    for case in &report.left_out {
        warn(format_args!("lab {name}: left out: {case}"));
    }
    for finding in &report.findings {
        warn(format_args!("lab {name}: {finding}"));
    }
}

/// The unfavourable cases, after all the others.
fn slower(report: &Report) -> Vec<String> {
    let before = report.technique.before_text;
    let percent = TOLERANCE * 100.0;
    let cases = report.slower(TOLERANCE);
    let cases: Vec<String> =
        cases.map(|it| format!("  {}: {:+.1} %", it.case, (it.after() - 1.0) * 100.0)).collect();
    if cases.is_empty() {
        return vec![format!("No case is slower than {} by more than {percent} %.", before)];
    }
    let heading = format!("Slower than {before} by more than {percent} %:");
    std::iter::once(heading).chain(cases).collect()
}
