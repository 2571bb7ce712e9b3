//! CPUs that go idle: how much memory their lists hold, and how long.
//!
//! Two CPUs allocate and free blocks until their lists are as large as they become. Then both stop, and only
//! the clock of the lists ticks.

use super::Scale;
use crate::error::LabError;
use crate::experiment::{Measured, Part, for_each_strategy};
use crate::harness::{Case, Load, round};
use crate::machine::{Machine, MachineSpec};
use crate::quire::PinHeld;
use crate::report::{Figure, Metric};
use quire_arch::{Order, PAGE_SIZE};
use quire_frame::{FrameConfig, FramePcp, PcpTechnique};
use quire_host::HostPlatform;

const CPUS: usize = 2;
/// Rounds of work before the CPUs go idle.
const ROUNDS: u64 = 6;
/// A list that still holds something after so many ticks is a finding: one in which the CPU still counts as
/// busy, and the bound of the lists.
const MOST_TICKS: u32 = 1 + FramePcp::<HostPlatform>::TICKS_TO_EMPTY;

const BUSY: Metric = Metric::lower("held_when_work_ends", "KiB");
const TICK: Metric = Metric::lower("held_after_2_ticks", "KiB");
const TICKS: Metric = Metric::lower("ticks_to_empty", "ticks");

/// What a strategy's lists held.
struct Outcome {
    busy: u64,
    after_two: u64,
    ticks: u32,
}

pub(super) fn part(scale: &Scale) -> Part<'_, PcpTechnique> {
    Part::single("Memory on the lists of 2 CPUs that go idle", "idle CPUs", |name| {
        let (outcomes, findings) = for_each_strategy(|technique| idle(scale, technique))?;
        let figures = [
            Figure::of_each(name, BUSY, &outcomes, |outcome| outcome.busy as f64 * 4.0),
            Figure::of_each(name, TICK, &outcomes, |outcome| outcome.after_two as f64 * 4.0),
            Figure::of_each(name, TICKS, &outcomes, |outcome| f64::from(outcome.ticks)),
        ];
        Ok(Measured::new(figures, findings))
    })
}

fn idle(scale: &Scale, technique: PcpTechnique) -> Result<(Outcome, Vec<String>), LabError> {
    let frames = FrameConfig { pcp: technique, ..FrameConfig::default() };
    let machine = Machine::new(MachineSpec { frames, ..MachineSpec::new(scale.block_ram, CPUS) })?;
    let free = machine.free_when_drained();
    for number in 0..ROUNDS {
        for order in [Order::ZERO, Order::ALL[3], Order::PMD] {
            let load = Load::fitting(scale.block_ram / PAGE_SIZE, order, CPUS, scale.seed ^ number);
            round(&PinHeld(&machine), Case::Bulk, load)?;
        }
    }
    let mut outcome = Outcome { busy: machine.held(), after_two: 0, ticks: 0 };
    while machine.held() > 0 && outcome.ticks < MOST_TICKS {
        machine.pinned_on(0, |pin| machine.frames().pcp().age_lists(pin));
        machine.on_cpu(0, || machine.frames().pcp().give_back_in_portions());
        outcome.ticks += 1;
        if outcome.ticks == 2 {
            outcome.after_two = machine.held();
        }
    }
    let mut findings = Vec::new();
    if machine.held() > 0 {
        findings.push(format!("the lists hold {} frames after {MOST_TICKS} ticks", machine.held()));
    }
    findings.extend(machine.findings(free));
    Ok((outcome, findings))
}
