//! The files that stopped threads name, found without waiting.

use super::mounts::{Mounts, Opened, Served};
use crate::sys::Tid;
use crate::sys::named::{self, From, Looked};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// The file behind a descriptor of a thread, unless it is served elsewhere.
pub(crate) fn behind(mounts: &mut Mounts, tid: Tid, fd: i32) -> Option<Looked> {
    let opened = Opened::of(tid, fd)?;
    let is_here = mounts.of(tid, fd, opened) == Served::Here;
    is_here.then(|| named::look_behind(&descriptor(tid, fd))).flatten()
}

/// The file that a thread names by a path, which may begin in the folder of a descriptor, to be looked at.
/// None that is served elsewhere is asked for it.
pub(crate) fn find(mounts: &mut Mounts, tid: Tid, folder: i32, path: &Path) -> Option<OwnedFd> {
    let (link, rest) = match own(tid, path) {
        Some(found) => found?,
        None if path.is_absolute() => (PathBuf::from(format!("/proc/{tid}/root")), path.to_path_buf()),
        None if folder == libc::AT_FDCWD => (PathBuf::from(format!("/proc/{tid}/cwd")), path.to_path_buf()),
        None => (descriptor(tid, folder), path.to_path_buf()),
    };
    let start = named::behind(&link)?;
    if rest.as_os_str().is_empty() {
        return Some(start);
    }
    let from = match rest.is_absolute() {
        true => From::Root,
        false if has_own_root(tid) => From::FolderElsewhere,
        false => From::Folder,
    };
    match named::find(&start, &rest, from) {
        Err(Errno::AGAIN) if mounts.of_own(tid, &start) == Served::Here => {
            named::find_on_mount(&start, &rest, from).ok()
        }
        found => found.ok(),
    }
}

/// The file of a thread's descriptor, as a link.
pub(crate) fn descriptor(tid: Tid, fd: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{tid}/fd/{fd}"))
}

/// Names that lead each process to what is its own: the link of this thread that one stands for, and what
/// comes after it. `Some(None)` for others in these folders.
fn own(tid: Tid, path: &Path) -> Option<Option<(PathBuf, PathBuf)>> {
    let of_thread =
        ["/proc/self", "/proc/thread-self"].into_iter().find_map(|own| path.strip_prefix(own).ok());
    let streams = ["/dev/stdin", "/dev/stdout", "/dev/stderr"];
    let place = if let Some(fd) = streams.iter().position(|stream| path == Path::new(stream)) {
        PathBuf::from(format!("fd/{fd}"))
    } else if let Ok(rest) = path.strip_prefix("/dev/fd") {
        Path::new("fd").join(rest)
    } else {
        of_thread?.to_path_buf()
    };
    let mut parts = place.components();
    let first = parts.next();
    let link = match first {
        Some(Component::Normal(name)) if name == "fd" => match parts.next() {
            Some(Component::Normal(fd)) => Path::new("fd").join(fd),
            _ => return Some(None),
        },
        Some(Component::Normal(name)) if name == "root" || name == "cwd" || name == "exe" => {
            PathBuf::from(name)
        }
        _ => return Some(None),
    };
    let rest = match link == Path::new("root") {
        true => Path::new("/").join(parts.as_path()),
        false => parts.as_path().to_path_buf(),
    };
    Some(Some((Path::new(&format!("/proc/{tid}")).join(link), rest)))
}

/// Whether the root of a thread is another folder than that of the recorder.
fn has_own_root(tid: Tid) -> bool {
    let root = |link: &str| named::look_behind(Path::new(link)).map(|root| (root.mount, root.inode));
    root(&format!("/proc/{tid}/root")) != root("/proc/self/root")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn names_of_a_process_s_own_lead_to_what_is_that_thread_s() {
        let own = |path: &str| own(7, Path::new(path));
        let found = |link: &str, rest: &str| Some(Some((PathBuf::from(link), PathBuf::from(rest))));
        assert_eq!(own("/proc/self/fd/3"), found("/proc/7/fd/3", ""));
        assert_eq!(own("/proc/thread-self/cwd/a/../b"), found("/proc/7/cwd", "a/../b"));
        assert_eq!(own("/proc/self/root/a"), found("/proc/7/root", "/a"));
        assert_eq!(own("/dev//fd/12"), found("/proc/7/fd/12", ""));
        assert_eq!(own("/dev/stdout"), found("/proc/7/fd/1", ""));
        assert_eq!(
            (own("/proc/self/fd"), own("/proc/self/comm"), own("/dev/fd")),
            (Some(None), Some(None), Some(None))
        );
        assert_eq!((own("/dev/null"), own("proc/self/fd/3"), own("/dev/stdout/x")), (None, None, None));
    }

    /// This process is asked for what it names itself.
    #[test]
    fn files_are_found_by_each_name_that_leads_to_them() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), [1; 5]).unwrap();
        let file = File::open(folder.path().join("file")).unwrap();
        let above = File::open(folder.path()).unwrap();
        let tid = rustix::thread::gettid().as_raw_pid();
        let expected = named::look_at(&file).unwrap();
        let mut mounts = Mounts::default();
        let mut look = |folder: i32, path: &Path| {
            find(&mut mounts, tid, folder, path).and_then(|file| named::look_at(&file))
        };
        if look(libc::AT_FDCWD, Path::new("/")).is_none() {
            return eprintln!("skipped: Linux before 5.12");
        }
        let by_descriptor = format!("/dev/fd/{}", file.as_raw_fd());
        let below_descriptor = format!("/proc/self/fd/{}/file", above.as_raw_fd());
        let from_root = format!("/proc/self/root/{}/file", folder.path().display());
        let whole = folder.path().join("file");
        for path in [Path::new(&by_descriptor), Path::new(&below_descriptor), Path::new(&from_root), &whole] {
            assert_eq!(look(libc::AT_FDCWD, path), Some(expected), "{}", path.display());
        }
        assert_eq!(look(above.as_raw_fd(), Path::new("file")), Some(expected));
        assert_eq!(look(file.as_raw_fd(), Path::new("")), Some(expected));
        assert_eq!(look(above.as_raw_fd(), Path::new("none")), None);
        let expected = (expected.device, expected.inode, 5);
        let found = behind(&mut mounts, tid, file.as_raw_fd()).unwrap();
        assert_eq!((found.device, found.inode, found.bytes), expected);
    }
}
