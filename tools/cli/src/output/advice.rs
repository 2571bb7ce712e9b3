//! What `quire advise` prints.

use super::say;
use super::table::shorten;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use quire_advise::{Figure, Gain, Prediction, Range, Row, Setting, Validation};
use serde_json::{Value, json};

/// Changes below this are none.
const NO_CHANGE: f64 = 0.005;

pub(crate) fn print(prediction: &Prediction) {
    let Prediction { command, recordings, seconds, differences, exactness, .. } = prediction;
    let of = if *recordings == 1 { "a recording".to_owned() } else { format!("{recordings} recordings") };
    say(format_args!(
        "{}: {of}, {seconds:.1} s; {differences} differences from Linux\n{exactness}\n",
        shorten(command, 60)
    ));
    say(table(prediction));
    for line in verdict(prediction) {
        say(line);
    }
}

/// Bytes with a unit, three digits.
fn size(bytes: f64) -> String {
    let (value, unit) = match bytes {
        bytes if bytes >= 1e9 => (bytes / f64::from(1 << 30), "GiB"),
        bytes if bytes >= 1e6 => (bytes / f64::from(1 << 20), "MiB"),
        bytes => (bytes / f64::from(1 << 10), "KiB"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// A count with a unit.
fn count(value: f64) -> String {
    match value {
        value if value >= 9.95e6 => format!("{:.0} M", value / 1e6),
        value if value >= 9.95e5 => format!("{:.1} M", value / 1e6),
        value if value >= 9.95e3 => format!("{:.0} k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

/// A change in percent, with its sign; nothing where there is none.
fn percent(change: f64) -> String {
    if change.abs() < NO_CHANGE { String::new() } else { format!(" {:+.0} %", change * 100.0) }
}

fn change(present: Range, row: Range) -> f64 {
    if present.median > 0.0 { row.median / present.median - 1.0 } else { 0.0 }
}

fn table(prediction: &Prediction) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "setting",
        "peak anonymous",
        "range",
        "mean",
        "page tables",
        "faults",
        "2 MiB\nfaults",
        "by\n2 MiB",
        "large\nfolios",
        "never\ntouched",
    ]);
    let Some((_, present)) = prediction.rows.first() else { return table };
    for (setting, row) in &prediction.rows {
        let share = |range: Range| format!("{:.0} %", range.median * 100.0);
        let peak = row.peak_largest;
        table.add_row([
            format!("{}{}", setting.name, if setting.is_present { " (now)" } else { "" }),
            format!("{}{}", size(peak.median), percent(change(present.peak_largest, peak))),
            if peak.spread() == 0.0 { String::new() } else { format!("+-{}", size(peak.spread())) },
            size(row.mean_anonymous.median),
            size(row.peak_page_tables.median),
            format!("{}{}", count(row.faults.median), percent(change(present.faults, row.faults))),
            count(row.huge_faults.median),
            share(row.huge_share),
            share(row.large_share),
            size(row.waste.median),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The verdict in sentences.
fn verdict(prediction: &Prediction) -> Vec<String> {
    let rows = &prediction.rows;
    let Some((present, now)) = rows.first() else { return Vec::new() };
    let verdict = &prediction.verdict;
    let mut lines = Vec::new();
    if verdict.nothing_changes() {
        lines.push(format!(
            "Verdict: nothing changes. No setting takes notably less memory than {} does, or saves page faults that \
             matter.",
            present.name
        ));
    }
    if let Some(gain) = &verdict.least_memory {
        lines.push(format!(
            "Verdict: {} is worth trying. {}",
            rows[gain.place].0.name,
            saves(gain, now, &rows[gain.place].1)
        ));
        lines.extend(how(&rows[gain.place].0, present));
    }
    if let Some(gain) = verdict
        .fewest_faults
        .as_ref()
        .filter(|gain| verdict.least_memory.as_ref().is_none_or(|least| least.place != gain.place))
    {
        let row = &rows[gain.place].1;
        lines.push(format!(
            "{} {} is worth trying for speed: {} page faults instead of {} save about {:.0} % of the time, for{} memory.",
            if verdict.least_memory.is_some() { "Also:" } else { "Verdict:" },
            rows[gain.place].0.name,
            count(row.faults.median),
            count(now.faults.median),
            gain.time * 100.0,
            if percent(gain.memory).is_empty() { " the same".to_owned() } else { percent(gain.memory) },
        ));
        lines.extend(how(&rows[gain.place].0, present));
    }
    if let Some(gain) = &verdict.most_memory {
        let (setting, row) = &rows[gain.place];
        lines.push(format!(
            "Beware of {}: it takes {} more at the peak ({:+.0} %), of which {} is never touched.",
            setting.name,
            size(row.peak_largest.median - now.peak_largest.median),
            gain.memory * 100.0,
            size(row.waste.median),
        ));
    }
    let fallbacks: u64 = rows.iter().map(|(_, row)| row.fallbacks).sum();
    if fallbacks > 0 {
        lines.push(format!(
            "The replays had no memory for {fallbacks} large folios: figures are too low there."
        ));
    }
    lines.push(
        "Not predicted: time saved by fewer TLB misses, other programs on the host, a host whose memory is fragmented."
            .to_owned(),
    );
    lines
}

fn saves(gain: &Gain, now: &Row, row: &Row) -> String {
    format!(
        "The largest process needs {} at its peak instead of {} ({:+.0} %), for {} page faults instead of {}.",
        size(row.peak_largest.median),
        size(now.peak_largest.median),
        gain.memory * 100.0,
        count(row.faults.median),
        count(now.faults.median),
    )
}

/// The commands that apply a setting and undo it.
fn how(setting: &Setting, present: &Setting) -> Vec<String> {
    let commands = setting.commands(present);
    if commands.is_empty() {
        return vec!["  It is a technique of Quire's, not a setting of Linux.".to_owned()];
    }
    let mut lines = vec![
        format!("  Apply: {}", commands.join("; ")),
        format!("  Undo:  {}", present.commands(setting).join("; ")),
    ];
    if setting.name == "thp=never" {
        lines.push(
            "  For this program only: let it call prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) before its exec."
                .to_owned(),
        );
    }
    lines
}

fn range(range: Range) -> Value {
    json!({ "median": range.median, "min": range.min, "max": range.max })
}

/// Prints an object a setting, and one for the verdict.
pub(crate) fn print_json(prediction: &Prediction) {
    for (setting, row) in &prediction.rows {
        say(json!({
            "setting": setting.name,
            "present": setting.is_present,
            "peak_largest": range(row.peak_largest),
            "peak_anonymous": range(row.peak_anonymous),
            "mean_anonymous": range(row.mean_anonymous),
            "peak_resident": range(row.peak_resident),
            "mean_resident": range(row.mean_resident),
            "peak_page_tables": range(row.peak_page_tables),
            "faults": range(row.faults),
            "huge_faults": range(row.huge_faults),
            "large_faults": range(row.large_faults),
            "collapses": range(row.collapses),
            "huge_share": range(row.huge_share),
            "large_share": range(row.large_share),
            "never_touched": range(row.waste),
            "fallbacks": row.fallbacks,
        }));
    }
    let rows = &prediction.rows;
    let gain = |gain: Option<&Gain>| {
        gain.zip(rows.first()).map(|(gain, (present, _))| {
            let setting = &rows[gain.place].0;
            json!({
                "setting": setting.name,
                "memory_change": gain.memory,
                "faults_change": gain.faults,
                "time_saved_estimate": gain.time,
                "apply": setting.commands(present),
                "undo": present.commands(setting),
            })
        })
    };
    say(json!({
        "verdict": verdict(prediction),
        "command": prediction.command,
        "recordings": prediction.recordings,
        "seconds": prediction.seconds,
        "differences": prediction.differences,
        "nothing_changes": prediction.verdict.nothing_changes(),
        "least_memory": gain(prediction.verdict.least_memory.as_ref()),
        "fewest_faults": gain(prediction.verdict.fewest_faults.as_ref()),
        "most_memory": gain(prediction.verdict.most_memory.as_ref()),
    }));
}

/// A figure of a validation with its range.
fn measured(unit: &str, range: Range) -> String {
    let of = |value: f64| match unit {
        "bytes" => size(value),
        "share" => format!("{:.0} %", value * 100.0),
        _ => count(value),
    };
    if range.spread() == 0.0 || unit == "share" && range.spread() < NO_CHANGE {
        of(range.median)
    } else {
        format!("{} +-{}", of(range.median), of(range.spread()))
    }
}

/// Prints what was predicted beside what the program did.
pub(crate) fn print_validations(validations: &[Validation], runs: u16) {
    say(format_args!("\nMeasured on this host, {runs} runs under each setting:"));
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["setting", "figure", "predicted", "measured", "error"]);
    for Validation { setting, figures, seconds } in validations {
        for figure in figures {
            let error = figure.error();
            table.add_row([
                setting.clone(),
                figure.name.to_owned(),
                measured(figure.unit, figure.predicted),
                measured(figure.unit, figure.measured),
                error.map_or_else(String::new, |error| format!("{:+.1} %", error * 100.0)),
            ]);
        }
        let time = format!("{:.2} s +-{:.2} s", seconds.median, seconds.spread());
        table.add_row([setting.clone(), "run time".to_owned(), String::new(), time, String::new()]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    say(table);
}

/// Prints an object a figure.
pub(crate) fn print_validations_json(validations: &[Validation]) {
    for Validation { setting, figures, seconds } in validations {
        for figure @ Figure { name, unit, predicted, measured } in figures {
            say(json!({
                "validated": setting,
                "figure": name,
                "unit": unit,
                "predicted": range(*predicted),
                "measured": range(*measured),
                "error": figure.error(),
            }));
        }
        say(json!({
            "validated": setting,
            "figure": "run time",
            "unit": "s",
            "predicted": null,
            "measured": range(*seconds),
            "error": null,
        }));
    }
}
