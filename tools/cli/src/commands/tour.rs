//! `quire` without a command: a short tour.

use super::bundled::{in_folder, unpack};
use super::{advise, compare};
use crate::failure::{FOUND_FAILURE, Failure};
use crate::output::{advice, say, techniques};
use quire_advise::Host;
use std::path::Path;
use std::process::ExitCode;

/// Where the recordings are, seen from the folder that a program of the repository is usually started in.
const FOLDER: &str = "recordings";

/// The recording that advice is given for.
const ADVISED: &str = "realloc-growth";

pub(crate) fn run() -> Result<ExitCode, Failure> {
    let beside = in_folder(Path::new(FOLDER));
    // Of an installed program.
    let unpacked = if beside.is_empty() { Some(unpack()?) } else { None };
    let files = unpacked.as_ref().map_or(&beside, |unpacked| &unpacked.files);
    say(format_args!(
        "Quire is the memory management of a Linux-class kernel, as a library. Here it replays the\n\
         recorded memory lives of {} real programs: each call and each page fault is made again, and each\n\
         result compared with Linux's. The last five columns say what each technique changes, off and on:\n\
         pcp (all orders on per-CPU lists), gather (unmapping in runs), swap (one layer for all swap-ins),\n\
         tables (empty ones are freed), mremap (whole tables move); gather and swap also with 64 KiB folios.",
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
        let by =
            if unpacked.is_none() { format!(", by quire advise {FOLDER}/{name}") } else { String::new() };
        say(format_args!("\nWhat settings of huge pages would do for one of them{by}:"));
        // The same on each host.
        let host = Host::default();
        advice::print_short(&advise::with_progress(std::slice::from_ref(file), None, &host)?);
    }
    say("Go on with a program of your own:");
    say("  quire advise -- python3 -c 'x = list(range(1000000))'   what settings would do for it");
    say("  quire record -o my.qtr -- CMD; quire replay my.qtr      keep a recording; look at its processes");
    say("  quire lab --quick; quire diff                           techniques timed; random calls on Linux");
    let good = comparisons.iter().all(|comparison| comparison.report.is_good());
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(FOUND_FAILURE) })
}
