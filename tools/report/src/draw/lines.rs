//! Lines and points over numbers.

use super::{Axis, COLOURS, Size, axis_below, entry, titled};
use crate::picture::{Mark, Picture};
use crate::svg::Svg;
use crate::unit::Unit;

const HEIGHT: f64 = 300.0;
const NARROW_HEIGHT: f64 = 250.0;
/// Names of equal lines that a legend shows.
const MOST_NAMES: usize = 3;

/// Columns that are drawn as one.
struct Group {
    mark: Mark,
    /// The first of them is drawn.
    columns: Vec<usize>,
    /// Which colour, dashes and shape.
    style: usize,
}

/// The columns after the first, equal lines together, in the order of the legend.
fn groups(picture: &Picture, marks: &[Mark]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let equal = |one: usize, other: usize| picture.rows.iter().all(|row| row.get(one) == row.get(other));
    for (place, &mark) in marks.iter().enumerate() {
        let column = place + 1;
        let is_line = matches!(mark, Mark::Line | Mark::Beside);
        let lines = groups.iter_mut().filter(|group| matches!(group.mark, Mark::Line | Mark::Beside));
        let mut lines = lines.filter(|group| is_line && equal(group.columns[0], column));
        match lines.next() {
            Some(group) => {
                group.columns.push(column);
                if mark == Mark::Line {
                    group.mark = mark;
                }
            }
            None => groups.push(Group { mark, columns: vec![column], style: 0 }),
        }
    }
    let told = groups.iter_mut().filter(|group| group.mark != Mark::Beside);
    for (style, group) in told.enumerate() {
        if style >= COLOURS && group.mark == Mark::Line {
            group.mark = Mark::Beside;
        }
        group.style = style % COLOURS;
    }
    groups
}

pub(super) fn legend(picture: &Picture, marks: &[Mark]) -> Vec<String> {
    let groups = groups(picture, marks);
    let name = |column: usize| picture.columns[column].name.as_str();
    let mut legend: Vec<String> = Vec::new();
    for group in groups.iter().filter(|group| group.mark != Mark::Beside) {
        let names: Vec<&str> = group.columns.iter().map(|&column| name(column)).collect();
        let mut text = names[..names.len().min(MOST_NAMES)].join(", ");
        if names.len() > MOST_NAMES {
            text = format!("{text} and {} more", names.len() - MOST_NAMES);
        }
        let style = group.style;
        legend.push(entry(
            &match group.mark {
                Mark::Line => format!("<line class=\"s{style}\" x1=\"1\" y1=\"6\" x2=\"27\" y2=\"6\"/>"),
                mark => {
                    let mut sample = Svg::new(28.0, 12.0);
                    sample.mark(&format!("f{style}"), style, (14.0, 6.0), radius(mark), "");
                    sample.into_body()
                }
            },
            &text,
        ));
    }
    let beside: usize =
        groups.iter().filter(|group| group.mark == Mark::Beside).map(|group| group.columns.len()).sum();
    if beside > 0 {
        let sample = "<line class=\"beside\" x1=\"1\" y1=\"6\" x2=\"27\" y2=\"6\"/>";
        legend.push(entry(sample, &format!("{beside} others")));
    }
    legend
}

fn radius(mark: Mark) -> f64 {
    if mark == Mark::Measured { 5.5 } else { 4.0 }
}

pub(super) fn draw(picture: &Picture, axis: &str, marks: &[Mark], size: Size) -> Svg {
    let width = size.width();
    let height = if size.is_narrow() { NARROW_HEIGHT } else { HEIGHT };
    let (left, right, top, bottom) = (46.0, width - 14.0, 26.0, height - 40.0);
    let mut svg = Svg::new(width, height);
    let (first, columns) = (&picture.columns[0], picture.columns.len());
    let unit = picture.columns.get(1).map_or(Unit::Count, |column| column.unit.clone());
    let steps = if size.is_narrow() { 4 } else { 8 };
    let across = Axis::new(&first.unit, picture.most(0..1), steps, (left, right), false);
    let up = Axis::new(&unit, picture.most(1..columns), 5, (bottom, top), true);

    for (y, number) in up.marks() {
        svg.line("grid", (left, y), (right, y));
        svg.text("tick", "end", (left - 6.0, y + 4.0), &number);
    }
    svg.text("label", "start", (2.0, 12.0), &titled(axis, &up.shown.name));
    axis_below(&mut svg, &across, bottom, &titled(&first.name, &across.shown.name));

    let groups = groups(picture, marks);
    let (beside, drawn): (Vec<&Group>, Vec<&Group>) =
        groups.iter().partition(|group| group.mark == Mark::Beside);
    for group in beside.into_iter().chain(drawn) {
        let column = group.columns[0];
        let points: Vec<(f64, f64, f64)> = picture
            .rows
            .iter()
            .filter_map(|row| {
                let (x, y) = (row.first()?.number()?, row.get(column)?.number()?);
                Some((across.at(x), up.at(y), y))
            })
            .collect();
        let style = group.style;
        match group.mark {
            Mark::Line | Mark::Beside => {
                let class = if group.mark == Mark::Line { format!("s{style}") } else { "beside".to_owned() };
                let line: Vec<(f64, f64)> = points.iter().map(|&(x, y, _)| (x, y)).collect();
                svg.polyline(&class, &line);
            }
            mark => {
                for (x, y, value) in points {
                    let about = format!("{}: {}", picture.columns[column].name, unit.text(value));
                    svg.mark(&format!("f{style}"), style, (x, y), radius(mark), &about);
                }
            }
        }
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::{Cell, Column, Drawing};

    #[test]
    fn equal_lines_are_one() {
        let row = |values: &[f64]| values.iter().map(|&value| Cell::Number(value)).collect();
        let columns = ["time", "a", "b", "c", "d"].map(|name| Column::new(name, Unit::Bytes)).into();
        let marks = vec![Mark::Line, Mark::Line, Mark::Beside, Mark::Beside];
        let picture = Picture {
            name: String::new(),
            title: String::new(),
            explanation: String::new(),
            columns,
            rows: vec![row(&[0.0, 1.0, 2.0, 1.0, 3.0]), row(&[1.0, 4.0, 2.0, 4.0, 3.0])],
            drawing: Drawing::Lines { axis: String::new(), marks: marks.clone() },
        };
        let found: Vec<_> =
            groups(&picture, &marks).into_iter().map(|group| (group.mark, group.columns)).collect();
        assert_eq!(found, [(Mark::Line, vec![1, 3]), (Mark::Line, vec![2]), (Mark::Beside, vec![4])]);
        let legend = legend(&picture, &marks);
        assert!(legend.len() == 3 && legend[0].ends_with("a, c</li>"), "{legend:?}");
    }
}
