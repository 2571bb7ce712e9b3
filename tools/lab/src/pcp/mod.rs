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

use crate::error::LabError;
use crate::experiment::{self, Progress};
use crate::report::Report;
use crate::scale::{GIB, MIB, scale};

/// The experiment's name on the command line.
pub const NAME: &str = "pcp";

scale! {
    /// RAM where blocks are only allocated and freed, in bytes.
    block_ram: u64 = 8 * GIB, GIB, 64 * MIB;
    /// Rounds of each case there.
    block_rounds: usize = 60, 7, 2;
    /// RAM where objects are written, in bytes.
    object_ram: u64 = 512 * MIB, 128 * MIB, 48 * MIB;
    /// Messages in a round of the packets.
    packets: usize = 40_000, 4000, 300;
    /// Rounds of the packets at each size.
    packet_rounds: usize = 24, 3, 1;
    /// Memcgs of senders and receivers.
    groups: usize = 8, 2, 1;
    /// Messages from each sender to each receiver of its group.
    pipe_messages: usize = 20, 5, 1;
    /// Rounds of the pipes.
    pipe_rounds: usize = 20, 3, 1;
    /// Rounds of the burst.
    burst_rounds: usize = 8, 3, 1;
    /// RAM of the long run, in bytes.
    traffic_ram: u64 = GIB, 128 * MIB, 64 * MIB;
    /// Simulated seconds of the long run.
    traffic_seconds: u64 = 3600, 300, 30;
    /// The seed of all random choices.
    seed: u64 = 0x5eed, 0x5eed, 0x5eed;
}

/// Runs the experiment.
///
/// # Errors
///
/// It could not be carried out. What it finds wrong is in the report.
pub fn run(scale: &Scale, progress: Progress<'_>) -> Result<Report, LabError> {
    let parts = vec![
        blocks::part(scale),
        packets::part(scale),
        pipes::part(scale),
        burst::part(scale),
        idle::part(scale),
        long_run::part(scale),
    ];
    experiment::run(NAME, parts, progress)
}
