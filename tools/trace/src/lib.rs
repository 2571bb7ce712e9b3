//! The recorded memory life of a Linux program, and the file that holds it.
//!
//! # Modules, lowest first
//!
//! - `mix`: numbers that look random and are the same each time.
//! - `event`: what a trace consists of.
//! - `format`: the file: [`TraceWriter`](format::TraceWriter) and [`TraceReader`](format::TraceReader).
//! - `strip`, `import`: a trace without the names in it, and one from the output of another tool.

pub mod event;
pub mod format;
pub mod import;
pub mod mix;
pub mod strip;
