//! Figures of processes: each its own, and both sides of the same moment.

use super::recording::Recording;
use super::shared::{MEMORY_FILE_PAGES, PAGE, PARENT_BYTES, THREADS, UNRECORDED_PAGES};
use quire_trace::replay::ReplayOptions;

#[test]
fn figures_are_those_of_the_process_at_its_end() {
    let Some(recorded) = Recording::of("has_threads_and_starts_a_program") else { return };
    let processes = recorded.file.assert_replays().processes;
    let [parent, child] = &processes[..] else { panic!("{} processes", processes.len()) };
    let linux = parent.linux.as_ref().unwrap();
    assert_eq!(parent.quire.mappings, linux.mappings);
    // Tables go when they are empty, which Linux keeps.
    assert!(parent.quire.page_tables <= linux.vm_pte, "{parent:#?}");
    // The stacks of the threads were there once.
    assert!(parent.quire.peak_mappings >= parent.quire.mappings + THREADS as u64);
    assert!(parent.quire.peak_resident >= PARENT_BYTES as u64);
    // The child used the parent's address space before it had one of its own.
    let linux = child.linux.as_ref().unwrap();
    assert_eq!(child.quire.mappings, linux.mappings);
    assert!(child.quire.peak_resident < PARENT_BYTES as u64 / 2, "{:?}", child.quire);
}

/// Linux counts a page fault for each page that it brings in for itself, of which no event tells.
#[test]
fn pages_that_the_kernel_brings_in_for_itself_are_counted() {
    let unrecorded = |program| {
        let recorded = Recording::of(program)?;
        let [process] = &recorded.file.assert_replays().processes[..] else { panic!("several processes") };
        Some(process.unrecorded_pages())
    };
    let Some(by_kernel) = unrecorded("has_memory_that_the_kernel_brings_in") else { return };
    assert!(
        (UNRECORDED_PAGES as u64..UNRECORDED_PAGES as u64 + 64).contains(&by_kernel),
        "{by_kernel} pages"
    );
    let by_calls = unrecorded("has_memory_that_calls_bring_in").expect("the same host");
    assert!(by_calls < 64, "{by_calls} pages");
}

/// What is written to a file in memory comes in by no page fault of a mapping. Linux maps 16 pages for one that
/// is read, and of a file that grows no event tells.
#[test]
fn files_in_memory_are_known_as_far_as_they_are_read() {
    let of = |program| {
        let recorded = Recording::of(program)?;
        let report = recorded.file.replay(ReplayOptions { life: true, ..ReplayOptions::default() });
        assert!(report.is_good(), "{report:#?}");
        let [process] = &report.processes[..] else { panic!("several processes") };
        let linux = process.linux.as_ref().expect("figures").rss_shmem;
        let shared = report.life.as_ref().expect("a life").at_charge_peak.shared;
        Some([linux, shared, process.unrecorded_shared].map(|bytes| bytes / PAGE as u64))
    };
    let pages = MEMORY_FILE_PAGES as u64;
    let Some([linux, shared, unrecorded]) = of("reads_files_in_memory") else { return };
    assert!(linux >= 2 * pages && shared >= 2 * pages, "{linux} {shared}");
    // Where the programs themselves are files in memory, their own pages are among these.
    let [linux, _, more] = of("locks_a_file_in_memory_that_grew").expect("the same host");
    assert!(linux >= pages && more.abs_diff(unrecorded + pages) < 64, "{linux} {unrecorded} {more}");
}
