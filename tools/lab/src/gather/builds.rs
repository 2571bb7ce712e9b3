//! A build-like load: the recorded processes of a compiler driver and the four programs that it starts, again
//! and again. Each forks or is forked, execs, maps, touches and exits.

use super::interrupts::by_cause;
use super::scale::Scale;
use crate::error::LabError;
use crate::folios::Folios;
use crate::report::{Compared, Figure, Metric, RATIO, Report, Section};
use crate::rounds::{Series, in_turn};
use crate::site::{Flushes, flushes_of};
use quire_arch::Order;
use quire_host::Machine;
use quire_mm::{GatherTechnique, HugeConfig, InUse, OrderSet, SizeEnabled, Techniques};
use quire_trace::replay::{Audits, LoadedReplay, Replay, ReplayOptions};
use std::path::Path;

const RECORDING: &str = "gcc-compile.qtr";
/// Where the recordings are, seen from the folder that a program is usually started in, and from this crate.
const PLACES: [&str; 2] = ["recordings", concat!(env!("CARGO_MANIFEST_DIR"), "/../../recordings")];

/// Rounds before those that count.
const WARM_UP: usize = 2;

const TIME_MIN: Metric = Metric::lower("time_min", "us/process");
const TIME_MEDIAN: Metric = Metric::lower("time_median", "us/process");
const TIME_RATIO: Metric = Metric::lower(RATIO, "to pages");
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

struct Subject {
    technique: GatherTechnique,
    builds: Builds,
    in_use: InUse,
    times: Series,
    last: Build,
    flushes: Flushes,
}

impl Subject {
    fn new(technique: GatherTechnique, sizes: OrderSet) -> Result<Self, LabError> {
        let builds = Builds::new(technique, sizes)?;
        let in_use = in_use(&builds.machine)?;
        let last = builds.run()?;
        Ok(Self { technique, builds, in_use, times: Series::default(), last, flushes: Flushes::default() })
    }

    fn round(&mut self, builds: usize, counts: bool) -> Result<(), LabError> {
        let (mut time, mut processes) = (0.0, 0);
        for _ in 0..builds {
            let before = flushes_of(&self.builds.machine);
            self.last = self.builds.run()?;
            self.flushes = flushes_of(&self.builds.machine).since(before);
            time += self.last.nanoseconds;
            processes += self.last.processes;
        }
        if counts {
            self.times.add(time / 1000.0 / processes as f64);
        }
        Ok(())
    }

    fn findings(&self) -> Result<Vec<String>, LabError> {
        let machine = &self.builds.machine;
        let mut findings: Vec<String> = machine.audit().iter().map(ToString::to_string).collect();
        let now = in_use(machine)?;
        if now != self.in_use {
            findings.push(format!("before it {:?}, after it {now:?}", self.in_use));
        }
        Ok(findings)
    }
}

fn in_use(machine: &Machine) -> Result<InUse, LabError> {
    Ok(machine.vcpu(0)?.run(|| machine.memory().in_use()))
}

pub(super) fn steps() -> u64 {
    SIZES.len() as u64
}

pub(super) fn run(
    scale: &Scale,
    report: &mut Report<GatherTechnique>,
    step: &mut dyn FnMut(&str),
) -> Result<(), LabError> {
    let mut figures = Vec::new();
    for (what, sizes) in SIZES {
        let name = format!("build, {what}");
        step(&name);
        let mut subjects = GatherTechnique::ALL
            .into_iter()
            .map(|technique| Subject::new(technique, sizes))
            .collect::<Result<Vec<_>, _>>()?;
        in_turn(&mut subjects, WARM_UP + scale.build_rounds, |subject, number| {
            subject.round(scale.builds, number >= WARM_UP)
        })?;
        figures.extend(show(&name, &subjects));
        for subject in &subjects {
            let found = subject.findings()?.into_iter();
            let technique = subject.technique.name();
            report.findings.extend(found.map(|finding| format!("{name}, {technique}: {finding}")));
        }
    }
    let processes = (scale.builds * scale.build_rounds) as u64 * 5;
    let title = format!("A compiler driver and what it starts, {processes} processes: time for each");
    report.sections.push(Section { title, figures });
    Ok(())
}

fn show(name: &str, subjects: &[Subject]) -> Vec<Figure<GatherTechnique>> {
    let of = |technique| subjects.iter().find(|subject| subject.technique == technique);
    let figure = |metric, value: &dyn Fn(&Subject) -> f64| {
        Figure::new(name, metric, |technique| of(technique).map(value))
    };
    let base = of(GatherTechnique::BEFORE);
    let mut figures = vec![
        figure(TIME_MIN, &|subject| subject.times.min()),
        figure(TIME_MEDIAN, &|subject| subject.times.median()),
        figure(TIME_RATIO, &|subject| base.map_or(0.0, |base| subject.times.ratio_to(&base.times))),
        figure(RESIDENT, &|subject| subject.last.resident as f64 / 1024.0 / subject.last.processes as f64),
    ];
    // Those of one build.
    let counts: Vec<_> = subjects.iter().map(|subject| (subject.technique, subject.flushes)).collect();
    figures.extend(by_cause(name, "per build", &counts));
    figures
}
