//! Figures for people: one table a section.

use crate::report::Section;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// The heading and the table of a section, with a bar for each ratio where it is to be `drawn`.
pub fn table(section: &Section, drawn: bool) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    let with_linux = section.figures.iter().any(|figure| figure.linux.is_some());
    let ratio = format!("{} / {}", section.technique.after(), section.technique.before());
    let mut header = vec!["case", "metric"];
    header.extend(section.technique.strategies);
    header.push(&ratio);
    header.extend(with_linux.then_some("Linux"));
    let columns = header.len();
    table.set_header(header);
    let mut case = "";
    for figure in &section.figures {
        // A case is named once, at its first figure.
        let name = if figure.case == case { "" } else { &figure.case };
        case = &figure.case;
        let metric = format!("{}, {}", figure.metric.name.replace('_', " "), figure.metric.unit);
        let mut row = vec![name.to_owned(), metric];
        row.extend(figure.values.iter().copied().map(short));
        row.push(match figure.ratio() {
            Some(ratio) if drawn => format!("{ratio:.3} {}", bar(ratio)),
            Some(ratio) => format!("{ratio:.3}"),
            None => "-".to_owned(),
        });
        row.extend(with_linux.then(|| figure.linux.map_or_else(|| "-".to_owned(), short)));
        table.add_row(row);
    }
    for column in 2..columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{}\n{table}", section.title)
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
    use crate::report::{Figure, Metric};
    use crate::technique::GATHER;

    fn text(linux: Option<f64>) -> String {
        let figure = |name| Figure {
            case: "a case".to_owned(),
            metric: Metric::lower(name, "ns"),
            values: vec![1234.56; 2],
            linux,
        };
        let figures = vec![figure("one_thing"), figure("other")];
        table(&Section { technique: &GATHER, title: "Title".to_owned(), figures }, false)
    }

    #[test]
    fn a_section_names_each_case_once() {
        let text = text(None);
        assert_eq!(text.lines().next(), Some("Title"));
        assert_eq!(text.matches("a case").count(), 1);
        assert!(text.contains("one thing, ns") && text.contains("1235") && text.contains("1.000"), "{text}");
    }

    #[test]
    fn linux_has_a_column_where_it_has_figures() {
        let (without, with) = (text(None), text(Some(77.0)));
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
