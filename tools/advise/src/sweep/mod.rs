//! Replays of many recordings, on several machines: command lines that are independent of each other, and
//! what their results say together.
//!
//! - `request`: what one command line asks for.
//! - `check`: whether figures that were read can be those of a replay.
//! - `line`: the line of JSON that a command line writes.
//! - `group`: recordings of one program.
//! - `plan`: the command lines.
//! - `own`: whose result a file has.
//! - `read`: the lines of the files with results.
//! - `merge`: advice from the lines.
//! - `fleet`: what the advice for all programs says together.

mod check;
mod fleet;
mod group;
mod line;
mod merge;
mod own;
mod plan;
mod read;
mod request;

pub use check::check as check_request;
pub use fleet::{Fleet, FleetSetting, Loser};
pub use line::{LINE_START, LineError, run};
pub use merge::{Merge, Merged, MergedProgram};
pub use own::Owner;
pub use plan::{Grid, Plan, PlannedLine, plan};
pub use request::{Number, Request};
