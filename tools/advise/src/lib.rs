//! Predicts the effect of settings of huge pages and page tables, and of memory limits, on a program: its
//! recordings are replayed under each of them, and the results compared. docs/advise.md says what is
//! predicted, and what is not.
//!
//! # Modules, lowest first
//!
//! - `jobs`: parallel jobs.
//! - `swap`: the swap behind a limit.
//! - `shared`: which folios of shared memory may be large.
//! - `setting`: the settings, and the commands that apply them.
//! - `point`: one replay, and what is asked of it.
//! - `error`: why a prediction is not possible.
//! - `heat`: resident memory by address and time, and which of it was touched.
//! - `latency`: how long page faults take, estimated.
//! - `unexplained`: what of Linux's figures a replay does not explain.
//! - `outcome`: what one replay found of a program.
//! - `fitting`: replays under each setting, and which settings have a row by them.
//! - `range`: a figure of several replays, as median and range.
//! - `estimate`: what the page faults of a replay cost.
//! - `change`: what a setting changes, paired within each recording.
//! - `forks`: what the forks of a program cost.
//! - `row`: the figures of one setting.
//! - `verdict`: which setting is worth trying.
//! - `identity`: which recording results are of.
//! - `less`: what one replay with less memory found.
//! - `found`: what a replay found.
//! - `stored`: results of replays that were made elsewhere.
//! - `source`: where an outcome comes from, a replay or a result.
//! - `details`: what is told beside the rows, by replays that others choose.
//! - `limits`: memory limits: their replays, and how much memory is enough.
//! - `host`: what is known of the host that the advice is for.
//! - `reliable`: what recordings lack, and whether anything can rest on them.
//! - `predict`: the replays.
//! - `addresses`: memory by address and time.
//! - `compare`: each technique off and on.
//! - `validate`: the program itself under the settings.
//! - `sweep`: replays on several machines, and what their results say together.

mod addresses;
mod change;
mod compare;
mod details;
mod error;
mod estimate;
mod fitting;
mod forks;
mod found;
mod heat;
mod host;
mod identity;
mod jobs;
mod latency;
mod less;
mod limits;
mod outcome;
mod point;
mod predict;
mod range;
mod reliable;
mod row;
mod setting;
mod shared;
mod source;
mod stored;
mod swap;
mod sweep;
mod unexplained;
mod validate;
mod verdict;

pub use addresses::{heat, heat_of};
pub use change::{Change, Difference, Measure, Measured};
pub use compare::{ComparedFigure, Comparison, Effect, Instructions, compare, technique_names};
pub use details::{AtPeak, Waste};
pub use error::AdviseError;
pub use estimate::faults_by_size;
pub use fitting::Misfit;
pub use forks::ForkRow;
pub use heat::{HEAT_COLUMNS, Heat, HeatBytes, HeatRun, touched_pages};
pub use host::Host;
pub use identity::open_regular;
pub use jobs::Progress;
pub use latency::Latency;
pub use limits::{
    Enough, LimitFigures, LimitRow, LimitSetting, Limits, Means, Need, Priced, Tries, predicts_limits,
};
pub use outcome::{Near, ProcessRow};
pub use point::{Amount, Asked, Less, Meant, Point};
pub use predict::{Prediction, need, predict, predict_beside};
pub use range::Range;
pub use row::Row;
pub use setting::{FOLDER, Setting, grid};
pub use swap::LimitSwap;
pub use sweep::{
    Fleet, FleetSetting, Grid, LINE_START, LineError, Loser, Merge, Merged, MergedProgram, Number, Owner,
    Plan, PlannedLine, Request, check_request, plan, run as run_line,
};
pub use validate::{Figure, LimitRuns, LimitValidation, Program, Validation, run_within, validate};
pub use verdict::{Gain, Verdict};
