//! The commands, one per file, and what several of them need.

pub(crate) mod advise;
mod bundled;
pub(crate) mod calibrate;
pub(crate) mod compare;
pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod import;
mod input;
pub(crate) mod instructions;
pub(crate) mod lab;
pub(crate) mod manual;
pub(crate) mod record;
mod recordings;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod tour;
pub(crate) mod trace;

/// How much is done at once, where `--jobs` does not say: as much as there are CPUs.
fn at_once(jobs: Option<usize>) -> usize {
    jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1)
}
