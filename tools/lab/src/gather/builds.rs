//! A build-like load: the recorded processes of a compiler driver and the four programs that it starts, again
//! and again. Each forks or is forked, execs, maps, touches and exits.

use super::add_flushes;
use crate::prelude::*;
use crate::site::{Flushes, findings_of};
use quire_host::Machine;
use quire_mm::InUse;
use quire_mm::thp::{HugeConfig, OrderSet, SizeEnabled};
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

/// The time of a process, and the most memory that each had resident.
const ROWS: [Row; 2] =
    [Row::times("us/process", 0), Row::lower("peak_resident", "KiB/process", 1, Series::last)];

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
    pub(super) fn new(techniques: Techniques, sizes: OrderSet) -> Done<Self> {
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

    fn in_use(&self) -> Done<InUse> {
        Ok(self.machine.vcpu(0)?.run(|| self.machine.memory().in_use()))
    }

    /// Replays it once: nanoseconds, processes that it started, and the most memory that each of them had
    /// resident, summed over them, in bytes.
    ///
    /// # Errors
    ///
    /// The replay differs from the recording.
    pub(super) fn run(&self) -> Done<[u64; 3]> {
        let report = self.load.run_on(&self.machine)?;
        if let Some(wrong) = report.processes.iter().find_map(|process| process.first_mismatches.first()) {
            return Err(LabError::Differs(wrong.to_string()));
        }
        let resident = report.processes.iter().map(|process| process.quire.peak_resident).sum();
        Ok([report.elapsed.as_nanos() as u64, report.processes.len() as u64, resident])
    }
}

pub(super) fn part(lab: &mut Lab<'_>) -> Done {
    let (builds, rounds) = (lab.scale.of(BUILDS), lab.scale.of(ROUNDS));
    let processes = (builds * rounds) as u64 * 5;
    lab.part(format!("A compiler driver and what it starts, {processes} processes: time for each"));
    for (what, sizes) in SIZES {
        let name = format!("build, {what}");
        lab.case(&name, |lab| {
            // Each load with what was in use before it, and the flushes of the last build.
            let mut loads = lab.made(|techniques| {
                let load = Builds::new(techniques, sizes)?;
                let in_use = load.in_use()?;
                load.run()?;
                Ok((load, in_use, Flushes::default()))
            })?;
            let rounds = (WARM_UP, rounds);
            let outcome = Outcome::in_rounds(&mut loads, None, rounds, |(load, _, flushes), _| {
                let (mut time, mut processes, mut resident) = (0, 0, 0.0);
                for _ in 0..builds {
                    let before = Flushes::of(&load.machine);
                    let [nanoseconds, started, bytes] = load.run()?;
                    *flushes = Flushes::of(&load.machine).since(before);
                    time += nanoseconds;
                    processes += started;
                    resident = bytes as f64 / 1024.0 / started as f64;
                }
                Ok(round_figures(&[time as f64 / 1000.0 / processes as f64, resident]))
            })?;
            lab.rows(&name, &outcome, &ROWS);
            let flushes: Vec<_> = loads.iter().map(|(.., flushes)| *flushes).collect();
            add_flushes(lab, &name, "per build", &flushes);
            for (nth, (load, in_use, _)) in loads.into_iter().enumerate() {
                lab.found(nth, findings_of(&load.machine, in_use, load.in_use()?));
            }
            Ok(())
        })?;
    }
    Ok(())
}
