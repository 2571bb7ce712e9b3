//! Quantiles on a logarithmic scale: a line a row, with a mark for each.

use super::{LETTER, Size, entry};
use crate::picture::{Cell, Picture};
use crate::svg::Svg;

const ROW: f64 = 24.0;
const NARROW_ROW: f64 = 38.0;

pub(super) fn legend(picture: &Picture) -> Vec<String> {
    let columns = picture.columns.iter().skip(picture.first_number()).enumerate();
    let each = columns.map(|(style, column)| {
        let mut sample = Svg::new(28.0, 12.0);
        sample.mark(&format!("f{style}"), style, (14.0, 6.0), 4.5, "");
        entry(&sample.into_body(), &column.name)
    });
    each.collect()
}

pub(super) fn draw(picture: &Picture, size: Size) -> Svg {
    let width = size.width();
    let first = picture.first_number();
    let names = if size.is_narrow() { 0.0 } else { 300.0 };
    let (left, right) = (names + 14.0, width - 24.0);
    let height = if size.is_narrow() { NARROW_ROW } else { ROW };
    let bottom = 8.0 + height * picture.rows.len() as f64;
    let mut svg = Svg::new(width, bottom + 40.0);

    let numbers = || picture.rows.iter().flat_map(|row| row.iter().skip(first)).filter_map(Cell::number);
    let positive = || numbers().filter(|value| *value > 0.0);
    let (least, most) = positive()
        .fold((f64::MAX, 0.0), |(least, most): (f64, f64), value| (least.min(value), most.max(value)));
    if most == 0.0 {
        return svg;
    }
    // From a power of ten to a power of ten.
    let (low, high) = (least.log10().floor(), (most.log10() + 1e-9).ceil().max(least.log10().floor() + 1.0));
    let at = |value: f64| left + (right - left) * (value.max(least).log10() - low) / (high - low);
    let unit = &picture.columns[first].unit;
    for power in low as i32..=high as i32 {
        let value = 10f64.powi(power);
        svg.line("grid", (at(value).max(left), 2.0), (at(value).max(left), bottom));
        let x = left + (right - left) * (f64::from(power) - low) / (high - low);
        svg.line("axis", (x, bottom), (x, bottom + 4.0));
        let shown = unit.shown(value);
        svg.text("tick", "middle", (x, bottom + 17.0), &format!("{} {}", value / shown.divisor, shown.name));
    }
    svg.line("axis", (left, bottom), (right, bottom));
    svg.text("label", "end", (right, bottom + 34.0), "each step is ten times as long");

    for (place, row) in picture.rows.iter().enumerate() {
        let top = 8.0 + height * place as f64;
        let Some(Cell::Text(label)) = row.first() else { continue };
        let y = top + height - 12.0;
        if size.is_narrow() {
            svg.cut_text("name", "start", (4.0, top + 11.0), label, (width / LETTER) as usize);
        } else {
            svg.cut_text("name", "end", (names, y + 4.0), label, (names / LETTER) as usize);
        }
        let values: Vec<(usize, f64)> = (first..picture.columns.len())
            .filter_map(|column| Some((column - first, row.get(column)?.number()?)))
            .collect();
        let (Some(&(_, from)), Some(&(_, to))) = (values.first(), values.last()) else { continue };
        svg.line("range", (at(from), y), (at(to), y));
        for (style, value) in values {
            let about = format!("{label}, {}: {}", picture.columns[first + style].name, unit.text(value));
            svg.mark(&format!("f{style}"), style, (at(value), y), 4.5, &about);
        }
    }
    svg
}
