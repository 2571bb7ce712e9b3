//! Another memory limit in the files in which the program reads its own.
//!
//! A file with the limit is mounted over each of them, in a mount namespace that the program and its children
//! have for themselves. So nothing of the host changes, and nothing is undone: the namespace ends with them.

use super::options::ShownLimit;
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What is mounted, and over which files. The file with the limit has a name as long as this lives.
#[derive(Debug)]
pub(crate) struct LimitMounts {
    file: PathBuf,
    source: CString,
    targets: Vec<CString>,
}

impl LimitMounts {
    /// Writes the file.
    pub(crate) fn prepare(shown: &ShownLimit) -> io::Result<Self> {
        let c_string = |path: &Path| Ok::<_, io::Error>(CString::new(path.as_os_str().as_bytes())?);
        let existing = shown.files.iter().filter(|file| file.exists());
        let targets = existing.map(|file| c_string(file)).collect::<io::Result<Vec<_>>>()?;
        if targets.is_empty() {
            return Err(ErrorKind::NotFound.into());
        }
        let (file, mut contents) = new_file()?;
        let mounts = Self { source: c_string(&file)?, file, targets };
        // As the kernel's files end.
        contents.write_all(format!("{}\n", shown.bytes).as_bytes())?;
        Ok(mounts)
    }

    /// In the child: mounts it, and returns 0 or the errno. Makes system calls only.
    pub(crate) fn mount(&self) -> i32 {
        // SAFETY: it has one thread; the table of descriptors is not unshared.
        let unshared = unsafe { unshare_unsafe(UnshareFlags::NEWNS) };
        // What is mounted here is not mounted on the host, but the other way round.
        let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        let mounted = unshared
            .and_then(|()| mount_change(c"/", flags))
            .and_then(|()| self.targets.iter().try_for_each(|target| mount_bind(&*self.source, &**target)));
        mounted.map_or_else(rustix::io::Errno::raw_os_error, |()| 0)
    }
}

/// A file that did not exist: others may make files and links in that folder.
fn new_file() -> io::Result<(PathBuf, File)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("quire-limit-{}-{number}", std::process::id()));
        match File::create_new(&path) {
            // Left by a recorder with this id that was killed.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return Ok((path, created?)),
        }
    }
}

impl Drop for LimitMounts {
    fn drop(&mut self) {
        // The program has its mounts, if it has begun.
        let _ = fs::remove_file(&self.file);
    }
}
