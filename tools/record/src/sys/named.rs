//! Looking at files and opening them without waiting.
//!
//! A name can lead to a FIFO, a device, or a file system that a stopped process serves. So a name is followed
//! only through what the kernel has in memory, where the names of all files are that are open or mapped, and
//! gives a descriptor that is good for looking (`O_PATH`). Only regular files are opened.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// What is known of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Looked {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    pub(crate) is_regular: bool,
    /// Its mount; 0 before Linux 5.8.
    pub(crate) mount: u64,
}

/// What the kernel knows of an open file, or of one that was opened to be looked at.
pub(crate) fn look_at(file: impl AsFd) -> Option<Looked> {
    look(file, Path::new(""), AtFlags::EMPTY_PATH)
}

/// The same of a link in `/proc`.
pub(crate) fn look_behind(link: &Path) -> Option<Looked> {
    look(CWD, link, AtFlags::empty())
}

/// FUSE and NFS are not asked for what they said before.
fn look(folder: impl AsFd, path: &Path, flags: AtFlags) -> Option<Looked> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let found = statx(folder, path, flags | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, wanted).ok()?;
    Some(Looked {
        device: libc::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        bytes: found.stx_size,
        is_regular: u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG,
        mount: found.stx_mnt_id,
    })
}

/// What is behind a link in `/proc`, to be looked at.
pub(crate) fn behind(link: &Path) -> Option<OwnedFd> {
    rustix::fs::open(link, LOOK, Mode::empty()).ok()
}

/// How a name is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// The folder is the root.
    Root,
    /// From the folder on; the root is the recorder's.
    Folder,
    /// From the folder on. Symbolic links, which can lead to another root than the recorder's, are refused.
    FolderElsewhere,
}

/// The file that a name stands for, to be looked at. Linux before 5.12 cannot follow it without waiting:
/// there is none.
///
/// # Errors
///
/// `EAGAIN` if the kernel has it not in memory.
pub(crate) fn find(folder: impl AsFd, path: &Path, from: From) -> Result<OwnedFd, Errno> {
    open(folder, path, from, ResolveFlags::CACHED)
}

/// The same of a name whose folders may be read from the folder's own mount, and from no other.
pub(crate) fn find_on_mount(folder: impl AsFd, path: &Path, from: From) -> Result<OwnedFd, Errno> {
    open(folder, path, from, ResolveFlags::NO_XDEV)
}

fn open(folder: impl AsFd, path: &Path, from: From, how: ResolveFlags) -> Result<OwnedFd, Errno> {
    let within = match from {
        From::Root => ResolveFlags::IN_ROOT,
        From::Folder => ResolveFlags::empty(),
        From::FolderElsewhere => ResolveFlags::NO_SYMLINKS,
    };
    openat2(folder, path, LOOK, Mode::empty(), how | within | ResolveFlags::NO_MAGICLINKS)
}

/// Opens a regular file that was looked at, to be read. A lease on it is not waited for.
pub(crate) fn open_regular(file: &OwnedFd) -> Option<File> {
    if !look_at(file)?.is_regular {
        return None;
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
}

/// Whether `/proc/PID/mountinfo` tells of other mounts since that was asked last.
pub(crate) fn has_changed(mounts: &File) -> bool {
    let mut asked = libc::pollfd { fd: mounts.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
    // SAFETY: one live entry, and no time to wait.
    let some = unsafe { libc::poll(&raw mut asked, 1, 0) };
    some != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_regular_files_are_opened_and_no_name_is_followed_out_of_its_root() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        std::fs::create_dir(at("below")).unwrap();
        symlink("/file", at("link")).unwrap();
        let fifo = CString::new(at("fifo").as_os_str().as_bytes()).unwrap();
        // SAFETY: the name is a live string.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o700) }, 0);
        let root = behind(folder.path()).unwrap();
        let found = |name: &str, from| {
            find(&root, Path::new(name), from).or_else(|_| find_on_mount(&root, Path::new(name), from))
        };
        if find(&root, Path::new("file"), From::Root).err() == Some(Errno::INVAL) {
            return eprintln!("skipped: Linux before 5.12");
        }
        for name in ["file", "/file", "link", "below/../../../link"] {
            let file = found(name, From::Root).unwrap();
            assert_eq!(look_at(&file).unwrap().bytes, 4, "{name}");
            assert!(open_regular(&file).is_some());
        }
        // Opening this one would wait for a writer.
        for name in ["fifo", "below"] {
            let other = found(name, From::Folder).unwrap();
            assert!(!look_at(&other).unwrap().is_regular && open_regular(&other).is_none(), "{name}");
        }
        assert_eq!(found("link", From::FolderElsewhere).err(), Some(Errno::LOOP));
        assert!(found("link", From::Folder).is_err(), "it leads to the recorder's root");
        let proc = behind(Path::new("/proc")).unwrap();
        assert!(find_on_mount(&proc, Path::new("self/root/proc"), From::Folder).is_err());
    }

    #[test]
    fn mounts_have_not_changed_while_nothing_is_mounted() {
        // Other tests mount in namespaces of their own.
        let mounts = File::open("/proc/self/mountinfo").unwrap();
        while has_changed(&mounts) {}
    }
}
