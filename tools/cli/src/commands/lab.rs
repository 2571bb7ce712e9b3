//! `quire lab`.

use crate::args::LabArguments;
use crate::exit::{FOUND_FAILURE, Failure};
use crate::output::{progress::Bar, say, say_json, spark::may_draw, warn};
use crate::pictures::{self, Report};
use quire_lab::{Compared, LabError, Record, Report as LabReport, gather, mremap, pcp, swap, tables};
use std::process::ExitCode;

/// How much slower a case may be before it is named as slower.
const TOLERANCE: f64 = 0.02;

/// Called with the current step, how many steps of the experiment are done, and how many there are.
type Progress<'p> = &'p mut dyn FnMut(&str, u64, u64);
/// How what an experiment found out is shown.
struct Manner<'p> {
    as_json: bool,
    /// With bars in the tables.
    drawn: bool,
    page: &'p mut Report,
}
/// Prints the results of an experiment, as JSON or as text, and returns whether nothing is wrong.
type Show = Box<dyn Fn(&mut Manner<'_>) -> bool>;
/// Runs an experiment, quickly or in full.
type Run = fn(&LabArguments, Progress<'_>) -> Result<Show, LabError>;

/// Every experiment, by its name.
const EXPERIMENTS: [(&str, Run); 5] = [
    (pcp::NAME, |arguments, progress| {
        let scale = if arguments.quick { pcp::Scale::QUICK } else { pcp::Scale::FULL };
        pcp::run(&scale, progress).map(to_be_shown)
    }),
    (gather::NAME, |arguments, progress| {
        let scale = if arguments.quick { gather::Scale::QUICK } else { gather::Scale::FULL };
        gather::run(&scale, progress).map(to_be_shown)
    }),
    (tables::NAME, |arguments, progress| {
        let scale = if arguments.quick { tables::Scale::QUICK } else { tables::Scale::FULL };
        tables::run(&scale, progress).map(to_be_shown)
    }),
    (mremap::NAME, |arguments, progress| {
        let scale = if arguments.quick { mremap::Scale::QUICK } else { mremap::Scale::FULL };
        mremap::run(&scale, progress).map(to_be_shown)
    }),
    (swap::NAME, |arguments, progress| {
        let scale = if arguments.quick { swap::Scale::QUICK } else { swap::Scale::FULL };
        let scale = if arguments.no_host_swap { scale.without_host_swap() } else { scale };
        swap::run(&scale, progress).map(to_be_shown)
    }),
];

pub(crate) fn run(arguments: &LabArguments) -> Result<ExitCode, Failure> {
    let mut page = Report::new(arguments.report.as_deref(), "quire lab")?;
    let mut good = true;
    for (name, run) in choose(&arguments.experiments)? {
        let bar = Bar::new(name, "steps");
        let report = run(arguments, &mut |what, done, total| {
            bar.name(&format!("{name}: {what}"));
            bar.set(done, total);
        });
        bar.finish();
        let shown = report.map_err(|error| Failure::work(format!("lab {name}: {error}")))?;
        let drawn = may_draw(arguments.plain);
        good &= shown(&mut Manner { as_json: arguments.json, drawn, page: &mut page });
    }
    page.write()?;
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

fn to_be_shown<T: Compared>(report: LabReport<T>) -> Show {
    Box::new(move |how| {
        show(&report, how);
        report.findings.is_empty()
    })
}

fn show<T: Compared>(report: &LabReport<T>, how: &mut Manner<'_>) {
    if how.as_json {
        Record::of(report).for_each(|record| say_json(record.line()));
    } else {
        for section in &report.sections {
            if how.drawn {
                say(format_args!("{section:#}\n"));
            } else {
                say(format_args!("{section}\n"));
            }
        }
        slower(report).iter().for_each(say);
    }
    if how.page.is_wanted() {
        how.page.add(pictures::experiment(report, slower(report)), how.as_json);
    }
    for case in &report.left_out {
        warn(format_args!("lab {}: left out: {case}", report.experiment));
    }
    for finding in &report.findings {
        warn(format_args!("lab {}: {finding}", report.experiment));
    }
}

/// The unfavourable cases, after all the others.
fn slower<T: Compared>(report: &LabReport<T>) -> Vec<String> {
    let percent = TOLERANCE * 100.0;
    let cases = report.slower(TOLERANCE).map(|figure| {
        let ratio = figure.of(T::AFTER).unwrap_or_default();
        format!("  {}: {:+.1} %", figure.case, (ratio - 1.0) * 100.0)
    });
    let cases: Vec<String> = cases.collect();
    if cases.is_empty() {
        return vec![format!("No case is slower than {} by more than {percent} %.", T::BEFORE_TEXT)];
    }
    let heading = format!("Slower than {} by more than {percent} %:", T::BEFORE_TEXT);
    std::iter::once(heading).chain(cases).collect()
}
