//! Figures for people: one table a section.

use crate::report::{Figure, Section};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use quire_frame::PcpTechnique;
use std::fmt;

impl fmt::Display for Section {
    /// The heading and the table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        let mut header = vec!["case".to_owned(), "metric".to_owned()];
        header.extend(PcpTechnique::ALL.map(|technique| technique.name().to_owned()));
        header.push(format!("{} / {}", PcpTechnique::All.name(), PcpTechnique::OrderZero.name()));
        let columns = header.len();
        table.set_header(header);
        let mut case = "";
        for figure in &self.figures {
            table.add_row(row(figure, figure.case == case));
            case = &figure.case;
        }
        for column in 2..columns {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        write!(f, "{}\n{table}", self.title)
    }
}

/// One line. A case is named once, at its first figure.
fn row(figure: &Figure, same_case: bool) -> Vec<String> {
    let case = if same_case { String::new() } else { figure.case.clone() };
    let mut row = vec![case, format!("{}, {}", figure.metric.name.replace('_', " "), figure.metric.unit)];
    row.extend(PcpTechnique::ALL.map(|technique| figure.of(technique).map_or_else(|| "-".to_owned(), short)));
    row.push(figure.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")));
    row
}

/// A number with as many decimals as say something.
fn short(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if value.abs() < 10.0 {
        format!("{value:.2}")
    } else if value.abs() < 1000.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Metric;

    #[test]
    fn a_section_names_each_case_once() {
        let figure = |name| Figure::new("a case", Metric::lower(name, "ns"), |_| Some(1234.56));
        let section =
            Section { title: "Title".to_owned(), figures: vec![figure("one_thing"), figure("other")] };
        let text = section.to_string();
        assert_eq!(text.lines().next(), Some("Title"));
        assert_eq!(text.matches("a case").count(), 1);
        assert!(text.contains("one thing, ns") && text.contains("1235") && text.contains("1.000"), "{text}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 0.5, 12.345, 4567.8].map(short), ["0", "0.50", "12.3", "4568"]);
    }
}
