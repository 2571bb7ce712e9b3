//! swapoff of a full device while a program runs: its time for each page, and how long the program waits.

use super::compressed;
use super::latency::{Latencies, add_accesses};
use crate::clock::now;
use crate::crew::on_threads;
use crate::error::LabError;
use crate::experiment::Lab;
use crate::folios::{Folios, pages};
use crate::patterns::{Contents, Patterns};
use crate::process::{Process, Quire};
use crate::report::Metric;
use crate::scale::MIB;
use crate::site::{Site, page_at, swap_off};
use core::sync::atomic::{AtomicBool, Ordering};
use fastrand::Rng;
use quire_arch::Access;
use quire_mm::{Techniques, space::Advice};

/// Bytes on the device.
const DEVICE: [u64; 3] = [512 * MIB, 32 * MIB, 4 * MIB];

const TIME: Metric = Metric::lower("swapoff_time", "ns/page");

pub(super) fn part(lab: &mut Lab<'_>) -> Result<(), LabError> {
    let bytes = lab.scale.of(DEVICE);
    lab.part("swapoff of a full device under load");
    for folios in [Folios::PAGES, Folios::PMD] {
        lab.case(&format!("swapoff of {} MiB, {folios}", bytes / MIB), |case, name| {
            let all = case.each(|techniques| removal(techniques, folios, bytes))?;
            let base = all[0].0;
            case.of_each(name, &all, &[(TIME, &|(time, _)| *time)]);
            add_accesses(case, name, &all, |(_, latencies)| latencies);
            let ratio = case.time_ratio();
            case.of_each(name, &all, &[(ratio, &|(time, _)| time / base)]);
            Ok(())
        })?;
    }
    Ok(())
}

fn removal(
    techniques: Techniques,
    folios: Folios,
    bytes: u64,
) -> Result<((f64, Latencies), Vec<String>), LabError> {
    let count = pages(bytes);
    // The device keeps the data of the slots that are freed.
    let site = Site::new(techniques, 2 * bytes + bytes / 8, 3, folios.config())?;
    let site = site.with_swap(|machine| compressed(machine, count))?;
    let space = site.space()?;
    let mut process = Quire::new(&site, &space);
    process.map(0, bytes)?;
    process.fill(0..count, folios, &Patterns::of(Contents::Half))?;
    process.advise(0, bytes, Advice::PageOut)?;
    let over = AtomicBool::new(false);
    let (machine, device) = (&site.machine, site.device);
    let parts = on_threads(2, |thread, line| {
        let vcpu = machine.vcpu(1 + thread);
        line.wait(1);
        let vcpu = vcpu?;
        let mut latencies = Latencies::default();
        if thread == 0 {
            let start = now();
            let went = vcpu.run(|| swap_off(machine, device));
            let time = (now() - start) as f64 / count as f64;
            over.store(true, Ordering::Release);
            return went.map(|()| (time, latencies)).map_err(LabError::SwapOff);
        }
        let mut random = Rng::with_seed(3);
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
    site.run(|| drop(space));
    Ok(((time, latencies), site.end()))
}
