//! Pictures of a program's memory life, from plain data: a self-contained HTML page ([`Page`]), and traces
//! for Perfetto ([`perfetto`]). What is in them and how it is checked: docs/report.md.
//!
//! # Modules, lowest first
//!
//! - `unit`: numbers with units, and the steps of an axis.
//! - `picture`: the data of a picture: a table, and how it is drawn.
//! - `svg`: elements and text.
//! - `draw`: a picture as SVG.
//! - `page`: the page.
//! - `perfetto`: traces.
//! - `file`: the files that pages and traces are written to.

mod draw;
mod file;
mod page;
pub mod perfetto;
mod picture;
mod svg;
mod unit;

pub use file::{page_file, trace_file};
pub use page::{Page, Section};
pub use picture::{Cell, Column, Drawing, HeatCell, HeatDrawing, HeatRun, Mark, Picture};
pub use unit::Unit;
