//! Recording a real program's memory life on Linux, and the format that holds it.
//!
//! - [`event`]: what a trace consists of.
//! - [`format`](mod@format): the file: [`TraceWriter`](format::TraceWriter) and
//!   [`TraceReader`](format::TraceReader).
//! - [`record`](mod@record): tracing a program on this machine.
//! - [`import`]: traces from the output of other tools.
//! - [`replay`]: the same life again, on Quire.
//! - [`strip`](mod@strip): a trace without the names in it.

pub mod event;
pub mod format;
pub mod import;
mod mix;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod record;
pub mod replay;
pub mod strip;
