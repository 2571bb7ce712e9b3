//! A picture as SVG: once for wide screens and once for narrow ones, so that text has the size of text on
//! both.

mod bars;
mod heat;
mod lines;
mod quantiles;

use crate::picture::{Drawing, Picture};
use crate::svg::{Svg, escape, shorten};
use crate::unit::{Shown, Unit, ticks};

/// How wide a drawing is, and whether little fits beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Size {
    Wide,
    Narrow,
}

impl Size {
    fn width(self) -> f64 {
        match self {
            Self::Wide => 920.0,
            Self::Narrow => 340.0,
        }
    }

    fn is_narrow(self) -> bool {
        self == Self::Narrow
    }

    fn class(self) -> &'static str {
        if self.is_narrow() { "narrow" } else { "wide" }
    }
}

/// Colours that a line, a bar or a mark may have; further ones are grey.
const COLOURS: usize = 7;
/// About the width of a letter of the text beside a drawing, in the widest of its fonts (DejaVu Sans).
const LETTER: f64 = 7.4;

/// The legend and both drawings of a picture; `id` is its own on the page.
pub(crate) fn draw(picture: &Picture, id: &str) -> String {
    let each = |size: Size| -> String {
        let drawn = match &picture.drawing {
            Drawing::Lines { axis, marks } => lines::draw(picture, axis, marks, size),
            Drawing::Bars { bars, each_its_own, .. } => bars::draw(picture, *bars, *each_its_own, size),
            Drawing::Quantiles => quantiles::draw(picture, size),
            Drawing::Heat(map) => heat::draw(map, size),
        };
        let id = format!("{id}-{}", if size.is_narrow() { 'n' } else { 'w' });
        drawn.finish(&id, size.class(), &picture.title, &about(picture))
    };
    let legend = match &picture.drawing {
        Drawing::Lines { marks, .. } => lines::legend(picture, marks),
        Drawing::Bars { bars, .. } => bars::legend(picture, *bars),
        Drawing::Quantiles => quantiles::legend(picture),
        Drawing::Heat(_) => heat::legend(),
    };
    let legend = if legend.is_empty() {
        String::new()
    } else {
        format!("<ul class=\"legend\">{}</ul>", legend.concat())
    };
    format!("{legend}{}{}", each(Size::Wide), each(Size::Narrow))
}

/// What a screen reader says of it.
fn about(picture: &Picture) -> String {
    let mut about = picture.explanation.clone();
    if matches!(picture.drawing, Drawing::Lines { .. }) {
        let most = picture.columns.iter().enumerate().skip(1).map(|(place, column)| {
            format!("{} at most {}", column.name, column.unit.text(picture.most(place..place + 1)))
        });
        about.push_str(&format!(" {}.", most.collect::<Vec<_>>().join("; ")));
    }
    about.push_str(" The numbers are in the table below the picture.");
    about
}

/// An entry of a legend: a sample and what it stands for.
fn entry(sample: &str, text: &str) -> String {
    let short = shorten(text, 64);
    let title = if short == text { String::new() } else { format!(" title=\"{}\"", escape(text)) };
    format!(
        "<li{title}><svg class=\"sample\" aria-hidden=\"true\" viewBox=\"0 0 28 12\">{sample}</svg>{}</li>",
        escape(&short)
    )
}

/// An axis from zero: what its steps are, and where numbers lie on it.
struct Axis {
    shown: Shown,
    /// The number, in the unit that is shown, at which it ends.
    end: f64,
    steps: Vec<f64>,
    decimals: usize,
    from: f64,
    to: f64,
}

impl Axis {
    /// For numbers of `unit` up to `most`, drawn from `from` to `to` with about so many steps. It ends at a
    /// step, or exactly at `most`.
    fn new(unit: &Unit, most: f64, count: usize, (from, to): (f64, f64), at_a_step: bool) -> Self {
        let shown = unit.shown(most);
        let (mut steps, decimals) = ticks(most / shown.divisor, count);
        let mut end = steps.last().copied().unwrap_or(1.0);
        if !at_a_step && most > 0.0 {
            end = most / shown.divisor;
            steps.retain(|step| *step <= end * 1.0001);
        }
        Self { shown, end, steps, decimals, from, to }
    }

    /// Where a number lies.
    fn at(&self, value: f64) -> f64 {
        self.place(value / self.shown.divisor)
    }

    fn place(&self, shown: f64) -> f64 {
        self.from + (self.to - self.from) * (shown / self.end)
    }

    /// Each step: where it lies, and its number.
    fn marks(&self) -> impl Iterator<Item = (f64, String)> + '_ {
        self.steps.iter().map(|&step| (self.place(step), format!("{step:.*}", self.decimals)))
    }
}

/// Draws a horizontal axis below a plot, with a title.
fn axis_below(svg: &mut Svg, axis: &Axis, bottom: f64, title: &str) {
    svg.line("axis", (axis.from, bottom), (axis.to, bottom));
    for (x, number) in axis.marks() {
        svg.line("axis", (x, bottom), (x, bottom + 4.0));
        svg.text("tick", "middle", (x, bottom + 17.0), &number);
    }
    svg.text("label", "end", (axis.to, bottom + 34.0), title);
}

/// A title of an axis: what it shows, and in which unit.
fn titled(what: &str, unit: &str) -> String {
    if unit.is_empty() { what.to_owned() } else { format!("{what}, {unit}") }
}
