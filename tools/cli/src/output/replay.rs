//! What `quire replay` prints.

use super::columns::{aligned, headed};
use super::losses::losses;
use super::{command_line, say, say_line, shorten};
use comfy_table::Table;
use quire_output::Shown;
use quire_replay::{ProcessReport, ReplayReport, Residency};
use std::path::Path;

/// Processes of one recording that get a line of their own; of more, the busiest.
const MOST_LINES: usize = 24;
/// So many pages that came in without an event are not worth a line.
const FEW_PAGES: u64 = 256;

pub(crate) fn print(file: &Path, report: &ReplayReport) {
    say(format_args!("{}: {}", Shown::new(file), shorten(&command_line(&report.header.command), 90)));
    if let Some(finding) = &report.does_not_fit {
        say_line(finding);
    }
    say(processes(report));
    say(format_args!("exactness  {}", report.header.faults.exactness()));
    say(allocator(report));
    if report.limited {
        say(memory(report));
    }
    notes(report);
    say("");
}

fn kib(bytes: u64) -> String {
    (bytes >> 10).to_string()
}

/// A figure of Quire's and Linux's.
fn beside(quire: u64, linux: Option<u64>) -> String {
    format!("{} / {}", kib(quire), linux.map_or_else(|| "-".to_owned(), kib))
}

/// A line a process. Both sides of a column are of the moment at which the process ended (or its exec began);
/// of several images the largest.
fn processes(report: &ReplayReport) -> Table {
    let mut table = headed([
        "process",
        "calls",
        "faults",
        "differ",
        "audit",
        "anonymous kB\nQuire / Linux",
        "files kB\nQuire / Linux",
        "VmPTE kB\nQuire / Linux",
        "mappings\nQuire / Linux",
    ]);
    let mut busiest: Vec<&ProcessReport> = report.processes.iter().collect();
    if busiest.len() > MOST_LINES {
        busiest.sort_by_key(|process| std::cmp::Reverse(process.calls + process.faults));
        busiest.truncate(MOST_LINES);
        busiest.sort_by_key(|process| process.pid);
    }
    for process in &busiest {
        let linux = process.linux.as_ref();
        let name = Shown::new(process.program.rsplit('/').next().unwrap_or_default());
        table.add_row([
            format!("{name} ({})", process.pid),
            process.calls.to_string(),
            process.faults.to_string(),
            process.mismatches.to_string(),
            if process.audit.is_empty() { "ok".to_owned() } else { format!("{} found", process.audit.len()) },
            beside(process.quire.resident_anonymous, linux.map(|linux| linux.rss_anon)),
            beside(
                process.quire.resident_file + process.quire.resident_shmem,
                linux.map(|linux| linux.rss_file + linux.rss_shmem),
            ),
            beside(process.quire.page_tables, linux.map(|linux| linux.vm_pte)),
            format!(
                "{} / {}",
                process.quire.mappings,
                linux.map_or_else(|| "-".to_owned(), |linux| linux.mappings.to_string())
            ),
        ]);
    }
    if busiest.len() < report.processes.len() {
        table.add_row([format!("and {} more", report.processes.len() - busiest.len())]);
    }
    aligned(table, 1..)
}

fn allocator(report: &ReplayReport) -> String {
    let figures = &report.allocator;
    let asked = figures.pcp_hits + figures.pcp_misses;
    let share = if asked == 0 { 0.0 } else { 100.0 * figures.pcp_hits as f64 / asked as f64 };
    format!(
        "allocator  {} frames given out, {} back; per-CPU lists served {share:.1} % of {asked}; \
         zone lock taken {} times; {} splits, {} merges\n\
         machine    {} TLB hits, {} misses, {} shootdowns; {} events replayed, {:.1} million a second",
        figures.allocations,
        figures.frees,
        figures.zone_lock_takes,
        figures.splits,
        figures.merges,
        report.machine.tlb_hits,
        report.machine.tlb_misses,
        report.machine.shootdowns,
        report.events,
        report.events_per_second() / 1e6,
    )
}

/// The cost of memory pressure.
pub(crate) fn memory(report: &ReplayReport) -> String {
    let figures = &report.pressure;
    let mut text = format!(
        "memory     {}; {} minor and {}{} major faults; {} pages out, {} in, {} refaults; {:.3} s stalled",
        report.limit.map_or_else(
            || format!("{} kB of RAM", kib(report.ram)),
            |limit| format!("limited to {} kB", kib(limit))
        ),
        figures.minor_faults,
        match report.major_faults_are() {
            "exact" => String::new(),
            word => format!("{word} "),
        },
        figures.major_faults,
        figures.pages_out,
        figures.pages_in,
        figures.refaults,
        figures.stalled_ns as f64 / 1e9,
    );
    if let Some(share) = report.sampled {
        text += &format!(" (scaled: {:.1} % of the memory was replayed)", share * 100.0);
    }
    let swap = &figures.swap;
    if swap.used > 0 {
        text += &format!("; at most {} kB in swap", swap.used * 4);
    }
    if let Some(ratio) = swap.ratio() {
        text += &format!(
            ", of which {} kB became {} kB ({ratio:.1} times smaller) and took {} kB of RAM",
            swap.stored * 4,
            kib(swap.compressed_bytes),
            kib(swap.ram_bytes),
        );
    }
    if report.reuses + report.reuses_gone > 0 {
        text += &format!("; {} pages used again ({} were gone)", report.reuses, report.reuses_gone);
    }
    text
}

/// Whether processes had as much resident memory as on Linux, where a replay can have it.
fn resident(report: &ReplayReport) -> Option<String> {
    let known: Vec<_> = report.processes.iter().filter_map(ProcessReport::residency).collect();
    if report.known_files == 0 || report.limited || known.is_empty() {
        return None;
    }
    let count = |near: fn(&Residency) -> bool| known.iter().filter(|residency| near(residency)).count();
    Some(format!(
        "resident   of {} processes {} have as much anonymous memory as on Linux, {} as much of files, and {} as much \
         shared memory (within 5 % or 256 kB)",
        known.len(),
        count(|near| near.anonymous),
        count(|near| near.files),
        count(|near| near.shared),
    ))
}

/// All mismatches and findings.
fn notes(report: &ReplayReport) {
    if let Some(damage) = &report.damage {
        say_line(format_args!("damaged    {damage}"));
    }
    if report.ended_early {
        say("early      the recording was ended while the programs ran; their ends are not in it");
    }
    let [tlb, tables] = report.processes.iter().fold([0, 0], |[tlb, tables], process| {
        let present = process.already_present;
        [tlb + present.tlb_hits, tables + present.table_walks]
    });
    if tlb + tables > 0 {
        say(format_args!(
            "present    {} touches that faulted on Linux did not fault here: {tlb} hit a TLB, of {tables} the page was \
             mapped",
            tlb + tables
        ));
    }
    if let Some(resident) = resident(report) {
        say(resident);
    }
    let dependent: u64 = report.processes.iter().map(|process| process.settings_dependent).sum();
    if dependent > 0 {
        say(format_args!(
            "settings   {dependent} results are not Linux's because huge pages were set otherwise when it was recorded"
        ));
    }
    let reordered: u64 = report.processes.iter().map(|process| process.reordered).sum();
    if reordered > 0 {
        say(format_args!(
            "order      {reordered} calls and touches overlapped with calls of other threads, and have Linux's results in another \
             order"
        ));
    }
    let untried: u64 = report.processes.iter().map(|process| process.untried).sum();
    if untried > 0 {
        say(format_args!(
            "untried    {untried} calls and touches that differ overlapped with calls of other threads, and not all orders were \
             tried"
        ));
    }
    let unrecorded: u64 = report.processes.iter().map(ProcessReport::unrecorded_pages).sum();
    if !report.limited && unrecorded > report.lost + FEW_PAGES {
        say(format_args!(
            "kernel     {} pages came in without an event, as for direct I/O or a virtual machine",
            unrecorded - report.lost
        ));
    }
    let shared = report.processes.iter().map(|process| process.unrecorded_shared).max().unwrap_or(0);
    if shared > FEW_PAGES << 12 {
        say(format_args!(
            "shared     {} kB of files in memory were mapped at the end of a process, and no event brought them in",
            shared >> 10
        ));
    }
    for (name, what) in losses(report.lost, report.unheard) {
        say(format_args!("{name:<10} {what}"));
    }
    for process in report.processes.iter().filter(|process| !process.is_good()) {
        for (gap, count) in &process.gaps {
            say_line(format_args!(
                "gap        process {}: {} ({count} times) is not built yet",
                process.pid, gap.0
            ));
        }
        for mismatch in &process.first_mismatches {
            say_line(format_args!("differs    process {}: {mismatch}", process.pid));
        }
        for finding in &process.audit {
            say_line(format_args!("audit      process {}: {finding}", process.pid));
        }
    }
}
