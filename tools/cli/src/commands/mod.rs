//! The commands, one per file, and what several of them need.

pub(crate) mod advise;
mod bundled;
pub(crate) mod calibrate;
pub(crate) mod compare;
pub(crate) mod diff;
pub(crate) mod export;
mod grid;
pub(crate) mod import;
mod input;
pub(crate) mod instructions;
pub(crate) mod lab;
pub(crate) mod manual;
mod merge;
pub(crate) mod record;
mod recordings;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod sweep;
pub(crate) mod tour;
pub(crate) mod trace;

use quire_advise::Prediction;

/// How much is done at once, where `--jobs` does not say: as much as there are CPUs.
fn at_once(jobs: Option<usize>) -> usize {
    jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1)
}

/// The setting that is compared with the present one, by its place among the rows: the advised one; where
/// nothing is advised, the one that takes most more memory, or else huge pages always on, or never where the
/// host has them always on.
fn other_place(prediction: &Prediction) -> Option<usize> {
    let (rows, verdict) = (&prediction.rows, &prediction.verdict);
    let named = verdict.recommended().or(verdict.most_memory.as_ref()).map(|gain| gain.place);
    let present = rows.first().map(|(setting, _)| &setting.huge);
    let other = |name| rows.iter().position(|(row, _)| row.name == name && Some(&row.huge) != present);
    named.or_else(|| other("thp=always")).or_else(|| other("thp=never")).filter(|&place| place > 0)
}
