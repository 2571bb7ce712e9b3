//! Addresses by time.

use quire_advise::{Heat, HeatBytes};
use quire_report::{Cell, Column, Drawing, HeatCell, HeatDrawing, HeatRun, Picture, Unit};

/// The picture of `heat`, which was replayed as `of` says.
pub(super) fn picture(name: &str, of: &str, heat: &Heat) -> Picture {
    let columns = heat.runs.first().and_then(|run| run.rows.first()).map_or(0, Vec::len);
    let share = |bytes: u64| (bytes as f64 / heat.chunk as f64) as f32;
    let cell = |cell: &HeatBytes| HeatCell {
        touched_now: share(cell.touched_now),
        touched_before: share(cell.touched_before),
        never_touched: share(cell.never_touched),
        paged_out: share(cell.paged_out),
    };
    let run = |run: &quire_advise::HeatRun| HeatRun {
        name: run.name.clone(),
        rows: run.rows.iter().map(|row| row.iter().map(cell).collect()).collect(),
    };
    let drawing = HeatDrawing { seconds: heat.seconds, columns, runs: heat.runs.iter().map(run).collect() };
    let numbers = ["touched at that time", "touched before", "never touched", "paged out"];
    let table = [("mapping", Unit::Text), ("from", Unit::Text), ("size", Unit::Bytes)].into_iter();
    let table = table.chain(numbers.map(|name| (name, Unit::Bytes)));
    Picture {
        name: name.to_owned(),
        title: format!("Where the memory lies, {of}"),
        explanation: explanation(heat),
        columns: table.map(|(name, unit)| Column::new(name, unit)).collect(),
        rows: heat
            .runs
            .iter()
            .map(|run| {
                let HeatBytes { touched_now, touched_before, never_touched, paged_out } = run.at_peak;
                let sizes = [run.end - run.start, touched_now, touched_before, never_touched, paged_out];
                let words = [Cell::Text(run.name.clone()), Cell::Text(format!("{:#x}", run.start))];
                words.into_iter().chain(sizes.map(|bytes| Cell::Number(bytes as f64))).collect()
            })
            .collect(),
        drawing: Drawing::Heat(drawing),
    }
}

fn explanation(heat: &Heat) -> String {
    let Heat { program, pid, others, chunk, left_out: (ranges, bytes), .. } = heat;
    let program = program.rsplit('/').next().unwrap_or_default();
    let mut text = format!(
        "Time goes from left to right, and each row is {} of addresses. Blue was used by the program; orange is memory \
         that it got with a large page and never touched: waste. Dotted lines are gaps between mappings. Of {program} \
         ({pid}), the process with most memory",
        Unit::Bytes.text(*chunk as f64),
    );
    match others {
        0 => {}
        1 => text.push_str("; another one is not drawn"),
        others => text.push_str(&format!("; {others} others are not drawn")),
    }
    if *ranges > 0 {
        let bytes = Unit::Bytes.text(*bytes as f64);
        text.push_str(&format!("; {ranges} smaller ranges of it, {bytes} together, are left out"));
    }
    text.push_str(". The table tells the moment of its highest use.");
    text
}
