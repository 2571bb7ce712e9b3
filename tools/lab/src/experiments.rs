//! The list of experiments.

use crate::error::Done;
use crate::lab::Experiment;
use crate::{gather, mremap, pcp, shm, swap, tables};

/// Every experiment.
pub const EXPERIMENTS: [Experiment; 6] = [
    pcp::EXPERIMENT,
    gather::EXPERIMENT,
    tables::EXPERIMENT,
    mremap::EXPERIMENT,
    swap::EXPERIMENT,
    shm::EXPERIMENT,
];

/// Does one thing of an experiment `times` times, for tools that count instructions: what, a hyphen and a
/// strategy, as in `exit-64k-runs`, `fault-keep`, `gib-pud-puds` or `in-4k-all`. `None` for another name.
/// Only what is done in `measured` counts, but for builds.
///
/// # Errors
///
/// It could not be carried out.
pub fn count(name: &str, times: u64) -> Option<Done> {
    let (what, strategy) = name.rsplit_once('-')?;
    EXPERIMENTS.iter().find_map(|experiment| {
        let techniques = experiment.technique.named(strategy)?;
        (experiment.count)(what, techniques, times)
    })
}
