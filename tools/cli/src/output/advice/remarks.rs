//! What is told beside the verdict.

use crate::output::quantity::size;
use quire_advise::{AtPeak, Near, Prediction, ProcessRow, Range, Row};
use std::collections::BTreeSet;

/// Differences from Linux that are told with the verdict.
const MOST_DIFFERENCES: usize = 5;

/// What is told beside the verdict: how much is needed without swap, which limits are near, and what differs
/// from Linux.
pub(super) fn remarks(prediction: &Prediction) -> Vec<String> {
    let needs = prediction.unreliable.is_none().then(|| without_swap(prediction));
    let unused = prediction.unreliable.is_none().then(|| unused(prediction));
    let mut lines: Vec<String> = needs.into_iter().chain(unused).collect();
    lines.extend(near(prediction));
    lines.extend(gaps(prediction));
    lines
}

/// What is needed where nothing can be paged out, and of what it consists.
fn without_swap(prediction: &Prediction) -> String {
    let needed = prediction.rows.first().map_or(Range::default(), |(_, row)| row.peak_charge);
    let peak = prediction.at_peak;
    let AtPeak { anonymous, lazily_free, shared, unmapped, page_tables, kernel, .. } = peak;
    let parts = [
        (anonymous, "anonymous"),
        (shared, "shared"),
        (page_tables, "page tables"),
        (kernel, "the kernel's for threads, processes and mappings"),
        (peak.locked_files, "locked pages of files"),
    ];
    let parts = parts.iter().filter(|(bytes, _)| *bytes > 0);
    let parts: Vec<String> = parts.map(|(bytes, name)| format!("{} {name}", size(*bytes as f64))).collect();
    let lazily = match lazily_free {
        0 => String::new(),
        bytes => format!("; {} of it may be freed at once (MADV_FREE)", size(bytes as f64)),
    };
    let gone = match unmapped {
        0 => String::new(),
        bytes => format!(
            "; {} of the shared memory is mapped by no process any more: if its last descriptors are closed, it needs \
             so much less",
            size(bytes as f64)
        ),
    };
    format!(
        "Without swap it needs {}, and what it reads of files: {}{lazily}{gone}.",
        size(needed.max),
        parts.join(", ")
    )
}

/// How much of the memory at the peak is not used again.
fn unused(prediction: &Prediction) -> String {
    match prediction.at_peak.unused {
        None => "How much of its peak is never used again is not known: that needs recordings under \
                 pressure, of all its memory."
            .to_owned(),
        Some([least, most]) if least == most => {
            format!("Of its peak, {} of anonymous memory is never used again.", size(most as f64))
        }
        Some([least, most]) => format!(
            "Of its peak, {} to {} of anonymous memory is never used again: what the recorder left in memory may have \
             been.",
            size(least as f64),
            size(most as f64)
        ),
    }
}

/// The limits of Linux's that processes came near to, a line for each limit.
fn near(prediction: &Prediction) -> Vec<String> {
    let processes = prediction.rows.first().map_or(&[][..], |(_, row)| &row.processes[..]);
    let mut nearest: Vec<(&ProcessRow, &Near)> = Vec::new();
    for (process, near) in
        processes.iter().flat_map(|process| process.near.iter().map(move |near| (process, near)))
    {
        let share = |near: &Near| near.used as f64 / near.most.max(1) as f64;
        match nearest.iter_mut().find(|(_, other)| other.limit == near.limit) {
            Some(known) if share(known.1) < share(near) => *known = (process, near),
            Some(_) => {}
            None => nearest.push((process, near)),
        }
    }
    let line = |(process, near): &(&ProcessRow, &Near)| {
        let of = |value: u64| match near.limit {
            "vm.max_map_count" => format!("{value} mappings"),
            _ => size(value as f64),
        };
        format!("{} came near to {}: {} of {}.", process.program, near.limit, of(near.used), of(near.most))
    };
    nearest.iter().map(line).collect()
}

/// What Quire cannot do and did otherwise than Linux, each with the rows that it touches.
fn gaps(prediction: &Prediction) -> Vec<String> {
    let rows = &prediction.rows;
    let rows_of = |is_there: &dyn Fn(&Row) -> bool| {
        let there: Vec<&str> =
            rows.iter().filter(|(_, row)| is_there(row)).map(|(setting, _)| setting.name.as_str()).collect();
        if there.len() == rows.len() { "all rows".to_owned() } else { there.join(", ") }
    };
    let names: BTreeSet<&String> = rows.iter().flat_map(|(_, row)| row.gaps.keys()).collect();
    let gap = |name: &String| {
        let count = rows.iter().filter_map(|(_, row)| row.gaps.get(name)).max().copied().unwrap_or(0);
        format!(
            "Not built: {name} ({count} times in all replays; {}).",
            rows_of(&|row| row.gaps.contains_key(name))
        )
    };
    let mut lines: Vec<String> = names.into_iter().map(gap).collect();
    // In the order of the recording, those of the present setting first.
    let mut differing: Vec<&String> = Vec::new();
    for what in rows.iter().flat_map(|(_, row)| &row.mismatches) {
        if !differing.contains(&what) {
            differing.push(what);
        }
    }
    let shown = differing
        .iter()
        .take(MOST_DIFFERENCES)
        .map(|what| format!("Differs: {what} ({}).", rows_of(&|row| row.mismatches.contains(what))));
    lines.extend(shown);
    lines
}
