//! What settings of huge pages and page tables would do for a program: its recordings are replayed under each of
//! them, and the outcomes compared. docs/advise.md says what is predicted, and what is not.
//!
//! # Modules, lowest first
//!
//! - `setting`: the settings, and the commands that apply them.
//! - `figures`: figures of several replays, as median and range.
//! - `verdict`: which setting is worth trying.
//! - `predict`: the replays.
//! - `validate`: the program itself under the settings.

mod figures;
mod predict;
mod setting;
mod validate;
mod verdict;

pub use figures::{Range, Row};
pub use predict::{AdviseError, Prediction, Progress, predict};
pub use setting::{Setting, grid};
pub use validate::{Figure, Validation, validate};
pub use verdict::{FAULT_SECONDS, Gain, Verdict};
