//! Figures for people: one table a section.

use crate::report::{Compared, Figure, Section};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::fmt;

impl<T: Compared> fmt::Display for Section<T> {
    /// The heading and the table; `{:#}` with a bar for each ratio.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        let mut header = vec!["case".to_owned(), "metric".to_owned()];
        header.extend(T::ALL.iter().map(|technique| technique.name().to_owned()));
        header.push(format!("{} / {}", T::AFTER.name(), T::BEFORE.name()));
        let with_linux = self.figures.iter().any(|figure| figure.linux.is_some());
        if with_linux {
            header.push("Linux".to_owned());
        }
        let columns = header.len();
        table.set_header(header);
        let mut case = "";
        for figure in &self.figures {
            let mut row = row(figure, figure.case == case, with_linux);
            if let (true, Some(ratio)) = (f.alternate(), figure.ratio()) {
                row[2 + T::ALL.len()] += &format!(" {}", bar(ratio));
            }
            table.add_row(row);
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
fn row<T: Compared>(figure: &Figure<T>, same_case: bool, with_linux: bool) -> Vec<String> {
    let case = if same_case { String::new() } else { figure.case.clone() };
    let mut row = vec![case, format!("{}, {}", figure.metric.name.replace('_', " "), figure.metric.unit)];
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
    row.extend(T::ALL.iter().map(|&technique| number(figure.of(technique))));
    row.push(figure.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")));
    row.extend(with_linux.then(|| number(figure.linux)));
    row
}

/// Letters of a bar for a ratio of one; twice as many are the longest.
const BAR: f64 = 6.0;
const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// A ratio as a bar, padded.
fn bar(ratio: f64) -> String {
    let eighths = ((ratio * BAR * 8.0).round() as usize).min(2 * BAR as usize * 8);
    let bar = "█".repeat(eighths / 8) + PARTS[eighths % 8];
    format!("{bar:<0$}", 2 * BAR as usize)
}

/// A number with as many decimals as are significant.
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
    use quire_frame::PcpTechnique;
    use quire_space::GatherTechnique;

    #[test]
    fn a_section_names_each_case_once() {
        let figure = |name| Figure::new("a case", Metric::lower(name, "ns"), |_: PcpTechnique| Some(1234.56));
        let section =
            Section { title: "Title".to_owned(), figures: vec![figure("one_thing"), figure("other")] };
        let text = section.to_string();
        assert_eq!(text.lines().next(), Some("Title"));
        assert_eq!(text.matches("a case").count(), 1);
        assert!(text.contains("one thing, ns") && text.contains("1235") && text.contains("1.000"), "{text}");
    }

    #[test]
    fn linux_has_a_column_where_it_has_figures() {
        let figure = Figure::new("a case", Metric::lower("time", "ns"), |technique: GatherTechnique| {
            (technique == GatherTechnique::Runs).then_some(5.0)
        });
        let text = |figure| Section { title: String::new(), figures: vec![figure] }.to_string();
        let (without, with) = (text(figure.clone()), text(figure.with_linux(Some(77.0))));
        assert!(without.contains("runs / pages") && !without.contains("Linux"), "{without}");
        assert!(with.contains("Linux") && with.contains("77.0"), "{with}");
    }

    #[test]
    fn bars_are_as_long_as_ratios() {
        for (ratio, blocks) in [(0.0, 0), (0.5, 3), (1.0, 6), (2.0, 12), (99.0, 12)] {
            let bar = bar(ratio);
            assert_eq!((bar.matches('█').count(), bar.chars().count()), (blocks, 12), "{ratio}");
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 0.5, 12.345, 4567.8].map(short), ["0", "0.50", "12.3", "4568"]);
    }
}
