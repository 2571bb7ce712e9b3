//! Many programs, on several threads.

use crate::confirmation::Belief;
use crate::coverage::Coverage;
use crate::known::KnownCounts;
use crate::linux::{Effort, Host, Settings};

use crate::error::DiffError;
use crate::program::{Outcome, Program};
use crate::shrink::shrink;
use crate::side_by_side::{Setup, SideBySide};
use crate::verdict::{Mismatch, Verdict};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Operations of one program.
const PROGRAM_OPS: u64 = 250;

/// What to run.
#[derive(Clone, Debug)]
pub struct DiffOptions {
    /// Decides all programs.
    pub seed: u64,
    /// Operations in all.
    pub ops: u64,
    /// Threads, each with a process of Linux and a machine.
    pub jobs: usize,
    /// How long a failing program is minimised.
    pub shrink: Duration,
    /// What both sides have.
    pub setup: Setup,
}

/// A program on which the sides diverge.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its number among those of the seed.
    pub number: u64,
    /// As small as it could be made.
    pub program: Program,
    /// What differs in the small one.
    pub mismatch: Mismatch,
    /// The outcome of each of its operations on Linux.
    pub outcomes: Vec<Outcome>,
}

impl fmt::Display for Failure {
    /// The program with its results, and what differs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.program.with(&self.outcomes), self.mismatch.what)
    }
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct DiffReport {
    /// Operations that were compared.
    pub compared: u64,
    /// Operations that neither side made.
    pub not_made: u64,
    /// Those among them that cannot be compared since the host merges equal pages.
    pub merging: u64,
    /// Those among them that are about SysV shared memory, where programs cannot have a name space of their
    /// own.
    pub segments: u64,
    /// What the host has that matters: what was left out for it, and settings that were changed during the
    /// run.
    pub host: Vec<String>,
    /// Programs.
    pub programs: u64,
    /// Programs that differed once and not each time that they were run again, and what differed in the first
    /// of them.
    pub unconfirmed: u64,
    /// What differed in the first of those.
    pub first_unconfirmed: Option<String>,
    /// The first failure.
    pub failure: Option<Failure>,
    /// The outcome of each operation on Linux, where a single program was run.
    pub outcomes: Vec<Outcome>,
    /// What occurred.
    pub coverage: Coverage,
    /// Known differences that occurred.
    pub known: KnownCounts,
    /// Time that it took.
    pub time: Duration,
}

impl DiffReport {
    /// Whether the sides never diverged.
    pub fn is_good(&self) -> bool {
        self.failure.is_none()
    }

    fn add(&mut self, verdict: &Verdict) {
        self.compared += verdict.compared;
        self.not_made += verdict.not_made;
        self.merging += verdict.merging;
        self.segments += verdict.segments;
        self.programs += 1;
        if let Some(mismatch) = &verdict.unconfirmed {
            self.unconfirmed += 1;
            self.first_unconfirmed.get_or_insert_with(|| mismatch.what.clone());
        }
        for (known, count) in &verdict.known {
            *self.known.entry(*known).or_default() += count;
        }
    }

    /// Tells what of the host's settings mattered, at the end of a run that began with `before`.
    fn tell_host(&mut self, before: &Settings) {
        if self.merging > 0 {
            self.host.push(format!(
                "this host merges equal pages (/sys/kernel/mm/ksm/run is 1): {} calls of MADV_MERGEABLE are left out",
                self.merging
            ));
        }
        if self.segments > 0 {
            self.host.push(format!(
                "a name space of SysV shared memory takes CAP_SYS_ADMIN: {} calls about segments are left out",
                self.segments
            ));
        }
        self.host.extend(Settings::of(&Host::default()).changed_since(before));
    }
}

/// Runs random programs until the wanted number of operations was compared, or one fails. `progress` gets the
/// operations that are done and those that are wanted.
///
/// # Errors
///
/// [`DiffError`] where the sides cannot be compared at all.
pub fn run(options: &DiffOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<DiffReport, DiffError> {
    let begin = Instant::now();
    let before = Settings::of(&Host::default());
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let mut report = DiffReport::default();
    if options.ops == 0 {
        return Ok(report);
    }
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            let (sender, next, done, stop) = (sender.clone(), &next, &done, &stop);
            scope.spawn(move || {
                // The receiver lives as long as this scope.
                let _ = sender.send(work(options, next, done, stop));
                stop.store(true, Ordering::Relaxed);
            });
        }
        drop(sender);
        loop {
            match receiver.recv_timeout(Duration::from_millis(200)) {
                Ok(part) => merge(&mut report, part?),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok::<_, DiffError>(()),
            }
            progress(done.load(Ordering::Relaxed).min(options.ops), options.ops);
        }
    })?;
    if let Some(failure) = report.failure.take() {
        report.failure = Some(small(failure, options)?);
    }
    report.tell_host(&before);
    report.time = begin.elapsed();
    Ok(report)
}

fn merge(report: &mut DiffReport, part: DiffReport) {
    report.compared += part.compared;
    report.not_made += part.not_made;
    report.merging += part.merging;
    report.segments += part.segments;
    report.programs += part.programs;
    report.unconfirmed += part.unconfirmed;
    if report.first_unconfirmed.is_none() {
        report.first_unconfirmed = part.first_unconfirmed;
    }
    report.coverage.merge(&part.coverage);
    for (known, count) in part.known {
        *report.known.entry(known).or_default() += count;
    }
    let earlier =
        |failure: &Failure| report.failure.as_ref().is_none_or(|other| failure.number < other.number);
    if let Some(failure) = part.failure.filter(earlier) {
        report.failure = Some(failure);
    }
}

fn work(
    options: &DiffOptions,
    next: &AtomicU64,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> Result<DiffReport, DiffError> {
    let mut sides = SideBySide::new(options.setup)?;
    let mut report = DiffReport::default();
    while !stop.load(Ordering::Relaxed) && done.load(Ordering::Relaxed) < options.ops {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let left = options.ops.saturating_sub(done.load(Ordering::Relaxed));
        let len = PROGRAM_OPS.min(left.max(1)) as usize;
        let program = Program::random_in(options.setup.files, options.seed, number, len);
        let verdict = sides.run(&program, Effort::Usual, Belief::Repeated, &mut report.coverage)?;
        report.add(&verdict);
        done.fetch_add(verdict.compared.max(1), Ordering::Relaxed);
        if let Some(mismatch) = verdict.mismatch {
            report.failure = Some(Failure { number, program, mismatch, outcomes: verdict.outcomes });
            break;
        }
    }
    Ok(report)
}

/// Makes the program of a failure small.
fn small(failure: Failure, options: &DiffOptions) -> Result<Failure, DiffError> {
    let mut sides = SideBySide::new(options.setup)?;
    let mut error = None;
    let mut last = (failure.mismatch.clone(), failure.outcomes.clone());
    let mut fails = |program: &Program| {
        let effort = if program.ops.len() < 100 { Effort::Thorough } else { Effort::Usual };
        let verdict = sides.run(program, effort, Belief::Once, &mut Coverage::default());
        match verdict {
            Ok(Verdict { mismatch: Some(mismatch), outcomes, .. }) => {
                // A machine that lost something would fail for ever.
                let fresh = SideBySide::new(options.setup);
                match fresh {
                    Ok(fresh) => sides = fresh,
                    Err(cause) => error = Some(cause),
                }
                let step = mismatch.step;
                last = (mismatch, outcomes);
                Some(step)
            }
            Ok(_) => None,
            Err(cause) => {
                error = Some(cause);
                None
            }
        }
    };
    let Failure { number, program: whole, mismatch, .. } = failure.clone();
    let program = shrink(whole, mismatch.step, options.shrink, &mut fails);
    if let Some(error) = error {
        return Err(error);
    }
    let (mismatch, outcomes) = last;
    // A step of making it small may have been taken for what the host did in it.
    let mut sides = SideBySide::new(options.setup)?;
    let effort = if program.ops.len() < 100 { Effort::Thorough } else { Effort::Usual };
    let verdict = sides.run(&program, effort, Belief::Repeated, &mut Coverage::default())?;
    let small = Failure { number, program, mismatch, outcomes };
    Ok(if verdict.mismatch.is_some() { small } else { failure })
}

/// Runs one program, and observes everything after each operation.
///
/// # Errors
///
/// As [`run`].
pub fn run_program(program: &Program, setup: Setup) -> Result<DiffReport, DiffError> {
    let begin = Instant::now();
    let before = Settings::of(&Host::default());
    let mut report = DiffReport::default();
    let verdict =
        SideBySide::new(setup)?.run(program, Effort::Thorough, Belief::Repeated, &mut report.coverage)?;
    report.add(&verdict);
    report.outcomes.clone_from(&verdict.outcomes);
    report.failure = verdict.mismatch.map(|mismatch| Failure {
        number: 0,
        program: program.clone(),
        mismatch,
        outcomes: verdict.outcomes,
    });
    report.tell_host(&before);
    report.time = begin.elapsed();
    Ok(report)
}
