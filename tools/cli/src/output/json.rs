//! One JSON object a process.

use quire_replay::{AllocatorFigures, DoesNotFit, PressureFigures, ProcessReport, ReplayReport, Residency};
use quire_trace::event::LinuxFigures;
use serde_json::{Value, json};
use std::path::Path;

/// The objects of a replay, each a line.
pub(crate) fn objects(file: &Path, report: &ReplayReport) -> Vec<Value> {
    let finding = report.does_not_fit.as_ref().map(|finding| does_not_fit(file, finding));
    let processes = report.processes.iter().map(|process| object(file, report, process));
    finding.into_iter().chain(processes).collect()
}

/// The first object of a replay whose programs found no memory: what follows is only what happened before.
fn does_not_fit(file: &Path, finding: &DoesNotFit) -> Value {
    let held = &finding.held;
    json!({
        "file": file.display().to_string(),
        "does_not_fit": finding.to_string(),
        "event": finding.event,
        "in_process": finding.pid,
        "ram": finding.ram,
        "swap": finding.swap,
        "suffices": finding.suffices,
        "held": {
            "anonymous": held.anonymous,
            "files": held.files,
            "shared": held.shared,
            "locked": held.locked,
            "page_tables": held.page_tables,
            "compressed_swap": held.compressed_swap,
            "free": held.free,
        },
    })
}

fn object(file: &Path, report: &ReplayReport, process: &ProcessReport) -> Value {
    let audit = if process.audit.is_empty() { json!("ok") } else { json!(process.audit) };
    let gaps: serde_json::Map<String, Value> =
        process.gaps.iter().map(|(gap, &count)| (gap.0.clone(), json!(count))).collect();
    json!({
        "file": file.display().to_string(),
        "pid": process.pid,
        "program": *process.program,
        "threads": process.threads,
        "images": process.images,
        "calls": process.calls,
        "faults": process.faults,
        "already_present": {
            "tlb_hits": process.already_present.tlb_hits,
            "table_walks": process.already_present.table_walks,
        },
        "mismatches": process.mismatches,
        "settings_dependent": process.settings_dependent,
        "reordered": process.reordered,
        "untried": process.untried,
        "gaps": gaps,
        "first_mismatches": process.first_mismatches.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "audit": audit,
        "quire": quire(process),
        "linux": process.linux.as_ref().map(linux),
        "residency": process.residency().map(residency),
        "allocator": allocator(&process.allocator),
        "recording": recording(report),
    })
}

/// The recording, and the replay as a whole.
fn recording(report: &ReplayReport) -> Value {
    json!({
        "events": report.events,
        "lost_faults": report.lost,
        "unheard_faults": report.unheard,
        "fault_source": report.header.faults.name(),
        "exactness": report.header.faults.exactness(),
        "seconds": report.elapsed.as_secs_f64(),
        "events_per_second": report.events_per_second(),
        "ram": report.ram,
        "known_files": report.known_files,
        "tlb_hits": report.machine.tlb_hits,
        "tlb_misses": report.machine.tlb_misses,
        "shootdowns": report.machine.shootdowns,
        "major_faults_are": report.major_faults_are(),
        "reuses": report.reuses,
        "reuses_gone": report.reuses_gone,
        "limit": report.limit,
        "sampled": report.sampled,
        "memory": memory(&report.pressure),
        "zstd_of_lz4": report.zstd_of_lz4,
        "does_not_fit": report.does_not_fit.as_ref().map(ToString::to_string),
        "damage": report.damage,
        "ended_early": report.ended_early,
        "allocator": allocator(&report.allocator),
    })
}

/// Linux's figures.
fn linux(linux: &LinuxFigures) -> Value {
    json!({
        "peak_resident": linux.vm_hwm,
        "resident_anonymous": linux.rss_anon,
        "resident_file": linux.rss_file + linux.rss_shmem,
        "rss_file": linux.rss_file,
        "rss_shmem": linux.rss_shmem,
        "peak_mapped": linux.vm_peak,
        "data": linux.vm_data,
        "stack": linux.vm_stk,
        "page_tables": linux.vm_pte,
        "peak_page_tables": linux.vm_pte_peak,
        "mappings": linux.mappings,
        "peak_mappings": linux.mappings_peak,
        "minor_faults": linux.minor_faults,
        "major_faults": linux.major_faults,
    })
}

/// Where resident memory is as much as Linux's.
fn residency(near: Residency) -> Value {
    json!({ "anonymous": near.anonymous, "file": near.files, "shared": near.shared })
}

fn memory(figures: &PressureFigures) -> Value {
    json!({
        "minor_faults": figures.minor_faults,
        "pgmajfault": figures.major_faults,
        "pswpout": figures.pages_out,
        "pswpin": figures.pages_in,
        "workingset_refault_anon": figures.refaults,
        "memstall_ns": figures.stalled_ns,
        "swap": {
            "used_pages": figures.swap.used,
            "stored_pages": figures.swap.stored,
            "compressed_bytes": figures.swap.compressed_bytes,
            "ram_bytes": figures.swap.ram_bytes,
            "ratio": figures.swap.ratio(),
        },
    })
}

fn quire(process: &ProcessReport) -> Value {
    let quire = &process.quire;
    json!({
        "peak_resident": quire.peak_resident,
        "resident_anonymous": quire.resident_anonymous,
        "resident_file": quire.resident_file + quire.resident_shmem,
        "rss_file": quire.resident_file,
        "rss_shmem": quire.resident_shmem,
        "swapped": quire.swapped,
        "peak_mapped": quire.peak_mapped,
        "data": quire.data,
        "stack": quire.stack,
        "page_tables": quire.page_tables,
        "peak_page_tables": quire.peak_page_tables,
        "mappings": quire.mappings,
        "peak_mappings": quire.peak_mappings,
    })
}

fn allocator(figures: &AllocatorFigures) -> Value {
    json!({
        "allocations": figures.allocations,
        "frees": figures.frees,
        "pcp_hits": figures.pcp_hits,
        "pcp_misses": figures.pcp_misses,
        "zone_lock_takes": figures.zone_lock_takes,
        "zone_lock_contended": figures.zone_lock_contended,
        "splits": figures.splits,
        "merges": figures.merges,
    })
}
