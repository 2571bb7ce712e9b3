//! Several recordings of one command: how they are named and which of them are taken together.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use quire_advise::{AdviseError, Host, Measure, predict};
use quire_trace::event::{
    Access, Call, CallDetail, Event, EventKind, ExecImage, ExitStatus, Fault, Mode, Outcome, TaskId,
};
use quire_trace::format::{TraceReader, TraceWriter};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PAGE: u64 = 4096;
const BASE: u64 = 0x10_0000_0000;
const SECOND: u64 = 1_000_000_000;

/// A recording of a program that writes to each second of so many pages and takes a second for a hundred of
/// them, made at the time `started` on a host whose `enabled` says this.
fn invented(folder: &TempDir, name: &str, pages: u64, started: u64, enabled: &str) -> PathBuf {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings/python-structures.qtr");
    let mut header = TraceReader::open(&bundled).unwrap().header().clone();
    header.started = started;
    for (file, word) in &mut header.settings.as_mut().unwrap().thp_files {
        if file == "enabled" {
            *word = enabled.to_owned();
        }
    }
    let path = folder.path().join(name);
    let mut writer = TraceWriter::new(std::fs::File::create(&path).unwrap(), &header, 3).unwrap();
    let mut push = |time_ns, kind| writer.push(&Event { time_ns, task: TaskId(0), cpu: 0, kind }).unwrap();
    let image = ExecImage { max_map_count: 65530, overcommit_memory: 1, ..ExecImage::default() };
    push(0, EventKind::Exec(Box::new(image)));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let args = [BASE, pages * PAGE, 3, flags as u64, u64::MAX, 0];
    let map = Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail: CallDetail::None };
    push(0, EventKind::Call(map));
    for page in (0..pages).step_by(2) {
        let (addr, access, mode) = (BASE + page * PAGE, Access::Write, Mode::User);
        let fault = Fault { addr, access, mode, outcome: Outcome::Minor, inferred: false };
        push(page * SECOND / 100, EventKind::Fault(fault));
    }
    push(pages * SECOND / 100, EventKind::Exit(ExitStatus::Code(0)));
    writer.finish(0, 0).unwrap();
    path
}

/// Each doubles under `thp=always`, though they differ by a factor of four among themselves.
#[test]
fn the_order_of_recordings_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, pages, started| invented(&folder, name, pages, started, "madvise");
    let [a, b, c] = [file("a", 2048, 30), file("b", 8192, 20), file("c", 4096, 10)];
    let told = |files: &[&PathBuf]| {
        let files: Vec<PathBuf> = files.iter().copied().cloned().collect();
        predict(&files, 2, &Host::default(), &|_, _| {}).unwrap()
    };
    let (one, other) = (told(&[&a, &b, &c]), told(&[&c, &b, &a]));
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
    assert_eq!(one.seconds.round(), 41.0, "the middle one's");
    let always = one.rows.iter().position(|(setting, _)| setting.name == "thp=always").unwrap();
    let most = one.verdict.most_memory.as_ref().map(|gain| gain.place);
    assert_eq!(most, Some(always));
    let peak = one.changes[always].memory[Measure::Charged].share;
    assert!((peak.median - 1.0).abs() < 0.01 && peak.spread() < 0.01, "{peak:?}");
}

#[test]
fn recordings_made_under_different_settings_are_refused_in_either_order() {
    let folder = TempDir::new().unwrap();
    let one = invented(&folder, "one", 512, 1, "madvise");
    let other = invented(&folder, "other", 512, 2, "always");
    let refusal = |files: &[PathBuf]| match predict(files, 2, &Host::default(), &|_, _| {}) {
        Err(error @ AdviseError::OtherSettings(..)) => error.to_string(),
        found => panic!("{found:?}"),
    };
    let said = refusal(&[one.clone(), other.clone()]);
    assert_eq!(said, refusal(&[other, one]));
    assert!(said.contains("enabled=always"), "{said}");
}

/// A recording of a program that writes to one of each `step` of so many pages of shared memory, on a host
/// that has it in small pages.
fn with_shared(folder: &TempDir, name: &str, pages: u64, step: u64) -> PathBuf {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings/python-structures.qtr");
    let mut header = TraceReader::open(&bundled).unwrap().header().clone();
    let files = &mut header.settings.as_mut().unwrap().thp_files;
    files.retain(|(file, _)| !file.ends_with("shmem_enabled"));
    files.push(("shmem_enabled".to_owned(), "never".to_owned()));
    let path = folder.path().join(name);
    let mut writer = TraceWriter::new(std::fs::File::create(&path).unwrap(), &header, 3).unwrap();
    let mut push = |time_ns, kind| writer.push(&Event { time_ns, task: TaskId(0), cpu: 0, kind }).unwrap();
    let image = ExecImage { max_map_count: 65530, overcommit_memory: 1, ..ExecImage::default() };
    push(0, EventKind::Exec(Box::new(image)));
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let args = [BASE, pages * PAGE, 3, flags as u64, u64::MAX, 0];
    let map = Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail: CallDetail::None };
    push(0, EventKind::Call(map));
    for page in (0..pages).step_by(step as usize) {
        let (addr, access, mode) = (BASE + page * PAGE, Access::Write, Mode::User);
        let fault = Fault { addr, access, mode, outcome: Outcome::Minor, inferred: false };
        push(page * 1000, EventKind::Fault(fault));
    }
    push(pages * 1000, EventKind::Exit(ExitStatus::Code(0)));
    writer.finish(0, 0).unwrap();
    path
}

#[test]
fn settings_of_shared_memory_are_tried_where_a_program_has_some() {
    let folder = TempDir::new().unwrap();
    let of = |name: &str, pages, step| {
        let file = with_shared(&folder, name, pages, step);
        predict(&[file], 2, &Host::default(), &|_, _| {}).unwrap()
    };
    let row = |found: &quire_advise::Prediction, name: &str| {
        let place = found.rows.iter().position(|(setting, _)| setting.name == name)?;
        let row = &found.rows[place].1;
        Some((place, row.shared.median as u64 / PAGE, row.faults.median as u64))
    };
    let dense = of("dense", 4096, 1);
    let present = row(&dense, "thp=madvise").unwrap();
    assert_eq!(present, (0, 4096, 4096));
    for (name, faults) in [("shmem=advise", 4096), ("shmem=within_size", 8), ("shmem=always", 8)] {
        let (place, shared, found) = row(&dense, name).unwrap();
        assert_eq!((shared, found), (4096, faults), "{name}");
        let (setting, now) = (&dense.rows[place].0, &dense.rows[0].0);
        let word = name.trim_start_matches("shmem=");
        let commands = setting.commands(now);
        let file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
        assert_eq!(commands.last(), Some(&format!("echo {word} > {file}")));
        assert_eq!((commands.len(), setting.undo(now).len()), (2, 1), "{commands:?}");
    }
    assert_eq!(row(&dense, "shmem=never"), None, "it is what there is");
    let saving = dense.verdict.fewest_faults.as_ref().expect("4088 of 4096 page faults are gone");
    assert!(dense.rows[saving.place].0.name.starts_with("shmem="), "{:?}", dense.verdict);
    // Most of it is never touched: a warning.
    let sparse = of("sparse", 4096, 64);
    let (place, shared, _) = row(&sparse, "shmem=always").unwrap();
    assert_eq!((row(&sparse, "thp=madvise").unwrap().1, shared), (64, 4096));
    assert_eq!(sparse.changes[place].worst().0, Measure::Shared);
    let warned = sparse.verdict.most_memory.as_ref().expect("sixty-four times as much");
    assert!(sparse.rows[warned.place].0.name.starts_with("shmem="), "{:?}", sparse.verdict);
    // Too little for a large folio.
    let little = of("little", 400, 1);
    assert!(little.rows.iter().all(|(setting, _)| !setting.name.starts_with("shmem=")));
}
