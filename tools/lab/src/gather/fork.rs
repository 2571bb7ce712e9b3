//! `fork` of a process with populated memory, and the exit of the child that touched nothing.

use super::Site;
use super::comparison::{Case, Comparison, Round, Workload};
use super::linux::Job;
use super::scale::Scale;
use crate::error::LabError;
use crate::experiment::{Measured, Part};
use crate::folios::Folios;
use crate::site::HostSpace;
use quire_arch::Order;
use quire_mm::GatherTechnique;
use std::time::Instant;

const FOLIOS: [Folios; 3] = [Folios::PAGES, Folios::of(Order::ALL[4]), Folios::PMD];

/// Writes to all of the memory again, so that each fork finds it as the first did.
struct Forks<'s> {
    site: &'s Site,
    parent: HostSpace<'s>,
    bytes: u64,
}

impl<'s> Forks<'s> {
    fn new(site: &'s Site, case: Case) -> Result<Self, LabError> {
        let parent = site.space()?;
        site.populate(&parent, case.bytes, case.folios)?;
        Ok(Self { site, parent, bytes: case.bytes })
    }
}

impl Workload for Forks<'_> {
    fn round(&mut self) -> Result<Round, LabError> {
        self.site.write(&self.parent, self.bytes)?;
        self.site.run(|| {
            let available = self.site.available();
            let flushes = self.site.flushes();
            let start = Instant::now();
            let child = self.parent.fork()?;
            let time = start.elapsed().as_nanos() as f64;
            let flushes = self.site.flushes().since(flushes);
            let start = Instant::now();
            drop(child);
            let second = Some(start.elapsed().as_nanos() as f64);
            let waiting = available.saturating_sub(self.site.available());
            Ok(Round { time, second, flushes, calls: 1, waiting })
        })
    }
}

pub(super) fn part(scale: &Scale) -> Part<'_, GatherTechnique> {
    let bytes = scale.other_bytes;
    Part::new(
        format!("fork with {} MiB of written memory: ns for each page", bytes >> 20),
        FOLIOS,
        |folios| format!("fork, {folios}"),
        move |name, folios| {
            let case = Case {
                bytes,
                folios,
                linux: Job::Fork,
                rounds: scale.rounds,
                host_controls: scale.host_controls,
            };
            let mut sites = Vec::new();
            let comparison = Comparison::run(case, &mut sites, |site| Forks::new(site, case))?;
            let [fork, costs] = [comparison.times(name, 0), comparison.costs(name)];
            let exit = comparison.times(&format!("exit of the child, {folios}"), 1);
            Ok(Measured::new([fork, costs, exit].into_iter().flatten(), comparison.findings()))
        },
    )
}
