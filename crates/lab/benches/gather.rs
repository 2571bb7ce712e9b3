//! `count NAME N`: takes populated memory down, copies it, or replays a build, N times, and prints nothing, to be run under
//! `valgrind --tool=callgrind` (`scripts/instructions.sh`). Times are what `quire lab gather` is for.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let counted = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["count", name, times] => times.parse().ok().and_then(|times| quire_lab::gather::count(name, times)),
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
                "count takes a name such as exit-64k-runs, munmap-4k-pages, fork-2m-runs or build-all-runs, and a number"
            );
            ExitCode::from(2)
        }
    }
}
