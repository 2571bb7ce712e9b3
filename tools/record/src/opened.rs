//! Whether the program opens certain files.
//!
//! fanotify(7) names the process of each opening. The recorder looks when it does its periodic work, and
//! before it forgets a process.

use super::sys::Tid;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Files that are watched for being opened.
#[derive(Debug)]
pub(crate) struct OpenedFiles {
    fanotify: Fanotify,
}

impl OpenedFiles {
    /// Watches these files from now on. `None` if none of them can be, as without `CAP_SYS_ADMIN`.
    pub(crate) fn watch(files: &[PathBuf]) -> Option<Self> {
        if files.is_empty() {
            return None;
        }
        let flags = InitFlags::FAN_CLASS_NOTIF | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK;
        let fanotify = Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC).ok()?;
        let mark = |file: &&PathBuf| {
            let here = rustix::fs::CWD;
            fanotify.mark(MarkFlags::FAN_MARK_ADD, MaskFlags::FAN_OPEN, here, Some(file.as_path())).is_ok()
        };
        let marked = files.iter().filter(mark).count();
        (marked > 0).then_some(Self { fanotify })
    }

    /// The first file that a process which `is_followed` opened since the last look.
    pub(crate) fn first(&self, is_followed: impl Fn(Tid) -> bool) -> Option<PathBuf> {
        let events = std::iter::from_fn(|| self.fanotify.read_events().ok().filter(|some| !some.is_empty()));
        events.flatten().filter(|event| is_followed(event.pid())).find_map(|event| {
            let opened = event.fd()?.as_raw_fd();
            std::fs::read_link(Path::new("/proc/self/fd").join(opened.to_string())).ok()
        })
    }
}
