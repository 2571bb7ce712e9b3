//! Elements and text of SVG and HTML.

use quire_output::{Manner, Printed};
use std::fmt::Write;

/// Text with what means something in HTML escaped, and what moves or hides other text.
pub(crate) fn escape(text: &str) -> String {
    let text = Printed(text, Manner::Line).to_string();
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// At most `most` characters, with an ellipsis where some are missing: in the middle, since paths differ at
/// their ends.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= most {
        return text.to_owned();
    }
    let (head, tail) = (most.saturating_sub(1).div_ceil(2), most.saturating_sub(1) / 2);
    letters[..head].iter().chain(&['…']).chain(&letters[letters.len() - tail..]).collect()
}

/// A drawing in units of its view box, which are pixels at its natural size.
pub(crate) struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    /// A straight line of a class.
    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = write!(
            self.body,
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        );
    }

    /// A line through points.
    pub(crate) fn polyline(&mut self, class: &str, points: &[(f64, f64)]) {
        let _ = write!(self.body, r#"<polyline class="{class}" points=""#);
        for (x, y) in points {
            let _ = write!(self.body, "{x:.1},{y:.1} ");
        }
        self.body.truncate(self.body.trim_end().len());
        self.body.push_str("\"/>");
    }

    /// A rectangle, and what is said about it.
    pub(crate) fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), about: &str) {
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{:.1}" height="{height:.1}">{}</rect>"#,
            width.max(0.0),
            titled(about)
        );
    }

    /// A mark around a point: `shape` 0 is a circle, 1 a square, 2 a diamond, 3 a triangle.
    pub(crate) fn mark(&mut self, class: &str, shape: usize, (x, y): (f64, f64), size: f64, about: &str) {
        let path = match shape % 4 {
            0 => {
                format!(
                    "M{:.1} {y:.1}a{size} {size} 0 1 0 {} 0a{size} {size} 0 1 0 {} 0z",
                    x - size,
                    2.0 * size,
                    -2.0 * size
                )
            }
            1 => format!("M{:.1} {:.1}h{}v{}h{}z", x - size, y - size, 2.0 * size, 2.0 * size, -2.0 * size),
            2 => {
                let size = size * 1.35;
                format!(
                    "M{:.1} {y:.1}L{x:.1} {:.1}L{:.1} {y:.1}L{x:.1} {:.1}z",
                    x - size,
                    y - size,
                    x + size,
                    y + size
                )
            }
            _ => {
                let size = size * 1.2;
                format!(
                    "M{x:.1} {:.1}L{:.1} {:.1}L{:.1} {:.1}z",
                    y - size,
                    x + size,
                    y + size,
                    x - size,
                    y + size
                )
            }
        };
        let _ = write!(self.body, r#"<path class="{class}" d="{path}">{}</path>"#, titled(about));
    }

    /// Text at a point; `anchor` is `start`, `middle` or `end`.
    pub(crate) fn text(&mut self, class: &str, anchor: &str, (x, y): (f64, f64), text: &str) {
        let _ = write!(
            self.body,
            r#"<text class="{class}" text-anchor="{anchor}" x="{x:.1}" y="{y:.1}">{}</text>"#,
            escape(text)
        );
    }

    /// Text that is cut to so many characters; the whole of it shows under the pointer.
    pub(crate) fn cut_text(&mut self, class: &str, anchor: &str, at: (f64, f64), text: &str, most: usize) {
        let short = shorten(text, most);
        let title = if short == text { String::new() } else { titled(text) };
        let (x, y) = at;
        let _ = write!(
            self.body,
            r#"<text class="{class}" text-anchor="{anchor}" x="{x:.1}" y="{y:.1}">{title}{}</text>"#,
            escape(&short)
        );
    }

    /// A picture of pixels, stretched, from a data URI.
    pub(crate) fn image(&mut self, uri: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let _ = write!(
            self.body,
            r#"<image class="pixels" preserveAspectRatio="none" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" href="{uri}"/>"#
        );
    }

    /// What was drawn, for another element.
    pub(crate) fn into_body(self) -> String {
        self.body
    }

    /// The element, labelled by its title and what it says.
    pub(crate) fn finish(self, id: &str, class: &str, title: &str, about: &str) -> String {
        let Self { body, width, height } = self;
        format!(
            r#"<svg class="{class}" role="img" aria-labelledby="{id}-t {id}-d" viewBox="0 0 {width:.0} {height:.0}"><title id="{id}-t">{}</title><desc id="{id}-d">{}</desc>{body}</svg>"#,
            escape(title),
            escape(about)
        )
    }
}

fn titled(about: &str) -> String {
    if about.is_empty() { String::new() } else { format!("<title>{}</title>", escape(about)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_means_nothing_in_html() {
        assert_eq!(escape("<a b=\"&\">\u{1b}\u{202e}"), "&lt;a b=&quot;&amp;&quot;&gt;\\u{1b}\\u{202e}");
    }

    #[test]
    fn long_names_keep_their_ends() {
        assert_eq!(shorten("abcdefghij", 10), "abcdefghij");
        assert_eq!(shorten("abcdefghijk", 6), "abc…jk");
        assert_eq!(shorten("ééééééé", 3), "é…é");
    }
}
