//! Another memory limit in the files in which the program reads its own.
//!
//! A file with the limit is mounted over each of them, in a mount namespace that the program and its children
//! have for themselves. So nothing of the host changes, and nothing is undone: the namespace ends with them.

use super::options::ShownLimit;
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::CString;
use std::fs::Permissions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::{Builder, TempPath};

/// What is mounted, and over which files. The file with the limit has a name as long as this lives: the
/// program has its mounts, if it has begun.
#[derive(Debug)]
pub(crate) struct LimitMounts {
    _file: TempPath,
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
        // The program may run as another user, or become one.
        let readable = Permissions::from_mode(0o644);
        let mut file = Builder::new().prefix("quire-limit-").permissions(readable).tempfile()?;
        // As the kernel's files end.
        file.write_all(format!("{}\n", shown.bytes).as_bytes())?;
        Ok(Self { source: c_string(file.path())?, _file: file.into_temp_path(), targets })
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
