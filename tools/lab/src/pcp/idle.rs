//! CPUs that go idle: how much memory their lists hold, and how long.
//!
//! Two CPUs allocate and free blocks until their lists are as large as they become. Then both stop, and only
//! the clock of the lists ticks.

use super::{BLOCK_RAM, SEED};
use crate::harness::{BlockCase, Load, round};
use crate::machine::{Machine, MachineSpec};
use crate::prelude::*;
use crate::quire::PinHeld;
use quire_frame::{FrameConfig, FramePcp};

const CPUS: usize = 2;
/// Rounds of work before the CPUs go idle.
const ROUNDS: u64 = 6;
/// A list that still holds something after so many ticks is a finding: one in which the CPU still counts as
/// busy, and the bound of the lists.
const MOST_TICKS: u32 = 1 + FramePcp::<HostPlatform>::TICKS_TO_EMPTY;

/// What lists held when work ended, and after two ticks; and the ticks until they were empty.
const ROWS: [Row; 3] = [
    Row::lower("held_when_work_ends", "KiB", 0, |pages| pages.last() * 4.0),
    Row::lower("held_after_2_ticks", "KiB", 1, |pages| pages.last() * 4.0),
    Row::lower("ticks_to_empty", "ticks", 2, Series::last),
];

pub(super) fn part(lab: &mut Lab<'_>) -> Done {
    let ram = lab.scale.of(BLOCK_RAM);
    lab.part("Memory on the lists of 2 CPUs that go idle");
    lab.once("idle CPUs", |techniques| idle(ram, techniques), &ROWS)
}

fn idle(ram: u64, techniques: Techniques) -> Done<(RoundFigures, Vec<String>)> {
    let frames = FrameConfig { pcp: techniques.pcp, ..FrameConfig::default() };
    let machine = Machine::new(MachineSpec { frames, ..MachineSpec::new(ram, CPUS) })?;
    let free = machine.free_when_drained();
    for number in 0..ROUNDS {
        for order in [Order::ZERO, Order::ALL[3], Order::PMD] {
            let load = Load::of_part(Load::FITTING, ram / PAGE_SIZE, order, CPUS, SEED ^ number);
            round(&PinHeld(&machine), BlockCase::Bulk, load)?;
        }
    }
    let (busy, mut after_two, mut ticks) = (machine.held(), 0, 0);
    while machine.held() > 0 && ticks < MOST_TICKS {
        machine.tick(0);
        ticks += 1;
        if ticks == 2 {
            after_two = machine.held();
        }
    }
    let mut findings = Vec::new();
    if machine.held() > 0 {
        findings.push(format!("the lists hold {} frames after {MOST_TICKS} ticks", machine.held()));
    }
    findings.extend(machine.findings(free));
    Ok((round_figures(&[busy as f64, after_two as f64, f64::from(ticks)]), findings))
}
