//! Which files have ended: inotify tells when an inode has lost its last name, its last descriptor and its
//! last mapping. A watch keeps none of these.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Inodes that are watched until they end.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// `None` before the first watch, and where there can be no queue.
    queue: Option<OwnedFd>,
}

impl Ends {
    /// Watches what a path leads to, and returns the number of the watch, which is one for each inode. `None`
    /// where that is not possible.
    pub(crate) fn watch(&mut self, path: &Path) -> Option<i32> {
        if self.queue.is_none() {
            self.queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok();
        }
        inotify::add_watch(self.queue.as_ref()?, path, WatchFlags::DELETE_SELF).ok()
    }

    /// The watches of inodes that have ended since this was asked last. They are no more.
    pub(crate) fn ended(&self) -> Vec<i32> {
        let Some(queue) = &self.queue else { return Vec::new() };
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(queue, &mut room);
        let mut ended = Vec::new();
        // It would block when there is no more.
        while let Ok(event) = events.next() {
            // Also where the file system was unmounted.
            if event.events().contains(ReadFlags::IGNORED) {
                ended.push(event.wd());
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::descriptor::Untouched;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_memfd_ends_with_its_last_descriptor_and_mapping() {
        let mut ends = Ends::default();
        assert_eq!(ends.ended(), []);
        let file = memfd_create(c"x", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let watch = ends.watch(Path::new(&path)).expect("inotify");
        assert_eq!(ends.watch(Path::new(&path)), Some(watch));
        let mapping = Untouched::map(&file, 4096, ProtFlags::READ, MapFlags::SHARED, 0).unwrap();
        drop(file);
        assert_eq!(ends.ended(), []);
        drop(mapping);
        assert_eq!(ends.ended(), [watch]);
        assert_eq!(ends.watch(Path::new("/proc/self/fd/4000")), None);
    }
}
