//! swapoff of a full device while a program runs: its time for each page, and how long the program waits.

use super::compressed;
use super::latency::{Latencies, access_rows};
use crate::crew::on_threads;
use crate::patterns::{Contents, Patterns};
use crate::prelude::*;
use crate::site::page_at;
use core::sync::atomic::{AtomicBool, Ordering};
use fastrand::Rng;
use quire_mm::swap::SwapReport;

/// Bytes on the device.
const DEVICE: [u64; 3] = [512 * MIB, 32 * MIB, 4 * MIB];

pub(super) fn part(lab: &mut Lab<'_>) -> Done {
    let bytes = lab.scale.of(DEVICE);
    lab.part("swapoff of a full device under load");
    let [p50, p99, p999] = access_rows(1);
    let rows = [Row::lower("swapoff_time", "ns/page", 0, Series::last), p50, p99, p999, Row::Ratio(0)];
    [Folios::PAGES, Folios::PMD].into_iter().try_for_each(|folios| {
        let name = format!("swapoff of {} MiB, {folios}", bytes / MIB);
        lab.once(&name, |techniques| removal(techniques, folios, bytes), &rows)
    })
}

fn removal(techniques: Techniques, folios: Folios, bytes: u64) -> Done<(RoundFigures, Vec<String>)> {
    let count = pages(bytes);
    // The device keeps the data of the slots that are freed.
    let site = Site::new(techniques, 2 * bytes + bytes / 8, 3, folios)?;
    let site = site.with_swap(|machine| compressed(machine, count))?;
    let space = site.space()?;
    let mut process = Quire::new(&site, &space);
    process.map(0, bytes)?;
    process.fill(0..count, folios, &Patterns::of(Contents::Half))?;
    process.advise(0, bytes, Advice::PageOut)?;
    let over = AtomicBool::new(false);
    let (machine, device) = (&site.machine, site.swap());
    let parts = on_threads(2, |thread, line| {
        let vcpu = machine.vcpu(1 + thread);
        line.wait();
        let vcpu = vcpu?;
        let mut latencies = Latencies::default();
        if thread == 0 {
            let start = now();
            let off = |device: &SwapReport| machine.memory().swapoff(device.id, || true);
            let went = vcpu.run(|| device.as_ref().map_or(Ok(()), off));
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
    let [p50, p99, p999] = latencies.accesses();
    Ok((round_figures(&[time, p50, p99, p999]), site.end()))
}
