//! The table of `quire advise`: a row a setting.

use super::change::percent;
use crate::output::columns::{aligned, headed};
use crate::output::quantity::{count, size};
use crate::output::spark;
use comfy_table::Table;
use quire_advise::{Measure, Prediction, Range, Row, Setting};

/// Columns that a narrow table lacks: the range, the largest process, the mean and the end.
const NARROW_LACKS: [usize; 4] = [2, 3, 4, 5];

/// A row a setting; `all` columns, or those that fit on a narrow screen, and `drawn` one with memory over
/// time.
pub(super) fn table(prediction: &Prediction, all: bool, drawn: bool) -> Table {
    const HEADINGS: [&str; 11] = [
        "setting",
        "peak anonymous",
        "range",
        "largest\nprocess",
        "mean",
        "at the\nend",
        "page\ntables",
        "faults",
        "by\n2 MiB",
        "large\nfolios",
        "never\ntouched",
    ];
    let shown = |column: &usize| all || !NARROW_LACKS.contains(column);
    let chosen = |cells: [String; HEADINGS.len()]| {
        let cells = cells.into_iter().enumerate().filter(|(column, _)| shown(column));
        cells.map(|(_, cell)| cell).collect::<Vec<_>>()
    };
    let over_time = drawn.then(|| "in memory\nover time".to_owned());
    let mut table = headed(chosen(HEADINGS.map(str::to_owned)).into_iter().chain(over_time));
    let most = prediction.lives.iter().flatten().map(|sample| sample.anonymous).max().unwrap_or(0);
    for (place, ((setting, row), change)) in prediction.rows.iter().zip(&prediction.changes).enumerate() {
        let share = |range: Range| format!("{:.0} %", range.median * 100.0);
        let peak = row.peak_anonymous;
        let over_time = prediction.lives.get(place).filter(|_| drawn).map(|samples| {
            let values: Vec<(u64, u64)> =
                samples.iter().map(|sample| (sample.time_ns, sample.anonymous)).collect();
            spark::over_time(&values, most)
        });
        let cells = chosen([
            format!("{}{}", setting.name, note(setting, row)),
            format!("{}{}", size(peak.median), percent(change.memory[Measure::Charged].share.median)),
            if peak.spread() == 0.0 { String::new() } else { format!("+-{}", size(peak.spread())) },
            size(row.peak_largest.median),
            size(row.mean_anonymous.median),
            size(row.end_anonymous.median),
            size(row.peak_page_tables.median),
            format!("{}{}", count(row.faults.median), percent(change.faults.share.median)),
            share(row.huge_share),
            share(row.large_share),
            size(row.waste.median),
        ]);
        table.add_row(cells.into_iter().chain(over_time));
    }
    aligned(table, 1..)
}

/// What stands beside the name of a setting.
fn note(setting: &Setting, row: &Row) -> &'static str {
    match (setting.is_present, row.marked) {
        (true, _) => " (now)",
        (false, true) => " (differs)",
        (false, false) => "",
    }
}
