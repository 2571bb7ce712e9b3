//! swapoff of a full device while a program runs: its time for each page, and how long the program waits.

use super::Scale;
use super::latency::{ACCESSES, Latencies};
use super::stage::{Contents, Patterns, Stage, page_at};
use crate::crew::on_threads;
use crate::error::LabError;
use crate::experiment::{Measured, Part, for_each_strategy};
use crate::folios::{Folios, pages};
use crate::linux::now;
use crate::report::{Compared, Figure, Metric};
use core::sync::atomic::{AtomicBool, Ordering};
use fastrand::Rng;
use quire_arch::Access;
use quire_swap::SwapTechnique;

const TIME: Metric = Metric::lower("swapoff_time", "ns/page");

const CASES: [Folios; 2] = [Folios::PAGES, Folios::PMD];

pub(super) fn part(scale: &Scale) -> Part<'_, SwapTechnique> {
    Part::new(
        "swapoff of a full device under load",
        CASES,
        |folios| format!("swapoff of {} MiB, {folios}", scale.device >> 20),
        |name, folios| {
            let (outcomes, findings) = for_each_strategy(|technique| swap_off(technique, folios, scale))?;
            let base = outcomes.iter().find(|(technique, _)| *technique == SwapTechnique::BEFORE);
            let base = base.map_or(0.0, |(_, (time, _))| *time);
            let time = Figure::of_each(name, TIME, &outcomes, |(time, _)| *time);
            let waits = ACCESSES.map(|(metric, per_mille)| {
                Figure::of_each(name, metric, &outcomes, |(_, latencies)| latencies.within(per_mille))
            });
            let ratio = Figure::of_each(name, SwapTechnique::TIME_RATIO, &outcomes, |(time, _)| time / base);
            Ok(Measured::new([time].into_iter().chain(waits).chain([ratio]), findings))
        },
    )
}

fn swap_off(
    technique: SwapTechnique,
    folios: Folios,
    scale: &Scale,
) -> Result<((f64, Latencies), Vec<String>), LabError> {
    let count = pages(scale.device);
    // The device keeps the data of the slots that are freed.
    let stage = Stage::compressed(technique, (2 * scale.device + scale.device / 8, 3), folios, count)?;
    let space = stage.program(scale.device, None)?;
    stage.fill(&space, (0, count), &Patterns::of(Contents::Half))?;
    stage.page_out(&space, 0, count)?;
    let over = AtomicBool::new(false);
    let (machine, device) = (stage.machine(), stage.device());
    let parts = on_threads(2, |thread, line| {
        let vcpu = machine.vcpu(1 + thread);
        line.wait(1);
        if thread == 0 {
            let vcpu = vcpu?;
            let start = now();
            let went = vcpu.run(|| machine.memory().swapoff(device, || true));
            let time = (now() - start) as f64 / count as f64;
            over.store(true, Ordering::Release);
            return went.map(|()| (time, Latencies::default())).map_err(LabError::SwapOff);
        }
        let (mut latencies, mut random) = (Latencies::default(), Rng::with_seed(3));
        let vcpu = vcpu?;
        let program = vcpu.program(&space);
        while !over.load(Ordering::Acquire) {
            let addr = page_at(random.u64(..count));
            let start = now();
            program.touch(addr, Access::Read).map_err(|error| LabError::Access(addr, error))?;
            latencies.add(now() - start);
        }
        Ok((0.0, latencies))
    });
    let (mut time, mut latencies) = (0.0, Latencies::default());
    for part in parts {
        let (took, waited) = part?;
        // Only the thread that calls swapoff has a time.
        time += took;
        latencies.merge(&waited);
    }
    stage.run(|| drop(space));
    Ok(((time, latencies), stage.end()))
}
