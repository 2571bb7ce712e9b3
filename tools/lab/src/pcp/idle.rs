//! CPUs that go idle: how much memory their lists hold, and how long.
//!
//! Two CPUs allocate and free blocks until their lists are as large as they become. Then both stop, and only
//! the clock of the lists ticks.

use super::{BLOCK_RAM, SEED};
use crate::error::LabError;
use crate::experiment::Lab;
use crate::harness::{BlockCase, Load, round};
use crate::machine::{Machine, MachineSpec};
use crate::quire::PinHeld;
use crate::report::Metric;
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

/// What a strategy's lists held: when work ended, and after two ticks; and the ticks until they were empty.
#[derive(Default)]
struct Held {
    busy: u64,
    after_two: u64,
    ticks: u32,
}

pub(super) fn part(lab: &mut Lab<'_>) -> Result<(), LabError> {
    lab.part("Memory on the lists of 2 CPUs that go idle");
    lab.case("idle CPUs", |case, name| {
        let ram = case.scale.of(BLOCK_RAM);
        let all = case.each(|techniques| idle(ram, techniques.pcp))?;
        case.of_each(
            name,
            &all,
            &[
                (BUSY, &|held: &Held| held.busy as f64 * 4.0),
                (TICK, &|held: &Held| held.after_two as f64 * 4.0),
                (TICKS, &|held: &Held| f64::from(held.ticks)),
            ],
        );
        Ok(())
    })
}

fn idle(ram: u64, pcp: PcpTechnique) -> Result<(Held, Vec<String>), LabError> {
    let frames = FrameConfig { pcp, ..FrameConfig::default() };
    let machine = Machine::new(MachineSpec { frames, ..MachineSpec::new(ram, CPUS) })?;
    let free = machine.free_when_drained();
    for number in 0..ROUNDS {
        for order in [Order::ZERO, Order::ALL[3], Order::PMD] {
            let load = Load::fitting(ram / PAGE_SIZE, order, CPUS, SEED ^ number);
            round(&PinHeld(&machine), BlockCase::Bulk, load)?;
        }
    }
    let mut held = Held { busy: machine.held(), ..Held::default() };
    while machine.held() > 0 && held.ticks < MOST_TICKS {
        machine.pinned_on(0, |pin| machine.frames().pcp().age_lists(pin));
        machine.on_cpu(0, || machine.frames().pcp().give_back_in_portions());
        held.ticks += 1;
        if held.ticks == 2 {
            held.after_two = machine.held();
        }
    }
    let mut findings = Vec::new();
    if machine.held() > 0 {
        findings.push(format!("the lists hold {} frames after {MOST_TICKS} ticks", machine.held()));
    }
    findings.extend(machine.findings(free));
    Ok((held, findings))
}
