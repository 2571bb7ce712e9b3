//! `quire` without a command: a short tour.

use super::replay::{replay, show};
use crate::args::MachineArguments;
use crate::exit::{FOUND_FAILURE, Failure};
use crate::output::say;
use quire_trace::format::EXTENSION;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where the recordings are, seen from the folder that a program is usually started in, and from where this
/// one was built.
const PLACES: [&str; 2] = ["recordings", concat!(env!("CARGO_MANIFEST_DIR"), "/../../recordings")];

pub(crate) fn run() -> Result<ExitCode, Failure> {
    let files = recordings()?;
    say(format_args!("Quire runs the recorded memory lives of {} real programs.", files.len()));
    say("Every call and every touch is made again, and every result is compared with Linux's.\n");
    let machine = MachineArguments::default();
    let mut good = true;
    for file in &files {
        let report = replay(file, &machine, false)?;
        show(file, &report, false);
        good &= report.is_good();
    }
    say("What to try next:");
    say(
        "  quire run -- python3 -c 'x = list(range(1000000))'   a program of your own, recorded and replayed",
    );
    say("  quire record -o my.qtr -- CMD ARGS...                 keep the recording");
    say(
        "  quire replay my.qtr --technique pcp=order0            the same life with single frames only on the per-CPU lists",
    );
    say(
        "  quire replay my.qtr --memory 32M --swap zram:1G       in little memory: how many faults there are at least",
    );
    say("  quire replay my.qtr --paranoid --json                 every TLB hit checked; for scripts");
    say(
        "  quire diff                                            random calls, compared with this machine's Linux",
    );
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(FOUND_FAILURE) })
}

/// The bundled recordings, by name.
fn recordings() -> Result<Vec<PathBuf>, Failure> {
    for place in PLACES {
        let Ok(entries) = std::fs::read_dir(place) else { continue };
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION))
            .collect();
        if !files.is_empty() {
            files.sort();
            return Ok(files);
        }
    }
    let place = Path::new(PLACES[0]).display();
    Err(Failure::input(format!("no recordings in ./{place}; start quire in the folder of its repository")))
}
