//! One program on both sides.

use crate::compare::compare;
use crate::coverage::Coverage;
use crate::known::{KnownCounts, KnownDifference, Past};
use crate::linux::{Effort, Oracle, OracleError};
use crate::observation::{Observation, Outcome};
use crate::program::{Call, Op, Program, Word};
use crate::quire::Processes;
use quire_host::{HostConfig, Machine, MachineError, Vcpu, VcpuError};
use quire_mm::{Error, InUse, MemoryConfig, Techniques};
use std::fmt;

/// RAM of the machine. Programs populate a few windows at most.
const RAM: u64 = 96 << 20;

/// Why the sides cannot be compared at all.
#[derive(Debug)]
#[non_exhaustive]
pub enum DiffError {
    /// Linux cannot be asked.
    Oracle(OracleError),
    /// The machine cannot be built.
    Machine(MachineError),
    /// The machine's CPU is not free.
    Cpu(VcpuError),
    /// A space that looks like the oracle's processes cannot be made.
    Space(Error),
}

impl fmt::Display for DiffError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Oracle(error) => error.fmt(f),
            Self::Machine(error) => write!(f, "the machine cannot be built: {error}"),
            Self::Cpu(error) => write!(f, "the machine's CPU: {error}"),
            Self::Space(error) => write!(f, "a space like Linux's cannot be made: {error}"),
        }
    }
}

impl std::error::Error for DiffError {}

impl From<OracleError> for DiffError {
    fn from(error: OracleError) -> Self {
        Self::Oracle(error)
    }
}

/// Where the sides parted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Index of the operation in the program. Behind the last for what was found after the program.
    pub step: usize,
    /// What differs, in words.
    pub what: String,
}

/// What a run of a program came to.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The first difference.
    pub mismatch: Option<Mismatch>,
    /// What each operation came to on Linux, up to the one that differs.
    pub outcomes: Vec<Outcome>,
    /// Operations that were made and compared.
    pub compared: u64,
    /// Operations that were not made on either side.
    pub not_made: u64,
    /// Differences that are known.
    pub known: KnownCounts,
}

/// A process of Linux and a machine, for one program after the other.
#[derive(Debug)]
pub struct SideBySide {
    oracle: Oracle,
    machine: Machine,
    cpu: Vcpu,
    /// What of the machine is in use without any program.
    at_rest: InUse,
    linux: Observation,
    quire: Observation,
}

impl SideBySide {
    /// Starts both sides.
    ///
    /// # Errors
    ///
    /// [`DiffError`].
    pub fn new(techniques: Techniques) -> Result<Self, DiffError> {
        let oracle = Oracle::start()?;
        let overcommit = oracle.origin().overcommit;
        let config = MemoryConfig { min_free_kib: Some(0), overcommit, techniques };
        // Audited after each program, with the finding as a result.
        let host = HostConfig { audit_at_end: false, ..HostConfig::with_ram(RAM).paranoid() };
        let machine = Machine::new(&host, config).map_err(DiffError::Machine)?;
        let cpu = machine.vcpu(0).map_err(DiffError::Cpu)?;
        let at_rest = machine.memory().in_use();
        Ok(Self {
            oracle,
            machine,
            cpu,
            at_rest,
            linux: Observation::default(),
            quire: Observation::default(),
        })
    }

    /// Runs a program on both sides until they part.
    ///
    /// # Errors
    ///
    /// [`DiffError`]; what differs is no error.
    pub fn run(
        &mut self,
        program: &Program,
        effort: Effort,
        coverage: &mut Coverage,
    ) -> Result<Verdict, DiffError> {
        let mut verdict = Verdict::default();
        let mut past = Past::default();
        let mut steps = self.oracle.run(program, effort);
        let start = steps.origin().clone();
        let mut processes = Processes::new(&self.machine, &self.cpu, &start).map_err(DiffError::Space)?;
        // What each process looked like after its last operation. A process that was forked looks like its parent.
        let mut before: Vec<Observation> =
            vec![Observation::default(); crate::program::MOST_PROCESSES as usize];
        for (step, op) in program.ops.iter().enumerate() {
            let (outcome, wanted) = steps.next(op, &mut self.linux)?;
            verdict.outcomes.push(outcome);
            if outcome == Outcome::NotMade {
                verdict.not_made += 1;
                continue;
            }
            let resolve = |word| match word {
                Word::Exact(value) => value,
                Word::Window(offset) => program.window + offset,
                Word::Area(id, offset) => steps.area(id).unwrap_or(0) + offset,
                Word::Base(base, offset) => start.base(base).wrapping_add(offset),
            };
            let args = op.args.map(resolve);
            let regions = &before[op.process as usize].regions;
            if past.parts_ways(op.call, args, regions).is_some() {
                break;
            }
            let here = processes.make(op.process, op.call, args);
            if here == Outcome::Unsupported {
                past.count(KnownDifference::NotBuilt);
                break;
            }
            verdict.compared += 1;
            coverage.note(op.call, args, outcome, regions);
            let mut what = None;
            if here != outcome && past.outcome(op.call, args, outcome, &before[op.process as usize]).is_none()
            {
                what = Some(format!("Linux {}, Quire {}", outcome.shown(op.call), here.shown(op.call)));
            }
            past.note(op.call, args, outcome, regions);
            if what.is_none() && past.diverges(op.call, args, outcome) {
                break;
            }
            if let (None, Some(wanted)) = (&what, wanted) {
                processes.observe(op.process, wanted, &mut self.quire);
                let (linux, quire) = (&self.linux, &self.quire);
                if past.miscounts_locked(op.call, args, linux, quire)
                    || past.left_split(op.call, outcome, linux, quire)
                {
                    break;
                }
                let mut result = compare(&start, &mut past, wanted, &self.linux, &self.quire);
                if result.is_ok() && op.call == Call::Mincore && outcome == Outcome::Value(0) {
                    result = residency(&past, &processes, op, args, &self.linux, &self.quire);
                }
                what = result.err();
                if op.call == Call::Fork && outcome == Outcome::Value(0) {
                    before[args[0] as usize] = self.quire.clone();
                }
                core::mem::swap(&mut before[op.process as usize], &mut self.quire);
            }
            if let Some(what) = what {
                verdict.mismatch = Some(Mismatch { step, what });
                break;
            }
        }
        drop(steps);
        let good = verdict.mismatch.is_none();
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

    /// Looks at the machine when no program uses it.
    fn check(&self) -> Option<String> {
        self.audit().or_else(|| {
            let now = self.machine.memory().in_use();
            (now != self.at_rest).then(|| {
                format!("{:?} frames and objects are in use, and {:?} without any program", now, self.at_rest)
            })
        })
    }
}

/// Compares what `mincore` answered.
fn residency(
    past: &Past,
    processes: &Processes<'_>,
    op: &Op,
    args: [u64; 6],
    linux: &Observation,
    quire: &Observation,
) -> Result<(), String> {
    let [addr, len, ..] = args;
    let end = addr + len;
    let cached = |region: &&crate::observation::Region| {
        region.start < end && addr < region.end && past.residency(region)
    };
    if quire.regions.iter().any(|region| cached(&region)) {
        return Ok(());
    }
    let here = processes.mincore(op.process, addr, len);
    match linux.residency.iter().zip(&here).position(|(linux, quire)| linux != quire) {
        Some(at) => {
            let side = if linux.residency[at] { "Linux" } else { "Quire" };
            Err(format!("mincore: page {:#x} is in memory only on {side}", addr + at as u64 * 4096))
        }
        None => Ok(()),
    }
}
