//! `quire`: records the memory life of real programs and runs it again on Quire.
//!
//! # Modules, lowest first
//!
//! - `failure`: why a command could not do its work, and the exit codes.
//! - `examples`: the examples of the help.
//! - `interrupt`: signals.
//! - `args`: the command line.
//! - `output`: what is printed.
//! - `exit`: how the program ends that could not do its work.
//! - `pictures`: what the pages of `--report` show.
//! - `commands`: the commands.

#![warn(clippy::print_stdout, clippy::print_stderr, reason = "`output` escapes what is printed")]

mod args;
mod commands;
mod examples;
mod exit;
mod failure;
mod interrupt;
mod output;
mod pictures;

use args::{Arguments, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return exit::usage(&error),
    };
    interrupt::say_so();
    interrupt::take_long_files_for_a_full_disk();
    let result = match arguments.command {
        None => commands::tour::run(),
        Some(Command::Record(record)) => commands::record::run(record),
        Some(Command::Import(import)) => commands::import::run(import),
        Some(Command::Trace(trace)) => commands::trace::run(&trace),
        Some(Command::Replay(replay)) => commands::replay::run(&replay),
        Some(Command::Export(export)) => commands::export::run(&export),
        Some(Command::Run(run)) => commands::run::run(run),
        Some(Command::Advise(advise)) => commands::advise::run(&advise),
        Some(Command::Sweep(sweep)) => commands::sweep::run(&sweep),
        Some(Command::Compare(compare)) => commands::compare::run(&compare),
        Some(Command::Calibrate(calibrate)) => commands::calibrate::run(&calibrate),
        Some(Command::Diff(diff)) => commands::diff::run(&diff),
        Some(Command::Lab(lab)) => commands::lab::run(&lab),
        Some(Command::Completions { shell }) => commands::manual::completions(shell),
        Some(Command::Man { folder }) => commands::manual::pages(folder.as_deref()),
    };
    result.unwrap_or_else(|failure| exit::report(&failure))
}
