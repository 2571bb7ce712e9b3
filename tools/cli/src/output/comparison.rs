//! What `quire diff` prints.

use super::{say, say_json, say_line};
use quire_diff::DiffReport;
use quire_diff::program::Program;
use quire_diff::threads::{Side, ThreadReport};
use serde_json::{Value, json};

/// Most combinations that are listed by name in a text.
const MOST_HOLES: usize = 40;

/// Prints the report on random programs.
pub(crate) fn print(name: &str, report: &DiffReport, all_coverage: bool) {
    let found = if report.is_good() { "no difference" } else { "a difference" };
    say(format_args!(
        "{name}: {} operations compared in {} programs, {found} ({:.0} a second; {} more could not be made)",
        report.compared,
        report.programs,
        report.compared as f64 / report.time.as_secs_f64().max(f64::MIN_POSITIVE),
        report.not_made,
    ));
    if report.programs == 0 {
        return;
    }
    print_remarks(report);
    let holes = report.coverage.holes();
    say(format_args!(
        "  coverage: {} of {} combinations of call, flag, place and result",
        report.coverage.expected() - holes.len(),
        report.coverage.expected()
    ));
    for hole in holes.iter().take(MOST_HOLES) {
        say(format_args!("  never occurred: {hole}"));
    }
    if holes.len() > MOST_HOLES {
        say(format_args!("  ... and {} more; --json has them all", holes.len() - MOST_HOLES));
    }
    if all_coverage {
        for (combination, count) in report.coverage.counts() {
            say(format_args!("  {count:>9}  {combination}"));
        }
    }
    if let Some(failure) = &report.failure {
        say(format_args!(
            "\nProgram {} differs in its last step. What Linux did:\n{failure}",
            failure.number
        ));
    }
}

/// What of the host's settings mattered, and which differences are known. Those that did not show each time
/// are reported, too: most are caused by the host.
fn print_remarks(report: &DiffReport) {
    for line in &report.host {
        say(format_args!("  {line}"));
    }
    if let Some(what) = &report.first_unconfirmed {
        say(format_args!(
            "  {} programs differed and did not differ each time that they were run again; the first: {}",
            report.unconfirmed,
            what.replace('\n', "; ")
        ));
    }
    for (known, count) in &report.known {
        say(format_args!("  known difference {}: met {count} times", known.name()));
    }
}

/// Prints the report on one program that was saved, with what Linux did.
pub(crate) fn print_program(name: &str, program: &Program, report: &DiffReport) {
    say(program.with(&report.outcomes).to_string().trim_end());
    let found = if report.is_good() { "no difference" } else { "a difference" };
    say_line(format_args!("{name}: {} operations compared, {found}", report.compared));
    print_remarks(report);
    if let Some(failure) = &report.failure {
        say(&failure.mismatch.what);
    }
}

/// Prints the report as one object.
pub(crate) fn print_json(name: &str, report: &DiffReport, all_coverage: bool) {
    let known: serde_json::Map<String, Value> =
        report.known.iter().map(|(known, count)| (known.name().to_owned(), json!(count))).collect();
    let holes: Vec<String> = report.coverage.holes().iter().map(ToString::to_string).collect();
    let counts: serde_json::Map<String, Value> = report
        .coverage
        .counts()
        .map(|(combination, count)| (combination.to_string(), json!(count)))
        .collect();
    let mut object = json!({
        "name": name,
        "compared": report.compared,
        "not_made": report.not_made,
        "host": report.host,
        "programs": report.programs,
        "unconfirmed": report.unconfirmed,
        "first_unconfirmed": report.first_unconfirmed,
        "seconds": report.time.as_secs_f64(),
        "known_differences": known,
        "combinations": report.coverage.expected(),
        "never_occurred": holes,
        "difference": report.failure.as_ref().map(|failure| json!({
            "number": failure.number,
            "program": failure.program.to_string(),
            "step": failure.mismatch.step,
            "what": failure.mismatch.what,
        })),
    });
    if all_coverage {
        object["coverage"] = Value::Object(counts);
    }
    say_json(object);
}

const fn side_name(side: Side) -> &'static str {
    match side {
        Side::Linux => "Linux",
        Side::Quire => "Quire",
    }
}

/// Prints the report on concurrent programs.
pub(crate) fn print_threads(side: Side, report: &ThreadReport) {
    let found = if report.failures.is_empty() { "all explained" } else { "not explained" };
    say(format_args!(
        "concurrent programs on {}: {} programs, {} operations, {} of them beside another: {found}{}",
        side_name(side),
        report.programs,
        report.operations(),
        report.concurrent,
        if report.undecided > 0 {
            format!(" ({} too tangled to tell)", report.undecided)
        } else {
            String::new()
        },
    ));
    for failure in &report.failures {
        say(format_args!("\n{failure}"));
    }
}

/// Prints it as one object.
pub(crate) fn print_threads_json(seed: u64, side: Side, report: &ThreadReport) {
    say_json(json!({
        "name": format!("seed {seed}, concurrent, {}", side_name(side)),
        "programs": report.programs,
        "operations": report.operations(),
        "concurrent": report.concurrent,
        "undecided": report.undecided,
        "failures": report.failures.iter().map(ToString::to_string).collect::<Vec<_>>(),
    }));
}
