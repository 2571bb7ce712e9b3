//! A build-like load: the recorded processes of a compiler driver and the four programs that it starts, again
//! and again. Each forks or is forked, execs, maps, touches and exits.

use super::add_flushes;
use crate::case::Outcome;
use crate::error::LabError;
use crate::experiment::Lab;
use crate::folios::Folios;
use crate::report::Metric;
use crate::rounds::round_figures;
use crate::site::{Flushes, findings_of};
use quire_arch::Order;
use quire_host::Machine;
use quire_mm::{
    InUse, Techniques,
    thp::{HugeConfig, OrderSet, SizeEnabled},
};
use quire_replay::{Audits, LoadedReplay, Replay, ReplayOptions};
use std::path::Path;

/// Times that the recording is replayed in a round.
const BUILDS: [usize; 3] = [20, 8, 1];
/// Rounds of these.
const ROUNDS: [usize; 3] = [30, 5, 1];
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
    /// A machine whose programs get folios of `sizes` without advice.
    ///
    /// # Errors
    ///
    /// The recording is not there, or the machine could not be built.
    pub(super) fn new(techniques: Techniques, sizes: OrderSet) -> Result<Self, LabError> {
        let place =
            PLACES.map(|place| Path::new(place).join(RECORDING)).into_iter().find(|path| path.is_file());
        let path = place.ok_or_else(|| LabError::NoRecording(Path::new(PLACES[0]).join(RECORDING)))?;
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

    fn in_use(&self) -> Result<InUse, LabError> {
        Ok(self.machine.vcpu(0)?.run(|| self.machine.memory().in_use()))
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

pub(super) fn part(lab: &mut Lab<'_>) -> Result<(), LabError> {
    let (builds, rounds) = (lab.scale.of(BUILDS), lab.scale.of(ROUNDS));
    let processes = (builds * rounds) as u64 * 5;
    lab.part(format!("A compiler driver and what it starts, {processes} processes: time for each"));
    for (what, sizes) in SIZES {
        lab.case(&format!("build, {what}"), |case, name| {
            // Each load with what was in use before it, its last build and the flushes of that.
            let mut loads = case.made(|techniques| {
                let load = Builds::new(techniques, sizes)?;
                let in_use = load.in_use()?;
                let build = load.run()?;
                Ok((load, in_use, build, Flushes::default()))
            })?;
            // The time of a process.
            let outcome =
                Outcome::in_rounds(&mut loads, None, (WARM_UP, rounds), |(load, _, last, flushes), _| {
                    let (mut time, mut processes) = (0.0, 0);
                    for _ in 0..builds {
                        let before = Flushes::of(&load.machine);
                        *last = load.run()?;
                        *flushes = Flushes::of(&load.machine).since(before);
                        time += last.nanoseconds;
                        processes += last.processes;
                    }
                    Ok(round_figures([time / 1000.0 / processes as f64]))
                })?;
            case.times(name, &outcome, Metric::times("us/process"), 0);
            let resident = |last: &Build| last.resident as f64 / 1024.0 / last.processes as f64;
            case.of_each(name, &loads, &[(RESIDENT, &|(_, _, last, _)| resident(last))]);
            let flushes: Vec<_> = loads.iter().map(|(.., flushes)| *flushes).collect();
            add_flushes(case, name, "per build", &flushes);
            for (nth, (load, in_use, ..)) in loads.into_iter().enumerate() {
                case.found(nth, findings_of(&load.machine, in_use, load.in_use()?));
            }
            Ok(())
        })?;
    }
    Ok(())
}
