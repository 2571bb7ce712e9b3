//! `quire diff`.

use crate::args::{DiffArguments, chosen_techniques};
use crate::failure::{FOUND_FAILURE, Failure};
use crate::output::{comparison, progress::Bar, warn};
use quire_diff::program::{HEADING, Program};
use quire_diff::threads::{self, Side, ThreadOptions, ThreadReport};
use quire_diff::{DiffError, DiffOptions, DiffReport, HostSwap, Setup};
use quire_measure::limit_files;
use quire_output::{Kind, Meanwhile, WholeFile};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// A file of `--save`.
const PROGRAM: Kind = Kind {
    name: "saved program",
    is_one: |start| start.starts_with(HEADING.as_bytes()),
    hint: "remove it first, or name another file",
};

pub(crate) fn run(arguments: &DiffArguments) -> Result<ExitCode, Failure> {
    let host_swap = arguments.swap.map(HostSwap::start).transpose().map_err(Failure::work)?;
    let good = if arguments.files.is_empty() { random(arguments)? } else { saved(arguments)? };
    drop(host_swap);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(FOUND_FAILURE) })
}

fn setup(arguments: &DiffArguments) -> Setup {
    Setup {
        techniques: chosen_techniques(&arguments.techniques),
        swap: arguments.swap,
        files: arguments.file,
    }
}

/// Runs programs that were saved.
fn saved(arguments: &DiffArguments) -> Result<bool, Failure> {
    let programs = arguments.files.iter().map(|file| Ok((file, read(file)?)));
    // All are read before the first runs, so that a wrong file is reported at once.
    let programs = programs.collect::<Result<Vec<_>, Failure>>()?;
    let mut good = true;
    for (file, program) in &programs {
        let report = quire_diff::run_program(program, setup(arguments));
        let report = report.map_err(failure)?;
        good &= report.is_good();
        let name = file.display().to_string();
        if arguments.json {
            comparison::print_json(&name, &report, false);
        } else {
            comparison::print_program(&name, program, &report);
        }
    }
    Ok(good)
}

fn read(file: &Path) -> Result<Program, Failure> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| Failure::input(format!("{name}: {error}")))?;
    text.parse().map_err(|error| Failure::input(format!("{name}, {error}; see docs/diff.md for the form")))
}

/// Bytes that one job takes: the RAM of its machine, as far as programs touch it, and Linux's processes.
const JOB_BYTES: u64 = 64 << 20;

/// As many jobs as are asked for, or as there are CPUs. Of these no more than have room in the smallest of
/// these limits of memory cgroups; what they have no room for is told.
fn jobs(asked: Option<usize>, limits: impl Iterator<Item = (PathBuf, u64)>) -> (usize, Option<String>) {
    let wanted = super::at_once(asked).max(1);
    let Some((file, bytes)) = limits.min_by_key(|(_, bytes)| *bytes) else { return (wanted, None) };
    let fit = usize::try_from(bytes / JOB_BYTES).unwrap_or(usize::MAX);
    let jobs = if asked.is_some() { wanted } else { wanted.min(fit.max(1)) };
    let told = (jobs > fit).then(|| {
        format!(
            "{} allows {} MiB, and {jobs} jobs take up to {} MiB: Linux may kill the comparison",
            file.display(),
            bytes >> 20,
            jobs as u64 * (JOB_BYTES >> 20)
        )
    });
    (jobs, told)
}

/// The limits of this process's memory cgroup and of those above it, where there are any.
fn memory_limits() -> impl Iterator<Item = (PathBuf, u64)> {
    limit_files().into_iter().filter_map(|file| {
        let bytes = std::fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        Some((file, bytes))
    })
}

/// Runs random programs, and then concurrent ones.
fn random(arguments: &DiffArguments) -> Result<bool, Failure> {
    let (jobs, told) = jobs(arguments.jobs, memory_limits());
    if let Some(line) = told {
        warn(line);
    }
    let options = DiffOptions {
        seed: arguments.seed,
        ops: arguments.ops,
        jobs,
        shrink: Duration::from_secs(arguments.shrink),
        setup: setup(arguments),
    };
    let save =
        arguments.save.as_deref().map(|path| WholeFile::open(path, &PROGRAM, false, Meanwhile::Unnamed));
    let save = save.transpose()?;
    let bar = Bar::new(&format!("seed {}", options.seed), "operations");
    let report = quire_diff::run(&options, &mut |done, total| bar.set(done, total));
    bar.finish();
    let report = report.map_err(failure)?;
    show(arguments, &report, save)?;
    let mut good = report.is_good();
    if good && arguments.concurrent > 0 {
        for side in [Side::Linux, Side::Quire] {
            if side == Side::Linux && !threads::linux_is_recent() {
                continue;
            }
            let report = concurrent(arguments, side);
            good &= report.failures.is_empty();
            if arguments.json {
                comparison::print_threads_json(arguments.seed, side, &report);
            } else {
                comparison::print_threads(side, &report);
            }
        }
    }
    Ok(good)
}

fn show(arguments: &DiffArguments, report: &DiffReport, save: Option<WholeFile>) -> Result<(), Failure> {
    let name = format!("seed {}", arguments.seed);
    if arguments.json {
        comparison::print_json(&name, report, arguments.coverage);
    } else {
        comparison::print(&name, report, arguments.coverage);
    }
    if let (Some(file), Some(found)) = (save, &report.failure) {
        let text = format!("# {}\n", found.mismatch.what.replace('\n', " "));
        // The heading comes first, remarks may follow anywhere.
        file.write(format!("{}{text}", found.program).as_bytes())?;
    }
    Ok(())
}

fn concurrent(arguments: &DiffArguments, side: Side) -> ThreadReport {
    let mut all = ThreadReport::default();
    // Two and three threads by turns.
    for (number, threads) in [2, 3].into_iter().enumerate() {
        let programs = (arguments.concurrent + number as u64) / 2;
        let options =
            ThreadOptions { side, seed: arguments.seed, programs, threads, ..ThreadOptions::default() };
        let bar = Bar::new(&format!("{threads} threads on {side:?}"), "programs");
        let report = threads::run(&options, &mut |done, total| bar.set(done, total));
        bar.finish();
        all.programs += report.programs;
        all.concurrent += report.concurrent;
        all.undecided += report.undecided;
        for (outcome, count) in report.outcomes {
            *all.outcomes.entry(outcome).or_default() += count;
        }
        all.failures.extend(report.failures);
    }
    all
}

fn failure(error: DiffError) -> Failure {
    Failure::work(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_have_room_in_the_memory_cgroup_or_it_is_told() {
        let limits = |bytes: &'static [u64]| bytes.iter().map(|&bytes| (PathBuf::from("/m/limit"), bytes));
        let all = crate::commands::at_once(None);
        assert_eq!(jobs(None, limits(&[])), (all, None));
        assert_eq!(jobs(None, limits(&[1 << 50, 64 << 20])), (1, None));
        assert_eq!(jobs(Some(3), limits(&[192 << 20])), (3, None));
        for (asked, jobs_made) in [(None, 1), (Some(4), 4)] {
            let (made, told) = jobs(asked, limits(&[63 << 20]));
            let told = told.unwrap_or_default();
            assert!(made == jobs_made && told.starts_with("/m/limit allows 63 MiB"), "{made}: {told}");
        }
    }
}
