//! The experiment `pcp`: what per-CPU lists of blocks save and cost, by the orders that they hold.
//!
//! Everything is measured for every strategy, round by round in turn; `comparison` does that.

mod blocks;
mod burst;
mod comparison;
mod idle;
mod long_run;
mod packets;
mod pipes;
mod traffic;

use crate::prelude::*;
use crate::technique::PCP;

/// RAM where blocks are only allocated and freed, in bytes.
const BLOCK_RAM: [u64; 3] = [8 * GIB, GIB, 64 * MIB];
/// RAM where objects are written, in bytes.
const OBJECT_RAM: [u64; 3] = [512 * MIB, 128 * MIB, 48 * MIB];
/// The seed of all random choices.
const SEED: u64 = 0x5eed;

/// The experiment.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    technique: &PCP,
    cases: |lab| {
        blocks::part(lab)?;
        packets::part(lab)?;
        pipes::part(lab)?;
        burst::part(lab)?;
        idle::part(lab)?;
        long_run::part(lab)
    },
    count: |_, _, _| None,
};
