//! swapoff of a full device while a program runs: its time for each page, and how long the program waits.

use super::TIME_RATIO;
use super::latency::Latencies;
use super::scale::Scale;
use super::stage::{Contents, Patterns, Stage, page_at};
use crate::crew::on_threads;
use crate::error::LabError;
use crate::folios::{Folios, pages};
use crate::linux::now;
use crate::report::{Figure, Metric, Report, Section};
use crate::rounds::Series;
use core::sync::atomic::{AtomicBool, Ordering};
use fastrand::Rng;
use quire_arch::Access;
use quire_mm::{CompressedRam, Lz4};
use quire_swap::SwapTechnique;

const TIME: Metric = Metric::lower("swapoff_time", "ns/page");
const MEDIAN: Metric = Metric::lower("access_p50", "us");
const P99: Metric = Metric::lower("access_p99", "us");
const P999: Metric = Metric::lower("access_p99_9", "us");

const CASES: [Folios; 2] = [Folios::PAGES, Folios::PMD];

pub(super) fn steps() -> u64 {
    CASES.len() as u64
}

pub(super) fn run(
    scale: &Scale,
    report: &mut Report<SwapTechnique>,
    step: &mut dyn FnMut(&str),
) -> Result<(), LabError> {
    let mut figures = Vec::new();
    for folios in CASES {
        let name = format!("swapoff of {} MiB, {folios}", scale.device >> 20);
        step(&name);
        let mut outcomes = Vec::new();
        for technique in SwapTechnique::ALL {
            let (time, latencies, findings) = swap_off(technique, folios, scale)?;
            report.findings.extend(findings.into_iter().map(|finding| format!("{name}, {finding}")));
            outcomes.push((technique, time, latencies));
        }
        let of = |technique| outcomes.iter().find(|(other, ..)| *other == technique);
        figures.push(Figure::new(&name, TIME, |technique| of(technique).map(|(_, time, _)| time.median())));
        for (metric, per_mille) in [(MEDIAN, 500.0), (P99, 990.0), (P999, 999.0)] {
            figures.push(Figure::new(&name, metric, |technique| {
                of(technique).map(|(_, _, latencies)| latencies.within(per_mille))
            }));
        }
        let base = of(SwapTechnique::Bypass).map(|(_, time, _)| time);
        figures.push(Figure::new(&name, TIME_RATIO, |technique| {
            of(technique).zip(base).map(|((_, time, _), base)| time.ratio_to(base))
        }));
    }
    let title = "swapoff of a full device under load".to_owned();
    report.sections.push(Section { title, figures });
    Ok(())
}

fn swap_off(
    technique: SwapTechnique,
    folios: Folios,
    scale: &Scale,
) -> Result<(Series, Latencies, Vec<String>), LabError> {
    let count = pages(scale.device);
    // The device keeps the data of the slots that are freed.
    let stage = Stage::new(technique, (2 * scale.device + scale.device / 8, 3), folios, |site| {
        Ok(CompressedRam::new(site.machine().memory().frames(), count, Lz4)?)
    })?;
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
    let (mut time, mut latencies) = (Series::default(), Latencies::default());
    for (thread, part) in parts.into_iter().enumerate() {
        let (took, waited) = part?;
        if thread == 0 {
            time.add(took);
        }
        latencies.merge(&waited);
    }
    stage.run(|| drop(space));
    Ok((time, latencies, stage.end()))
}
