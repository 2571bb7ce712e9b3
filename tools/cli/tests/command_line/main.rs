//! The command line: arguments, output, exit codes.

mod advise;
mod cli;
mod compare;
mod ends;
mod escapes;
mod files;
mod hostile;
mod input;
mod lab;
mod limits;
mod manual;
mod output;
mod report;
mod schema;
mod strip;
mod sweep;
mod sweep_fleet;
mod sweep_lines;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{PoisonError, RwLock};

/// The host's settings of huge pages. Some commands change them for a moment, and what others find depends on
/// them.
static HOST_SETTINGS: RwLock<()> = RwLock::new(());

/// Words of command lines that may change the host's settings.
const CHANGE_SETTINGS: [&str; 3] = ["calibrate", "--validate", "lab"];

/// Runs `quire` to its end.
fn quire(arguments: &[&str]) -> Output {
    quire_with(arguments, |_| ())
}

/// The same in another environment or folder.
fn quire_with(arguments: &[&str], change: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    // What page faults cost on this host, where it was calibrated, changes verdicts.
    command.env("XDG_CACHE_HOME", "/nonexistent");
    change(command.args(arguments));
    if CHANGE_SETTINGS.iter().any(|word| arguments.contains(word)) {
        let _settings = HOST_SETTINGS.write().unwrap_or_else(PoisonError::into_inner);
        command.output().expect("quire starts")
    } else {
        let _settings = HOST_SETTINGS.read().unwrap_or_else(PoisonError::into_inner);
        command.output().expect("quire starts")
    }
}

/// A bundled recording.
fn recording_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings").join(name).with_extension("qtr")
}

/// A python that is no script that looks for one.
fn python() -> &'static str {
    const PLACE: &str = "/usr/bin/python3";
    if Path::new(PLACE).exists() { PLACE } else { "python3" }
}

/// A copy of `quire` that can be executed. Another process makes it: one that a test beside this one makes
/// would have the file open for writing for a moment, and Linux executes no such file.
fn copy_program(to: &Path) {
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_quire")).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "{}", to.display());
}

/// A folder of a test's own, which any user may use. It is gone when the test is over.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = tempfile::Builder::new().prefix(name).tempdir().expect("a new folder");
        let path = folder.path();
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("the folder's owner");
        Self(folder.keep())
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("the folder");
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
