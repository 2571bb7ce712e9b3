//! What `quire compare` prints.

use super::columns::{aligned, headed};
use super::quantity::{count, size};
use super::{say, say_wrapped, shorten};
use comfy_table::Table;
use quire_advise::{ComparedFigure, Comparison, Effect};
use quire_output::Shown;
use quire_replay::{DoesNotFit, ProcessReport, ReplayReport};
use serde_json::{Value, json};

/// What each technique does, in a few words.
pub(crate) const fn about(technique: &str) -> &'static str {
    match technique.as_bytes() {
        b"pcp" => "blocks of all orders on the per-CPU lists",
        b"gather" => "unmapping by runs of a folio's pages",
        b"swap" => "the swap cache as the one synchronisation layer",
        b"tables" => "page tables are freed when they are empty",
        _ => "mremap moves whole tables",
    }
}

pub(crate) fn print(comparison: &Comparison) {
    let report = &comparison.report;
    let (calls, faults, differ) =
        report.processes.iter().fold((0, 0, 0), |(calls, faults, differ), process| {
            (calls + process.calls, faults + process.faults, differ + process.mismatches)
        });
    say(format_args!(
        "{}: {}\n{calls} calls and {faults} page faults replayed, {differ} differences from Linux",
        Shown::new(&comparison.file),
        shorten(&comparison.command, 60),
    ));
    if let Some(why) = why_not_good(report) {
        say_wrapped(&format!("But {why}."));
    }
    say("");
    say(table(&comparison.effects));
    for effect in &comparison.effects {
        if let Some(why) = effect.nothing {
            say_wrapped(&format!(
                "{} does nothing for this program under {}: {why}.",
                effect.technique, effect.setting
            ));
        }
    }
    say("");
}

/// Why the figures are not those of all that was recorded, if so.
pub(crate) fn why_not_good(report: &ReplayReport) -> Option<String> {
    if let Some(finding) = &report.does_not_fit {
        return Some(format!("{}: what follows is of what comes before", finding.what_it_needs()));
    }
    let differ: u64 = report.processes.iter().map(|process| process.mismatches).sum();
    let found: usize = report.processes.iter().map(|process| process.audit.len()).sum();
    match (differ, found) {
        (0, 0) => None,
        (0, found) => Some(format!("the audit found {found} faults; `quire replay` names them")),
        (differ, _) => Some(format!("{differ} results differ from Linux's; `quire replay` names them")),
    }
}

fn table(effects: &[Effect]) -> Table {
    let mut table = headed(["technique", "setting", "figure", "before", "after", "gain"]);
    for effect in effects.iter().filter(|effect| effect.nothing.is_none()) {
        let told = effect.figures.iter().filter(|figure| figure.before + figure.after > 0.0);
        for (place, figure) in told.enumerate() {
            let first = |text: String| if place == 0 { text } else { String::new() };
            table.add_row([
                first(format!("{}: {}", effect.technique, about(effect.technique))),
                first(effect.setting.clone()),
                figure.name.to_owned(),
                value(figure.unit, figure.before),
                value(figure.unit, figure.after),
                gain(figure),
            ]);
        }
    }
    aligned(table, 3..)
}

fn value(unit: &str, value: f64) -> String {
    if unit == "bytes" { size(value) } else { count(value) }
}

/// The change in percent; of what was nothing before none.
pub(crate) fn gain(figure: &ComparedFigure) -> String {
    match figure.change() {
        Some(change) if figure.before != figure.after => format!("{:+.1} %", change * 100.0),
        _ => String::new(),
    }
}

/// An object a figure.
pub(crate) fn objects(comparison: &Comparison) -> Vec<Value> {
    let mut objects = Vec::new();
    for effect in &comparison.effects {
        for figure in &effect.figures {
            objects.push(json!({
                "file": comparison.file.display().to_string(),
                "technique": effect.technique,
                "setting": effect.setting,
                "metric": figure.name.replace(' ', "_"),
                "unit": figure.unit,
                "before": figure.before,
                "after": figure.after,
                "does_not_fit": comparison.report.does_not_fit.as_ref().map(DoesNotFit::what_it_needs),
            }));
        }
    }
    objects
}

/// What each technique changes, a column each: its name, the figure, and the heading.
const COLUMNS: [(&str, &str, &str); 5] = [
    ("pcp", "zone lock takes", "pcp\nlocks"),
    ("gather", "rmap removals", "gather\nrmap"),
    ("swap", "major faults", "swap\nmajor"),
    ("tables", "peak page tables", "tables\npeak"),
    ("mremap", "entries moved", "mremap\nmoves"),
];

/// Prints a line a recording: what was replayed, and what each technique changes at most under the settings
/// tried.
pub(crate) fn print_overview(comparisons: &[Comparison]) {
    let headings = ["recording", "calls", "faults", "diff", "peak MiB\n/ Linux's"].into_iter();
    let headings = headings.chain(COLUMNS.map(|(.., heading)| heading));
    let mut table = headed(headings);
    for comparison in comparisons {
        let processes = &comparison.report.processes;
        let sum = |of: fn(&ProcessReport) -> u64| processes.iter().map(of).sum::<u64>().to_string();
        let name = Shown::new(comparison.file.file_stem().unwrap_or_default()).to_string();
        let row = [
            name,
            sum(|process| process.calls),
            sum(|process| process.faults),
            sum(|process| process.mismatches),
            peaks(processes),
        ];
        table.add_row(row.into_iter().chain(
            COLUMNS.map(|(technique, figure, _)| largest_gain(&comparison.effects, technique, figure)),
        ));
    }
    say(aligned(table, 1..));
    say("Peak: of the largest process, without pages of files. -: changes nothing for the program.");
}

/// The peak of the largest process in MiB, Quire's beside Linux's, without pages of files: Linux maps those
/// around a touched one, too. Linux has the peak of the sum only, so that files that it mapped at the peak
/// and not at the end are in its figure.
fn peaks(processes: &[ProcessReport]) -> String {
    let largest = processes.iter().max_by_key(|process| process.quire.peak_resident);
    let Some(process) = largest else { return String::new() };
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let linux = process.linux.as_ref();
    let linux = linux.map(|linux| mib(linux.vm_hwm.saturating_sub(linux.rss_file + linux.rss_shmem)));
    let quire = process
        .quire
        .peak_resident
        .saturating_sub(process.quire.resident_file + process.quire.resident_shmem);
    format!("{}/{}", mib(quire), linux.unwrap_or_else(|| "-".to_owned()))
}

fn largest_gain(effects: &[Effect], technique: &str, name: &str) -> String {
    let figures =
        effects.iter().filter(|effect| effect.technique == technique).flat_map(|effect| &effect.figures);
    let changed = figures.filter(|figure| figure.name == name && figure.before != figure.after);
    let largest =
        changed.min_by(|one, other| one.change().unwrap_or(0.0).total_cmp(&other.change().unwrap_or(0.0)));
    match largest.and_then(ComparedFigure::change) {
        Some(change) => format!("{:+.0} %", change * 100.0),
        None => "-".to_owned(),
    }
}
