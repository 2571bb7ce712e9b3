//! Populated memory that is unmapped: by one `munmap`, in pieces, with a child that maps it too, and by an
//! exit.

use super::PIECE;
use super::Site;
use super::comparison::{Case, Comparison, Round, Workload};
use super::linux::Job;
use super::scale::Scale;
use crate::error::LabError;
use crate::experiment::{Measured, Part};
use crate::folios::{Folios, pages};
use crate::site::{HostSpace, START};
use quire_arch::{Order, VirtAddr};
use quire_mm::GatherTechnique;
use std::time::Instant;

/// The folios of the cases that are not done with every kind.
const SOME: [Folios; 4] = [Folios::PAGES, Folios::of(Order::ALL[3]), Folios::of(Order::ALL[4]), Folios::PMD];

/// A round: populate, and unmap.
struct Teardown<'s> {
    site: &'s Site,
    case: Case,
}

impl<'s> Teardown<'s> {
    /// Measures `work`, which unmaps `pages` pages in `calls` calls.
    fn measured(
        &self,
        calls: u64,
        available: u64,
        work: impl FnOnce() -> Result<(), LabError>,
    ) -> Result<Round, LabError> {
        let flushes = self.site.flushes();
        let start = Instant::now();
        work()?;
        let time = start.elapsed().as_nanos() as f64;
        let flushes = self.site.flushes().since(flushes);
        let waiting = available.saturating_sub(self.site.available());
        Ok(Round { time, second: None, flushes, calls, waiting })
    }

    fn munmap(&self, space: &HostSpace<'s>, from: u64, bytes: u64) -> Result<(), LabError> {
        Ok(space.munmap(VirtAddr(START.0 + from), bytes)?)
    }
}

impl Workload for Teardown<'_> {
    fn round(&mut self) -> Result<Round, LabError> {
        let Case { bytes, folios, linux: job, .. } = self.case;
        let site = self.site;
        let space = site.space()?;
        let available = site.available();
        site.populate(&space, bytes, folios)?;
        site.run(|| match job {
            Job::Munmap => self.measured(1, available, || self.munmap(&space, 0, bytes)),
            Job::Pieces => {
                let pieces = bytes / PIECE;
                // Half of it stays.
                let left = available - pages(bytes) / 2;
                let round = self.measured(pieces / 2, left, || {
                    (0..pieces).step_by(2).try_for_each(|nth| self.munmap(&space, nth * PIECE, PIECE))
                })?;
                Ok(Round { time: 2.0 * round.time, ..round })
            }
            Job::Shared => {
                let child = space.fork()?;
                // All of it stays.
                let left = site.available();
                let round = self.measured(1, left, || self.munmap(&space, 0, bytes));
                drop(child);
                round
            }
            Job::Exit | Job::Fork => self.measured(1, available, || {
                drop(space);
                Ok(())
            }),
        })
    }
}

/// The jobs, the title of each, and the folios that it is done with.
fn jobs() -> [(Job, &'static str, Vec<Folios>); 4] {
    [
        (Job::Munmap, "munmap of populated memory", Folios::all().collect()),
        (Job::Exit, "exit of a process with populated memory", SOME.to_vec()),
        (Job::Pieces, "munmap of every second 64 KiB", SOME.to_vec()),
        (Job::Shared, "munmap of what a child maps too", SOME.to_vec()),
    ]
}

pub(super) fn parts(scale: &Scale) -> impl Iterator<Item = Part<'_, GatherTechnique>> {
    jobs().into_iter().map(move |(job, what, all)| {
        let bytes = if job == Job::Munmap { scale.munmap_bytes } else { scale.other_bytes };
        Part::new(
            format!("{what}, {} MiB: ns for each page unmapped", bytes >> 20),
            all,
            |folios| format!("{}, {folios}", name(job)),
            move |name, folios| {
                let (rounds, host_controls) = (scale.rounds, scale.host_controls);
                let case = Case { bytes, folios, linux: job, rounds, host_controls };
                let mut sites = Vec::new();
                let comparison = Comparison::run(case, &mut sites, |site| Ok(Teardown { site, case }))?;
                let figures = [comparison.times(name, 0), comparison.costs(name)];
                Ok(Measured::new(figures.into_iter().flatten(), comparison.findings()))
            },
        )
    })
}

const fn name(job: Job) -> &'static str {
    match job {
        Job::Munmap => "munmap",
        Job::Pieces => "munmap in pieces",
        Job::Shared => "munmap beside a child",
        Job::Exit => "exit",
        Job::Fork => "fork",
    }
}
