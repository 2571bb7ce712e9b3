//! Shared memory in large folios: what a program has of it on this host, and in a replay of what it did.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use quire_arch::Order;
use quire_measure::{HostSettings, HugeSettings};
use quire_mm::file::ShmemHuge;
use quire_record::{RecordOptions, record};
use quire_replay::{Replay, ReplayOptions, ReplayReport};
use tempfile::TempDir;

/// Shared memory of each kind, 16 MiB, a byte of each 2 MiB written: without a name, of a memfd, and of a
/// file in a tmpfs, which the setting is not for.
const PROGRAM: &str = "
import mmap, os
size = 16 << 20
def touch(memory):
    for at in range(0, size, 2 << 20):
        memory[at + 8192] = 1
    return memory
def of(file):
    os.ftruncate(file, size)
    return touch(mmap.mmap(file, size))
path = '/dev/shm/quire-large-%d' % os.getpid()
kept = [touch(mmap.mmap(-1, size)), of(os.memfd_create('large')), of(os.open(path, os.O_RDWR | os.O_CREAT))]
os.unlink(path)
os._exit(0)
";

fn replayed(replay: &Replay, shmem: Option<ShmemHuge>) -> ReplayReport {
    let options = ReplayOptions { shmem, life: true, ..ReplayOptions::default() };
    replay.with(options).run(&mut |_, _| {}).unwrap()
}

/// Large folios of shared memory that came.
fn large(report: &ReplayReport) -> u64 {
    let folios = &report.life.as_ref().unwrap().folios;
    folios.iter().filter(|folio| folio.order == Order::PMD).map(|folio| folio.shared).sum()
}

#[test]
fn a_replay_has_as_much_shared_memory_in_large_folios_as_the_host_had() {
    let guard = match HostSettings::default().apply(&HugeSettings::new().with("shmem_enabled", "always")) {
        Ok(guard) => guard,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("shared.qtr");
    let command = ["python3", "-c", PROGRAM].map(Into::into).into();
    let mut options = RecordOptions::new(command, file.clone());
    options.thp = true;
    let recorded = record(&options);
    guard.restore().unwrap();
    match recorded {
        Ok(summary) if summary.exit_code() == 0 => {}
        other => return eprintln!("skipped: {other:?}"),
    }
    let replay = Replay::open(&file, ReplayOptions::default()).unwrap();
    let settings = replay.header().unwrap().settings.unwrap();
    assert_eq!(settings.thp_file("shmem_enabled"), Some("always"));
    let report = replayed(&replay, None);
    assert!(report.is_good(), "{:#?}", report.processes);
    assert_eq!(report.processes[0].settings_dependent, 0, "it has the settings of the host");
    let linux = report.processes[0].linux.as_ref().unwrap().rss_shmem;
    if linux < 32 << 20 {
        return eprintln!("skipped: the host had no large folios: {linux} bytes");
    }
    assert_eq!((large(&report), report.processes[0].residency().map(|near| near.shared)), (16, Some(true)));
    // With other settings it has pages, where Linux had mapped it.
    let report = replayed(&replay, Some(ShmemHuge::NEVER));
    assert!(report.is_good() && large(&report) == 0, "{:#?}", report.processes);
    let process = &report.processes[0];
    assert!(process.quire.resident_shmem < linux / 4, "{}", process.quire.resident_shmem);
    assert!(process.settings_dependent > 0);
}
