//! Figures of processes: each its own, and both sides of the same moment.

use super::recording::Recording;
use super::shared::{MEMORY_FILE_PAGES, NOT_PERMITTED, PAGE, PARENT_BYTES, THREADS, UNRECORDED_PAGES};
use quire_replay::ReplayOptions;
use quire_trace::event::{Call, EventKind, ExitStatus, FileChange, FileEvent, FileKind, SizeCause};

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

/// Pages that Linux may leave out of its figures of a process that ran on so many CPUs, when it ends: before
/// 6.2 what a thread has not added yet, 64 page faults of 16 pages each; up to 6.15 what each CPU has not.
fn left_out(kernel: &str, cpus: u32, ran_on: u32) -> u64 {
    let mut numbers = kernel.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    match (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) {
        release if release < (6, 2) => 64 * 16,
        release if release < (6, 16) => u64::from(ran_on + 1) * u64::from(2 * cpus).max(32),
        _ => 0,
    }
}

/// Page faults in mappings of files in memory.
fn faults_in_memory_files(recorded: &Recording) -> u64 {
    let maps = recorded.calls(libc::SYS_mmap);
    let maps = maps.filter(|call| call.file().is_some_and(|file| file.kind == FileKind::Memory));
    let ranges: Vec<_> = maps.map(|call| call.result as u64..call.result as u64 + call.args[1]).collect();
    recorded.faults().filter(|fault| ranges.iter().any(|range| range.contains(&fault.addr))).count() as u64
}

/// What is written to a file in memory comes in by no page fault of a mapping. Linux maps 16 pages for one
/// that is read, and that a file has grown is told by the call that brings its pages in.
#[test]
fn files_in_memory_are_known_as_far_as_they_are_read() {
    let of = |program| {
        let recorded = Recording::of(program)?;
        if recorded.count(|kind| *kind == EventKind::Exit(ExitStatus::Code(NOT_PERMITTED as u8))) > 0 {
            eprintln!("skipped: {program} may not lock so much");
            return None;
        }
        let report = recorded.file.replay(ReplayOptions { life: true, ..ReplayOptions::default() });
        assert!(report.is_good(), "{report:#?}");
        let [process] = &report.processes[..] else { panic!("several processes") };
        let linux = process.linux.as_ref().expect("figures").rss_shmem;
        let shared = report.life.as_ref().expect("a life").at_charge_peak.shared;
        let figures = [linux, shared, process.unrecorded_shared].map(|bytes| bytes / PAGE as u64);
        let left_out = left_out(&report.header.kernel, report.header.cpus, process.cpus);
        Some((figures, left_out, faults_in_memory_files(&recorded)))
    };
    let pages = MEMORY_FILE_PAGES as u64;
    let Some(([linux, shared, unrecorded], left_out, faults)) = of("reads_files_in_memory") else { return };
    if faults < 2 * pages / 16 {
        return eprintln!("skipped: Linux maps more than 16 pages for one that is read here");
    }
    assert!(shared >= 2 * pages && linux + left_out >= 2 * pages, "{shared} {linux} {left_out}");
    let Some(([linux, shared, more], more_left_out, _)) = of("locks_a_file_in_memory_that_grew") else {
        return;
    };
    assert!(shared >= pages && linux + more_left_out >= pages, "{shared} {linux} {more_left_out}");
    // A call that locks it tells that the file has the pages. Where the programs themselves are files in
    // memory, their own pages may be missing.
    let off = left_out + more_left_out + 64;
    assert!(more < unrecorded + off, "{unrecorded} {more} {off}");
}

/// Linux keeps the pages of a memfd and of a segment until the last descriptor, id or mapping is gone, which
/// no call tells. The memfd that is kept is there until the program ends.
#[test]
fn a_file_in_memory_is_followed_to_its_end() {
    let Some(recorded) = Recording::of("lets_files_in_memory_go") else { return };
    let changes: Vec<&FileEvent> = recorded
        .events
        .iter()
        .filter_map(|event| if let EventKind::File(file) = &event.kind { Some(&**file) } else { None })
        .collect();
    let mapped = recorded.calls(libc::SYS_mmap).filter_map(Call::file);
    let memfds: Vec<(u64, u64)> = mapped
        .filter(|file| file.kind == FileKind::Memory && file.name.starts_with(b"/memfd:file"))
        .map(|file| (file.device, file.inode))
        .collect();
    let [kept, gone] = memfds[..] else { panic!("{memfds:?}") };
    let of = |place: (u64, u64)| -> Vec<&FileChange> {
        let mine = changes.iter().filter(|change| (change.device, change.inode) == place);
        mine.map(|change| &change.change).collect()
    };
    let half = FileChange::Size { bytes: (MEMORY_FILE_PAGES * PAGE / 2) as u64, cause: SizeCause::Call };
    let hole = FileChange::Punched(0..4 * PAGE as u64);
    assert_eq!(of(gone), [&half, &hole, &FileChange::Gone]);
    assert!(of(kept).iter().all(|change| **change == FileChange::Gone), "{changes:?}");
    let segment = recorded.calls(libc::SYS_shmat).next().expect("it attaches one").args[0];
    assert_eq!(of((FileEvent::SEGMENTS, segment)), [&FileChange::Gone]);
    // Before its last call the program has what is kept.
    let report = recorded.file.replay(ReplayOptions { life: true, ..ReplayOptions::default() });
    assert!(report.is_good(), "{report:#?}");
    let life = report.life.expect("a life");
    let (pages, last) = (MEMORY_FILE_PAGES as u64, life.at_end.shared / PAGE as u64);
    assert!(life.at_charge_peak.shared / PAGE as u64 >= 2 * pages && last <= pages + 64, "{last}");
}
