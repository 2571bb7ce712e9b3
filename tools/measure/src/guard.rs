//! Puts settings back, whatever happens to the process that changed them.
//!
//! A shell that outlives this process waits until the other end of its input is closed, which the kernel does
//! for a process that ends in any way, and writes the old values. It is started before the first value is
//! changed, is in a process group of its own, so that a signal from the terminal does not reach it, and holds
//! the lock until it is done. The lock's file lists the old values as long as they are not in place: should
//! the shell itself be killed, the next measurement puts them back first.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{FlockOperation, flock};

use crate::error::MeasureError;
use crate::settings::{Change, chosen};

/// `$1` is the lock's file; then follow files and their old words. A signal to all must not take the shell
/// away.
const RESTORE: &str = r#"
trap "" INT TERM HUP PIPE QUIT USR1 USR2
lock=$1
shift
echo ready
exec >/dev/null
cat >/dev/null
failed=0
while [ $# -gt 1 ]; do
    echo "$2" >"$1" || failed=1
    shift 2
done
[ $failed = 0 ] && : >"$lock"
exit $failed
"#;

/// Settings that hold as long as this exists. Dropping it puts the old values back.
#[derive(Debug)]
pub struct Guard {
    /// The shell; none if nothing had to be changed.
    restorer: Option<Child>,
    changes: Vec<Change>,
    /// None for a user who may not take it, when nothing had to be changed.
    lock: Option<Lock>,
}

/// The right to change the host's settings.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Guard {
    /// Takes the lock, and puts back what a measurement left behind whose shell was killed.
    pub(crate) fn lock(path: &Path, root: &Path) -> Result<Lock, MeasureError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|why| MeasureError::file(path, why))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(MeasureError::Busy(path.to_owned())),
            locked => locked.map_err(|why| MeasureError::file(path, why.into()))?,
        }
        let mut lock = Lock { file, path: path.to_owned() };
        lock.recover(root)?;
        Ok(lock)
    }

    /// Makes the changes, with a shell that takes them back.
    pub(crate) fn start(mut lock: Lock, changes: Vec<Change>) -> Result<Self, MeasureError> {
        let mut restorer = None;
        if !changes.is_empty() {
            lock.note(&changes)?;
            match spawn(&lock, &changes) {
                Ok(shell) => restorer = Some(shell),
                Err(why) => {
                    lock.clear()?;
                    return Err(MeasureError::system("cannot start sh", why));
                }
            }
        }
        let guard = Self { restorer, changes, lock: Some(lock) };
        for change in &guard.changes {
            // An error drops the guard: those that were changed go back.
            change.make()?;
        }
        Ok(guard)
    }

    /// A guard of settings that are as they should be, for a user who may not lock them.
    pub(crate) fn unlocked() -> Self {
        Self { restorer: None, changes: Vec::new(), lock: None }
    }

    /// Whether other measurements are kept from changing the settings. Not so for a user who could not change
    /// them.
    pub fn is_exclusive(&self) -> bool {
        self.lock.is_some()
    }

    /// File, old and new word of each setting that was changed.
    pub fn changed(&self) -> impl Iterator<Item = (&Path, &str, &str)> {
        self.changes.iter().map(|change| (change.path.as_path(), change.old.as_str(), change.new.as_str()))
    }

    /// Puts the old values back, and says if it could not. Dropping does the same without a word.
    ///
    /// # Errors
    ///
    /// [`MeasureError::NotRestored`], with what is to be done by hand.
    pub fn restore(mut self) -> Result<(), MeasureError> {
        self.finish();
        let left = self.changes.iter().filter(|change| !change.is_undone());
        let left: Vec<_> =
            left.map(|change| format!("echo {} > {}", change.old, change.path.display())).collect();
        if left.is_empty() { Ok(()) } else { Err(MeasureError::NotRestored(left.join("; "))) }
    }

    fn finish(&mut self) {
        if let Some(mut restorer) = self.restorer.take() {
            // Closes its input, and waits until it has put everything back.
            let _ = restorer.wait();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a process that another thread forks has a copy of the descriptor until its
        // exec.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Lock {
    /// Notes the old values, a line each: the word, a space, the file.
    fn note(&mut self, changes: &[Change]) -> Result<(), MeasureError> {
        let text: String =
            changes.iter().map(|change| format!("{} {}\n", change.old, change.path.display())).collect();
        let write = self.file.write_all(text.as_bytes());
        write.map_err(|why| MeasureError::file(&self.path, why))
    }

    fn recover(&mut self, root: &Path) -> Result<(), MeasureError> {
        let mut text = String::new();
        let read = self.file.read_to_string(&mut text);
        read.map_err(|why| MeasureError::file(&self.path, why))?;
        for line in text.lines() {
            let Some((word, file)) = line.split_once(' ') else { continue };
            let file = Path::new(file);
            // A cut-off line names no setting; it was written before anything was changed.
            if file.starts_with(root) && file.is_file() {
                fs::write(file, word).map_err(|why| MeasureError::file(file, why))?;
            }
        }
        self.clear()
    }

    fn clear(&mut self) -> Result<(), MeasureError> {
        let empty = self.file.set_len(0).and_then(|()| io::Seek::rewind(&mut self.file));
        empty.map_err(|why| MeasureError::file(&self.path, why))
    }
}

/// The shell, which has said that it is there.
fn spawn(lock: &Lock, changes: &[Change]) -> io::Result<Child> {
    let mut shell = Command::new("sh");
    shell.args(["-c", RESTORE, "quire-restore"]).arg(&lock.path);
    for change in changes {
        shell.arg(&change.path).arg(&change.old);
    }
    shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let lock = lock.file.as_raw_fd();
    // SAFETY: between fork and exec only fcntl is called, which is safe after a fork of a process with
    // threads; the descriptor is open in the child, since the caller holds it.
    unsafe {
        shell.pre_exec(move || match libc::fcntl(lock, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let mut shell = shell.spawn()?;
    let mut said = String::new();
    if let Some(out) = shell.stdout.take() {
        BufReader::new(out).read_line(&mut said)?;
    }
    if said == "ready\n" { Ok(shell) } else { Err(io::Error::other("it does not run")) }
}

impl Change {
    fn make(&self) -> Result<(), MeasureError> {
        let refused = |text: String| {
            let choices =
                if text.contains('[') { text.trim().replace(['[', ']'], "") } else { String::new() };
            MeasureError::Refused { file: self.path.clone(), word: self.new.clone(), choices }
        };
        let read = || fs::read_to_string(&self.path).unwrap_or_default();
        match fs::write(&self.path, &self.new) {
            Err(why) if why.kind() == io::ErrorKind::InvalidInput => Err(refused(read())),
            Err(why) => Err(MeasureError::file(&self.path, why)),
            Ok(()) if chosen(&read()) == self.new => Ok(()),
            Ok(()) => Err(refused(read())),
        }
    }

    fn is_undone(&self) -> bool {
        fs::read_to_string(&self.path).is_ok_and(|text| chosen(&text) == self.old)
    }
}
