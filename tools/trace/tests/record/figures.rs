//! Figures of processes: each its own, and both sides of the same moment.

use super::recording::Recording;
use super::shared::{PARENT_BYTES, THREADS, UNRECORDED_PAGES};

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
