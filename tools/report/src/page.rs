//! One self-contained HTML file, without scripts.

use crate::draw::draw;
use crate::picture::{Cell, Picture};
use crate::svg::escape;
use crate::unit::Unit;
use quire_output::{Manner, Printed};
use serde_json::Value;
use std::fmt::Write;

/// A page.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Page {
    /// What it is about: the heading, and the title of the window.
    pub title: String,
    /// The sections, one a recording or an experiment.
    pub sections: Vec<Section>,
}

/// A part of a page.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// The verdict, a sentence each. Lines that begin with a blank are commands, to be copied.
    pub verdict: Vec<String>,
    /// The pictures.
    pub pictures: Vec<Picture>,
    /// Where the numbers come from, and how far they can be believed: what, and its value.
    pub provenance: Vec<(String, String)>,
    /// What `--json` prints of it, an object each.
    pub objects: Vec<Value>,
}

const STYLE: &str = include_str!("style.css");
/// Nothing is loaded and nothing runs: styles and pictures are in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

impl Section {
    /// What `--json` prints of it: its objects, then those of its pictures.
    pub fn all_objects(&self) -> impl Iterator<Item = Value> + '_ {
        self.objects.iter().cloned().chain(self.pictures.iter().map(Picture::object))
    }
}

impl Page {
    /// The file's contents.
    #[must_use]
    pub fn html(&self) -> String {
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"generator\" content=\"quire\">\n\
             <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n",
            escape(&self.title),
            escape(&self.title)
        );
        for (place, section) in self.sections.iter().enumerate() {
            section.put(&mut out, place);
        }
        let objects: Vec<Value> = self.sections.iter().flat_map(Section::all_objects).collect();
        // No end of the element, nor a comment, can be in it.
        let data = Printed(Value::Array(objects), Manner::Json).to_string().replace('<', "\\u003c");
        let _ = write!(
            out,
            "</main>\n<script type=\"application/json\" id=\"data\">{data}</script>\n</body>\n</html>\n"
        );
        out
    }
}

impl Section {
    fn put(&self, out: &mut String, place: usize) {
        let _ = writeln!(out, "<section>\n<h2>{}</h2>", escape(&self.title));
        self.put_verdict(out);
        for (nth, picture) in self.pictures.iter().enumerate() {
            put_picture(out, picture, &format!("p{place}-{nth}"));
        }
        if !self.provenance.is_empty() {
            out.push_str("<h3>Where these numbers come from</h3>\n<dl>\n");
            for (what, value) in &self.provenance {
                let _ = writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape(what), escape(value));
            }
            out.push_str("</dl>\n");
        }
        out.push_str("</section>\n");
    }

    fn put_verdict(&self, out: &mut String) {
        if self.verdict.is_empty() {
            return;
        }
        out.push_str("<div class=\"verdict\">\n");
        let mut in_commands = false;
        for line in &self.verdict {
            let is_command = line.starts_with(' ');
            if is_command != in_commands {
                out.push_str(if is_command { "<pre tabindex=\"0\">" } else { "</pre>\n" });
                in_commands = is_command;
            }
            if is_command {
                let _ = writeln!(out, "{}", escape(line.strip_prefix("  ").unwrap_or(line)));
            } else {
                let _ = writeln!(out, "<p>{}</p>", escape(line));
            }
        }
        out.push_str(if in_commands { "</pre>\n</div>\n" } else { "</div>\n" });
    }
}

fn put_picture(out: &mut String, picture: &Picture, id: &str) {
    let _ = write!(
        out,
        "<figure id=\"{}-{id}\">\n<figcaption><h3>{}</h3><p>{}</p></figcaption>\n{}\n",
        escape(&picture.name),
        escape(&picture.title),
        escape(&picture.explanation),
        draw(picture, id)
    );
    put_table(out, picture);
    out.push_str("</figure>\n");
}

/// The numbers, folded away; each cell has its number as it is in the data.
fn put_table(out: &mut String, picture: &Picture) {
    let _ = write!(
        out,
        "<details data-picture=\"{}\"><summary>Numbers of this picture</summary>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n<table><thead><tr>",
        escape(&picture.name),
        escape(&format!("Numbers: {}", picture.title))
    );
    for column in &picture.columns {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escape(&column.name));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in &picture.rows {
        out.push_str("<tr>");
        for (place, cell) in row.iter().enumerate() {
            match cell {
                Cell::Text(text) if place == 0 => {
                    let _ = write!(out, "<th scope=\"row\">{}</th>", escape(text));
                }
                Cell::Text(text) => {
                    let _ = write!(out, "<td class=\"words\">{}</td>", escape(text));
                }
                Cell::Number(value) if value.is_finite() => {
                    let exact = Value::from(*value);
                    let text = exact_text(&picture.unit(row, place), *value);
                    let _ = write!(out, "<td data-value=\"{exact}\">{}</td>", escape(&text));
                }
                Cell::Number(_) | Cell::None => out.push_str("<td>–</td>"),
            }
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div></details>\n");
}

/// Counts in full: a table has space for them.
fn exact_text(unit: &Unit, value: f64) -> String {
    match unit {
        Unit::Count if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value}"),
        unit => unit.text(value),
    }
}
