//! Restores settings, whatever happens to the process that changed them.
//!
//! A shell that outlives this process waits until the other end of its input is closed, which the kernel does
//! for a process that ends in any way, and writes the old values. It is started before the first value is
//! changed, is in a process group of its own, so that a signal from the terminal does not reach it, and holds
//! the lock until it is done. The lock's file lists the old values as long as they are not restored: if the
//! shell itself is killed, the next measurement restores them first.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;

use crate::change::Change;
use crate::error::MeasureError;
use crate::lock::{Lock, start_shell};

/// `$1` is the lock's file; then follow files and their old values. A signal to all must not kill the shell.
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

/// Settings that are in force as long as this exists. Dropping it restores the old values.
#[derive(Debug)]
pub struct Guard {
    /// The shell; none if nothing had to be changed.
    restorer: Option<Child>,
    changes: Vec<Change>,
    /// None for a user who may not take it, when nothing had to be changed.
    lock: Option<Arc<Lock>>,
}

impl Guard {
    /// Takes the lock, and restores what a measurement whose shell was killed left behind.
    pub(crate) fn lock(path: &Path, root: &Path) -> Result<Arc<Lock>, MeasureError> {
        let lock = Lock::take(path)?;
        recover(&lock, root)?;
        Ok(lock)
    }

    /// Makes the changes, with a shell that undoes them.
    pub(crate) fn start(lock: Arc<Lock>, changes: Vec<Change>) -> Result<Self, MeasureError> {
        let mut restorer = None;
        if !changes.is_empty() {
            lock.note(&notes(&changes))?;
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
            // An error drops the guard: the changed ones are restored.
            change.make()?;
        }
        Ok(guard)
    }

    /// A guard of settings that need no change, for a user who may not lock them.
    pub(crate) fn unlocked() -> Self {
        Self { restorer: None, changes: Vec::new(), lock: None }
    }

    /// Whether other measurements are prevented from changing the settings. `false` for a user who could not
    /// change them.
    pub fn is_exclusive(&self) -> bool {
        self.lock.is_some()
    }

    /// File, old and new value of each setting that was changed.
    pub fn changed(&self) -> impl Iterator<Item = (&Path, &str, &str)> {
        self.changes.iter().map(|change| (change.path.as_path(), change.old.as_str(), change.new.as_str()))
    }

    /// Restores the old values, and returns an error if it could not. Dropping does the same silently.
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
            // Closes its input, and waits until it has restored everything.
            let _ = restorer.wait();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The old values, a line each: the word, a space, the file.
fn notes(changes: &[Change]) -> String {
    changes.iter().map(|change| format!("{} {}\n", change.old, change.path.display())).collect()
}

fn recover(lock: &Lock, root: &Path) -> Result<(), MeasureError> {
    for line in lock.notes()?.lines() {
        let Some((word, file)) = line.split_once(' ') else { continue };
        let file = Path::new(file);
        // A cut-off line names no setting; it was written before anything was changed.
        if file.starts_with(root) && file.is_file() {
            fs::write(file, word).map_err(|why| MeasureError::file(file, why))?;
        }
    }
    lock.clear()
}

/// The shell, which has reported that it runs.
fn spawn(lock: &Lock, changes: &[Change]) -> io::Result<Child> {
    let words = changes.iter().flat_map(|change| [change.path.as_os_str(), change.old.as_ref()]);
    let (shell, said) = start_shell(RESTORE, [lock.path().as_os_str()].into_iter().chain(words), &[lock])?;
    if said == "ready" { Ok(shell) } else { Err(io::Error::other("it does not run")) }
}
