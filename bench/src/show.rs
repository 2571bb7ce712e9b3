//! What is printed.

use crate::race::Contender;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use quire_lab::harness::{BlockCase, Load};
use serde::Serialize;

/// A figure for scripts.
#[derive(Serialize)]
struct Line<'c> {
    allocator: &'c str,
    case: &'static str,
    part: &'static str,
    order: u8,
    threads: usize,
    min_ns: f64,
    median_ns: f64,
}

/// A case's figures: a table for people, or an object a line.
pub(crate) fn text(contenders: &[Contender<'_>], case: BlockCase, load: Load, as_json: bool) -> String {
    if as_json {
        return lines(contenders, case, load).collect::<Vec<_>>().join("\n");
    }
    let plural = if load.threads == 1 { "" } else { "s" };
    format!(
        "{} order {}, {} thread{plural}, {} blocks each, ns: minimum / median\n{}\n",
        case.name(),
        load.order,
        load.threads,
        load.count,
        table(contenders, case)
    )
}

fn lines(contenders: &[Contender<'_>], case: BlockCase, load: Load) -> impl Iterator<Item = String> {
    contenders.iter().flat_map(move |contender| {
        case.parts().iter().zip(&contender.parts).map(move |(part, series)| {
            let line = Line {
                allocator: &contender.name,
                case: case.name(),
                part,
                order: load.order.get(),
                threads: load.threads,
                min_ns: series.min(),
                median_ns: series.median(),
            };
            serde_json::to_string(&line)
                .unwrap_or_else(|error| unreachable!("strings and numbers are JSON: {error}"))
        })
    })
}

fn table(contenders: &[Contender<'_>], case: BlockCase) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(std::iter::once("allocator").chain(case.parts().iter().copied()));
    for contender in contenders {
        let figures =
            contender.parts.iter().map(|series| format!("{:.1} / {:.1}", series.min(), series.median()));
        table.add_row(std::iter::once(contender.name.clone()).chain(figures));
    }
    for column in 1..=case.parts().len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
