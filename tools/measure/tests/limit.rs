//! A program within a memory limit, and that nothing of the limit is left on the host.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::NamedTempFile;

use quire_measure::{
    CgroupRoot, CgroupVersion, MeasureError, MemoryLimit, Options, Swap, SwapKind, Truth, measure,
};
use rustix::fs::{FlockOperation, flock};

const PROGRAMS: &str = env!("CARGO_BIN_EXE_quire-measure-programs");
const LOCK: &str = "/run/quire-memory-limit";
const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// One limit at a time: the others of this process would be refused.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fills 64 MiB and reads pages at random, in half of that with this swap. None where that cannot be.
fn random(kind: SwapKind, reads: &str) -> Option<(Truth, u64)> {
    let output = NamedTempFile::new().unwrap();
    let limit = MemoryLimit::new(32 * MIB, Some(Swap { kind, bytes: 128 * MIB }));
    let options = Options {
        thp_disabled: true,
        timeout: Some(Duration::from_secs(300)),
        limit: Some(limit),
        ..Options::default()
    };
    let run = || {
        let mut command = Command::new(PROGRAMS);
        command.args(["random", "64", reads]).stdout(output.reopen().unwrap());
        measure(command, &options)
    };
    let truth = skip_or(run())?;
    let faults = fs::read_to_string(output.path()).unwrap().trim().parse().unwrap();
    Some((truth, faults))
}

/// Prints why a host cannot do it.
fn skip_or(measured: Result<Truth, MeasureError>) -> Option<Truth> {
    match measured {
        Ok(truth) => Some(truth),
        Err(
            error @ (MeasureError::Denied { .. }
            | MeasureError::Busy(_)
            | MeasureError::Missing(_)
            | MeasureError::Limit(_)),
        ) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Waits until no process limits memory. None does as long as the file is held.
fn nothing_limits() -> File {
    let lock = File::open(LOCK).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    lock
}

/// Asserts that nothing is left of what the measuring process `pid` set up, `device` of its swap included.
fn assert_gone(pid: u32, device: Option<&Path>) {
    let _none = nothing_limits();
    assert_eq!(fs::read_to_string(LOCK).unwrap(), "");
    if let Some(device) = device {
        let swaps = fs::read_to_string("/proc/swaps").unwrap();
        assert!(!swaps.contains(device.to_str().unwrap()), "{swaps}");
        assert!(!device.exists(), "{}", device.display());
    }
    for folder in ["/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/var/tmp", "/var/lib", "/tmp", "/"] {
        for name in [format!("quire-{pid}"), format!("quire-swap-{pid}")] {
            let path = Path::new(folder).join(name);
            assert!(!path.exists(), "{}", path.display());
        }
    }
}

/// Whether pages of other programs are on a swap device: a new one of a higher priority gets what they page
/// out next.
fn others_swap() -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps.lines().skip(1).any(|row| row.split_ascii_whitespace().nth(3).is_some_and(|used| used != "0"))
}

#[test]
fn half_of_a_programs_memory_is_in_zram() {
    let _alone = alone();
    let others_swap = others_swap();
    let Some((truth, faults)) = random(SwapKind::Zram, "20000") else { return };
    let limited = truth.limited.unwrap();
    assert!(truth.status.success());
    assert_eq!(limited.bytes, 32 * MIB);
    assert!((31 * MIB..=32 * MIB).contains(&limited.peak_charge), "{limited:?}");
    assert!(limited.hits > 0 && limited.oom_kills == 0, "{limited:?}");
    // Half of the pages are out; the program counts its own faults before it ends.
    assert!((5_000..20_000).contains(&faults), "{faults}");
    assert!((faults..faults + 100).contains(&truth.major_faults), "{} {faults}", truth.major_faults);
    assert_eq!(limited.major_faults, truth.major_faults);
    let charge = limited.limited.unwrap();
    let known = charge.anonymous + charge.file + charge.shared + charge.kernel;
    assert!(known <= 33 * MIB && known + charge.swap_cache >= 30 * MIB, "{charge:?}");
    // 64 MiB have 32 tables.
    assert!(charge.kernel >= 32 * PAGE && charge.anonymous > 16 * MIB, "{charge:?}");
    // The kernel sums what is swapped every two seconds.
    assert!(charge.swapped > 16 * MIB && limited.peak_swapped >= charge.swapped, "{charge:?}");
    let swap = limited.swap.unwrap();
    assert_eq!(swap.compressor.as_deref(), Some("lz4"));
    assert!(swap.pages.read >= truth.major_faults / 2 && swap.pages.written > 8192, "{swap:?}");
    let pool = swap.fullest.unwrap();
    assert!(pool.original > 30 * MIB && pool.used >= pool.compressed, "{pool:?}");
    assert_gone(std::process::id(), Some(&swap.device));
    if others_swap {
        println!("what its device holds is not compared: others of this host page out, too");
        return;
    }
    assert!(pool.original < 70 * MIB, "{pool:?}");
    // Half of each page is random.
    let ratio = pool.compressed as f64 / pool.original as f64;
    assert!((0.5..0.6).contains(&ratio), "{pool:?}");
}

#[test]
fn half_of_a_programs_memory_is_in_a_file() {
    let _alone = alone();
    let Some((truth, faults)) = random(SwapKind::File, "2000") else { return };
    let limited = truth.limited.unwrap();
    assert!(faults > 0 && limited.peak_charge <= 32 * MIB, "{limited:?}");
    let swap = limited.swap.unwrap();
    assert!(swap.pages.written > 4096 && swap.fullest.is_none() && swap.compressor.is_none(), "{swap:?}");
    assert_gone(std::process::id(), Some(&swap.device));
}

#[test]
fn half_of_a_programs_memory_is_in_zswap() {
    let _alone = alone();
    let parameters = || {
        ["enabled", "compressor"]
            .map(|name| fs::read_to_string(format!("/sys/module/zswap/parameters/{name}")).ok())
    };
    let before = parameters();
    let Some((truth, faults)) = random(SwapKind::Zswap, "2000") else { return };
    let limited = truth.limited.unwrap();
    assert!(faults > 0 && limited.peak_charge <= 32 * MIB, "{limited:?}");
    let swap = limited.swap.unwrap();
    assert!(swap.pages.zswap_written > 4096 && swap.compressor.is_some(), "{swap:?}");
    let pool = swap.fullest.unwrap();
    assert!(pool.original > pool.compressed && pool.compressed > 4 * MIB, "{pool:?}");
    assert_eq!(parameters(), before);
    assert_gone(std::process::id(), Some(&swap.device));
}

#[test]
fn without_swap_the_program_is_killed() {
    let _alone = alone();
    let mut command = Command::new(PROGRAMS);
    command.args(["touch", "64"]).stdout(Stdio::null());
    let limit = Some(MemoryLimit::new(16 * MIB, None));
    let options = Options { thp_disabled: true, limit, ..Options::default() };
    let Some(truth) = skip_or(measure(command, &options)) else { return };
    assert_eq!(truth.status.signal(), Some(9));
    let limited = truth.limited.unwrap();
    assert!(
        limited.oom_kills == 1 && limited.swap.is_none() && limited.peak_charge <= 16 * MIB,
        "{limited:?}"
    );
    assert_gone(std::process::id(), None);
}

/// A process that waits for one that was killed, until its time is over: more of it where the other one got
/// too little of the CPUs.
#[test]
fn a_program_that_runs_too_long_says_what_was_killed() {
    let _alone = alone();
    let within = |seconds| {
        let mut command = Command::new(PROGRAMS);
        command.args(["waits", "64"]).stdout(Stdio::null());
        let (timeout, limit) = (Some(Duration::from_secs(seconds)), Some(MemoryLimit::new(16 * MIB, None)));
        measure(command, &Options { timeout, limit, ..Options::default() })
    };
    let first = within(5);
    let last = if matches!(first, Err(MeasureError::Timeout(_))) { within(100) } else { first };
    match last {
        Err(MeasureError::Killed { kills, .. }) => assert_eq!(kills, 1),
        other => assert!(skip_or(other).is_none(), "it ended"),
    }
}

#[test]
fn a_limit_that_is_not_reached() {
    let _alone = alone();
    let mut command = Command::new(PROGRAMS);
    command.args(["touch", "16"]).stdout(Stdio::null());
    let limit = Some(MemoryLimit::new(256 * MIB, None));
    let options = Options { thp_disabled: true, limit, ..Options::default() };
    let Some(truth) = skip_or(measure(command, &options)) else { return };
    let limited = truth.limited.unwrap();
    assert_eq!((limited.hits, limited.oom_kills, limited.limited), (0, 0, None));
    assert!((16 * MIB..24 * MIB).contains(&limited.peak_charge), "{limited:?}");
    // The kernel sums a group's figures by kind now and then only: 64 pages for each processor may be
    // missing.
    let at_peak = limited.at_peak.unwrap();
    assert!((16 * MIB..24 * MIB).contains(&at_peak.all) && at_peak.anonymous <= at_peak.all, "{limited:?}");
    let charged = limited.mean_anonymous..=at_peak.all as f64;
    assert!(
        charged.contains(&(limited.end_anonymous as f64)) && limited.end_anonymous > 8 * MIB,
        "{limited:?}"
    );
    assert!(limited.peak_anonymous <= limited.peak_in_use, "{limited:?}");
    // 16 MiB have eight tables.
    assert!((8 * PAGE..=limited.peak_charge).contains(&limited.peak_in_use), "{limited:?}");
}

#[test]
fn all_is_gone_after_the_measuring_process_was_killed() {
    let _alone = alone();
    let mut measurer = Command::new(PROGRAMS);
    measurer.args(["limits", "64", PROGRAMS, "holds-data", "64"]).stdout(Stdio::piped());
    let mut measurer = measurer.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(measurer.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let Ok(child) = said.trim().parse::<u32>() else {
        measurer.wait().unwrap();
        return eprintln!("skipped: {said}");
    };
    let notes = fs::read_to_string(LOCK).unwrap();
    let device = notes.lines().find_map(|line| line.strip_prefix("swap - ")).map(PathBuf::from).unwrap();
    assert!(device.exists(), "{notes}");
    let group = format!("quire-{}", measurer.id());
    let of_child = fs::read_to_string(format!("/proc/{child}/cgroup")).unwrap();
    assert!(of_child.contains(&group), "{of_child}");
    // A second limit is refused meanwhile.
    let second = Options { limit: Some(MemoryLimit::new(MIB, None)), ..Options::default() };
    let refused = measure(Command::new("true"), &second).unwrap_err();
    assert!(matches!(refused, MeasureError::Busy(_)), "{refused}");
    measurer.kill().unwrap();
    measurer.wait().unwrap();
    // Its shell holds the lock until it is done.
    assert_gone(measurer.id(), Some(&device));
}

/// The shell of an earlier measurement was killed: the next one takes away what its notes list.
#[test]
fn what_a_killed_shell_left_goes_with_the_next_limit() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let [file, word] = ["left", "word"].map(|name| folder.path().join(name));
    {
        let Ok(mut lock) = OpenOptions::new().append(true).open(LOCK) else {
            return eprintln!("skipped: no limit was ever set on this host, or not by this user");
        };
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        fs::write(&file, "").unwrap();
        fs::write(&word, "new").unwrap();
        let gone = "/sys/fs/cgroup/memory/quire-0";
        let (file, word) = (file.display(), word.display());
        write!(lock, "write old {word}\nzram 999999 -\nswap - {file}\nfile - {file}\ngroup - {gone}\n")
            .unwrap();
    }
    let limit = Some(MemoryLimit::new(64 * MIB, None));
    let options = Options { limit, ..Options::default() };
    let Some(truth) = skip_or(measure(Command::new("true"), &options)) else { return };
    assert!(truth.status.success());
    assert_eq!(fs::read_to_string(&word).unwrap(), "old\n");
    assert!(!file.exists());
}

#[test]
fn another_user_is_refused_in_one_line() {
    let _alone = alone();
    let mut measurer = Command::new(PROGRAMS);
    measurer.args(["limits", "64", "true"]).stdout(Stdio::piped());
    if rustix::process::geteuid().is_root() {
        measurer.uid(65534).gid(65534);
    }
    let output = match measurer.output() {
        Ok(output) => output,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success());
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("needs root"), "{said}");
}

/// A folder that is not a cgroup takes no limit, and is not changed.
#[test]
fn a_hierarchy_without_the_files_is_refused() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::write(root.join("cgroup.subtree_control"), "memory\n").unwrap();
    let cgroups = Some(CgroupRoot::at(root, CgroupVersion::V2));
    let limit = Some(MemoryLimit { cgroups, ..MemoryLimit::new(32 * MIB, None) });
    let refused = measure(Command::new("true"), &Options { limit, ..Options::default() }).unwrap_err();
    match &refused {
        MeasureError::Denied { .. } | MeasureError::Busy(_) => eprintln!("skipped: {refused}"),
        MeasureError::Missing(file) => assert!(file.ends_with("memory.max"), "{refused}"),
        _ => panic!("{refused}"),
    }
    assert_eq!(fs::read_dir(root).unwrap().count(), 1);
}
