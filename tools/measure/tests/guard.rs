//! Settings come back: when the guard goes, and when its process is killed.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use quire_measure::{HostSettings, HugeSettings, MeasureError};
use rustix::fs::{FlockOperation, flock};

/// A folder like the kernel's.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = tempfile::Builder::new().prefix(name).tempdir().unwrap().keep();
        fs::create_dir_all(folder.join("khugepaged")).unwrap();
        fs::create_dir_all(folder.join("hugepages-64kB")).unwrap();
        fs::write(folder.join("enabled"), "always [madvise] never\n").unwrap();
        fs::write(folder.join("hugepages-64kB/enabled"), "always inherit madvise [never]\n").unwrap();
        fs::write(folder.join("khugepaged/max_ptes_none"), "511\n").unwrap();
        Self(folder)
    }

    fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    fn host(&self) -> HostSettings {
        HostSettings::at(&self.0, self.lock())
    }

    fn word(&self, file: &str) -> String {
        self.host().word(file).unwrap()
    }

    /// Waits until no process holds the lock.
    fn await_unlocked(&self) {
        flock(File::open(self.lock()).unwrap(), FlockOperation::LockExclusive).unwrap();
    }

    /// A process that holds settings.
    fn holder(&self, settings: &[&str]) -> (Child, String) {
        let mut holder = Command::new(env!("CARGO_BIN_EXE_quire-measure-programs"));
        holder.arg("hold").arg(&self.0).arg(self.lock()).args(settings);
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        (holder, said.trim().to_owned())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn settings() -> HugeSettings {
    HugeSettings::new().with("enabled", "always").with("khugepaged/max_ptes_none", "0")
}

#[test]
fn holds_until_it_is_dropped() {
    let folder = Folder::new("drop");
    let before = folder.host().current().unwrap();
    let guard = folder.host().apply(&settings().with("hugepages-64kB/enabled", "never")).unwrap();
    assert_eq!(
        (folder.word("enabled").as_str(), folder.word("khugepaged/max_ptes_none").as_str()),
        ("always", "0")
    );
    let changed: Vec<_> = guard.changed().map(|(file, ..)| file.to_owned()).collect();
    assert_eq!(changed, [folder.0.join("enabled"), folder.0.join("khugepaged/max_ptes_none")]);
    drop(guard);
    assert_eq!(folder.host().current().unwrap(), before);
    folder.host().apply(&settings()).unwrap().restore().unwrap();
    assert_eq!(folder.host().current().unwrap(), before);
    assert_eq!(fs::read_to_string(folder.lock()).unwrap(), "", "nothing is left to be put back");
}

#[test]
fn comes_back_when_the_holder_is_killed() {
    for signal in [Signal::SIGKILL, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let folder = Folder::new(signal.as_str());
        let before = folder.host().current().unwrap();
        let (mut holder, said) = folder.holder(&["enabled=always", "khugepaged/max_ptes_none=0"]);
        assert_eq!(said, "held");
        assert_eq!(folder.word("enabled"), "always");
        kill(Pid::from_raw(holder.id().cast_signed()), signal).unwrap();
        holder.wait().unwrap();
        folder.await_unlocked();
        assert_eq!(folder.host().current().unwrap(), before, "{signal}");
    }
}

#[test]
fn a_second_measurement_is_refused() {
    let folder = Folder::new("second");
    let first = folder.host().apply(&settings()).unwrap();
    assert!(matches!(folder.host().apply(&settings()), Err(MeasureError::Busy(_))));
    assert!(matches!(folder.host().check_free(), Err(MeasureError::Busy(_))));
    let (mut holder, said) = folder.holder(&["enabled=never"]);
    assert!(said.contains("another measurement"), "{said}");
    assert!(!holder.wait().unwrap().success());
    assert_eq!(folder.word("enabled"), "always");
    drop(first);
    drop(folder.host().apply(&settings()).unwrap());
}

#[test]
fn what_a_killed_restorer_left_is_put_back_by_the_next() {
    let folder = Folder::new("left");
    fs::write(folder.0.join("enabled"), "always").unwrap();
    fs::write(
        folder.lock(),
        format!("madvise {}\n0 /proc/sys/kernel/panic\n", folder.0.join("enabled").display()),
    )
    .unwrap();
    drop(folder.host().apply(&HugeSettings::new()).unwrap());
    assert_eq!(folder.word("enabled"), "madvise");
}

#[test]
fn one_wrong_file_changes_nothing() {
    let folder = Folder::new("wrong");
    let before = folder.host().current().unwrap();
    let wrong = settings().with("zzz/enabled", "always");
    assert!(
        matches!(folder.host().apply(&wrong), Err(MeasureError::Missing(file)) if file.ends_with("zzz/enabled"))
    );
    assert_eq!(folder.host().current().unwrap(), before);
}

/// The kernel refuses the last of the values; the first is taken back. The value is one that changes no
/// program.
#[test]
fn a_value_that_the_kernel_refuses_is_named() {
    let host = HostSettings::default();
    let Ok(before) = host.word("khugepaged/max_ptes_swap") else {
        return eprintln!("skipped: no transparent huge pages on this host");
    };
    let other = if before == "64" { "63" } else { "64" };
    let wrong =
        HugeSettings::new().with("khugepaged/max_ptes_swap", other).with("shrink_underused", "sometimes");
    match host.apply(&wrong) {
        Err(MeasureError::Refused { file, word, .. }) => {
            assert!(file.ends_with("shrink_underused"));
            assert_eq!(word, "sometimes");
        }
        Err(error @ (MeasureError::Denied { .. } | MeasureError::Busy(_) | MeasureError::Missing(_))) => {
            eprintln!("skipped: {error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(host.word("khugepaged/max_ptes_swap").unwrap(), before);
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let file = Path::new("/sys/kernel/mm/transparent_hugepage/khugepaged/full_scans");
    let Ok(now) = fs::read_to_string(file) else { return eprintln!("skipped: no khugepaged on this host") };
    let folder = Folder::new("denied");
    let host = HostSettings::at("/sys/kernel/mm/transparent_hugepage", folder.lock());
    // A file that root cannot write either.
    let wanted = now.trim().parse::<u64>().unwrap() + 1_000_000;
    let error =
        host.apply(&HugeSettings::new().with("khugepaged/full_scans", wanted.to_string())).unwrap_err();
    assert!(error.to_string().contains("khugepaged/full_scans"), "{error}");
}
