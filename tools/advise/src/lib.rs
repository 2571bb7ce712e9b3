//! Predicts the effect of settings of huge pages and page tables, and of memory limits, on a program: its
//! recordings are replayed under each of them, and the results compared. docs/advise.md says what is
//! predicted, and what is not.
//!
//! # Modules, lowest first
//!
//! - `jobs`: parallel jobs.
//! - `setting`: the settings, and the commands that apply them.
//! - `heat`: resident memory by address and time, and which of it was touched.
//! - `latency`: how long page faults take, estimated.
//! - `unexplained`: what of Linux's figures a replay does not explain.
//! - `change`: what a setting changes, paired within each recording.
//! - `figures`: figures of several replays, as median and range.
//! - `forks`: what the forks of a program cost.
//! - `verdict`: which setting is worth trying.
//! - `limits`: memory limits: their replays, and how much memory is enough.
//! - `host`: what is known of the host that the advice is for.
//! - `predict`: the replays.
//! - `compare`: each technique off and on.
//! - `validate`: the program itself under the settings.

mod change;
mod compare;
mod figures;
mod forks;
mod heat;
mod host;
mod jobs;
mod latency;
mod limits;
mod predict;
mod setting;
mod unexplained;
mod validate;
mod verdict;

pub use change::{Change, Difference, Measure, Measured};
pub use compare::{Comparison, Effect, Figure as ComparedFigure, Instructions, compare, technique_names};
pub use figures::{Near, ProcessRow, Range, Row, faults_by_size};
pub use forks::ForkRow;
pub use heat::{HEAT_COLUMNS, Heat, HeatBytes, HeatRun, touched_pages};
pub use host::Host;
pub use jobs::Progress;
pub use latency::Latency;
pub use limits::{
    Enough, LimitFigures, LimitRow, LimitSetting, LimitSwap, Limits, Means, Need, Priced, predicts_limits,
};
pub use predict::{AdviseError, AtPeak, Misfit, Prediction, Waste, heat, need, predict, predict_beside};
pub use setting::{FOLDER, Setting, grid};
pub use validate::{Figure, LimitRuns, LimitValidation, Program, Validation, run_within, validate};
pub use verdict::{Gain, Verdict};
