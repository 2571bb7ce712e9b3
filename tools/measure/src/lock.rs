//! The right to change the host's settings: a locked file that lists what is to be undone.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{FlockOperation, flock};

use crate::error::MeasureError;

/// The locks that this process holds.
static HELD: Mutex<BTreeMap<PathBuf, Weak<Lock>>> = Mutex::new(BTreeMap::new());

/// A lock that other processes see, too. The text of its file lists what is to be undone if the process and
/// its shell are killed.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock, which nothing else in this process holds either.
    pub(crate) fn take(path: &Path) -> Result<Arc<Self>, MeasureError> {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        Self::take_and_list(path, &mut held)
    }

    /// The lock that this process holds, or else takes.
    pub(crate) fn share(path: &Path) -> Result<Arc<Self>, MeasureError> {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        match held.get(path).and_then(Weak::upgrade) {
            Some(lock) => Ok(lock),
            None => Self::take_and_list(path, &mut held),
        }
    }

    fn take_and_list(
        path: &Path,
        held: &mut BTreeMap<PathBuf, Weak<Self>>,
    ) -> Result<Arc<Self>, MeasureError> {
        // What a link of this name leads to is not to be written.
        let file =
            OpenOptions::new().read(true).append(true).create(true).custom_flags(libc::O_NOFOLLOW).open(path);
        let file = file.map_err(|why| MeasureError::file(path, why))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(MeasureError::Busy(path.to_owned())),
            locked => locked.map_err(|why| MeasureError::file(path, why.into()))?,
        }
        let lock = Arc::new(Self { file, path: path.to_owned() });
        held.retain(|_, lock| lock.strong_count() > 0);
        held.insert(path.to_owned(), Arc::downgrade(&lock));
        Ok(lock)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What is to be undone.
    pub(crate) fn notes(&self) -> Result<String, MeasureError> {
        let mut text = String::new();
        let mut file = &self.file;
        let read = io::Seek::rewind(&mut file).and_then(|()| file.read_to_string(&mut text));
        read.map_err(|why| MeasureError::file(&self.path, why))?;
        Ok(text)
    }

    /// Not everything could be undone.
    pub(crate) fn not_restored(&self) -> MeasureError {
        let left = self.notes();
        left.map_or_else(
            |why| why,
            |left| MeasureError::NotRestored(left.lines().collect::<Vec<_>>().join("; ")),
        )
    }

    /// Adds to what is to be undone.
    pub(crate) fn note(&self, text: &str) -> Result<(), MeasureError> {
        (&self.file).write_all(text.as_bytes()).map_err(|why| MeasureError::file(&self.path, why))
    }

    /// Nothing is to be undone any more.
    pub(crate) fn clear(&self) -> Result<(), MeasureError> {
        self.file.set_len(0).map_err(|why| MeasureError::file(&self.path, why))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a process that another thread forks has a copy of the descriptor until its
        // exec.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Starts a shell that outlives this process and holds `locks` until it ends. It runs `script` with its
/// input open as long as this process lives and the child is not waited for. Returns the first line that it
/// printed, too.
pub(crate) fn start_shell(
    script: &str,
    words: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>,
    locks: &[&Lock],
) -> io::Result<(Child, String)> {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "quire-restore"]).args(words);
    // A signal from the terminal goes to the group of processes that this one is in.
    shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let locks: Vec<RawFd> = locks.iter().map(|lock| lock.file.as_raw_fd()).collect();
    // SAFETY: between fork and exec only fcntl is called, which is safe after a fork of a process with
    // threads; the descriptors are open in the child, since the caller holds them.
    unsafe {
        shell.pre_exec(move || {
            locks.iter().try_for_each(|lock| match libc::fcntl(*lock, libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            })
        });
    }
    let mut shell = shell.spawn()?;
    let mut said = String::new();
    if let Some(out) = shell.stdout.take() {
        BufReader::new(out).read_line(&mut said)?;
    }
    Ok((shell, said.trim_end().to_owned()))
}
