//! What is known of mapped files: their lengths, and what of them is in the page cache.

use super::recording::Recording;
use super::shared::{FILE_AREA, FILE_PAGES, MANY_FILES, NOT_PERMITTED, PAGE};
use quire_record::{FaultChoice, PageSource, RecordOptions};
use quire_trace::event::{
    Call, CallDetail, Denial, Event, EventKind, ExitStatus, Fault, FileChange, FileKind, Outcome,
};
use quire_trace::format::FaultSource;
use std::collections::{BTreeSet, HashMap};

/// What a recording says of a file up to some event.
#[derive(Debug, Default)]
struct Known {
    bytes: u64,
    cached: Option<BTreeSet<u64>>,
}

impl Known {
    fn take(&mut self, change: &FileChange) {
        let cached = self.cached.get_or_insert_default();
        match change {
            FileChange::Size { bytes, .. } => {
                self.bytes = *bytes;
                cached.retain(|page| page * (PAGE as u64) < *bytes);
            }
            FileChange::Punched(hole) => {
                let whole = hole.start.div_ceil(PAGE as u64)..hole.end / PAGE as u64;
                cached.retain(|page| !whole.contains(page));
            }
            FileChange::Cached(runs) => {
                cached.extend(runs.iter().flat_map(|run| run.first..run.end()));
            }
            FileChange::Gone => cached.clear(),
            FileChange::Evicted(runs) => {
                cached.retain(|page| !runs.iter().any(|run| (run.first..run.end()).contains(page)));
            }
        }
    }

    fn pages(&self) -> u64 {
        self.bytes.div_ceil(PAGE as u64)
    }
}

/// Whether the kernel or the program touched this mapping; the index of the page.
fn page_of(fault: &Fault, mapped: u64) -> Option<u64> {
    let page = fault.addr.checked_sub(mapped)? / PAGE as u64;
    (page < FILE_AREA as u64).then_some(page)
}

/// Plays the events of the one file that is mapped `FILE_AREA` pages long: what Linux said is in memory is
/// what the events say, and no page that they say is there was read from a disk. How often Linux said so.
fn check(events: &[Event]) -> usize {
    let mut files: HashMap<(u64, u64), Known> = HashMap::new();
    let mut mapped = None;
    let mut asked = 0;
    let length = (FILE_AREA * PAGE) as u64;
    for (number, Event { kind, .. }) in events.iter().enumerate() {
        match kind {
            EventKind::File(file) => {
                files.entry((file.device, file.inode)).or_default().take(&file.change);
            }
            EventKind::Call(Call { args, result, detail: CallDetail::File(file), .. })
                if args[1] == length =>
            {
                assert_eq!(file.kind, FileKind::Regular);
                mapped = Some((*result as u64, (file.device, file.inode)));
            }
            EventKind::Call(Call { args, detail: CallDetail::Resident { pages }, .. }) => {
                let Some((start, key)) = mapped.filter(|(start, _)| *start == args[0]) else { continue };
                let known = &files[&key];
                let cached = known.cached.as_ref().unwrap();
                assert_eq!(*pages, cached.len() as u64, "{number}: {start:#x} {known:?}");
                asked += 1;
            }
            EventKind::Fault(fault) => {
                let Some((start, key)) = mapped else { continue };
                let Some(page) = page_of(fault, start) else { continue };
                let known = &files[&key];
                match fault.outcome {
                    Outcome::Denied(denial) => {
                        assert_eq!(denial, Denial::NoBacking);
                        assert!(page >= known.pages(), "{number}: page {page} is refused: {known:?}");
                    }
                    Outcome::Unresolved => assert!(page >= known.pages(), "{number}: {page} {known:?}"),
                    Outcome::Major => {
                        assert!(!known.cached.as_ref().unwrap().contains(&page), "{number}: {page}");
                    }
                    Outcome::Minor | Outcome::Unknown => {
                        assert!(page < known.pages(), "{number}: page {page} is past the end: {known:?}");
                    }
                }
            }
            _ => {}
        }
    }
    asked
}

/// Whether temporary files lie on a disk.
fn is_on_disk(recorded: &Recording) -> bool {
    let of_file = |call: &&Call| call.args[1] == (FILE_AREA * PAGE) as u64 && call.file().is_some();
    let kind = recorded.calls(libc::SYS_mmap).find(of_file).and_then(Call::file).unwrap().kind;
    if kind != FileKind::Regular {
        eprintln!("skipped: temporary files are in memory");
    }
    kind == FileKind::Regular
}

#[test]
fn the_length_and_the_cached_pages_of_a_file_are_those_of_linux_at_any_time() {
    for recorded in Recording::in_both_ways("changes_a_mapped_file") {
        assert_eq!(recorded.summary.status, ExitStatus::Code(0));
        if !is_on_disk(&recorded) {
            return;
        }
        if recorded.summary.files.pages != PageSource::Tracepoints {
            eprintln!("skipped: no tracepoints of the page cache");
            continue;
        }
        assert_eq!(check(&recorded.events), 11);
        let refused = recorded.faults().filter(|fault| fault.outcome == Outcome::Denied(Denial::NoBacking));
        assert_eq!(refused.count(), 0, "the kernel reads for the program");
        recorded.file.assert_replays();
    }
}

/// Linux does not split a large folio that is dirty: the pages of a hole stay cached. Bytes that are moved
/// are lost with the private copies of them, as of a file that ends there.
#[test]
fn what_stays_of_a_file_that_is_cut_is_known() {
    for recorded in Recording::in_both_ways("cuts_a_mapped_file") {
        let moves = recorded.summary.status == ExitStatus::Code(0);
        assert!(moves || recorded.summary.status == ExitStatus::Code(NOT_PERMITTED as u8));
        if !is_on_disk(&recorded) || recorded.summary.files.pages != PageSource::Tracepoints {
            return;
        }
        let changes = recorded.events.iter().filter_map(|event| match &event.kind {
            EventKind::File(file) => Some(&file.change),
            _ => None,
        });
        let lengths = changes.filter_map(|change| match change {
            FileChange::Size { bytes, .. } => Some(bytes / PAGE as u64),
            _ => None,
        });
        let lengths: Vec<u64> = lengths.collect();
        let by_calls = if moves { &[0, 3, 12, 16, 4, 12, 2, 16][..] } else { &[0, 3, 12, 16] };
        let mut left = by_calls.iter().peekable();
        for length in &lengths {
            left.next_if(|next| *next == length);
        }
        assert!(left.peek().is_none(), "{lengths:?}");
        assert_eq!(check(&recorded.events), if moves { 7 } else { 6 });
        recorded.file.assert_replays();
    }
}

#[test]
fn a_file_is_emptied_by_the_calls_that_do_so_and_by_no_others() {
    for recorded in Recording::in_both_ways("empties_a_mapped_file") {
        assert_eq!(recorded.summary.status, ExitStatus::Code(0));
        if !is_on_disk(&recorded) || recorded.summary.files.pages != PageSource::Tracepoints {
            return;
        }
        assert_eq!(check(&recorded.events), 2);
        // A look can come between the call and its end.
        let is_emptied = |kind: &EventKind| match kind {
            EventKind::File(file) => matches!(file.change, FileChange::Size { bytes: 0, .. }),
            _ => false,
        };
        assert_eq!(recorded.count(is_emptied), 1);
        recorded.file.assert_replays();
    }
}

/// The length after a call is that of the file which the call was for.
#[test]
fn another_file_behind_the_descriptor_by_then_is_not_asked() {
    for recorded in Recording::in_both_ways("allocates_while_descriptors_change") {
        assert_eq!(recorded.summary.status, ExitStatus::Code(0));
        if !is_on_disk(&recorded) {
            return;
        }
        let of_mapped = |call: &&Call| call.args[1] == (FILE_AREA * PAGE) as u64 && call.file().is_some();
        let file = recorded.calls(libc::SYS_mmap).find(of_mapped).and_then(Call::file).unwrap();
        let lengths = recorded.events.iter().filter_map(|event| match &event.kind {
            EventKind::File(event) if (event.device, event.inode) == (file.device, file.inode) => {
                match event.change {
                    FileChange::Size { bytes, .. } => Some(bytes / PAGE as u64),
                    _ => None,
                }
            }
            _ => None,
        });
        assert_eq!(Vec::from_iter(lengths), [FILE_PAGES as u64]);
    }
}

/// Without perf, files are looked at: what was between two looks is not known, lengths by calls are.
#[test]
fn lengths_are_known_without_tracepoints() {
    let without = |options: &mut RecordOptions| options.faults = FaultChoice::Only(FaultSource::Pagemap);
    let Some(recorded) = Recording::with("changes_a_mapped_file", without) else { return };
    if !is_on_disk(&recorded) {
        return;
    }
    assert_eq!(recorded.summary.files.pages, PageSource::Looks);
    let lengths = recorded.events.iter().filter_map(|event| match &event.kind {
        EventKind::File(file) => match file.change {
            FileChange::Size { bytes, .. } => Some(bytes / PAGE as u64),
            _ => None,
        },
        _ => None,
    });
    let lengths: Vec<u64> = lengths.collect();
    let by_calls = [10, 100, 0, 7, 2];
    let mut left = by_calls.iter().peekable();
    for length in &lengths {
        left.next_if(|next| *next == length);
    }
    assert!(left.peek().is_none(), "{lengths:?}");
}

/// The file was written before it was mapped, so all of it was there, and not on its disk.
#[test]
fn a_cold_recording_begins_without_the_pages_of_the_program_s_files() {
    let Some(recorded) = Recording::with("reads_a_file", |options| options.cold = true) else { return };
    if !is_on_disk(&recorded) || recorded.summary.files.pages != PageSource::Tracepoints {
        return;
    }
    assert_eq!(check(&recorded.events), 1);
    let length = (FILE_AREA * PAGE) as u64;
    let file = recorded.calls(libc::SYS_mmap).find(|call| call.args[1] == length).unwrap().file().unwrap();
    let mut first = recorded.events.iter().filter_map(|event| match &event.kind {
        EventKind::File(event) if (event.device, event.inode) == (file.device, file.inode) => {
            Some(&event.change)
        }
        _ => None,
    });
    assert!(
        matches!(first.next(), Some(FileChange::Size { bytes, .. }) if *bytes == (FILE_PAGES * PAGE) as u64)
    );
    assert_eq!(first.next(), Some(&FileChange::Cached(Vec::new())));
    assert!(recorded.summary.files.cold && recorded.summary.to_string().contains("\ncold  "));
    let warm = Recording::with("reads_a_file", |_| {}).unwrap();
    assert!(!warm.summary.files.cold && !warm.summary.to_string().contains("\ncold  "));
    recorded.file.assert_replays();
}

/// Sets of events are made anew when there are many, while pages come in.
#[test]
fn pages_of_many_files_are_told() {
    let Some(recorded) = Recording::of("reads_many_files") else { return };
    if is_on_disk(&recorded) && recorded.summary.files.pages == PageSource::Tracepoints {
        assert_eq!(check(&recorded.events), MANY_FILES);
    }
}

/// Before a call or an image maps a file, its length is known, which is the one that the call tells, and what
/// of it is cached.
#[test]
fn files_are_known_before_they_are_mapped() {
    let script = "ls / | cat | sort > /dev/null; exec ls / > /dev/null";
    let Some(recorded) = Recording::of_command(&["sh", "-c", script], |_| {}) else { return };
    let mut files: HashMap<(u64, u64), Known> = HashMap::new();
    let mut mapped = 0;
    for Event { kind, .. } in &recorded.events {
        match kind {
            EventKind::File(file) => {
                files.entry((file.device, file.inode)).or_default().take(&file.change);
            }
            EventKind::Call(call) => {
                let Some(file) = call.file().filter(|file| file.kind == FileKind::Regular) else { continue };
                let known = &files[&(file.device, file.inode)];
                assert_eq!(known.bytes, file.size);
                assert!(known.cached.is_some());
                mapped += 1;
            }
            EventKind::Exec(image) => {
                for mapping in image.mappings.iter().filter(|mapping| mapping.name.starts_with(b"/")) {
                    let Some(known) = files.get(&(mapping.device, mapping.inode)) else {
                        return eprintln!("skipped: programs are in memory");
                    };
                    // What is resident is cached.
                    let index = |addr: u64| (addr - mapping.start + mapping.offset) / PAGE as u64;
                    let cached = known.cached.as_ref().unwrap();
                    for run in mapping.resident.iter().filter(|run| run.file) {
                        assert!((0..run.pages).all(|page| cached.contains(&(index(run.start) + page))));
                    }
                    mapped += 1;
                }
            }
            _ => {}
        }
    }
    assert!(mapped > 20, "{mapped}");
    let again = &recorded.summary.files;
    assert_eq!((again.files, again.unknown), (files.len() as u64, 0));
}

/// A stopped thread of the program might be the one that serves it.
#[test]
fn a_program_that_serves_its_own_files_is_asked_for_nothing() {
    let cold = |options: &mut RecordOptions| options.cold = true;
    let Some(recorded) = Recording::with("maps_a_file_that_it_serves", cold) else { return };
    if recorded.summary.status == ExitStatus::Code(NOT_PERMITTED as u8) {
        return eprintln!("skipped: nothing can be mounted");
    }
    assert_eq!(recorded.summary.status, ExitStatus::Code(0), "so often it was asked");
    let length = (FILE_AREA * PAGE) as u64;
    let file = recorded.calls(libc::SYS_mmap).find(|call| call.args[1] == length).unwrap().file().unwrap();
    assert_eq!((file.kind, file.file_system, file.inode), (FileKind::Regular, 0x6573_5546, 2));
    assert!(
        file.readable && file.writable && file.trial.is_none() && file.name.ends_with(b"/file"),
        "{file:?}"
    );
    let is_its = |kind: &EventKind| match kind {
        EventKind::File(event) => (event.device, event.inode) == (file.device, file.inode),
        _ => false,
    };
    assert_eq!((recorded.count(is_its), recorded.summary.files.left_out), (0, 1));
    let summary = recorded.summary.to_string();
    assert!(summary.contains("\nleft out  lengths and cached pages of 1 files"), "{summary}");
    recorded.file.assert_replays();
}

#[test]
fn a_fifo_that_a_program_executes_is_not_opened() {
    let cold = |options: &mut RecordOptions| options.cold = true;
    let Some(recorded) = Recording::with("executes_a_fifo", cold) else { return };
    assert_eq!(recorded.summary.status, ExitStatus::Code(0));
}
