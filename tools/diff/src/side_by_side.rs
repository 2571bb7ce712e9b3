//! One program on both sides.

use crate::compare::compare;
use crate::coverage::Coverage;
use crate::known::{KnownCounts, KnownDifference, Past};
use crate::linux::{Effort, Interference, Oracle, OracleError, Start, host_swaps};
use crate::observation::{Observation, Outcome, Wanted};
use crate::program::{Call, MOST_PROCESSES, Op, Program, Word};
use crate::quire::Processes;
use crate::standing::Standing;
use quire_arch::PAGE_SIZE;
use quire_host::{HostConfig, Machine, MachineError, Vcpu, VcpuError};
use quire_mm::{
    InUse, MemoryConfig, Techniques,
    space::Error,
    swap::{CompressedRam, Lz4, SwapOnOptions},
};

/// RAM of the machine. Programs populate a few windows at most, in each of their processes.
const RAM: u64 = 128 << 20;

/// How often a program that differs is run again where Linux disturbed the run, before that is taken for a
/// difference.
const DISTURBED: u32 = 5;
/// How often a program that differs is run again before the difference is reported.
const REPEATS: u32 = 3;

/// Why the sides cannot be compared at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiffError {
    /// The oracle cannot be used.
    #[error(transparent)]
    Oracle(#[from] OracleError),
    /// The machine cannot be built.
    #[error("the machine cannot be built: {0}")]
    Machine(#[source] MachineError),
    /// The machine's CPU is not free.
    #[error("the machine's CPU: {0}")]
    Cpu(#[source] VcpuError),
    /// The machine gets no swap device.
    #[error("the machine's swap device: {0}")]
    Swap(String),
    /// A space that looks like the oracle's processes cannot be made.
    #[error("a space like Linux's cannot be made: {0}")]
    Space(#[source] Error),
}

/// Where the sides diverged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Index of the operation in the program. Behind the last for what was found after the program.
    pub step: usize,
    /// What differs, in words.
    pub what: String,
}

/// The result of a run of a program.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The first difference.
    pub mismatch: Option<Mismatch>,
    /// The outcome of each operation on Linux, up to the one that differs.
    pub outcomes: Vec<Outcome>,
    /// Operations that were made and compared.
    pub compared: u64,
    /// Operations that were not made on either side.
    pub not_made: u64,
    /// Differences that are known.
    pub known: KnownCounts,
    /// The program differed, but not each time that it was run again; what differed.
    pub unconfirmed: Option<Mismatch>,
}

/// When a difference counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Belief {
    /// At once, unless Linux disturbed the run.
    Once,
    /// When the program also differs each time that it is run again.
    Repeated,
}

/// What both sides have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// The techniques of the machine.
    pub techniques: Techniques,
    /// Size of the swap device of each side in bytes: on the host there is a [`HostSwap`](crate::HostSwap) of
    /// that size.
    pub swap: Option<u64>,
}

/// Gives the machine a compressed device like the host's.
fn add_swap(machine: &Machine, bytes: u64) -> Result<(), DiffError> {
    let disk = CompressedRam::new(machine.memory().frames(), bytes / PAGE_SIZE, Lz4)
        .map_err(|error| DiffError::Swap(error.to_string()))?;
    let added = machine.memory().swapon(disk, SwapOnOptions::default());
    added.map(|_| ()).map_err(|error| DiffError::Swap(error.to_string()))
}

/// A process of Linux and a machine, for one program after the other.
#[derive(Debug)]
pub struct SideBySide {
    oracle: Oracle,
    machine: Machine,
    cpu: Vcpu,
    /// What of the machine is in use without any program.
    at_rest: InUse,
    /// Slots of its swap device that are free then.
    free_slots: u64,
    /// The host's policy, and what Linux had done on its own account before the last program that differed.
    interference: Interference,
    /// Both sides have a swap device of the comparison's own.
    has_swap: bool,
    /// The host pages out to a device that is not the comparison's own.
    foreign_swap: bool,
    linux: Observation,
    quire: Observation,
}

impl SideBySide {
    /// Starts both sides.
    ///
    /// # Errors
    ///
    /// [`DiffError`].
    pub fn new(setup: Setup) -> Result<Self, DiffError> {
        let Setup { techniques, swap } = setup;
        let oracle = Oracle::start()?;
        let overcommit = oracle.origin().overcommit;
        let config =
            MemoryConfig { min_free_kib: Some(0), overcommit, techniques, ..MemoryConfig::default() };
        // Audited after each program, with the finding as a result.
        let host = HostConfig { audit_at_end: false, ..HostConfig::with_ram(RAM).paranoid() };
        let machine = Machine::new(&host, config).map_err(DiffError::Machine)?;
        let interference = Interference::now();
        interference.set_policy(machine.memory());
        let cpu = machine.vcpu(0).map_err(DiffError::Cpu)?;
        if let Some(bytes) = swap {
            add_swap(&machine, bytes)?;
        }
        let free_slots = machine.memory().swap().free_slots();
        let at_rest = machine.memory().in_use();
        Ok(Self {
            oracle,
            machine,
            cpu,
            at_rest,
            free_slots,
            interference,
            has_swap: swap.is_some(),
            foreign_swap: swap.is_none() && host_swaps(),
            linux: Observation::default(),
            quire: Observation::default(),
        })
    }

    /// Runs a program on both sides until they diverge. A difference has to show again each time that the
    /// program is repeated; runs in which the host's policy of large folios was changed, or Linux did
    /// something on its own account, for any process, do not count as long as there are not too many of them.
    ///
    /// # Errors
    ///
    /// [`DiffError`]; what differs is no error.
    pub fn run(
        &mut self,
        program: &Program,
        effort: Effort,
        belief: Belief,
        coverage: &mut Coverage,
    ) -> Result<Verdict, DiffError> {
        let mut confirmed = Confirmation::new(belief);
        self.interference = Interference::now();
        let mut verdict = self.run_once(program, effort, coverage)?;
        loop {
            let before = core::mem::replace(&mut self.interference, Interference::now());
            let swapped = core::mem::replace(&mut self.foreign_swap, !self.has_swap && host_swaps());
            let disturbed = self.interference.disturbs_since(&before) || self.foreign_swap != swapped;
            let told = self.interference.told_since(&before);
            if !confirmed.wants_another(&mut verdict, disturbed, &told) {
                return Ok(verdict);
            }
            self.interference.set_policy(self.machine.memory());
            // What is run again is no new coverage.
            verdict = self.run_once(program, effort, &mut Coverage::default())?;
        }
    }

    fn run_once(
        &mut self,
        program: &Program,
        effort: Effort,
        coverage: &mut Coverage,
    ) -> Result<Verdict, DiffError> {
        let mut verdict = Verdict::default();
        let mut steps = self.oracle.run(program, effort);
        let start = steps.origin().clone();
        let processes = Processes::new(&self.machine, &self.cpu, &start).map_err(DiffError::Space)?;
        let mut course = Course::new(&start, processes, self.foreign_swap);
        for (step, op) in program.ops.iter().enumerate() {
            let (outcome, wanted) = steps.next(op, &mut self.linux)?;
            verdict.outcomes.push(outcome);
            if outcome == Outcome::NotMade {
                verdict.not_made += 1;
                continue;
            }
            let args = op.args.map(|word| match word {
                Word::Exact(value) => value,
                Word::Window(offset) => program.window.wrapping_add(offset),
                Word::Area(id, offset) => steps.area(id).unwrap_or(0).wrapping_add(offset),
                Word::Base(base, offset) => start.base(base).wrapping_add(offset),
            });
            let made = Made { op, args, outcome };
            match course.step(&made, wanted, &self.linux, &mut self.quire, coverage) {
                Step::Alike => verdict.compared += 1,
                Step::Known => break,
                Step::Differs(what) => {
                    verdict.mismatch = Some(Mismatch { step, what });
                    break;
                }
            }
        }
        drop(steps);
        let good = verdict.mismatch.is_none();
        let Course { processes, past, .. } = course;
        // With the processes alive, for their counts; and without them, for what they leave behind.
        let alive = if good { self.audit() } else { None };
        drop(processes);
        if good {
            let found = alive.or_else(|| self.check());
            verdict.mismatch = found.map(|what| Mismatch { step: program.ops.len(), what });
        }
        verdict.known = past.into_counts();
        Ok(verdict)
    }

    /// What the auditor finds.
    fn audit(&self) -> Option<String> {
        let findings = self.machine.audit();
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        (!lines.is_empty()).then(|| format!("the audit found: {}", lines.join("; ")))
    }

    /// Checks the machine when no program uses it.
    fn check(&self) -> Option<String> {
        self.audit().or_else(|| {
            // A device keeps some of what it needed for its tables, which the audit has counted.
            let slots = self.machine.memory().swap().free_slots();
            if self.free_slots > 0 {
                return (slots != self.free_slots)
                    .then(|| format!("{slots} slots are free, and {} without any program", self.free_slots));
            }
            let now = self.machine.memory().in_use();
            (now != self.at_rest).then(|| {
                format!("{:?} frames and objects are in use, and {:?} without any program", now, self.at_rest)
            })
        })
    }
}

/// Runs of one program, until it is clear whether it differs.
#[derive(Debug)]
struct Confirmation {
    /// Runs that have to differ yet.
    repeats: u32,
    /// Runs that Linux may still disturb.
    disturbed: u32,
    /// The first difference of a run that was not disturbed.
    first: Option<Mismatch>,
}

impl Confirmation {
    fn new(belief: Belief) -> Self {
        let repeats = if belief == Belief::Repeated { REPEATS } else { 0 };
        Self { repeats, disturbed: DISTURBED, first: None }
    }

    /// Whether the program has to be run again after one run of it. Else `verdict` is completed: with what
    /// Linux did meanwhile, or with a difference that did not show again.
    fn wants_another(&mut self, verdict: &mut Verdict, disturbed: bool, told: &str) -> bool {
        let Some(mismatch) = &mut verdict.mismatch else {
            verdict.unconfirmed = self.first.take();
            return false;
        };
        if !told.is_empty() {
            mismatch.what.push_str(&format!("\nThe host meanwhile: {told}"));
        }
        if disturbed && self.disturbed > 0 {
            self.disturbed -= 1;
            return true;
        }
        self.first.get_or_insert_with(|| mismatch.clone());
        let again = self.repeats > 0;
        self.repeats = self.repeats.saturating_sub(1);
        again
    }
}

/// An operation that Linux made.
struct Made<'p> {
    op: &'p Op,
    args: [u64; 6],
    outcome: Outcome,
}

/// The outcome of an operation.
enum Step {
    /// The same on both sides.
    Alike,
    /// A known difference, after which the sides are no longer alike.
    Known,
    /// Something else, in words.
    Differs(String),
}

/// A program in progress on Quire.
struct Course<'m> {
    start: &'m Start,
    processes: Processes<'m>,
    past: Past,
    /// What each process looked like after its last operation. One that was forked looks like its parent.
    before: Vec<Observation>,
}

impl<'m> Course<'m> {
    fn new(start: &'m Start, processes: Processes<'m>, foreign_swap: bool) -> Self {
        let before = vec![Observation::default(); MOST_PROCESSES as usize];
        Self { start, processes, past: Past::new(foreign_swap), before }
    }

    /// Makes an operation on Quire and compares it with the observation on Linux. `quire` is a buffer for
    /// the observation here.
    fn step(
        &mut self,
        made: &Made<'_>,
        wanted: Option<Wanted>,
        linux: &Observation,
        quire: &mut Observation,
        coverage: &mut Coverage,
    ) -> Step {
        let Made { op: Op { call, process, .. }, args, outcome } = *made;
        let before = &self.before[*process as usize];
        if self.past.parts_ways(*call, args, &before.regions).is_some() {
            return Step::Known;
        }
        let standing = self.processes.space(*process).map(Standing::of);
        let here = self.processes.make(*process, *call, args);
        if here == Outcome::Unsupported {
            self.past.count(KnownDifference::NotBuilt);
            return Step::Known;
        }
        coverage.note(*call, args, outcome, before, standing);
        if here != outcome && self.past.outcome(*call, args, outcome, before).is_none() {
            return Step::Differs(format!("Linux {}, Quire {}", outcome.shown(*call), here.shown(*call)));
        }
        self.past.note(*call, args, outcome, before);
        if self.past.diverges(*call, args, outcome) {
            return Step::Known;
        }
        match wanted {
            Some(wanted) => self.look(made, wanted, linux, quire),
            None => Step::Alike,
        }
    }

    /// Compares the states after an operation.
    fn look(
        &mut self,
        made: &Made<'_>,
        wanted: Wanted,
        linux: &Observation,
        quire: &mut Observation,
    ) -> Step {
        let Made { op: Op { call, process, .. }, args, outcome } = *made;
        self.processes.observe(*process, wanted, quire);
        if self.past.miscounts_locked(*call, args, linux, quire)
            || self.past.left_split(*call, outcome, linux, quire)
            || self.past.pages_part(*call, args, linux, quire)
        {
            return Step::Known;
        }
        let mut result = compare(self.start, &mut self.past, wanted, linux, quire);
        if result.is_ok() && *call == Call::Mincore && outcome == Outcome::Value(0) {
            result = self.residency(*process, args, linux, quire);
        }
        if *call == Call::Fork && outcome == Outcome::Value(0) {
            self.before[args[0] as usize].clone_from(quire);
        }
        core::mem::swap(&mut self.before[*process as usize], quire);
        match result {
            Ok(()) => Step::Alike,
            Err(what) => Step::Differs(what),
        }
    }

    /// Compares what `mincore` returned.
    fn residency(
        &self,
        process: u32,
        args: [u64; 6],
        linux: &Observation,
        quire: &Observation,
    ) -> Result<(), String> {
        let [addr, len, ..] = args;
        let end = addr + len;
        let mut there = quire.regions.iter().filter(|region| region.start < end && addr < region.end);
        if there.any(|region| self.past.residency(region)) {
            return Ok(());
        }
        let here = self.processes.mincore(process, addr, len);
        match linux.residency.iter().zip(&here).position(|(linux, quire)| linux != quire) {
            Some(at) => {
                let side = if linux.residency[at] { "Linux" } else { "Quire" };
                Err(format!("mincore: page {:#x} is in memory only on {side}", addr + at as u64 * PAGE_SIZE))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes runs that differ or not, disturbed or not, as long as another one is wanted; returns how many
    /// were made, and the last verdict.
    fn runs(belief: Belief, differ: impl Fn(usize) -> (bool, bool)) -> (usize, Verdict) {
        let mut confirmation = Confirmation::new(belief);
        let mut made = 0;
        loop {
            let (differs, disturbed) = differ(made);
            made += 1;
            let mismatch = differs.then(|| Mismatch { step: made, what: "value".to_owned() });
            let mut verdict = Verdict { mismatch, ..Verdict::default() };
            let told = if disturbed { "pgsteal_kswapd +1" } else { "" };
            if !confirmation.wants_another(&mut verdict, disturbed, told) {
                return (made, verdict);
            }
        }
    }

    #[test]
    fn a_difference_is_told_when_it_shows_each_time() {
        let (made, verdict) = runs(Belief::Repeated, |_| (true, false));
        assert_eq!((made, verdict.mismatch.is_some()), (1 + REPEATS as usize, true));
        let (made, verdict) = runs(Belief::Once, |_| (true, false));
        assert_eq!((made, verdict.mismatch.is_some()), (1, true));
        let (made, verdict) = runs(Belief::Repeated, |_| (false, true));
        assert_eq!((made, verdict.mismatch, verdict.unconfirmed), (1, None, None));
    }

    #[test]
    fn one_that_does_not_show_again_is_kept_beside() {
        let (made, verdict) = runs(Belief::Repeated, |run| (run < 2, false));
        assert_eq!((made, verdict.mismatch), (3, None));
        assert_eq!(verdict.unconfirmed, Some(Mismatch { step: 1, what: "value".to_owned() }));
    }

    #[test]
    fn disturbed_runs_count_for_nothing_until_there_are_too_many() {
        let (made, verdict) = runs(Belief::Repeated, |run| (run < 4, run < 4));
        assert_eq!((made, verdict.mismatch, verdict.unconfirmed), (5, None, None));
        let (made, verdict) = runs(Belief::Repeated, |_| (true, true));
        assert_eq!(made, (DISTURBED + 1 + REPEATS) as usize);
        assert!(
            verdict
                .mismatch
                .is_some_and(|found| found.what.ends_with("The host meanwhile: pgsteal_kswapd +1"))
        );
    }
}
