//! `count NAME N`: does one thing of an experiment N times and prints nothing, to be run under
//! `valgrind --tool=callgrind` (`scripts/instructions.sh`). Times are what `quire lab` is for.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let counted = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", name, times] => times.parse().ok().and_then(|times| quire_lab::count(name, times)),
        // As `cargo bench` calls every bench.
        ["--bench"] => return ExitCode::SUCCESS,
        _ => None,
    };
    match counted {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!(
                "count takes a name such as exit-64k-runs, fork-2m-runs, build-all-runs, fault-keep, gib-pmd-puds or in-4k-all, and a number"
            );
            ExitCode::from(2)
        }
    }
}
