//! Tables in Markdown.

use comfy_table::{CellAlignment, ContentArrangement, Row, Table, presets};
use std::ops::RangeBounds;

/// A table with headings and no row.
pub(super) fn headed(headings: impl Into<Row>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings);
    table
}

/// With these columns, of numbers, to the right.
pub(super) fn aligned(mut table: Table, numbers: impl RangeBounds<usize>) -> Table {
    for (nth, column) in table.column_iter_mut().enumerate() {
        if numbers.contains(&nth) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
