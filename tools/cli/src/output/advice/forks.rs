//! What `quire advise` prints about forks.

use super::range::{put, put_known};
use crate::output::columns::{aligned, headed};
use crate::output::quantity::count;
use crate::output::say;
use quire_advise::{ForkRow, Prediction, Row};
use serde_json::{Map, Value};

/// Prints what forks cost under each setting, if the program forks.
pub(super) fn print(prediction: &Prediction) {
    let forked = |row: &Row| row.fork.forks.median > 0.0;
    if !prediction.rows.iter().any(|(_, row)| forked(row)) {
        return;
    }
    say("\nForks: entries that all of them copied, and writes to what was shared afterwards:");
    let mut table = headed([
        "setting",
        "forks",
        "pages",
        "2 MiB",
        "tables",
        "copied\nafterwards",
        "not\nshared",
        "2 MiB\nsplit",
        "time",
    ]);
    for (setting, row) in &prediction.rows {
        let ForkRow { forks, entries, huge_entries, tables, copies, reuses, splits, estimate_ns } = row.fork;
        let counts = [forks, entries, huge_entries, tables, copies, reuses, splits];
        let counts = counts.map(|range| count(range.median));
        let time = estimate_ns.map_or_else(String::new, |time| format!("{:.1} ms", time.median / 1e6));
        table.add_row(std::iter::once(setting.name.clone()).chain(counts).chain([time]));
    }
    say(aligned(table, 1..));
}

/// The figures by their names.
pub(super) fn object(fork: &ForkRow) -> Map<String, Value> {
    let ForkRow { forks, entries, huge_entries, tables, copies, reuses, splits, estimate_ns } = *fork;
    let mut object = Map::new();
    for (name, range) in [
        ("forks", forks),
        ("entries", entries),
        ("huge_entries", huge_entries),
        ("tables", tables),
        ("copies", copies),
        ("reuses", reuses),
        ("splits", splits),
    ] {
        put(&mut object, name, range);
    }
    put_known(&mut object, "estimate_ns", estimate_ns);
    object
}
