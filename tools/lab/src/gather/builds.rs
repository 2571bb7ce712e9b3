//! A build-like load: the recorded processes of a compiler driver and the four programs that it starts, again
//! and again. Each forks or is forked, execs, maps, touches and exits.

use super::Scale;
use super::interrupts::by_cause;
use crate::contest::Outcome;
use crate::error::LabError;
use crate::experiment::{Measured, Part, found_by};
use crate::folios::Folios;
use crate::linux::{RoundFigures, round_figures};
use crate::report::{Figure, Metric};
use crate::site::{Flushes, findings_of, flushes_of};
use quire_arch::Order;
use quire_host::Machine;
use quire_mm::{
    InUse, Techniques,
    space::GatherTechnique,
    thp::{HugeConfig, OrderSet, SizeEnabled},
};
use quire_replay::{Audits, LoadedReplay, Replay, ReplayOptions};
use std::path::Path;

const RECORDING: &str = "gcc-compile.qtr";
/// Where the recordings are, seen from the folder that a program is usually started in, and in this crate.
const PLACES: [&str; 2] = ["recordings", concat!(env!("CARGO_MANIFEST_DIR"), "/recordings")];

/// Rounds before those that count.
const WARM_UP: usize = 2;

const RESIDENT: Metric = Metric::lower("peak_resident", "KiB/process");

/// The sizes that are enabled for all programs.
const SIZES: [(&str, OrderSet); 3] = [
    ("no large folios", OrderSet::EMPTY),
    ("folios of 64 KiB", OrderSet::of(Order::ALL[4])),
    ("folios of every size", OrderSet::ANONYMOUS),
];

/// The load, on a machine that stays.
#[derive(Debug)]
pub(super) struct Builds {
    load: LoadedReplay,
    machine: Machine,
}

impl Builds {
    /// A machine under `technique` whose programs get folios of `sizes` without advice.
    ///
    /// # Errors
    ///
    /// The recording is not there, or the machine could not be built.
    pub(super) fn new(technique: GatherTechnique, sizes: OrderSet) -> Result<Self, LabError> {
        let place =
            PLACES.map(|place| Path::new(place).join(RECORDING)).into_iter().find(|path| path.is_file());
        let path = place.ok_or_else(|| LabError::NoRecording(Path::new(PLACES[0]).join(RECORDING)))?;
        let mut techniques = Techniques::default();
        techniques.gather = technique;
        let policy = Folios::PAGES.config().policy.with_sizes(sizes, SizeEnabled::Always);
        let options = ReplayOptions {
            techniques,
            huge: HugeConfig { policy, ..HugeConfig::default() },
            audits: Audits::Never,
            ..ReplayOptions::default()
        };
        let load = Replay::open(&path, options)?.load()?;
        let machine = load.machine()?;
        Ok(Self { load, machine })
    }

    /// Replays it once.
    ///
    /// # Errors
    ///
    /// The replay differs from the recording.
    pub(super) fn run(&self) -> Result<Build, LabError> {
        let report = self.load.run_on(&self.machine)?;
        let wrong = report.processes.iter().find_map(|process| process.first_mismatches.first());
        if let Some(wrong) = wrong {
            return Err(LabError::Differs(wrong.to_string()));
        }
        Ok(Build {
            nanoseconds: report.elapsed.as_nanos() as f64,
            processes: report.processes.len() as u64,
            resident: report.processes.iter().map(|process| process.quire.peak_resident).sum(),
        })
    }
}

/// The figures of one build.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Build {
    /// Its time.
    pub(super) nanoseconds: f64,
    /// Processes that it started.
    pub(super) processes: u64,
    /// The most memory that each of them had resident, summed over them, in bytes.
    pub(super) resident: u64,
}

/// The load under one strategy, with its last build.
struct Subject {
    builds: Builds,
    in_use: InUse,
    last: Build,
    flushes: Flushes,
}

impl Subject {
    fn new(technique: GatherTechnique, sizes: OrderSet) -> Result<Self, LabError> {
        let builds = Builds::new(technique, sizes)?;
        let in_use = in_use(&builds.machine)?;
        let last = builds.run()?;
        Ok(Self { builds, in_use, last, flushes: Flushes::default() })
    }

    /// The time of a process in `builds` builds.
    fn round(&mut self, builds: usize) -> Result<RoundFigures, LabError> {
        let (mut time, mut processes) = (0.0, 0);
        for _ in 0..builds {
            let before = flushes_of(&self.builds.machine);
            self.last = self.builds.run()?;
            self.flushes = flushes_of(&self.builds.machine).since(before);
            time += self.last.nanoseconds;
            processes += self.last.processes;
        }
        Ok(round_figures([time / 1000.0 / processes as f64]))
    }

    fn findings(&self) -> Result<Vec<String>, LabError> {
        let machine = &self.builds.machine;
        Ok(findings_of(machine, self.in_use, in_use(machine)?))
    }
}

fn in_use(machine: &Machine) -> Result<InUse, LabError> {
    Ok(machine.vcpu(0)?.run(|| machine.memory().in_use()))
}

pub(super) fn part(scale: &Scale) -> Part<'_, GatherTechnique> {
    let processes = (scale.builds * scale.build_rounds) as u64 * 5;
    Part::new(
        format!("A compiler driver and what it starts, {processes} processes: time for each"),
        SIZES,
        |(what, _)| format!("build, {what}"),
        |name, (_, sizes)| measure(name, sizes, scale),
    )
}

fn measure(name: &str, sizes: OrderSet, scale: &Scale) -> Result<Measured<GatherTechnique>, LabError> {
    let mut subjects = GatherTechnique::ALL
        .into_iter()
        .map(|technique| Ok((technique, Subject::new(technique, sizes)?)))
        .collect::<Result<Vec<_>, LabError>>()?;
    let rounds = (WARM_UP, scale.build_rounds);
    let outcome =
        Outcome::in_rounds(&mut subjects, &mut None, rounds, |subject, _| subject.round(scale.builds))?;
    let mut figures = Vec::from(outcome.times(name, Metric::times("us/process"), 0));
    figures.push(Figure::of_each(name, RESIDENT, &subjects, |subject| {
        subject.last.resident as f64 / 1024.0 / subject.last.processes as f64
    }));
    // Those of one build.
    let counts: Vec<_> = subjects.iter().map(|(technique, subject)| (*technique, subject.flushes)).collect();
    figures.extend(by_cause(name, "per build", &counts));
    let mut findings = Vec::new();
    for (technique, subject) in &subjects {
        findings.extend(found_by(*technique, subject.findings()?));
    }
    Ok(Measured::new(figures, findings))
}
