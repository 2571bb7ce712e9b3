//! A long mixed run at high use: whether huge pages can be allocated, with and without grouping by mobility.
//!
//! Whether one is free by chance says little about grouping, as long as nothing moves pages: a huge page
//! needs a page block that is unused, and grouping by itself empties none. It keeps page blocks free of
//! unmovable allocations. So their number is measured beside the attempts: each such block could be made a
//! huge page.

use super::SEED;
use super::comparison::costs;
use super::traffic::Traffic;
use crate::machine::{Counts, Machine, MachineSpec};
use crate::prelude::*;
use crate::quire::LAB;
use quire_frame::{AllocRequest, FrameConfig, Migratetype};

/// RAM in bytes.
const RAM: [u64; 3] = [GIB, 128 * MIB, 64 * MIB];
/// Simulated seconds.
const SECONDS: [u64; 3] = [3600, 300, 30];
const CPUS: usize = 2;
/// One of so many attempts is made with effort as well, which drains the lists where no block is free.
const EFFORT_EVERY: u64 = 30;
/// How much of memory is in use.
const USE: f64 = 0.8;

/// Of the attempts at a huge page, one a second, those that succeeded, without effort and with what the lists
/// hold; page blocks that hold nothing but what can be moved; free memory that no huge page could come from.
const ROWS: [Row; 4] = [
    Row::higher("order9_success", "%", 0, Series::last),
    Row::higher("order9_success_after_drain", "%", 1, Series::last),
    Row::higher("movable_page_blocks", "%", EMPTIABLE, Series::last),
    Row::lower("order9_unusable_free", "%", 3, Series::last),
];
const EMPTIABLE: usize = 2;

pub(super) fn part(lab: &mut Lab<'_>) -> Done {
    let (ram, seconds) = (lab.scale.of(RAM), lab.scale.of(SECONDS));
    let use_ = USE * 100.0;
    lab.part(format!("{seconds} simulated seconds of traffic at {use_} % use; lock takes for 1000"));
    let rows: Vec<Row> = ROWS.into_iter().chain(costs(ROWS.len(), ROWS.len() + 2)).collect();
    for (name, ignore_mobility) in [("long run", false), ("long run without mobility grouping", true)] {
        let config = |pcp| FrameConfig { pcp, ignore_mobility, ..FrameConfig::default() };
        lab.once(name, |techniques| simulate(ram, seconds, config(techniques.pcp)), &rows)?;
    }
    Ok(())
}

/// The figures of a run. Those of attempts are in percent, the zone lock's for 1000 allocations.
fn simulate(ram: u64, seconds: u64, frames: FrameConfig) -> Done<(RoundFigures, Vec<String>)> {
    let machine = Machine::new(MachineSpec { frames, ..MachineSpec::new(ram, CPUS) })?;
    let free = machine.free_when_drained();
    let mut traffic = Traffic::new(&machine, USE, seconds, SEED);
    let mut counts = Counts::default();
    let (mut attempts, mut efforts, mut at_once, mut with_effort) = (0_u64, 0, 0, 0);
    let (mut unusable, mut emptiable) = (0.0, 0.0);
    for second in 0..seconds {
        let cpu = second as usize % CPUS;
        let (result, more) = machine.counted(|| {
            machine.tick(cpu);
            machine.pinned_on(cpu, |pin| traffic.second(pin))
        });
        result?;
        counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        // During a surge there is no memory for huge pages, and no program would try.
        if traffic.is_surging() {
            continue;
        }
        unusable += unusable_part(&machine);
        emptiable += traffic.emptiable();
        let request = AllocRequest::new(Order::PMD, LAB).movability(Migratetype::Movable);
        attempts += 1;
        at_once += u64::from(succeeds(&machine, cpu, request.without_drain())?);
        // Now and then as a caller that can wait.
        if attempts.is_multiple_of(EFFORT_EVERY) {
            efforts += 1;
            with_effort += u64::from(succeeds(&machine, cpu, request)?);
        }
    }
    let percent = |part: f64, count: u64| part * 100.0 / count.max(1) as f64;
    let a_thousand = |count: u64| count as f64 * 1000.0 / traffic.allocated as f64;
    let figures = round_figures(&[
        percent(at_once as f64, attempts),
        percent(with_effort as f64, efforts),
        percent(emptiable, attempts),
        percent(unusable, attempts),
        a_thousand(counts[0]),
        a_thousand(counts[1]),
        machine.peak_held() as f64 * 4.0,
    ]);
    machine.pinned_on(0, |pin| traffic.end(pin))?;
    Ok((figures, machine.findings(free)))
}

/// Whether a huge page can be allocated, which is freed again.
fn succeeds(machine: &Machine, cpu: usize, request: AllocRequest) -> Done<bool> {
    machine.pinned_on(cpu, |pin| {
        let Ok(pfn) = machine.frames().allocate(pin, request) else { return Ok(false) };
        let freed = machine.frames().free(pin, pfn, Order::PMD);
        freed.map(|()| true).map_err(|error| LabError::Kept(pfn, error))
    })
}

/// The part of free memory that no huge page can come from.
fn unusable_part(machine: &Machine) -> f64 {
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
            assert!(grouped.0[EMPTIABLE] > mixed.0[EMPTIABLE], "{pcp:?}: {grouped:?} {mixed:?}");
        }
    }
}
