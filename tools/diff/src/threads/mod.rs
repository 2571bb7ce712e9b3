//! Concurrent programs on one address space, checked page by page.
//!
//! A [`Program`] is a few threads with a short list of operations each: accesses, `mmap`, `munmap`,
//! `mprotect`, DONTNEED, POPULATE, `mremap`, `mlock`, `fork`, all over the same few pages. [`run`] makes
//! random ones and runs them with real threads, on Quire (vCPUs of a paranoid machine, audited after each
//! program) or on the host's Linux. Each operation gets a stamp before and after it, and the module `check`
//! decides whether what happened can be explained.
//!
//! There is nothing to compare: two runs of a concurrent program differ. Instead Linux is the oracle of the
//! checker: whatever Linux does must pass. What then does not pass on Quire is a difference.
//!
//! - `program`, `generate`: programs and their generator. `crew`: the threads that run them.
//! - `quire`, `linux`: the two worlds. `history`: the record of a run. `check`: the checker.
//! - `shrink`, `report`: minimising and reporting a program that fails.

mod check;
mod crew;
mod generate;
mod history;
mod linux;
mod program;
mod quire;
mod report;
mod shrink;

pub use check::Wrong;
pub use history::{ChildPage, Event, Outcome, Refusal};
pub use program::{MAX_PAGES, MAX_STEPS, MAX_THREADS, Op, Pause, Program, Rights, Span, Turn, Word};
pub use report::{Cause, ThreadFailure, ThreadReport};

use check::HistoryVerdict;
use crew::{Breakdown, Crew, World};
use linux::LinuxWorld;
use quire::QuireWorld;
use std::time::Duration;

/// Where programs run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// On the host's Linux, which must be recent enough ([`linux_is_recent`]).
    Linux,
    /// On Quire.
    Quire,
}

/// What is to be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadOptions {
    /// Where.
    pub side: Side,
    /// With the number of a program it decides what the program is, and so do the threads. How the threads
    /// meet is different each time.
    pub seed: u64,
    /// Number of the first program.
    pub first: u64,
    /// How many programs.
    pub programs: u64,
    /// Threads of each program, 2 to [`MAX_THREADS`]; other numbers are brought into this range.
    pub threads: usize,
    /// The run ends after this many failures.
    pub failures: usize,
    /// How often each smaller version of a failing program is tried before it counts as right; 0 leaves
    /// failing programs as they are.
    pub tries: u32,
}

impl Default for ThreadOptions {
    fn default() -> Self {
        Self { side: Side::Quire, seed: 1, first: 0, programs: 1000, threads: 2, failures: 1, tries: 200 }
    }
}

/// A program that takes longer hangs. It would take microseconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether the host's Linux is recent enough to be compared with (6.17).
pub fn linux_is_recent() -> bool {
    linux::is_recent()
}

/// Runs random programs and checks each. `progress` is called after each program with how many are done, and
/// of how many.
///
/// Ends the process if a program hangs, after printing it.
///
/// # Panics
///
/// When a machine cannot be built, or the host refuses memory.
pub fn run(options: &ThreadOptions, progress: &mut dyn FnMut(u64, u64)) -> ThreadReport {
    let options = ThreadOptions { threads: options.threads.clamp(2, MAX_THREADS), ..*options };
    let mut run = Batch { options, report: ThreadReport::default(), progress };
    match options.side {
        Side::Linux => run.all(LinuxWorld::new),
        Side::Quire => run.all(|| QuireWorld::new(options.threads)),
    }
    run.report
}

/// A run in progress.
struct Batch<'p> {
    options: ThreadOptions,
    report: ThreadReport,
    progress: &'p mut dyn FnMut(u64, u64),
}

/// Runs a program once. `Err` with what happened and why it is wrong.
fn try_once<W: World>(
    crew: &mut Crew<'_, '_, W>,
    program: &Program,
    report: &mut ThreadReport,
) -> Result<(), (Vec<Event>, Cause)> {
    match crew.run(program) {
        Ok(events) => {
            report.count(&events);
            match check::check(&events, W::SIDE) {
                HistoryVerdict::Right => Ok(()),
                HistoryVerdict::Undecided => {
                    report.undecided += 1;
                    Ok(())
                }
                HistoryVerdict::Wrong(wrong) => Err((events, Cause::History(wrong))),
            }
        }
        Err(Breakdown { messages, events }) => Err((events, Cause::Broken(messages))),
    }
}

impl Batch<'_> {
    fn all<W: World>(&mut self, new: impl Fn() -> W) {
        let mut next = 0;
        while next < self.options.programs && self.report.failures.len() < self.options.failures {
            let Some(mut failure) = self.until_failure(&new, &mut next) else { return };
            if self.options.tries > 0 {
                make_smaller(&self.options, &mut failure, &new);
            }
            self.report.failures.push(failure);
        }
    }

    /// Runs programs from `next` on until one fails.
    fn until_failure<W: World>(&mut self, new: &impl Fn() -> W, next: &mut u64) -> Option<ThreadFailure> {
        let ThreadOptions { seed, first, programs, threads, .. } = self.options;
        in_new_world(
            new,
            threads,
            |crew| {
                while *next < programs {
                    let number = first + *next;
                    let program = generate::program(seed, number, threads);
                    let result = try_once(crew, &program, &mut self.report);
                    *next += 1;
                    self.report.programs += 1;
                    (self.progress)(*next, programs);
                    if let Err((events, cause)) = result {
                        return Some(ThreadFailure {
                            number,
                            full_len: program.len(),
                            program,
                            events,
                            cause,
                        });
                    }
                }
                None
            },
            |failure| matches!(failure, Some(ThreadFailure { cause: Cause::Broken(_), .. })),
        )
    }
}

/// Calls `work` with a crew in a world of its own, which is abandoned if it is broken then.
fn in_new_world<W: World, R>(
    new: &impl Fn() -> W,
    threads: usize,
    work: impl FnOnce(&mut Crew<'_, '_, W>) -> R,
    is_broken: impl FnOnce(&R) -> bool,
) -> R {
    let world = new();
    let result = crew::with(&world, threads, PATIENCE, work);
    if is_broken(&result) {
        world.abandon();
    }
    result
}

fn make_smaller<W: World>(options: &ThreadOptions, failure: &mut ThreadFailure, new: &impl Fn() -> W) {
    let mut last = None;
    let program = shrink::shrink(&failure.program, |program| {
        let mut uncounted = ThreadReport::default();
        let failed = in_new_world(
            new,
            options.threads,
            |crew| (0..options.tries).find_map(|_| try_once(crew, program, &mut uncounted).err()),
            |failed| matches!(failed, Some((_, Cause::Broken(_)))),
        );
        let fails = failed.is_some();
        last = failed.or(last.take());
        fails
    });
    if let Some((events, cause)) = last {
        *failure = ThreadFailure { program, events, cause, ..failure.clone() };
    }
}
