//! `quire` without a command: a short tour.

use super::{advise, compare};
use crate::exit::{FOUND_FAILURE, Failure};
use crate::output::{advice, say, techniques};
use quire_trace::format::EXTENSION;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where the recordings are, seen from the folder that a program is usually started in, and from where this
/// one was built.
const PLACES: [&str; 2] = ["recordings", concat!(env!("CARGO_MANIFEST_DIR"), "/../../recordings")];

/// The recording that advice is given for.
const ADVISED: &str = "realloc-growth";

pub(crate) fn run() -> Result<ExitCode, Failure> {
    let files = recordings()?;
    say(format_args!(
        "Quire is the memory management of a Linux-class kernel, as a library. Here it replays the\n\
         recorded memory lives of {} real programs: each call and each page fault is made again, and each\n\
         result compared with Linux's. Then each technique is switched off and on: the last five columns\n\
         say what that changes (the gather and swap also with folios of 64 KiB).\n",
        files.len()
    ));
    let comparisons = files
        .iter()
        .map(|file| compare::with_progress(file, &[], None, None))
        .collect::<Result<Vec<_>, _>>()?;
    techniques::print_overview(&comparisons);
    let advised = files.iter().find(|file| file.file_stem().is_some_and(|name| name == ADVISED));
    if let Some(file) = advised.or(files.first()) {
        let name = file.file_name().unwrap_or_default().display();
        say(format_args!(
            "\nWhat settings of huge pages would do for one of them, by quire advise {}/{name}:",
            PLACES[0]
        ));
        // The same on each host.
        advice::print_short(&advise::with_progress(std::slice::from_ref(file), None, None)?);
    }
    say("\nGo on with a program of your own:");
    say("  quire advise -- python3 -c 'x = list(range(1000000))'   what settings would do for it");
    say("  quire record -o my.qtr -- CMD ARGS...                   keep a recording, and look at it by");
    say("  quire replay my.qtr; quire compare my.qtr               its processes, and the techniques");
    say("  quire lab --quick; quire diff                           techniques timed; random calls on Linux");
    let good = comparisons.iter().all(|comparison| comparison.report.is_good());
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
