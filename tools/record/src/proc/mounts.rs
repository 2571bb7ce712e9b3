//! What may be asked of a file without waiting for a process that the recorder traces, or for a network.
//!
//! Files of FUSE are served by processes, which may be stopped for the recorder; no signal ends that. So a
//! file system is asked for nothing, not even for the size of a file or its own type, before `/proc` has told
//! what it is.

use super::Keyed;
use crate::sys::Tid;
use crate::sys::named;
use quire_trace::event::TmpfsHuge;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Types of file systems whose files another process or another machine serves, and what `statfs` calls
/// them.
const ELSEWHERE: [(&str, u64); 15] = [
    ("fuse", FUSE),
    ("fuseblk", FUSE),
    ("autofs", 0x0187),
    ("nfs", 0x6969),
    ("nfs4", 0x6969),
    ("cifs", 0xff53_4d42),
    ("smb3", 0xfe53_4d42),
    ("9p", 0x0102_1997),
    ("afs", 0x6b41_4653),
    ("ceph", 0x00c3_6400),
    ("coda", 0x7375_7245),
    ("lustre", 0x0bd0_0bd0),
    ("orangefs", 0x2003_0528),
    ("gfs2", 0x0116_1970),
    ("ocfs2", 0x7461_636f),
];
const FUSE: u64 = 0x6573_5546;
const OVERLAYFS: u64 = 0x794c_7630;

/// Who serves the files of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// The kernel, from memory or a device.
    Here,
    /// Another process or another machine.
    Elsewhere(FileSystem),
}

/// A file system of which nothing is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FileSystem {
    pub(crate) device: u64,
    /// `statfs`'s type; 0 if it is not known.
    pub(crate) kind: u64,
    pub(crate) no_exec: bool,
}

/// A descriptor, as `/proc/TID/fdinfo` tells of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opened {
    /// One of the `O_ACCMODE` values; -1 for `O_PATH`.
    pub(crate) mode: i32,
    pub(crate) mount: u64,
    /// 0 before Linux 5.14.
    pub(crate) inode: u64,
}

impl Opened {
    /// `None` if it is not open.
    pub(crate) fn of(tid: Tid, fd: i32) -> Option<Self> {
        Self::parse(fs::read_to_string(format!("/proc/{tid}/fdinfo/{fd}")).ok()?)
    }

    pub(crate) fn may_read(self) -> bool {
        self.mode == libc::O_RDONLY || self.mode == libc::O_RDWR
    }

    pub(crate) fn may_write(self) -> bool {
        self.mode == libc::O_WRONLY || self.mode == libc::O_RDWR
    }

    /// A descriptor of this process.
    fn own(file: &OwnedFd) -> Option<Self> {
        Self::parse(fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?)
    }

    fn parse(text: String) -> Option<Self> {
        let text = Keyed(text);
        let flags = i32::from_str_radix(text.word("flags")?, 8).ok()?;
        let mode = if flags & libc::O_PATH == 0 { flags & libc::O_ACCMODE } else { -1 };
        Some(Self { mode, mount: text.number("mnt_id")?, inode: text.number("ino").unwrap_or(0) })
    }
}

/// The mounts of the recorder's own namespace, and how those of others are found.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    /// `None` before the first use, and where it cannot be read. It is open so that it tells of changes.
    own: Option<(File, Table)>,
}

/// The mounts of a namespace.
#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<u64, Served>,
    by_device: HashMap<u64, Served>,
    /// Of file systems in memory, by their devices.
    huge: HashMap<u64, TmpfsHuge>,
}

impl Mounts {
    /// Who serves the file of a descriptor of a thread. Nothing is asked of the file.
    pub(crate) fn of(&mut self, tid: Tid, fd: i32, opened: Opened) -> Served {
        let found = self.find(tid, |table| table.by_id.get(&opened.mount).copied());
        found.unwrap_or_else(|| {
            let path = PathBuf::from(format!("/proc/{tid}/fd/{fd}"));
            // What has no place in a file system is the kernel's own: pipes, rings.
            if fs::read_link(&path).is_ok_and(|name| !name.starts_with("/")) {
                return Served::Here;
            }
            named::look_behind(&path)
                .map_or(Served::Elsewhere(FileSystem::default()), |file| unlisted(file.device))
        })
    }

    /// Who serves a file of this process that was opened with `O_PATH` below a folder of that thread.
    pub(crate) fn of_own(&mut self, tid: Tid, file: &OwnedFd) -> Served {
        let found = Opened::own(file)
            .and_then(|opened| self.find(tid, |table| table.by_id.get(&opened.mount).copied()));
        let unknown = || named::look_at(file).map(|file| unlisted(file.device));
        found.or_else(unknown).unwrap_or(Served::Elsewhere(FileSystem::default()))
    }

    /// Who serves the files of a device, as `/proc/TID/maps` names it.
    pub(crate) fn of_device(&mut self, tid: Tid, device: u64) -> Served {
        let found = self.find(tid, |table| table.by_device.get(&device).copied());
        found.unwrap_or_else(|| unlisted(device))
    }

    /// Which folios may be large of the file system in memory with this device, if that is mounted where the
    /// recorder or the thread is.
    pub(crate) fn huge(&mut self, tid: Tid, device: u64) -> Option<TmpfsHuge> {
        self.find(tid, |table| table.huge.get(&device).copied())
    }

    /// A mount that a thread can have: one of the recorder's namespace, or of the thread's own.
    fn find<T>(&mut self, tid: Tid, find: impl Fn(&Table) -> Option<T>) -> Option<T> {
        self.refresh();
        let own = self.own.as_ref().and_then(|(_, table)| find(table));
        // A descriptor that is kept would keep another namespace's root from being unmounted.
        own.or_else(|| find(&Table::parse(&super::text(tid, "mountinfo"))))
    }

    /// Reads the own ones if they changed. An id that is free may be another mount's next.
    fn refresh(&mut self) {
        if self.own.is_none() {
            self.own = File::open("/proc/self/mountinfo").ok().map(|file| (file, Table::default()));
        } else if self.own.as_ref().is_some_and(|(file, _)| !named::has_changed(file)) {
            return;
        }
        if let Some((file, table)) = &mut self.own {
            let mut text = Vec::new();
            let read = file.rewind().and_then(|()| file.read_to_end(&mut text));
            *table =
                read.map_or_else(|_| Table::default(), |_| Table::parse(&String::from_utf8_lossy(&text)));
        }
    }
}

impl Table {
    /// Of `/proc/PID/mountinfo`: `ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS TAGS.. - TYPE SOURCE OPTIONS`.
    fn parse(text: &str) -> Self {
        let mut table = Self::default();
        let mut elsewhere: Vec<PathBuf> = Vec::new();
        let mut overlays = Vec::new();
        for line in text.lines() {
            let Some((mount, system)) = line.split_once(" - ") else { continue };
            let mut words = mount.split(' ');
            let (Some(id), Some(device)) = (words.next(), words.nth(1)) else { continue };
            let (Some(place), Some(options)) = (words.nth(1), words.next()) else { continue };
            let (Ok(id), Some(device)) = (id.parse::<u64>(), device_of(device)) else { continue };
            let mut words = system.split(' ');
            let kind = words.next().unwrap_or_default();
            let layers = words.nth(1).unwrap_or_default();
            let no_exec = options.split(',').any(|option| option == "noexec");
            let served = match served_elsewhere(kind, layers) {
                Some(kind) => {
                    elsewhere.push(unescape(place));
                    Served::Elsewhere(FileSystem { device, kind, no_exec })
                }
                None => Served::Here,
            };
            if kind == "tmpfs" {
                table.huge.insert(device, huge_of(layers));
            }
            if kind == "overlay" {
                overlays.push((id, layers, FileSystem { device, kind: OVERLAYFS, no_exec }));
            }
            table.insert(id, device, served);
        }
        // An overlay is served by who serves its layers.
        for (id, layers, system) in overlays {
            if layers_of(layers).any(|layer| elsewhere.iter().any(|place| layer.starts_with(place))) {
                table.insert(id, system.device, Served::Elsewhere(system));
            }
        }
        table
    }

    fn insert(&mut self, id: u64, device: u64, served: Served) {
        self.by_id.insert(id, served);
        self.by_device.insert(device, served);
    }
}

/// `statfs`'s type, if files of this type of file system are served elsewhere.
fn served_elsewhere(kind: &str, options: &str) -> Option<u64> {
    // The host of a virtual machine is no process that is traced, and is there as a disk is.
    if kind == "9p" && options.split(',').any(|option| option == "trans=virtio") {
        return None;
    }
    let kind = if kind.starts_with("fuse.") { "fuse" } else { kind };
    ELSEWHERE.iter().find(|(name, _)| *name == kind).map(|(_, magic)| *magic)
}

/// The option `huge` of a file system in memory. Linux shows it where it is not `never`.
fn huge_of(options: &str) -> TmpfsHuge {
    let word = options.split(',').find_map(|option| option.strip_prefix("huge="));
    let found = TmpfsHuge::ALL.into_iter().find(|huge| Some(huge.name()) == word);
    found.unwrap_or(TmpfsHuge::Never)
}

/// The folders that an overlay lies over.
fn layers_of(options: &str) -> impl Iterator<Item = PathBuf> {
    let options = options.split(',').filter_map(|option| option.split_once('='));
    let layers =
        options.filter(|(key, _)| ["lowerdir", "upperdir", "datadir"].contains(&key.trim_end_matches('+')));
    layers.flat_map(|(_, places)| places.split(':').map(unescape))
}

fn device_of(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// A path without the escapes of `mountinfo`: three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = (byte == b'\\').then(|| after.get(..3)).flatten();
        let code = digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}

/// Who serves a device of which no mount is listed: a file system of the kernel's own, as that of memfd, or
/// one whose mount has no place. FUSE and NFS have an entry of their own among the devices that are written
/// to.
fn unlisted(device: u64) -> Served {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let entry = |suffix| Path::new(&format!("/sys/class/bdi/{major}:{minor}{suffix}")).exists();
    let is_known = Path::new("/sys/class/bdi").exists();
    if !is_known || entry("-fuseblk") || major == 0 && entry("") {
        return Served::Elsewhere(FileSystem { device, ..FileSystem::default() });
    }
    Served::Here
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_others_serve_are_told_from_those_of_the_kernel() {
        let text = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            30 27 0:40 / /mnt/a\\040b rw,nosuid,noexec - fuse.sshfs host: rw,user_id=0\n\
            31 27 8:1 / /ntfs rw - fuseblk /dev/sda1 rw\n\
            32 27 0:41 / /net rw - nfs4 server:/ rw\n\
            33 27 0:42 / /host rw - 9p host rw,trans=virtio\n\
            34 27 0:43 / /far rw - 9p host rw,trans=tcp\n\
            35 27 0:44 / /vm rw - virtiofs vm rw\n\
            36 27 0:45 / /one rw - overlay o rw,lowerdir=/var/l:/var/m,upperdir=/var/u,workdir=/mnt/a\\040b/w\n\
            37 27 0:46 / /two rw - overlay o rw,lowerdir=/var/l:/mnt/a\\040b/l\n\
            38 27 0:47 / /auto rw - autofs a rw\n\
            39 27 0:48 / /run rw - tmpfs t rw,size=1024k\n\
            40 27 0:49 / /dev/shm rw - tmpfs t rw,size=1024k,huge=within_size,inode64\n\
            not a line\n";
        let table = Table::parse(text);
        let elsewhere = |id: u64| match table.by_id[&id] {
            Served::Here => None,
            Served::Elsewhere(system) => Some((system.kind, system.no_exec)),
        };
        let found: Vec<_> = (30..39).map(elsewhere).collect();
        let (fuse, nfs, overlay) = (Some((FUSE, false)), Some((0x6969, false)), Some((OVERLAYFS, false)));
        let plan9 = Some((0x0102_1997, false));
        assert_eq!(
            found,
            [Some((FUSE, true)), fuse, nfs, None, plan9, None, None, overlay, Some((0x0187, false))]
        );
        assert_eq!(elsewhere(27), None);
        assert_eq!(table.by_device[&libc::makedev(8, 1)], table.by_id[&31]);
        assert_eq!(table.by_id.len(), 12);
        let huge = |minor| table.huge.get(&libc::makedev(0, minor)).copied();
        assert_eq!([47, 48, 49].map(huge), [None, Some(TmpfsHuge::Never), Some(TmpfsHuge::WithinSize)]);
    }

    /// Files of the kernel's own file systems have no mount that is listed.
    #[test]
    fn what_lies_on_no_mount_is_asked_if_the_kernel_serves_it() {
        if !Path::new("/sys/class/bdi").exists() {
            return eprintln!("skipped: /sys is not mounted");
        }
        let tid = rustix::thread::gettid().as_raw_pid();
        let memfd = rustix::fs::memfd_create(c"x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let (pipe, _end) = crate::sys::pipe().unwrap();
        let mut mounts = Mounts::default();
        for file in [&memfd, &pipe] {
            let opened = Opened::of(tid, file.as_raw_fd()).unwrap();
            assert_eq!(mounts.find(tid, |table| table.by_id.get(&opened.mount).copied()), None);
            assert_eq!(mounts.of(tid, file.as_raw_fd(), opened), Served::Here);
        }
        let system = Opened::own(&File::open("/proc/self/status").unwrap().into()).unwrap();
        assert_eq!((system.mode, Opened::of(tid, -1)), (libc::O_RDONLY, None));
    }
}
