//! Recording under pressure: pages are paged out, so that later uses are page faults.

use crate::recording::{Recording, Scratch};
use crate::shared::{
    EXECUTING, HOT_EACH, HOT_ROUNDS, PAGE, PRESSED_PAGES, PRESSED_ROUNDS, SAMPLED_PAGES, USED_BEFORE_EXEC,
};
use quire_measure::{HostSwap, Swap, SwapKind};
use quire_record::{FaultChoice, RecordError, RecordOptions, ShownLimit, record};
use quire_replay::{Replay, ReplayOptions, SwapKind as ReplaySwap, SwapSpec};
use quire_trace::event::{EventKind, Outcome};
use quire_trace::format::{FaultSource, Pressure, TraceReader, UseSource};
use std::sync::atomic::{AtomicBool, Ordering};

const BYTES: u64 = (PRESSED_PAGES * PAGE) as u64;

/// Swap for as long as it is held. `None`, with a message, if there cannot be any.
fn swap() -> Option<HostSwap> {
    let swap = HostSwap::where_none(Swap { kind: SwapKind::Zram, bytes: 512 << 20 });
    swap.inspect_err(|error| eprintln!("skipped: {error}")).ok()
}

/// Records a program with so many pages under pressure. `None`, with a message, if that is not permitted.
fn recorded(program: &str) -> Option<Recording> {
    recorded_under(program, Pressure::of(BYTES / 4))
}

fn recorded_under(program: &str, pressure: Pressure) -> Option<Recording> {
    let _swap = swap()?;
    let file = Scratch::new("pressure");
    let command = vec![crate::recording::PROGRAMS.into(), program.into()];
    let mut options = RecordOptions::new(command, file.path().to_path_buf());
    options.pressure = Some(pressure);
    match record(&options) {
        Ok(summary) => {
            let events = file.events();
            Some(Recording { summary, events, file })
        }
        Err(error @ (RecordError::Ptrace { .. } | RecordError::Pressure(_))) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// It reads the limit that it was shown in the place of its own, which nothing else does. That it opened the
/// file is seen where that was asked for.
#[test]
fn a_program_is_shown_a_limit_and_its_reading_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let [file, told] = ["limit", "told"].map(|name| folder.path().join(name));
    std::fs::write(&file, "own\n").unwrap();
    let files = vec![file.clone(), "/nowhere".into()];
    // A child reads it that has ended when its parent does.
    let reads = format!("cat {} | cat > {}; exit 3", file.display(), told.display());
    let command = ["sh", "-c", &reads];
    let shown = ShownLimit { files: files.clone(), bytes: 64 << 20 };
    let Some(recorded) = Recording::of_command(&command, |options| options.shown_limit = Some(shown)) else {
        return;
    };
    assert_eq!(recorded.summary.exit_code(), 3);
    assert_eq!(std::fs::read_to_string(&told).unwrap(), "67108864\n");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "own\n", "of the host");
    let header = TraceReader::open(recorded.file.path()).unwrap().header().clone();
    assert_eq!((header.shown_limit, recorded.summary.opened), (Some(64 << 20), None));

    let watching = |command: &[&str]| {
        let recorded = Recording::of_command(command, |options| options.watched = files.clone());
        recorded.unwrap().summary.opened
    };
    // Other processes open it all the time.
    let over = AtomicBool::new(false);
    let opened = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                std::fs::read(&file).unwrap();
            }
        });
        let opened = watching(&["true"]);
        over.store(true, Ordering::Relaxed);
        opened
    });
    assert_eq!(opened, None);
    assert_eq!(watching(&command), Some(file));
    let nowhere = ShownLimit { files: vec!["/nowhere".into()], bytes: 1 };
    let file = Scratch::new("no-limit");
    let mut options = RecordOptions::new(vec!["true".into()], file.path().to_path_buf());
    options.shown_limit = Some(nowhere);
    assert!(matches!(record(&options), Err(RecordError::ShownLimit { .. })));
}

#[test]
fn each_use_after_the_first_is_a_fault() {
    let Some(recorded) = recorded("uses_what_was_paged_out") else { return };
    assert_eq!(recorded.summary.exit_code(), 0, "its pages were paged out again and again");
    let pressure = recorded.summary.pressure.unwrap();
    // Half of the pages, each time.
    let (pages, rounds) = (PRESSED_PAGES as u64, PRESSED_ROUNDS as u64);
    assert!(pressure.pages_out >= rounds * pages / 2 && pressure.most_resident > 0, "{pressure:?}");
    // What came back did so by page faults, and its cost is part of what is told.
    assert!(
        pressure.pages_back >= rounds * pages / 2 && pressure.pages_back <= pressure.pages_out,
        "{pressure:?}"
    );
    let summary = recorded.summary.to_string();
    assert!(summary.contains(&format!("{} of them came back", pressure.pages_back)), "{summary}");
    let mapped = recorded.calls(libc::SYS_mmap).find(|call| call.args[1] == BYTES).unwrap().result as u64;
    let all = recorded.faults().filter(|fault| (mapped..mapped + BYTES).contains(&fault.addr));
    let here: Vec<Outcome> = all.map(|fault| fault.outcome).collect();
    assert!(here.len() as u64 >= pages + rounds * pages / 2);
    let major = here.iter().filter(|outcome| **outcome == Outcome::Major).count() as u64;
    // From compressed memory a page comes back at once, but it is a major fault all the same.
    assert!(major >= rounds * pages / 2, "{major}");
    // Without a limit nothing is different from a recording without pressure.
    let report = recorded.file.assert_replays();
    assert_eq!((report.uses, report.pressure.major_faults), (UseSource::Pressure, 0));
    assert_eq!(report.processes[0].quire.peak_resident / BYTES, 1);
}

/// What a program uses in the moment before it becomes another one is its own, also where the ring buffers
/// were not emptied in between: what came back is what Linux read from swap.
#[test]
fn uses_just_before_an_exec_are_those_of_the_program_before_it() {
    let Some(recorded) = recorded("executes_what_used_pages_again") else { return };
    assert_eq!(recorded.summary.exit_code(), 0, "its pages were paged out");
    let pressure = recorded.summary.pressure.unwrap();
    let read = recorded.faults().filter(|fault| fault.outcome == Outcome::Major).count();
    assert!(read >= EXECUTING * USED_BEFORE_EXEC, "{read}");
    // Pages that are used while the recorder looks what has gone, which the page before an exec are not: of
    // each process one.
    assert!(pressure.pages_back + EXECUTING as u64 >= read as u64, "{read}, {pressure:?}");
}

/// The page faults of a thread are taken out of the ring buffers when it has ended.
#[test]
fn what_short_threads_filled_is_paged_out() {
    let Some(recorded) = recorded("uses_what_short_threads_filled") else { return };
    assert_eq!(recorded.summary.exit_code(), 0, "its pages were paged out again and again");
    let pressure = recorded.summary.pressure.unwrap();
    let (pages, rounds) = (PRESSED_PAGES as u64, PRESSED_ROUNDS as u64);
    assert!(pressure.pages_back >= rounds * pages / 2, "{pressure:?}");
    // By Linux's count at the least at its end.
    assert!(pressure.most_resident > BYTES / 4, "{pressure:?}");
}

/// No page fault tells of pages that are populated, moved by mremap, or inherited from a parent that ends.
#[test]
fn what_came_in_without_a_fault_is_paged_out() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    if (numbers.next(), numbers.next()) < (Some(6), Some(7)) {
        return eprintln!("skipped: this kernel cannot be asked for present pages");
    }
    let Some(recorded) = recorded("uses_what_came_in_without_a_fault") else { return };
    assert_eq!(recorded.summary.exit_code(), 0, "its pages were paged out again and again");
    let pressure = recorded.summary.pressure.unwrap();
    let each = (PRESSED_PAGES * PRESSED_ROUNDS) as u64;
    assert!(pressure.pages_back >= 3 * each / 2, "{pressure:?}");
    assert!(pressure.most_resident > BYTES / 4, "by Linux's count: {pressure:?}");
}

/// With half of the memory, a program that uses all in turns finds nothing there that it wants.
#[test]
fn a_limit_is_predicted_from_it() {
    let Some(recorded) = recorded("uses_what_was_paged_out") else { return };
    let swap = Some(SwapSpec { kind: ReplaySwap::Zram, bytes: 4 * BYTES });
    let options = ReplayOptions { limit: Some(BYTES / 2), swap, life: true, ..ReplayOptions::default() };
    let replay = Replay::open(recorded.file.path(), options.clone()).unwrap();
    let run = |options| {
        let report = replay.with(options).run(&mut |_, _| {}).unwrap();
        assert!(report.is_good(), "{report:#?}");
        report
    };
    let report = run(options.clone());
    let (pages, rounds) = (PRESSED_PAGES as u64, PRESSED_ROUNDS as u64);
    let faults = report.pressure.major_faults;
    assert!(faults >= rounds * pages / 2 && faults <= rounds * pages + pages / 4, "{faults}");
    // Of a program that has twice the memory when it is not slowed, a limit twice as large leaves the same
    // share.
    let unlimited = run(ReplayOptions { limit: None, swap: None, ..options.clone() });
    let peak = 2 * unlimited.life.unwrap().at_peak.anonymous;
    let scaled = run(ReplayOptions { limit: Some(BYTES), peak: Some(peak), ..options.clone() });
    assert_eq!((scaled.sampled, scaled.limit), (Some(0.5), Some(BYTES)));
    assert_eq!((report.sampled, scaled.pressure.major_faults), (None, 2 * faults));
}

/// Pages of one part of the memory compress to nearly nothing and those of the other not at all, in the
/// replay as in the program, whichever of them go.
#[test]
fn pages_hold_what_those_around_them_held() {
    let Some(recorded) = recorded("holds_pages_that_compress_differently") else { return };
    assert_eq!(recorded.summary.exit_code(), 0, "what was used longest ago was paged out");
    let mapped = recorded.calls(libc::SYS_mmap).find(|call| call.args[1] == BYTES).unwrap().result as u64;
    let middle = mapped + BYTES / 2;
    let mut found = [0_u64; 2];
    for event in &recorded.events {
        let EventKind::Contents(sample) = &event.kind else { continue };
        let bytes: u64 = sample.pages.iter().map(|page| page.contents.bytes()).sum();
        assert_eq!((sample.pages.len() as u64, bytes), (sample.sizes.pages(), sample.compressed));
        let end = sample.start + sample.bytes;
        if sample.start >= mapped && end <= middle {
            assert_eq!(sample.sizes.sizes[0], sample.sizes.pages() as u32, "{sample:?}");
            found[0] += 1;
        } else if sample.start >= middle && end <= mapped + BYTES {
            assert_eq!(sample.compressed, 4096 * sample.sizes.pages(), "{sample:?}");
            found[1] += 1;
        }
    }
    assert!(found.iter().all(|&samples| samples >= 1), "{found:?}");
    // Only the second half is used again: within the limit the first one goes first, which compresses.
    let swap = Some(SwapSpec { kind: ReplaySwap::Zram, bytes: 4 * BYTES });
    let of = |limit| {
        let options = ReplayOptions { limit: Some(limit), swap: swap.clone(), ..ReplayOptions::default() };
        let options = ReplayOptions { contents: true, ..options };
        let report = Replay::open(recorded.file.path(), options).unwrap().run(&mut |_, _| {}).unwrap();
        assert!(report.is_good(), "{report:#?}");
        report.pressure.swap.ratio().unwrap()
    };
    let (first, most) = (of(BYTES * 5 / 8), of(BYTES / 8));
    // Regions that were never paged out hold what the others hold on average.
    assert!(first > 20.0 && most > 1.0 && most < 10.0, "{first} {most}");
}

/// Pages that are used all the time compress badly. They come back and are looked at more often than the
/// others, but it is the others that lie in swap within a limit.
#[test]
fn what_is_seldom_used_is_as_large_in_swap_as_it_is() {
    let hot = BYTES / HOT_EACH as u64;
    let Some(recorded) = recorded_under("uses_pages_that_compress_badly", Pressure::of(hot / 2)) else {
        return;
    };
    assert_eq!(recorded.summary.exit_code(), 0, "its pages were paged out again and again");
    let mapped = recorded.calls(libc::SYS_mmap).find(|call| call.args[1] == BYTES).unwrap().result as u64;
    // How often each page was looked at, and what it held last.
    let mut looks = vec![0_usize; PRESSED_PAGES];
    let mut last = vec![None; PRESSED_PAGES];
    for event in &recorded.events {
        let EventKind::Contents(sample) = &event.kind else { continue };
        for page in &sample.pages {
            let addr = sample.start + u64::from(page.page) * PAGE as u64;
            let Some(place) = addr.checked_sub(mapped).filter(|place| *place < BYTES) else { continue };
            let place = place as usize / PAGE;
            looks[place] += 1;
            last[place] = Some(page.contents.bytes());
        }
    }
    let as_written = (0..PRESSED_PAGES).filter(|&page| {
        let expected = if page.is_multiple_of(HOT_EACH) { 4096 } else { 2048 };
        last[page].is_some_and(|bytes| bytes.abs_diff(expected) < 50)
    });
    // Some may have gone when they were written in part; what came last need not have gone.
    assert!(as_written.count() >= PRESSED_PAGES * 3 / 4);
    let (hot_ones, others): (Vec<_>, Vec<_>) =
        (0..PRESSED_PAGES).partition(|page| page.is_multiple_of(HOT_EACH));
    let count = |pages: &[usize]| pages.iter().map(|page| looks[*page]).sum::<usize>() / pages.len();
    assert!(count(&hot_ones) > count(&others) && count(&hot_ones) <= HOT_ROUNDS / 2, "one in eight later");
    let swap = Some(SwapSpec { kind: ReplaySwap::Zram, bytes: 4 * BYTES });
    let options = ReplayOptions { limit: Some(BYTES / 2), swap, contents: true, ..ReplayOptions::default() };
    let report = Replay::open(recorded.file.path(), options).unwrap().run(&mut |_, _| {}).unwrap();
    assert!(report.is_good(), "{report:#?}");
    let ratio = report.pressure.swap.ratio().unwrap();
    assert!((1.8..2.05).contains(&ratio), "{ratio}");
}

/// Of a program of 256 MiB one region in four is paged out. The replay is of these, and its figures are of
/// all.
#[test]
fn a_sample_stands_for_the_whole() {
    const ALL: u64 = (SAMPLED_PAGES * PAGE) as u64;
    // No page may stay: what is used again, and where, is known of the sample.
    let pressure = Pressure::of_sample(0, 4, 11);
    let Some(recorded) = recorded_under("uses_a_part_of_its_memory", pressure) else { return };
    let mapped = recorded.calls(libc::SYS_mmap).find(|call| call.args[1] == ALL).unwrap().result as u64;
    let mut uses = vec![0_u32; SAMPLED_PAGES];
    for fault in recorded.faults().filter(|fault| (mapped..mapped + ALL).contains(&fault.addr)) {
        uses[((fault.addr - mapped) / PAGE as u64) as usize] += 1;
    }
    let covered = |page: usize| pressure.covers(mapped + (page * PAGE) as u64);
    assert!(uses.iter().enumerate().all(|(page, &uses)| uses == 1 || uses > 1 && covered(page)));
    // A page in a region of the sample that is used in each round; the mapping need not begin with a region.
    assert!(uses.iter().max().unwrap() > &1);
    let replayed = |options| {
        let report = Replay::open(recorded.file.path(), options).unwrap().run(&mut |_, _| {}).unwrap();
        assert!(report.is_good(), "{report:#?}");
        report
    };
    let whole = replayed(ReplayOptions::default());
    assert_eq!((whole.sampled, whole.processes[0].quire.peak_resident / ALL), (None, 1));
    let swap = Some(SwapSpec { kind: ReplaySwap::Zram, bytes: 4 * ALL });
    let limited = replayed(ReplayOptions { limit: Some(ALL / 2), swap, ..ReplayOptions::default() });
    let share = limited.sampled.unwrap();
    assert!(share > 0.1 && share < 0.4 && limited.limit == Some(ALL / 2), "{share}");
    // Half of all pages have to go.
    let out = limited.pressure.swap.used as f64 / SAMPLED_PAGES as f64;
    assert!((out - 0.5).abs() < 0.05, "{out}");
}

#[test]
fn pressure_without_faults_to_see_is_refused() {
    let file = Scratch::new("refused");
    let mut options = RecordOptions::new(vec!["/bin/true".into()], file.path().to_path_buf());
    options.pressure = Some(Pressure::of(1 << 20));
    options.faults = FaultChoice::Only(FaultSource::Pagemap);
    match record(&options) {
        Err(error @ RecordError::Ptrace { .. }) => eprintln!("skipped: {error}"),
        Err(RecordError::Pressure(why)) => assert!(why.contains("perf"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(!file.path().exists());
}
