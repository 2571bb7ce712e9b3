//! A long mixed run at high use: whether huge pages can be allocated, with and without grouping by mobility.
//!
//! Whether one is free by chance says little about grouping, as long as nothing moves pages: a huge page
//! needs a page block that is unused, and grouping by itself empties none. It keeps page blocks free of
//! unmovable allocations. So their number is measured beside the attempts: each such block could be made a
//! huge page.

use super::SEED;
use super::comparison::{CONTENDED, PEAK_HELD, TAKES};
use super::traffic::Traffic;
use crate::error::LabError;
use crate::experiment::Lab;
use crate::machine::{Counts, Machine, MachineSpec};
use crate::quire::LAB;
use crate::report::Metric;
use crate::scale::{GIB, MIB};
use quire_arch::{Order, Pin};
use quire_frame::{AllocRequest, FrameConfig, Migratetype};
use quire_host::HostPlatform;

/// RAM in bytes.
const RAM: [u64; 3] = [GIB, 128 * MIB, 64 * MIB];
/// Simulated seconds.
const SECONDS: [u64; 3] = [3600, 300, 30];
const CPUS: usize = 2;
/// One of so many attempts is made with effort as well, which drains the lists where no block is free.
const EFFORT_EVERY: u64 = 30;
/// How much of memory is in use.
const USE: f64 = 0.8;

const SUCCESS: Metric = Metric::higher("order9_success", "%");
const WITH_EFFORT: Metric = Metric::higher("order9_success_after_drain", "%");
const EMPTIABLE: Metric = Metric::higher("movable_page_blocks", "%");
const UNUSABLE: Metric = Metric::lower("order9_unusable_free", "%");

/// The figures of a run.
#[derive(Default, PartialEq, Debug)]
struct Life {
    /// Attempts at a huge page, one a second.
    attempts: u64,
    /// Those that succeeded without effort.
    at_once: u64,
    /// Attempts with effort: with what the lists hold.
    efforts: u64,
    /// Those that succeeded.
    with_effort: u64,
    /// Sum of the parts of free memory that no huge page could come from, one for each attempt.
    unusable: f64,
    /// Sum of the parts of all page blocks that hold nothing but what can be moved.
    emptiable: f64,
    counts: Counts,
    allocated: u64,
    held: u64,
}

pub(super) fn part(lab: &mut Lab<'_>) -> Result<(), LabError> {
    let (ram, seconds) = (lab.scale.of(RAM), lab.scale.of(SECONDS));
    let use_ = USE * 100.0;
    lab.part(format!("{seconds} simulated seconds of traffic at {use_} % use; lock takes for 1000"));
    for (name, ignore_mobility) in [("long run", false), ("long run without mobility grouping", true)] {
        lab.case(name, |case, name| {
            let lives = case.each(|techniques| {
                let pcp = techniques.pcp;
                simulate(ram, seconds, FrameConfig { pcp, ignore_mobility, ..FrameConfig::default() })
            })?;
            let percent = |part: f64, count: u64| part * 100.0 / count.max(1) as f64;
            let a_thousand = |count: u64, life: &Life| count as f64 * 1000.0 / life.allocated as f64;
            case.of_each(
                name,
                &lives,
                &[
                    (SUCCESS, &|life: &Life| percent(life.at_once as f64, life.attempts)),
                    (WITH_EFFORT, &|life: &Life| percent(life.with_effort as f64, life.efforts)),
                    (EMPTIABLE, &|life: &Life| percent(life.emptiable, life.attempts)),
                    (UNUSABLE, &|life: &Life| percent(life.unusable, life.attempts)),
                    (TAKES, &|life: &Life| a_thousand(life.counts.takes, life)),
                    (CONTENDED, &|life: &Life| a_thousand(life.counts.contended, life)),
                    (PEAK_HELD, &|life: &Life| life.held as f64 * 4.0),
                ],
            );
            Ok(())
        })?;
    }
    Ok(())
}

fn simulate(ram: u64, seconds: u64, frames: FrameConfig) -> Result<(Life, Vec<String>), LabError> {
    let machine = Machine::new(MachineSpec { frames, ..MachineSpec::new(ram, CPUS) })?;
    let free = machine.free_when_drained();
    let mut traffic = Traffic::new(&machine, USE, seconds, SEED);
    let mut outcome = Life::default();
    for second in 0..seconds {
        let cpu = second as usize % CPUS;
        let (result, counts) = machine.counted(|| {
            machine.pinned_on(cpu, |pin| machine.frames().pcp().age_lists(pin));
            machine.on_cpu(cpu, || machine.frames().pcp().give_back_in_portions());
            machine.pinned_on(cpu, |pin| traffic.second(pin))
        });
        result?;
        outcome.counts += counts;
        // During a surge there is no memory for huge pages, and no program would try.
        if !traffic.is_surging() {
            outcome.unusable += unusable(&machine);
            outcome.emptiable += traffic.emptiable();
            machine.pinned_on(cpu, |pin| attempt(&machine, pin, &mut outcome))?;
        }
    }
    outcome.allocated = traffic.allocated;
    outcome.held = machine.peak_held();
    machine.pinned_on(0, |pin| traffic.end(pin))?;
    Ok((outcome, machine.findings(free)))
}

/// Tries to allocate a huge page: without effort, and now and then as a caller that can wait.
fn attempt(machine: &Machine, pin: &Pin<'_, HostPlatform>, outcome: &mut Life) -> Result<(), LabError> {
    let frames = machine.frames();
    let request = AllocRequest::new(Order::PMD, LAB).movability(Migratetype::Movable);
    let give_back = |pfn| frames.free(pin, pfn, Order::PMD).map_err(|error| LabError::Kept(pfn, error));
    outcome.attempts += 1;
    let ready = frames.allocate(pin, request.without_drain());
    if let Ok(pfn) = ready {
        outcome.at_once += 1;
        give_back(pfn)?;
    }
    if outcome.attempts.is_multiple_of(EFFORT_EVERY) {
        outcome.efforts += 1;
        if let Ok(pfn) = frames.allocate(pin, request) {
            outcome.with_effort += 1;
            give_back(pfn)?;
        }
    }
    Ok(())
}

/// The part of free memory that no huge page can come from.
fn unusable(machine: &Machine) -> f64 {
    let (mut free, mut usable) = (0, 0);
    for zone in machine.frames().reports().zone_reports() {
        free += zone.free + zone.pcp;
        for order in &Order::ALL[Order::PMD.index()..] {
            usable += zone.blocks[order.index()].iter().sum::<u64>() * order.pages();
        }
    }
    1.0 - usable as f64 / free.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_frame::PcpTechnique;

    #[test]
    fn a_seed_decides_the_whole_run_and_grouping_keeps_page_blocks_movable() {
        for pcp in PcpTechnique::COMPARED {
            let run = |ignore_mobility| {
                let frames = FrameConfig { pcp, ignore_mobility, ..FrameConfig::default() };
                simulate(64 * MIB, 150, frames).unwrap()
            };
            let [grouped, mixed] = [false, true].map(run);
            assert_eq!((&grouped, &mixed), (&run(false), &run(true)));
            assert!(grouped.0.emptiable > mixed.0.emptiable, "{pcp:?}: {grouped:?} {mixed:?}");
        }
    }
}
