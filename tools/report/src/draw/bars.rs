//! Groups of horizontal bars.

use super::{Axis, LETTER, Size, axis_below, entry, titled};
use crate::picture::{Cell, Picture};
use crate::svg::Svg;

const BAR: f64 = 13.0;
const GAP: f64 = 12.0;

pub(super) fn legend(picture: &Picture, bars: usize) -> Vec<String> {
    if bars < 2 {
        return Vec::new();
    }
    let first = picture.first_number();
    let columns = picture.columns.iter().skip(first).take(bars).enumerate();
    let sample = |style| format!("<rect class=\"b{style}\" x=\"1\" y=\"1\" width=\"26\" height=\"10\"/>");
    columns.map(|(style, column)| entry(&sample(style), &column.name)).collect()
}

/// The words that name a row.
fn name(row: &[Cell], first: usize) -> String {
    let words = row.iter().take(first).filter_map(|cell| match cell {
        Cell::Text(text) if !text.is_empty() => Some(text.as_str()),
        _ => None,
    });
    words.collect::<Vec<_>>().join(" · ")
}

pub(super) fn draw(picture: &Picture, bars: usize, each_its_own: bool, size: Size) -> Svg {
    let width = size.width();
    let first = picture.first_number();
    // Names stand beside their bars, or above them where it is narrow.
    let names = if size.is_narrow() { 0.0 } else { 300.0 };
    let above = if size.is_narrow() { 15.0 } else { 0.0 };
    // What the longest number at the end of a bar takes.
    let numbers = picture.rows.iter().flat_map(|row| {
        let number = move |column: usize| Some(picture.unit(row, column).text(row.get(column)?.number()?));
        (first..first + bars).filter_map(number)
    });
    let longest = numbers.map(|text| text.chars().count()).max().unwrap_or(0);
    let (left, right) = (names + 4.0, width - (longest as f64 * LETTER + 10.0).min(width / 2.0));
    let group = above + BAR * bars as f64 + GAP;
    let has_axis = !each_its_own;
    let bottom = 4.0 + group * picture.rows.len() as f64;
    let mut svg = Svg::new(width, bottom + if has_axis { 40.0 } else { 4.0 });

    let unit = &picture.columns[first].unit;
    let steps = if size.is_narrow() { 3 } else { 6 };
    let axis = Axis::new(unit, picture.most(first..first + bars), steps, (left, right), true);
    if has_axis {
        for (x, _) in axis.marks() {
            svg.line("grid", (x, 2.0), (x, bottom));
        }
        axis_below(&mut svg, &axis, bottom, &titled("", &axis.shown.name).replacen(", ", "", 1));
    }
    for (place, row) in picture.rows.iter().enumerate() {
        let top = 4.0 + group * place as f64;
        let most_letters = ((if size.is_narrow() { width } else { names }) / LETTER) as usize;
        let label = name(row, first);
        if size.is_narrow() {
            svg.cut_text("name", "start", (left, top + 11.0), &label, most_letters);
        } else {
            let middle = top + BAR * bars as f64 / 2.0 + 4.0;
            svg.cut_text("name", "end", (left - 10.0, middle), &label, most_letters);
        }
        let numbers: Vec<Option<f64>> =
            (first..first + bars).map(|column| row.get(column).and_then(Cell::number)).collect();
        let own = numbers.iter().flatten().fold(0.0, |most: f64, value| most.max(*value));
        for (bar, value) in numbers.iter().enumerate() {
            let Some(value) = *value else { continue };
            let y = top + above + BAR * bar as f64;
            let share = if own > 0.0 { value / own } else { 0.0 };
            let end = if each_its_own { left + (right - left) * share } else { axis.at(value) };
            let text = picture.unit(row, first + bar).text(value);
            let about = format!("{label}, {}: {text}", picture.columns[first + bar].name);
            svg.rect(&format!("b{bar}"), (left, y), ((end - left).max(1.0), BAR - 2.0), &about);
            svg.text("number", "start", (end.max(left) + 5.0, y + 10.0), &text);
        }
    }
    svg
}
